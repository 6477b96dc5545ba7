"""An experiment's directory as plain records, for whoever tells of it: the report and the tracking mirror.

Reads what the other parts committed (`config.yaml`, `corpus/manifest.json`, `runs/`, `evaluation/results.jsonl`) and
changes nothing. What is not there yet is absent from the records, never an error; what is there and broken is a
DataError naming the file. Imports nothing heavy.
"""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from data_prep import manifest as manifests
from data_prep import storage
from data_prep.errors import ConfigError, DataError
from data_prep.manifest import Manifest
from pipeline import config as yaml_config
from pipeline import corpora
from pipeline.resampling import METRICS, Fit
from pipeline.story import Totals, tell
from training import run_folder
from training.metrics import all_lines, read_metrics

CONFIG_NAME = "config.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run: an arm at a budget with a seed. `done` is None until it finished."""

    folder: Path
    name: str
    arm: str
    objective: str
    budget: float  # model FLOPs
    seed: int
    steps: int  # planned
    identity: dict[str, Any]
    placement: dict[str, Any]
    flops_per_step: float  # planned mean, model FLOPs
    inherited: float  # of the runs it continues, model FLOPs; part of its budget
    part_of: str | None  # of a first stage: the run that continues it
    done: dict[str, Any] | None
    lines: list[dict[str, Any]]  # metric lines, one a step

    @property
    def last_step(self) -> int:
        """The newest step there is a record of, 0 before the first."""
        return int(self.lines[-1]["step"]) if self.lines else 0

    @property
    def events(self) -> list[dict[str, Any]]:
        """Everything that happened to it, read when asked for."""
        return run_folder.events(self.folder)

    @property
    def totals(self) -> Totals | None:
        """Its attempts together, by its events; None where it left none. Read when asked for."""
        return tell(self.events, all_lines(self.folder), alive=False).totals

    @property
    def degenerate(self) -> str | None:
        """What its last held-out evaluation says of a network that learned nothing."""
        return None if self.done is None else self.done.get("degenerate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything there is in an experiment's directory. A first stage is no arm: what it cost is in the ledgers of the
    run that continues it, and nobody compares it with anything."""

    out: Path
    name: str
    config: dict[str, Any]
    runs: list[Run]  # by budget, arm (in the configuration's order), seed; without first stages
    first_stages: list[Run]
    results: list[dict[str, Any]]  # lines of results.jsonl
    manifests: dict[str, Manifest]  # of the corpora that are there, by name

    @property
    def arms(self) -> list[str]:
        """All arms, in the configuration's order: what an arm's colour and marker follow."""
        return list(dict.fromkeys([*arm_labels(self.config), *(run.arm for run in self.runs)]))

    @property
    def manifest(self) -> Manifest | None:
        """Of `corpus:`; None where it is not there."""
        return self.manifests.get(corpora.MAIN)

    def corpus_of(self, run: Run) -> str:
        """The name of the corpus that a run reads."""
        return corpora.stored_name(self.config, run.arm)

    def manifest_of(self, run: Run) -> Manifest | None:
        """Of the corpus that a run reads; None where it is not there."""
        return self.manifests.get(self.corpus_of(run))

    @property
    def finished(self) -> list[Run]:
        """The runs that reached their last step."""
        return [run for run in self.runs if run.done is not None]


def read(out: Path) -> Contents:
    """Read the directory. DataError where it does not exist or a file in it is broken."""
    if not out.is_dir():
        raise DataError(f"{out} does not exist: run `electra train` or `electra quickstart` with this --out first.")
    config = read_config(out)
    order = arm_labels(config)
    runs = [_read_run(path.parent) for path in sorted(out.glob("runs/*/run.json"))]
    runs.sort(key=lambda run: (run.budget, order.index(run.arm) if run.arm in order else len(order), run.arm, run.seed))
    whole = [run for run in runs if run.part_of is None]
    return Contents(
        out=out,
        name=name_of(out),
        config=config,
        runs=whole,
        first_stages=[run for run in runs if run.part_of is not None],
        results=read_results(out),
        manifests={
            name: manifests.load(place)
            for name, place in corpus_folders(out).items()
            if place.size(manifests.FILE_NAME) is not None
        },
    )


def corpus_folder(out: Path, arm: str | None = None) -> storage.Folder:
    """Where the corpus is that an arm of the experiment reads, or without one `corpus:` itself."""
    config = read_config(out)
    return corpora.stored_place(config, corpora.stored_name(config, arm), out)


def corpus_folders(out: Path) -> dict[str, storage.Folder]:
    """Where all corpora of the experiment are, by name."""
    config = read_config(out)
    return {name: corpora.stored_place(config, name, out) for name in (corpora.MAIN, *(config.get("corpora") or {}))}


def read_config(out: Path) -> dict[str, Any]:
    """The stored configuration as plain data; empty where there is none."""
    path = out / CONFIG_NAME
    if not path.exists():
        return {}
    try:
        return yaml_config.read(path)
    except ConfigError as error:
        raise DataError(f"{error}; restore this copy of the experiment's file.") from None


def name_of(out: Path) -> str:
    """What an experiment is called: as configured, or as its directory is."""
    return str(read_config(out).get("name") or out.resolve().name)


def arm_labels(config: Mapping[str, Any]) -> list[str]:
    """The arms of a stored configuration, in its order, under the names their runs carry."""
    return [str(arm.get("name") or arm.get("objective")) for arm in config.get("arms", [])]


def _read_run(folder: Path) -> Run:
    spec = read_spec(folder)
    names = ("name", "arm", "objective", "budget", "seed", "steps", "identity", "placement", "flops_per_step")
    done = read_done(folder) if (folder / "done.json").exists() else None
    facts = {name: spec[name] for name in names} | {"inherited": spec.get("inherited", 0.0), "part_of": part_of(spec)}
    return Run(folder=folder, done=done, lines=read_metrics(folder), **facts)


def part_of(spec: Mapping[str, Any]) -> str | None:
    """Of a run.json: the run whose first stage it is, None where it stands for itself."""
    return spec.get("part_of")


# --- records ----------------------------------------------------------------------------------------------------------

_NUMBER = (int, float)
_SPEC: dict[str, Any] = {
    **dict.fromkeys(("name", "arm", "objective"), str),
    **dict.fromkeys(("budget", "flops_per_step"), _NUMBER),
    **dict.fromkeys(("seed", "steps"), int),
    **dict.fromkeys(("identity", "placement"), dict),
}
_DONE: dict[str, Any] = {
    **dict.fromkeys(("flops_counted", "flops_spent", "seconds", "tokens_per_second", "budget"), _NUMBER),
    **dict.fromkeys(("step", "tokens", "parameters", "world_size"), int),
    **dict.fromkeys(("checkpoint", "hardware"), str),
    "heldout": dict,
}
_RESULT: dict[str, Any] = {
    **dict.fromkeys(("run", "arm", "objective", "suite", "task", "metric", "predictions"), str),
    **dict.fromkeys(("score", "majority", "seconds"), _NUMBER),
    "budget": (*_NUMBER, type(None)),  # none of a model that was not trained here
    **dict.fromkeys(("seed", "step", "finetune_seed", "n_train", "n_dev"), int),
    **dict.fromkeys(("in_mean", "degenerate", "subset"), bool),
    **dict.fromkeys(("metrics", "protocol"), dict),
}


def read_spec(run_dir: Path) -> dict[str, Any]:
    """A run's run.json. DataError naming the file where it is missing or not the record of a run."""
    return _read_record(run_dir / "run.json", _SPEC, f"remove {run_dir} and run `electra train` again")


def read_done(run_dir: Path) -> dict[str, Any]:
    """A finished run's done.json. DataError as `read_spec`."""
    return _read_record(run_dir / "done.json", _DONE, f"remove {run_dir} and run `electra train` again")


def read_results(out: Path) -> list[dict[str, Any]]:
    """The lines of results.jsonl, none where it is not there. DataError naming the line that is no result."""
    path = out / "evaluation" / "results.jsonl"
    if not path.exists():
        return []
    results = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            found = json.loads(line)
        except ValueError:
            raise DataError(f"{path}:{number}: not a JSON line; run `electra evaluate` to write it anew.") from None
        results.append(_checked(found, _RESULT, f"{path}:{number}", "run `electra evaluate` to write it anew"))
    return results


def condensed(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results with BLiMP's paradigms, of which there are 67 a network, as one each: their mean, and their scores
    as its metrics."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        if result["suite"].startswith("blimp"):
            groups.setdefault((result["suite"], result["run"]), []).append(result)
    sums = {
        key: {name: sum(one.get(name, 0) for one in own) for name in ("n_dev", "seconds", "cpu_seconds")}
        for key, own in groups.items()
    }
    whole = [
        own[0]
        | {"task": "BLiMP", "score": sum(one["score"] for one in own) / len(own)}
        | {"metrics": {one["task"]: one["score"] for one in own}, **sums[key]}
        for key, own in groups.items()
    ]
    return [result for result in results if not result["suite"].startswith("blimp")] + whole


def record_of(out: Path, result: Mapping[str, Any]) -> Path:
    """The commit record of a result: what to delete for it to be made anew."""
    return out / "evaluation" / "units" / f"{Path(result['predictions']).stem}.json"


def _read_record(path: Path, kinds: Mapping[str, Any], way_out: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; restore it, or {way_out}.") from None
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON ({error}); restore it, or {way_out}.") from None
    return _checked(found, kinds, str(path), f"restore it, or {way_out}")


def _checked(found: Any, kinds: Mapping[str, Any], where: str, way_out: str) -> dict[str, Any]:
    """`found` if it is a mapping with a value of its kind under every name; DataError otherwise."""
    if not isinstance(found, dict):
        raise DataError(f"{where}: holds no record; {way_out}.")
    for name, kind in kinds.items():
        if name not in found:
            raise DataError(f"{where}: has no '{name}'; {way_out}.")
        if not isinstance(found[name], kind):
            raise DataError(f"{where}: '{name}' cannot be {str(found[name])[:40]!r}; {way_out}.")
    return found


_REAL = ("spearman", "pearson")  # metrics of values, not of classes


def fit_of(out: Path, result: dict[str, Any]) -> Fit:
    """The per-example answers behind a result. DataError where they are missing or do not give the recorded score."""
    path = out / "evaluation" / result["predictions"]
    try:
        stat = path.stat()
        metric, label, prediction, group = _answers(_arrays(path, stat.st_mtime_ns, stat.st_size), result)
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} is not readable ({error}); delete {record_of(out, result)} and run `electra evaluate` again."
        ) from None
    if metric not in METRICS:
        raise DataError(f"{path}: no interval is defined for {metric!r}; known are {', '.join(METRICS)}.")
    kind = np.float64 if metric in (*_REAL, "mean") else np.int64
    return Fit(
        task=result["task"],
        metric=metric,
        seed=int(result["seed"]),
        finetune_seed=int(result["finetune_seed"]),
        label=label.astype(kind),
        prediction=prediction.astype(kind),
        group=None if group is None else group.astype(np.int64),
    )


@lru_cache(maxsize=2)
def _arrays(path: Path, _changed: int, _size: int) -> dict[str, Any]:
    """All arrays of a file, kept for the next result: of minimal pairs, 67 results in a row are of one file."""
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _answers(arrays: Mapping[str, Any], result: Mapping[str, Any]) -> tuple[str, Any, Any, Any]:
    """Metric, labels, predictions and groups. Spans and minimal pairs are scored one by one, and their score is the
    mean: the scores stand for predictions, and there are no labels."""
    if result["suite"] == "squad":
        values = arrays[result["metric"].removeprefix("best_")]
        return "mean", np.zeros(len(values)), values, arrays["group"]
    if result["suite"].startswith("blimp"):
        values = arrays[f"{result['suite']}/{result['task']}/hit"]
        return "mean", np.zeros(len(values)), values, None
    before = f"{result['task']}/" if f"{result['task']}/label" in arrays else ""  # a further side of a task
    group = arrays.get(f"{before}group")
    return result["metric"], arrays[f"{before}label"], arrays[f"{before}prediction"], group
