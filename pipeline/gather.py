"""An experiment's directory as plain records, for whoever tells of it: the report and the tracking mirror.

Reads what the other parts committed (`config.yaml`, `corpus/manifest.json`, `runs/`, `evaluation/results.jsonl`) and
changes nothing. What is not there yet is absent from the records, never an error; what is there and broken is a
DataError naming the file. Imports nothing heavy.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from data_prep import manifest as manifests
from data_prep import storage
from data_prep.errors import DataError
from data_prep.manifest import Manifest
from pipeline.statistics import METRICS, Fit
from training.metrics import read_metrics


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
    done: dict[str, Any] | None
    lines: list[dict[str, Any]]  # metric lines, one a step

    @property
    def last_step(self) -> int:
        """The newest step there is a record of, 0 before the first."""
        return int(self.lines[-1]["step"]) if self.lines else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything there is in an experiment's directory."""

    out: Path
    name: str
    config: dict[str, Any]
    runs: list[Run]  # by budget, arm (in the configuration's order), seed
    results: list[dict[str, Any]]  # lines of results.jsonl
    manifest: Manifest | None

    @property
    def arms(self) -> list[str]:
        """All arms, in the configuration's order: what an arm's colour and marker follow."""
        configured = [str(arm.get("name") or arm.get("objective")) for arm in self.config.get("arms", [])]
        return list(dict.fromkeys([*configured, *(run.arm for run in self.runs)]))

    @property
    def finished(self) -> list[Run]:
        """The runs that reached their last step."""
        return [run for run in self.runs if run.done is not None]


def read(out: Path) -> Contents:
    """Read the directory. DataError where it does not exist or a file in it is broken."""
    if not out.is_dir():
        raise DataError(f"{out} does not exist: run `electra train` or `electra quickstart` with this --out first.")
    config = read_config(out)
    order = [str(arm.get("name") or arm.get("objective")) for arm in config.get("arms", [])]
    runs = [_read_run(path.parent) for path in sorted(out.glob("runs/*/run.json"))]
    runs.sort(key=lambda run: (run.budget, order.index(run.arm) if run.arm in order else len(order), run.arm, run.seed))
    corpus = out / "corpus"
    return Contents(
        out=out,
        name=str(config.get("name") or out.resolve().name),
        config=config,
        runs=runs,
        results=_read_results(out / "evaluation" / "results.jsonl"),
        manifest=manifests.load(corpus) if (corpus / manifests.FILE_NAME).exists() else None,
    )


def read_config(out: Path) -> dict[str, Any]:
    """The stored configuration as plain data; empty where there is none."""
    path = out / "config.yaml"
    if not path.exists():
        return {}
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not readable YAML ({' '.join(str(error).split())}); restore it.") from None
    if not isinstance(found, dict):
        raise DataError(f"{path} holds no mapping; restore it.")
    return found


def _read_run(folder: Path) -> Run:
    spec = storage.read_json(folder / "run.json")
    done = folder / "done.json"
    try:
        return Run(
            folder=folder,
            name=spec["name"],
            arm=spec["arm"],
            objective=spec["objective"],
            budget=float(spec["budget"]),
            seed=int(spec["seed"]),
            steps=int(spec["steps"]),
            identity=spec["identity"],
            placement=spec["placement"],
            flops_per_step=float(spec["flops_per_step"]),
            done=storage.read_json(done) if done.exists() else None,
            lines=read_metrics(folder),
        )
    except KeyError as error:
        raise DataError(f"{folder / 'run.json'} has no {error}; remove the folder and train again.") from None


def _read_results(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    results = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            results.append(json.loads(line))
        except json.JSONDecodeError:
            raise DataError(f"{path}:{number}: not a JSON line; run `electra evaluate` to write it anew.") from None
    return results


def fit_of(out: Path, result: dict[str, Any]) -> Fit:
    """The per-example answers behind a result. DataError where they are missing or do not give the recorded score."""
    path = out / "evaluation" / result["predictions"]
    try:
        with np.load(path, allow_pickle=False) as arrays:
            label, prediction = arrays["label"], arrays["prediction"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path} is not readable ({error}); delete its record and run `electra evaluate` again."
        ) from None
    if result["metric"] not in METRICS:
        raise DataError(f"{path}: no interval is defined for {result['metric']!r}; known are {', '.join(METRICS)}.")
    return Fit(
        task=result["task"],
        metric=result["metric"],
        seed=int(result["seed"]),
        finetune_seed=int(result["finetune_seed"]),
        label=label.astype(np.int64),
        prediction=prediction.astype(np.int64),
    )
