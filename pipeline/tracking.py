"""Metric lines → MLflow: the driver's mirror of what the runs recorded.

The lines in the run directories are the truth; this copies them, so it may fail, be repeated or never happen without
losing anything. An experiment is one MLflow experiment: one run per training run (`electra.kind` tells a first stage
from an arm's own, `electra.stage` the sweep's runs from the main ones), a child run per fine-tuning, and one run for
the experiment as a whole with configuration and report as artifacts. The store is the one MLFLOW_TRACKING_URI names, by
default one SQLite file in the experiment's directory.

* Replaying doubles nothing: a line goes with its own step and time, and a line that arrived is not sent again. What is
  sent of an unfinished run, and what becomes of a trajectory that a rollback left, is said in `pipeline.tracking_plan`.
* A server out of reach costs a warning. A broken local store is an error, because it is ours.
* `.tracking.json` remembers what was sent where. It only saves time: without it, and by a `thorough` call, all that is
  in the store is compared with what is here.
"""

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from data_prep.errors import PreflightError
from pipeline import gather, sweep, tracking_cursor, tracking_errors
from pipeline.mlflow_store import Store, quick_to_fail
from pipeline.place import shown
from pipeline.tracking_plan import Item, Plan

TRACKING_URI = "MLFLOW_TRACKING_URI"


class Voice(Protocol):
    """Where a warning goes: `pipeline.console.Console`, or anything that can warn."""

    def warn(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSummary:
    """What a call did. `runs` and `finetunings` are those there are to mirror; `points` is metric values sent now,
    `changed` how many of the things mirrored were out of date; `problem` is the sentence of a server out of reach."""

    uri: str  # without credentials
    runs: int
    finetunings: int
    points: int
    changed: int
    problem: str | None = None

    @property
    def reachable(self) -> bool:
        """Whether the store took what it was sent."""
        return self.problem is None


def sync(
    out: Path,
    *,
    console: Voice | None = None,
    training: bool = False,
    only: str | None = None,
    thorough: bool = False,
    seconds: float | None = None,
) -> SyncSummary:
    """Mirror what is new in the experiment directory `out`, its sweep included. The caller holds the directory;
    `training` says that it is training now.

    `only` is the name of the one run to mirror, with its fine-tunings; after `seconds` nothing more is begun;
    `thorough` compares everything, and waits for a slow server. A server out of reach, or one that refuses, is one
    warning and the summary's `problem`. PreflightError when the embedded store or a named SQLite file cannot be used;
    DataError when there is no experiment or a record in it is broken.
    """
    out = out.resolve()
    root = root_of(out)
    plans = _plans(out, root, training, only)
    named = os.environ.get(TRACKING_URI)
    uri = named or f"sqlite:///{root / 'mlflow.db'}"
    cursor = tracking_cursor.load(root, uri)
    items = [item for plan in plans for item in plan.records] + [item for plan in plans for item in plan.files]
    waiting = [item for item in items if thorough or cursor.get(item.key) != item.version]
    points, problem = 0, None
    if waiting:
        try:
            artifacts = None if named else root / "mlartifacts"
            with quick_to_fail(patient=thorough):
                points = _send(Target(uri, plans[0].experiment, artifacts), waiting, cursor, seconds)
        except tracking_errors.errors() as error:
            problem = _told(tracking_errors.sentence(error), uri, root)
        finally:
            tracking_cursor.save(root, uri, cursor)
    if problem is not None and console is not None:
        console.warn(problem)
    return SyncSummary(
        uri=tracking_cursor.public(uri),
        runs=sum(len(plan.runs) for plan in plans),
        finetunings=sum(len(plan.finetunings) for plan in plans),
        points=points,
        changed=len(waiting),
        problem=problem,
    )


def root_of(out: Path) -> Path:
    """The experiment's directory: `out`, or of a sweep the one it is in."""
    is_sweep = out.name == sweep.FOLDER and (out.parent / gather.CONFIG_NAME).is_file()
    return out.parent if is_sweep else out


def _plans(out: Path, root: Path, training: bool, only: str | None) -> list[Plan]:
    """What there is to mirror: of an experiment and its sweep, or of the sweep alone where that is `out`."""
    contents = gather.read(out)
    if root != out:
        return [Plan(contents, gather.name_of(root), "sweep", training, only)]
    plans = [Plan(contents, contents.name, "main", training, only)]
    if only is None and (out / sweep.FOLDER / gather.CONFIG_NAME).is_file():
        plans.append(Plan(gather.read(out / sweep.FOLDER), contents.name, "sweep", False, None))
    return plans


@dataclass(frozen=True, slots=True)
class Target:
    """Where it goes: a store, an experiment in it, and where that one's files go if the store has no server."""

    uri: str
    experiment: str
    artifacts: Path | None


def _send(target: Target, waiting: Sequence[Item], cursor: dict[str, str], seconds: float | None) -> int:
    """Send the items in order, marking each in the cursor as it arrives; returns how many metric values went."""
    until = None if seconds is None else time.monotonic() + seconds
    store = Store(target.uri, target.experiment, target.artifacts)
    points = 0
    for item in waiting:
        if until is not None and time.monotonic() > until:
            break
        points += item.send(store)
        cursor[item.key] = item.version
    return points


def _told(problem: str, uri: str, root: Path) -> str:
    """The sentence of a server that took nothing; PreflightError where the store is a file of ours."""
    address = tracking_cursor.public(uri)
    if uri.startswith("sqlite:"):
        raise PreflightError(
            f"{address} cannot be used as MLflow store ({problem}); move that file away and sync again: "
            "everything in it is in the run directories too."
        )
    again = f"`electra sync {shlex.quote(shown(root))}`"
    return f"MLflow at {address}: {problem}; nothing is lost, {again} sends what is missing."
