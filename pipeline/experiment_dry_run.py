"""`electra experiment run --dry-run`: every run and every evaluation with steps, FLOPs, time and cost; starts nothing.

What the sweep and the experiment itself still need, by `pipeline.estimate`, and the sum. A CPU's pace is measured on
this machine for some seconds; a GPU's follows from the device, the MFU and the price that are stated. Writes nothing.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import corpora, sweep
from pipeline import estimate as estimates
from pipeline.console import Console, duration
from pipeline.estimate import Estimate, EvaluationEstimate, RunEstimate, total
from pipeline.experiment import Experiment
from pipeline.place import shown
from pipeline.sweep_config import LOSS

if TYPE_CHECKING:
    from pipeline.devices import Stated

Stages = list[tuple[str, Estimate]]


def dry_run(experiment: Experiment, out: Path, console: Console, *, stated: "Stated | None" = None) -> dict[str, Any]:
    """Print the runs, the evaluations and what they come to; returns the same as plain figures. Raises as planning and
    reading the evaluation's data do."""
    found = _estimates(experiment, out, console, stated)
    console.table(
        "Runs",
        ["stage", "run", "steps", "tokens", "FLOPs", "time", "cost", "pace"],
        [_run_row(stage, run) for stage, one in found for run in one.runs],
    )
    console.table(
        "Evaluations",
        ["stage", "suite", "task", "left", "steps each", "FLOPs", "time", "cost", "pace"],
        [_evaluation_row(stage, each) for stage, one in found for each in one.evaluations],
    )
    console.table("Left to do", ["stage", "runs", "evaluations", "FLOPs of training", "time", "cost"], _totals(found))
    if any(one.assumed for _, one in found):
        console.say("The corpus is not prepared: rows are taken to be full, which gives a few steps too few.")
    seconds = total([one.seconds for _, one in found])
    if seconds is None:
        gpu = stated is None and experiment.cluster.use_gpu
        need = "Time and cost of a GPU need --device; see electra experiment run --help."
        console.say(need if gpu else "The whole time is not known: some rows have none, and their pace says why.")
    console.say(f"{shown(out)}: nothing was started; preparing, starting processes and the report come on top")
    return {
        "dry_run": True,
        "stages": {stage: _plain(one) for stage, one in found},
        "flops": sum(one.flops for _, one in found),
        "seconds": seconds,
        "cost": total([one.cost for _, one in found]),
    }


def _estimates(experiment: Experiment, out: Path, console: Console, stated: "Stated | None") -> Stages:
    """Of the sweep, where there is one, and of the experiment, at the rates chosen where they are."""
    readings = corpora.found(experiment, out)
    measured = None
    if stated is None and not experiment.cluster.use_gpu:
        from pipeline.measured import measure

        with console.stage("measure"):
            measured = measure(experiment, readings, out)

    finished = estimates.finished_rates(out)

    def of(one: Experiment, folder: Path) -> Estimate:
        return estimates.estimate(one, folder, readings=readings, stated=stated, measured=measured, finished=finished)

    found: Stages = []
    if experiment.sweep is not None:
        swept = of(sweep.as_experiment(experiment, out.absolute()), out / sweep.FOLDER)
        scored = experiment.sweep.choose_by != LOSS
        record = None if any(one.assumed for one in readings.values()) else sweep.chosen(experiment, out)
        if record is not None:  # a run that diverged has no end, and is not tried again
            swept = replace(swept, runs=[replace(run, done=True) for run in swept.runs], evaluations=[])
            experiment = experiment.with_rates(sweep.rates_of(record))
        found.append(("sweep", swept if scored else replace(swept, evaluations=[])))
    return [*found, ("main", of(experiment, out))]


def _run_row(stage: str, run: RunEstimate) -> list[object]:
    steps = f"{run.steps:,}" if run.own_steps == run.steps else f"{run.steps:,}, its own {run.own_steps:,}"
    time = "done" if run.done else _time(run.seconds)
    return [stage, run.name, steps, f"{run.tokens:.3g}", f"{run.flops:.3g}", time, _money(run.cost), run.source]


def _evaluation_row(stage: str, one: EvaluationEstimate) -> list[object]:
    left = f"{one.units - one.done} of {one.units}"
    figures = [f"{one.unit_steps:,}", f"{one.flops:.3g}", _time(one.seconds), _money(one.cost), one.source]
    return [stage, one.suite, one.task, left, *figures]


def _totals(found: Stages) -> list[list[object]]:
    rows = [_total(stage, [one]) for stage, one in found]
    return rows if len(found) == 1 else [*rows, _total("all", [one for _, one in found])]


def _total(stage: str, found: Sequence[Estimate]) -> list[object]:
    runs = sum(not run.done for one in found for run in one.runs)
    units = sum(each.units - each.done for one in found for each in one.evaluations)
    flops = sum(one.flops for one in found)
    seconds, cost = total([one.seconds for one in found]), total([one.cost for one in found])
    return [stage, runs, units, f"{flops:.3g}", _time(seconds), _money(cost)]


def _plain(one: Estimate) -> dict[str, Any]:
    return {
        "runs": [asdict(run) for run in one.runs],
        "evaluations": [asdict(each) for each in one.evaluations],
        "flops": one.flops,
        "seconds": one.seconds,
        "cost": one.cost,
        "assumed": one.assumed,
    }


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else duration(seconds)


def _money(cost: float | None) -> str:
    return "–" if cost is None else f"{cost:,.2f}"
