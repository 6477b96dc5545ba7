"""Metric lines → MLflow: the driver's mirror of what the runs recorded.

The lines in the run directories are the truth; this copies them, so it may fail, be repeated or never happen without
losing anything. One MLflow run per training run (`electra.kind` tells a first stage from an arm's own), a child run per
fine-tuning, one run for the experiment as a whole with configuration and report as artifacts. The store is the one
MLFLOW_TRACKING_URI names, by default one SQLite file in the experiment's directory.

* Replaying doubles nothing. A line goes with its own step and time, and a line that arrived (its `attempt` point is
  there) is not sent again. Of an unfinished run only what a checkpoint covers is sent: later steps may be redone. What
  is covered is read from the run's events; no checkpoint is looked at.
* No step has two values. Where a rollback, or a restart from an older checkpoint, has left lines behind that were sent,
  which MLflow cannot take back, the trajectory that survives goes to another MLflow run.
* `electra.superseded` says of every training run whether its trajectory was left in this way, and of every fine-tuning
  whether the results of now no longer hold it.
* Status is truthful: FINISHED with `done.json`; otherwise RUNNING while the caller trains, KILLED when it does not,
  because whoever calls holds the directory: a run that a dead driver left open is closed, and reopened when it goes on.
* A server out of reach costs a warning. A broken local store is an error, because it is ours.
* `.tracking.json` remembers what was sent where. It only saves time: without it the next call compares everything.
"""

import json
import logging
import math
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from data_prep import storage
from data_prep.errors import DataError, PreflightError
from data_prep.settings import fingerprint
from pipeline import gather, tracking_cursor
from pipeline.gather import Contents, Run
from pipeline.mlflow_store import Point, Store, flatten, quick_to_fail

TRACKING_URI = "MLFLOW_TRACKING_URI"
_RESUMES_AT = {"started": "step", "saved": "step", "rollback": "to_step"}  # events, and where they say it
_ARTIFACTS = ("config.yaml", "corpus/manifest.json", "report/report.html", "report/report.json", "report/curve.svg")


class Voice(Protocol):
    """Where a warning goes: `pipeline.console.Console`, or anything that can warn."""

    def warn(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSummary:
    """What a call did. `runs` and `finetunings` are those there are to mirror; `points` is metric values sent now,
    `changed` how many of the things mirrored were out of date."""

    uri: str  # without credentials
    reachable: bool
    runs: int
    finetunings: int
    points: int
    changed: int


@dataclass(frozen=True, slots=True)
class _Item:
    """One thing to mirror; it is sent when the cursor holds no or another version of it."""

    key: str
    version: str
    send: Callable[[Store], int]


def sync(out: Path, *, console: Voice | None = None, training: bool = False) -> SyncSummary:
    """Mirror what is new in the experiment directory `out`. The caller holds the directory; `training` says that it is
    training now.

    A server out of reach, or one that refuses, is one warning and `reachable=False`. PreflightError when the embedded
    store or a named SQLite file cannot be used; DataError when there is no experiment or a record in it is broken.
    """
    out = out.resolve()
    contents = gather.read(out)
    named = os.environ.get(TRACKING_URI)
    uri = named or f"sqlite:///{out / 'mlflow.db'}"
    address = tracking_cursor.public(uri)
    plan = _Plan(contents, training)
    cursor = tracking_cursor.load(out, uri)
    waiting = [item for item in plan.items if cursor.get(item.key) != item.version]
    points, problem = 0, None
    if waiting:
        try:
            points = _send(contents, waiting, uri, not named, cursor)
        except _errors() as error:
            problem = _sentence(error)
        finally:
            tracking_cursor.save(out, uri, cursor)
    if problem is not None and uri.startswith("sqlite:"):
        raise PreflightError(
            f"{address} cannot be used as MLflow store ({problem}); move that file away and sync again: "
            "everything in it is in the run directories too."
        )
    if problem is not None:
        _warn(
            console,
            f"MLflow at {address} cannot be reached or refuses ({problem}); nothing is lost, the same command "
            "again sends what is missing.",
        )
    return SyncSummary(
        uri=address,
        reachable=problem is None,
        runs=len(plan.runs),
        finetunings=len(plan.finetunings),
        points=points,
        changed=len(waiting),
    )


def _send(contents: Contents, waiting: list[_Item], uri: str, embedded: bool, cursor: dict[str, str]) -> int:
    """Send the items in order, marking each in the cursor as it arrives; returns how many metric values went."""
    with quick_to_fail():
        store = Store(uri, contents.name, contents.out / "mlartifacts" if embedded else None)
        points = 0
        for item in waiting:
            points += item.send(store)
            cursor[item.key] = item.version
    return points


def _errors() -> tuple[type[Exception], ...]:
    """What a store or server that does not work raises; MLflow lets some of its database's errors through."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return (MlflowException, SQLAlchemyError, OSError)


# --- what there is to mirror ----------------------------------------------------------------------------------------


class _Plan:
    """The experiment as items, in an order in which each finds its parent."""

    def __init__(self, contents: Contents, training: bool) -> None:
        self._contents = contents
        self._training = training
        started = [(run, first_time(run.folder)) for run in [*contents.runs, *contents.first_stages]]
        self._first = {run.name: time for run, time in started if time is not None}
        self.runs = [run for run, time in started if time is not None]
        self._by_name = {run.name: run for run in self.runs}
        results = gather.condensed(contents.results)
        self.finetunings = [result for result in results if result["run"] in self._by_name]
        self._settled = {run.name: _settled(run) for run in self.runs}  # once: what is sent is what versions speak of

    @cached_property
    def items(self) -> list[_Item]:
        """Training runs, their fine-tunings, the experiment."""
        items = [_Item(self._run_key(run), self._run_version(run), self._sender(run)) for run in self.runs]
        for result in self.finetunings:
            items.append(_Item(self._finetuning_key(result), "sent", self._finetuning_sender(result)))
        for run in self.runs:
            own = {self._finetuning_key(result) for result in self.finetunings if result["run"] == run.name}
            items.append(
                _Item(f"{self._run_key(run)}#current", fingerprint(sorted(own)), self._current_sender(run, own))
            )
        files = [path for name in _ARTIFACTS if (path := self._contents.out / name).is_file()]
        if self.runs:
            version = fingerprint([self._whole_status(), {path.name: storage.sha256_of(path) for path in files}])
            items.append(_Item(self._whole_key(), version, lambda store: self._send_whole(store, files)))
        return items

    # Keys hold the time of a run's first line: another directory's run of the same name is another run.

    def _run_key(self, run: Run) -> str:
        return f"{self._contents.name}/{run.name}@{self._first[run.name]}"

    def _finetuning_key(self, result: dict[str, Any]) -> str:
        """Names the result's content, so that a fine-tuning done anew under other rules is another run."""
        content = {name: value for name, value in result.items() if name not in ("seconds", "cpu_seconds")}
        suffix = f"{result['suite']}/{result['task']}/{result['finetune_seed']}/{fingerprint(content)[:16]}"
        return f"{self._run_key(self._by_name[result['run']])}/{suffix}"

    def _whole_key(self) -> str:
        return f"{self._contents.name}@{min(self._first.values())}"

    # Training runs

    def _run_version(self, run: Run) -> str:
        newest = [[line["step"], line["time"]] for line in self._settled[run.name][-1:]]
        return fingerprint([newest, run.done, self._status(run), run.identity, run.placement])

    def _status(self, run: Run) -> str:
        return "FINISHED" if run.done is not None else "RUNNING" if self._training else "KILLED"

    def _sender(self, run: Run) -> Callable[[Store], int]:
        return lambda store: self._send_run(store, run)

    def _live_key(self, store: Store, run: Run) -> tuple[str, set[tuple[int, int]]]:
        """The MLflow run of the trajectory that survives, made already or not, and (step, time) of the lines it holds.
        Newer ones that hold other lines are closed as superseded."""
        first = self._run_key(run)
        later = sorted(int(key.removeprefix(f"{first}~")) for key in store.keys(f"{first}~"))
        surviving = {(line["step"], _ms(line["time"])) for line in run.lines}
        made = [key for key in (first, *(f"{first}~{number}" for number in later)) if store.has(key)]
        for key in reversed(made):
            held = store.sent(key, "attempt")
            if held <= surviving:
                return key, held
            store.tag(key, {"electra.superseded": "true"})
            store.set_status(key, "KILLED", max(when for _, when in held))
        return (f"{first}~{max(later, default=0) + 1}" if made else first), set()

    def _send_run(self, store: Store, run: Run) -> int:
        key, arrived = self._live_key(store, run)
        whole = {"electra.kind": "training", "electra.arm": run.arm}
        tags = {
            **(whole if run.part_of is None else {"electra.kind": "first stage", "electra.part_of": run.part_of}),
            "electra.superseded": "false",
            "electra.objective": run.objective,
            "electra.budget": f"{run.budget:.6g}",
            "electra.manifest_sha256": str(run.identity.get("manifest_sha256", "")),
            "electra.tokenizer_sha256": str(run.identity.get("tokenizer_sha256", "")),
        }
        code = {} if store.has(key) else _code_version()  # of the driver that first saw the run
        store.open(key, name=run.name, start=self._first[run.name], tags={**tags, **code})
        store.describe(key, flatten({"identity": run.identity, "placement": run.placement, **_facts(run)}))
        lines = [line for line in self._settled[run.name] if (line["step"], _ms(line["time"])) not in arrived]
        points = store.log(key, [_points(line) for line in lines])
        end = _ms(run.lines[-1]["time"])
        if run.done is not None and not store.sent(key, "done/flops_counted"):
            points += store.log(key, [_final(run.done, end)])
        if run.degenerate:
            store.tag(key, {"electra.degenerate": run.degenerate})
        store.set_status(key, self._status(run), end)
        return points

    # Fine-tunings

    def _finetuning_sender(self, result: dict[str, Any]) -> Callable[[Store], int]:
        predictions = self._contents.out / "evaluation" / result["predictions"]
        if not predictions.exists():
            record = gather.record_of(self._contents.out, result)
            raise DataError(f"{predictions} is missing; delete {record} and run `electra evaluate` again.")
        ended = _ms(predictions.stat().st_mtime)
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
        parent, _ = self._live_key(store, run)
        if not store.has(parent):  # removed from the store by hand
            self._send_run(store, run)
        tags = {"electra.kind": "fine-tuning", "electra.suite": result["suite"], "electra.arm": result["arm"]}
        name = f"{result['task']} {result['finetune_seed']} · {run.name}"
        start = ended - round(1000 * result["seconds"])
        store.open(key, name=name, start=start, tags=tags, parent=parent)
        facts = (
            "suite",
            "task",
            "metric",
            "finetune_seed",
            "n_train",
            "n_dev",
            "subset",
            "in_mean",
            "degenerate",
            "step",
        )
        store.describe(key, flatten({name: result[name] for name in facts} | {"protocol": result["protocol"]}))
        end = store.start_time(key) + round(1000 * result["seconds"])  # of the first try, if this is the second
        values = {**result["metrics"], "score": result["score"], "majority": result["majority"]}
        points = store.log(key, [[Point(n, float(v), end, result["step"]) for n, v in values.items()]])
        # under other rules it is another quantity: one name must not get two values for a step
        rules = fingerprint([result["protocol"], result.get("data_sha256")])[:8]
        of_parent = f"eval/{result['suite']}/{result['task']}/{result['finetune_seed']}/{rules}"
        when = _ms(run.lines[-1]["time"])
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
        store.open(key, name=self._contents.name, start=min(self._first.values()), tags={"electra.kind": "experiment"})
        store.attach(key, files)
        end = max(_ms(run.lines[-1]["time"]) for run in self.runs)
        store.set_status(key, self._whole_status(), end)
        return 0


def first_time(run_dir: Path) -> int | None:
    """When a run's first metric line was written, ms; None before. Lines are only appended, so it never changes."""
    for path in sorted((run_dir / "metrics").glob("A-*.jsonl")):
        with path.open(encoding="utf-8") as file:
            line = file.readline()
        if line.endswith("\n"):  # otherwise torn by a kill
            return _ms(json.loads(line)["time"])
    return None


def _settled(run: Run) -> list[dict[str, Any]]:
    """The lines that no restart is to redo: all of a finished run's, otherwise those up to the step that it resumes at
    by its events, if that checkpoint is still whole by then."""
    if run.done is not None:
        return run.lines
    steps = [event[_RESUMES_AT[event["event"]]] for event in run.events if event["event"] in _RESUMES_AT]
    return [line for line in run.lines if steps and line["step"] <= steps[-1]]


def _points(line: dict[str, Any]) -> list[Point]:
    """A metric line's numbers; `attempt` comes with every line and tells later calls that it arrived."""
    values = {**line["values"], "attempt": line["attempt"]}
    when, step = _ms(line["time"]), int(line["step"])
    return [Point(name, float(value), when, step) for name, value in values.items() if _is_number(value)]


def _final(done: dict[str, Any], when: int) -> list[Point]:
    """The totals of a finished run as metrics `done/…` at its last step."""
    flops = ("flops_counted", "flops_spent", "flops_executed", "flops_paper")
    names = (*flops, "tokens", "seconds", "tokens_per_second")
    return [Point(f"done/{name}", float(done[name]), when, int(done["step"])) for name in names if name in done]


def _facts(run: Run) -> dict[str, Any]:
    """What is known of a run besides identity and placement."""
    found: dict[str, Any] = {"budget": run.budget, "inherited": run.inherited, "flops_per_step": run.flops_per_step}
    names = ("parameters", "world_size", "hardware", "checkpoint")
    return found | {name: run.done[name] for name in names if run.done is not None and name in run.done}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not (isinstance(value, float) and math.isinf(value))


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _code_version() -> dict[str, str]:
    """The commit of this code and whether it was changed since, where it is a git checkout."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return {}
    try:
        git = ["git", "-C", str(root)]
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
        changes = subprocess.run(
            [*git, "status", "--porcelain"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):  # no git here, or no commit yet: then there is no version to tell
        return {}
    return {"mlflow.source.git.commit": commit.stdout.strip(), "electra.git_dirty": str(bool(changes.stdout)).lower()}


# --- messages --------------------------------------------------------------------------------------------


def _sentence(error: Exception) -> str:
    """The first line of an error, short, without an address that may hold a password."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    text = re.sub(r"://[^/@\s]+@", "://", text.split(" with url: ")[0])
    return text if len(text) <= 200 else text[:199] + "…"


def _warn(console: Voice | None, text: str) -> None:
    if console is not None:
        console.warn(text)
    else:
        logging.getLogger(__name__).warning(text)
