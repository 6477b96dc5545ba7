"""What an experiment will take: every run and every evaluation with FLOPs, hours and cost, before any is started.

A GPU's rate is stated: its peak times an MFU that the user answers for. Where none is, finished runs and units of the
folder, and of its sweep, tell theirs; before there are any, a CPU's is measured on this machine, a few steps of every
arm and a few fine-tuning steps of every task (`pipeline.measured`). Every figure names its source. Starting, saving and
waiting for a queue are in none of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.manifest import Manifest
from data_prep.settings import fingerprint
from pipeline import corpora, gather, run_facts, sweep
from pipeline.assumed import is_assumed
from pipeline.corpora import MAIN, Readings
from pipeline.devices import Stated
from pipeline.estimate_evaluation import EvaluationEstimate, evaluations
from training.run import mean_counts
from training.run_folder import is_done, read_run_record
from training.settings import RunSpec

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.measured import Measured

FORWARD = 0.4  # of a step, that a forward pass over as many rows takes: 1/3 of the matmuls, and nothing overlaps


__all__ = [
    "Estimate",
    "EvaluationEstimate",
    "RunEstimate",
    "estimate",
    "finished_rates",
    "shape_of",
    "total",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEstimate:
    """One training run. Figures are of what it does itself: not of a trunk it branches off, nor of a first stage."""

    name: str
    arm: str
    budget: float
    seed: int
    steps: int  # of the whole trajectory
    own_steps: int
    tokens: float  # real ones, by the corpus's mean
    flops: float  # model FLOPs
    seconds: float | None
    cost: float | None  # None where no price is stated
    source: str  # of the rate: `measured here`, `finished runs`, `stated MFU 0.40 on 64 × H100`
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Everything. Totals are of what is left to do."""

    runs: Sequence[RunEstimate]
    evaluations: Sequence[EvaluationEstimate]
    assumed: bool  # the corpus is not prepared: rows are taken to be full

    @property
    def flops(self) -> float:
        """Model FLOPs of training that is left."""
        return sum(run.flops for run in self.runs if not run.done)

    @property
    def seconds(self) -> float | None:
        """Of training and evaluation that is left, one after the other; None where part of it cannot be told."""
        return total([run.seconds for run in self.runs if not run.done] + [one.seconds for one in self.evaluations])

    @property
    def cost(self) -> float | None:
        """As `seconds`."""
        return total([run.cost for run in self.runs if not run.done] + [one.cost for one in self.evaluations])


def estimate(
    experiment: "Experiment",
    out: Path,
    *,
    readings: Readings | None = None,
    stated: Stated | None = None,
    measured: "Measured | None" = None,
    finished: Mapping[str, float] | None = None,
) -> Estimate:
    """Every run and evaluation of an experiment whose folder is `out` (which need not exist).

    `readings` are of its corpora; without them rows are taken to be full. `stated`: a device and what
    it does. `measured`: what was measured on this machine, for CPUs (`pipeline.measured.measure`; one serves an
    experiment and its sweep). With neither, only finished runs and units give a rate; `finished`: that of runs, where
    those of other folders count too (`finished_rates`). Plans as `Experiment.runs`, and
    raises as it does.
    """
    readings = corpora.assumed(experiment) if readings is None else readings
    specs = experiment.runs(readings, out / "runs")
    finished = finished_rates(out) if finished is None else finished
    read = {run: readings[name].manifest for run, name in experiment.corpus_by_run(specs).items()}
    runs = [_run(spec, read[spec.name], out, finished, stated, measured) for spec in specs]
    return Estimate(
        runs=runs,
        evaluations=evaluations(experiment, specs, out, readings[MAIN].place, stated, measured),
        assumed=any(reading.assumed for reading in readings.values()),
    )


# --- training ---------------------------------------------------------------------------------------------------------


def shape_of(spec: RunSpec) -> str:
    """What a step's time depends on of a run: not its arm's name or rate, nor its length."""
    identity = spec.identity
    arm = identity.arm.model_dump(mode="json", exclude={"name", "learning_rate", "init_from"})
    rows = [identity.global_batch, identity.seq_len, identity.manifest_sha256]
    return fingerprint([arm, identity.model.model_dump(mode="json"), rows])


def _run(
    spec: RunSpec,
    manifest: Manifest,
    out: Path,
    finished: Mapping[str, float],
    stated: Stated | None,
    measured: "Measured | None",
) -> RunEstimate:
    own = spec.steps - spec.first_step
    flops, shape = own * spec.flops_per_step, shape_of(spec)
    seconds, source = None, "unknown"
    if stated is not None:
        seconds, source = stated.seconds(flops), stated.source
    elif shape in finished:
        seconds, source = own * finished[shape], "finished runs"
    elif measured is not None and shape in measured.step_seconds:
        once = measured.step_seconds[shape]
        seconds, source = own * once + _heldout(spec, once), measured.source
    return RunEstimate(
        name=spec.name,
        arm=spec.identity.arm.label,
        budget=spec.budget,
        seed=spec.identity.seed,
        steps=spec.steps,
        own_steps=own,
        tokens=own * spec.identity.global_batch * mean_counts(manifest, spec.identity.arm).tokens,
        flops=flops,
        seconds=seconds,
        cost=stated.cost(seconds) if stated is not None and seconds is not None else None,
        source=source,
        done=not is_assumed(manifest) and is_done(out / "runs" / spec.name, spec),
    )


def _heldout(spec: RunSpec, step_seconds: float) -> float:
    """Seconds of its own held-out evaluations, not of its trunk's: forward passes over `eval_rows` each."""
    placement, every = spec.placement, spec.placement.eval_every
    times = 1 + ((spec.steps - 1) // every - spec.first_step // every if every else 0)
    return times * placement.eval_rows / spec.identity.global_batch * FORWARD * step_seconds


def finished_rates(out: Path) -> dict[str, float]:
    """Seconds a step of the arms that have finished runs in a folder or in its sweep's, by `shape_of`; of several runs
    the mean."""
    found: dict[str, list[tuple[float, int]]] = {}
    contents = [gather.read(folder) for folder in (out, out / sweep.FOLDER) if folder.is_dir()]
    for run in [run for one in contents for run in (*one.runs, *one.first_stages)]:
        spec = None if run.done is None else read_run_record(run.folder)
        if spec is not None:
            own = (run_facts.own(run, "seconds"), spec.steps - spec.first_step)
            found.setdefault(shape_of(spec), []).append(own)
    return {shape: sum(s for s, _ in own) / sum(n for _, n in own) for shape, own in found.items()}


def total(parts: Sequence[float | None]) -> float | None:
    """The sum; None where part of it is not known."""
    return None if any(part is None for part in parts) else sum(part for part in parts if part is not None)
