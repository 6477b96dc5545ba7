"""`electra status`: where runs stand, by their folders first, which outlive a cluster, and by Ray second.

Without a folder: every experiment below `runs/`, and with an address the cluster's jobs. A cluster that does not answer
is a warning as long as there are folders to tell of, and so is a run whose records cannot be read. What is said of all
this is `pipeline.status_words`'.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.jobs import ADDRESS, Cluster, Job
from data_prep.errors import ConfigError, DataError, ElectraError
from data_prep.redact import redact, redacted
from pipeline import config as yaml_config
from pipeline.console import Console
from pipeline.experiment import Experiment
from pipeline.gather import CONFIG_NAME
from pipeline.run_folders import is_held_experiment, runs_at
from pipeline.run_status import BUSY, QUIET, RunStatus, status_of
from pipeline.sweep import FOLDER
from training.arms import ElectraTwoStageArm
from training.run_folder import RECORD

if TYPE_CHECKING:
    from training.checkpoints.entries import Known

WATCH_SECONDS = 2.0
RUNS = Path("runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One experiment, or the sweep of one. What is not known is None."""

    out: Path
    held: bool  # a command works in it, as far as this machine can see
    planned: int | None  # so many runs
    runs: list[RunStatus]
    seconds_left: float | None  # of training, for all its runs, at the pace of the one that trains
    unreadable: list[str]  # what is wrong with runs that cannot be told of

    @property
    def finished(self) -> int:
        return sum(run.state == "finished" for run in self.runs)

    @property
    def working(self) -> bool:
        """Also between two runs."""
        fresh = any(run.quiet is not None and run.quiet < QUIET for run in self.runs)
        between = fresh and self.planned is not None and self.finished == len(self.runs) < self.planned
        return self.held or between or any(run.state in BUSY for run in self.runs)

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "out": str(self.out.absolute()), "working": self.working}


@dataclass(slots=True)
class Look:
    """What was found at one look."""

    standings: list[Standing] = field(default_factory=list)
    cluster: dict[str, Any] | None = None

    @property
    def working(self) -> bool:
        jobs = [] if self.cluster is None else self.cluster.get("jobs", [])
        return any(one.working for one in self.standings) or any(not job["ended"] for job in jobs)

    def record(self) -> dict[str, Any]:
        return {"experiments": [one.record() for one in self.standings], "cluster": self.cluster}


def status(target: Path | None, console: Console, *, address: str | None, watch: bool) -> dict[str, Any]:
    """Tell where the runs that `target` names stand (None: all), once, or again and again until nothing is at work.
    DataError where it names none, ConfigError for a job without a cluster."""
    from pipeline import status_words

    known: dict[Path, Known] = {}
    while True:
        look = _look(target, address, known)
        if watch:
            status_words.clear(console)
        status_words.tell(look, console, detailed=target is not None)
        if not (watch and look.working):
            return look.record()
        try:
            time.sleep(WATCH_SECONDS)
        except KeyboardInterrupt:  # whoever has seen enough
            return look.record()


def _look(target: Path | None, address: str | None, known: "dict[Path, Known]") -> Look:
    look = Look()
    if target is None:
        look.standings = [_standing(place, _runs(place), None) for place in _experiments(RUNS)]
    elif target.exists():
        whole = not (target / RECORD).is_file()
        look.standings = [_standing(place, runs, known, whole=whole) for place, runs in _named(target).items()]
    if address or os.environ.get(ADDRESS):
        look.cluster = _cluster(target, address, alone=not look.standings)
    elif target is not None and not target.exists():
        raise DataError(f"{target}: no such folder; of a job on a cluster, give --address or set {ADDRESS}")
    return look


def _experiments(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob(f"*/{CONFIG_NAME}"))


def _runs(place: Path) -> list[Path]:
    try:
        return runs_at(place)
    except DataError:
        return []


def _named(target: Path) -> dict[Path, list[Path]]:
    """The runs of a target by the experiment they are of, those of its sweep first, for they are trained first."""
    found = {place: runs for place in (target / FOLDER, target) if (runs := _runs(place))}
    if not found and not (target / CONFIG_NAME).is_file():
        runs_at(target)  # says what is wrong
    return {runs[0].absolute().parents[1] if runs else target: runs for runs in found.values()} or {target: []}


def _standing(
    out: Path, run_dirs: Sequence[Path], known: "dict[Path, Known] | None", *, whole: bool = True
) -> Standing:
    """`known`: what earlier looks have found of checkpoints; None where those are not asked for. `whole`: these are all
    runs of the experiment that have begun."""
    runs, unreadable = list[RunStatus](), list[str]()
    for run_dir in run_dirs:
        try:
            seen = None if known is None else known.setdefault(run_dir, {})
            runs.append(status_of(run_dir, checkpoints=known is not None, known=seen))
        except (DataError, OSError) as error:
            unreadable.append(f"{run_dir}: {error}" if isinstance(error, OSError) else str(error))
    experiment = _experiment(out) if whole else None
    return Standing(
        out=out,
        held=is_held_experiment(out),
        planned=None if experiment is None else planned(experiment),
        runs=runs,
        seconds_left=None if experiment is None else seconds_left(experiment, runs),
        unreadable=unreadable,
    )


def _experiment(out: Path) -> Experiment | None:
    """None where it cannot be read, as that of another version."""
    try:
        return yaml_config.load(out / CONFIG_NAME, model=Experiment)
    except ConfigError:
        return None


def planned(experiment: Experiment) -> int:
    """How many runs an experiment is to have."""
    arms = sum(1 + isinstance(arm, ElectraTwoStageArm) for arm in experiment.arms)
    return arms * len(experiment.budgets or [None]) * experiment.seeds


def seconds_left(experiment: Experiment, runs: Sequence[RunStatus]) -> float | None:
    """Of training, all runs together, one after another: FLOPs to go at the pace of the run that trains now. None where
    none does, or where budgets are branches, which share what their trunk has done."""
    now = next((run for run in runs if run.seconds_left), None)
    if now is None or now.flops_planned is None or now.steps is None or experiment.training.schedule.branches:
        return None
    whole = sum(experiment.budgets or [now.flops_planned]) * len(experiment.arms) * experiment.seeds
    done = sum(_done(run) for run in runs)
    assert now.seconds_left is not None
    pace = (now.flops_planned - _done(now)) / now.seconds_left
    return max(now.seconds_left, (whole - done) / pace)


def _done(run: RunStatus) -> float:
    """FLOPs, by the steps."""
    return run.flops_planned * run.step / run.steps if run.flops_planned and run.steps else 0.0


# --- Ray --------------------------------------------------------------------------------------------------------------


def _cluster(target: Path | None, address: str | None, *, alone: bool) -> dict[str, Any]:
    """Nodes, and the jobs of the target (all without one). An error where there is nothing else to tell."""
    try:
        from cluster.nodes import nodes

        cluster = Cluster(address)
        jobs = cluster.jobs() if target is None else _jobs_of(cluster, target, alone)
        found = [asdict(node) for node in nodes(cluster)]
        return {"address": redact(cluster.address), "jobs": [_job(job) for job in jobs], "nodes": found}
    except ElectraError as error:
        if alone:
            raise
        return {"error": str(error)}


def _jobs_of(cluster: Cluster, target: Path, alone: bool) -> list[Job]:
    try:
        return [cluster.find(str(target))]
    except DataError:
        if alone:
            raise
        return []  # it was not submitted to this cluster, or the cluster is a new one


def _job(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = redacted(asdict(job))
    return {**found, "try": job.number, "ended": job.ended}
