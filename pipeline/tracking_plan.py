"""What of an experiment there is to mirror, as items that each find their parent, and how each is sent.

* Of an unfinished run only what a checkpoint covers is sent: later steps may be redone. What is covered is read from
  the run's events; no checkpoint is looked at.
* No step has two values. Where a rollback, or a restart from an older checkpoint, has left lines behind that were sent,
  which MLflow cannot take back, the trajectory that survives goes to another MLflow run.
* `electra.superseded` says of every training run whether its trajectory was left in this way, and of every fine-tuning
  whether the results of now no longer hold it.
* Status is truthful: FINISHED with `done.json`; otherwise RUNNING while the caller trains, KILLED when it does not,
  because whoever calls holds the directory: a run that a dead driver left open is closed, and reopened when it goes on.
* Files come after all figures: a server that takes no artifacts keeps no figure away.

Nothing here knows what was sent before (`pipeline.tracking`), nor how (`pipeline.mlflow_store`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from data_prep import storage
from data_prep.errors import DataError
from data_prep.settings import fingerprint
from pipeline import gather, sweep
from pipeline import tracking_records as records
from pipeline.gather import Contents, Run
from pipeline.mlflow_store import Point, Store, flatten
from pipeline.tracking_records import ms

_REPORT = ("report.html", "report.json", "scores.csv", "runs.csv", "curves.csv", "curve.svg")
_WHOLE_FILES = (gather.CONFIG_NAME, sweep.CHOSEN, "corpus/manifest.json", *(f"report/{name}" for name in _REPORT))
_RUN_FILES = ("run.json", "done.json")
_FILES_SENT = "electra.files"  # a run's tag: which version of its files it holds


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to mirror; it is sent where no or another version of it was."""

    key: str
    version: str
    send: Callable[[Store], int]  # returns how many metric values went


class Plan:
    """One directory's runs, fine-tunings and files, for one store: which trajectory of a run is the living one is asked
    once."""

    def __init__(
        self,
        contents: Contents,
        experiment: str,  # in MLflow: a sweep is in that of the experiment it belongs to
        stage: Literal["main", "sweep"],
        training: bool,
        only: str | None,
    ) -> None:
        self._contents, self.experiment, self._stage = contents, experiment, stage
        self._training, self._only = training, only
        self._name = experiment if stage == "main" else f"{experiment}/{stage}"
        found = [run for run in [*contents.runs, *contents.first_stages] if only in (None, run.name)]
        started = [(run, records.first_time(run.folder)) for run in found]
        self._first = {run.name: time for run, time in started if time is not None}
        self.runs = [run for run, time in started if time is not None]
        self._by_name = {run.name: run for run in self.runs}
        self.finetunings = records.results_of(contents, self._by_name)
        self._settled = {run.name: records.settled(run) for run in self.runs}  # once: versions speak of what is sent
        self._living: dict[str, str] = {}

    @cached_property
    def records(self) -> list[Item]:
        """Training runs, and their fine-tunings."""
        items = [Item(self._run_key(run), self._run_version(run), self._sender(run)) for run in self.runs]
        for result in self.finetunings:
            items.append(Item(self._finetuning_key(result), "sent", self._finetuning_sender(result)))
        for run in self.runs:
            own = {self._finetuning_key(result) for result in self.finetunings if result["run"] == run.name}
            version = fingerprint(sorted(own))
            items.append(Item(f"{self._run_key(run)}#current", version, self._current_sender(run, own)))
        return items

    @cached_property
    def files(self) -> list[Item]:
        """The files of every run, and those of the experiment."""
        items = [self._run_files(run) for run in self.runs]
        if self.runs and self._only is None:
            files = [path for name in _WHOLE_FILES if (path := self._contents.out / name).is_file()]
            version = fingerprint([self._whole_status(), _hashes(files)])
            items.append(Item(self._whole_key(), version, lambda store: self._send_whole(store, files)))
        return items

    # Keys hold the time of a run's first line: another directory's run of the same name is another run.

    def _run_key(self, run: Run) -> str:
        return f"{self._name}/{run.name}@{self._first[run.name]}"

    def _finetuning_key(self, result: dict[str, Any]) -> str:
        """Names the result's content, so that a fine-tuning done anew under other rules is another run."""
        content = {name: value for name, value in result.items() if name not in ("seconds", "cpu_seconds")}
        suffix = f"{result['suite']}/{result['task']}/{result['finetune_seed']}/{fingerprint(content)[:16]}"
        return f"{self._run_key(self._by_name[result['run']])}/{suffix}"

    def _whole_key(self) -> str:
        return f"{self._name}@{min(self._first.values())}"

    # Training runs

    def _run_version(self, run: Run) -> str:
        newest = [[line["step"], line["time"]] for line in self._settled[run.name][-1:]]
        return fingerprint([newest, run.done, self._status(run), run.identity, run.placement])

    def _status(self, run: Run) -> str:
        return "FINISHED" if run.done is not None else "RUNNING" if self._training else "KILLED"

    def _sender(self, run: Run) -> Callable[[Store], int]:
        return lambda store: self._send_run(store, run)

    def _find_living(self, store: Store, run: Run) -> tuple[str, set[tuple[int, int]]]:
        """The MLflow run of the trajectory that survives, made already or not, and (step, time) of the lines it holds.
        Newer ones that hold other lines are closed as superseded."""
        first = self._run_key(run)
        later = sorted(int(key.removeprefix(f"{first}~")) for key in store.keys(f"{first}~"))
        surviving = {(line["step"], ms(line["time"])) for line in run.lines}
        made = [key for key in (first, *(f"{first}~{number}" for number in later)) if store.has(key)]
        for key in reversed(made):
            held = store.sent(key, "attempt")
            if held <= surviving:
                return key, held
            store.tag(key, {"electra.superseded": "true"})
            store.set_status(key, "KILLED", max(when for _, when in held))
        return (f"{first}~{max(later, default=0) + 1}" if made else first), set()

    def _parent(self, store: Store, run: Run) -> str:
        """The living MLflow run of a training run, which is made where somebody removed it from the store."""
        if run.name not in self._living:
            self._living[run.name], _ = self._find_living(store, run)
        if not store.has(self._living[run.name]):
            self._send_run(store, run)
        return self._living[run.name]

    def _send_run(self, store: Store, run: Run) -> int:
        key, arrived = self._find_living(store, run)
        self._living[run.name] = key
        code = {} if store.has(key) else records.code_version()  # of the driver that first saw the run
        tags = records.tags(run, self._stage) | code
        store.open(key, name=run.name, start=self._first[run.name], tags=tags)
        store.describe(key, records.parameters(run))
        if (data := records.data_set(run, self._contents, self.experiment)) is not None:
            store.use(key, data)
        lines = [line for line in self._settled[run.name] if (line["step"], ms(line["time"])) not in arrived]
        points = store.log(key, [records.points_of(line) for line in lines])
        end = ms(run.lines[-1]["time"])
        if run.done is not None and not store.sent(key, "done/flops_counted"):
            points += store.log(key, [records.totals(run.done, end)])
        if run.degenerate:
            store.tag(key, {"electra.degenerate": run.degenerate})
        store.set_status(key, self._status(run), end)
        return points

    def _run_files(self, run: Run) -> Item:
        """Sent again to every MLflow run that an attempt begins."""
        files = [path for name in _RUN_FILES if (path := run.folder / name).is_file()]
        version = fingerprint(_hashes(files))

        def send(store: Store) -> int:
            key = self._parent(store, run)
            if not store.tagged(key, _FILES_SENT, version):
                store.attach(key, files)
                store.tag(key, {_FILES_SENT: version})
            return 0

        return Item(f"{self._run_key(run)}#files", f"{version}/{run.lines[-1]['attempt']}", send)

    # Fine-tunings

    def _finetuning_sender(self, result: dict[str, Any]) -> Callable[[Store], int]:
        predictions = self._contents.out / "evaluation" / result["predictions"]
        if not predictions.exists():
            record = gather.record_of(self._contents.out, result)
            raise DataError(f"{predictions} is missing; delete {record} and run `electra evaluate` again.")
        ended = ms(predictions.stat().st_mtime)
        return lambda store: self._send_finetuning(store, result, ended)

    def _current_sender(self, run: Run, current: set[str]) -> Callable[[Store], int]:
        """Says of every fine-tuning of the run in the store whether it was evaluated anew since, and is not shown."""

        def send(store: Store) -> int:
            for key in store.keys(self._run_key(run) + "/"):
                store.tag(key, {"electra.superseded": str(key not in current).lower()})
            return 0

        return send

    def _send_finetuning(self, store: Store, result: dict[str, Any], ended: int) -> int:
        key = self._finetuning_key(result)
        if store.finished(key):
            return 0
        run = self._by_name[result["run"]]
        parent = self._parent(store, run)
        name = f"{result['task']} {result['finetune_seed']} · {run.name}"
        start = ended - round(1000 * result["seconds"])
        store.open(key, name=name, start=start, tags=_finetuning_tags(result, self._stage), parent=parent)
        store.describe(key, _finetuning_parameters(result))
        end = store.start_time(key) + round(1000 * result["seconds"])  # of the first try, if this is the second
        values = {**result["metrics"], "score": result["score"], "majority": result["majority"]}
        points = store.log(key, [[Point(n, float(v), end, result["step"]) for n, v in values.items()]])
        # under other rules it is another quantity: one name must not get two values for a step
        rules = fingerprint([result["protocol"], result.get("data_sha256")])[:8]
        of_parent = f"eval/{result['suite']}/{result['task']}/{result['finetune_seed']}/{rules}"
        when = ms(run.lines[-1]["time"])
        points += store.log(parent, [[Point(of_parent, float(result["score"]), when, result["step"])]])
        store.set_status(key, "FINISHED", end)
        return points

    # The experiment

    def _whole_status(self) -> str:
        if all(run.done is not None for run in self._contents.runs):
            return "FINISHED"
        return "RUNNING" if self._training else "KILLED"

    def _send_whole(self, store: Store, files: list[Path]) -> int:
        key = self._whole_key()
        tags = {"electra.kind": "experiment", "electra.stage": self._stage}
        store.open(key, name=self._name, start=min(self._first.values()), tags=tags)
        store.attach(key, files)
        end = max(ms(run.lines[-1]["time"]) for run in self.runs)
        store.set_status(key, self._whole_status(), end)
        return 0


def _hashes(files: list[Path]) -> dict[str, str]:
    return {path.name: storage.sha256_of(path) for path in files}


def _finetuning_tags(result: dict[str, Any], stage: str) -> dict[str, str]:
    return {
        "electra.kind": "fine-tuning",
        "electra.stage": stage,
        "electra.suite": result["suite"],
        "electra.arm": result["arm"],
    }


_FACTS = ("suite", "task", "metric", "finetune_seed", "n_train", "n_dev", "subset", "in_mean", "degenerate", "step")


def _finetuning_parameters(result: dict[str, Any]) -> dict[str, str]:
    return flatten({name: result[name] for name in _FACTS} | {"protocol": result["protocol"]})
