"""`electra experiment run`: what an experiment still lacks, prepare → sweep → train → evaluate → report → track.

Each stage is one call and resumes; its state is in the folder. So a run that was killed goes on, one that was added to
the file is trained, and one whose folder was removed is trained again. Afterwards the records are held to the rules of
a matched comparison (`pipeline.matching`), and what does not hold is told; `electra experiment check` fails on it.
"""

from typing import Any

from pipeline import gather, matching, quickstart, stages
from pipeline.console import duration
from pipeline.place import Place, shown
from pipeline.stages import Result, Stage
from pipeline.sweep_stage import run_sweep
from pipeline.train_stage import train


def _evaluate(place: Place) -> Result:
    return stages.evaluate(place, tables=False)  # the summary has the means


ROAD: dict[str, Stage] = {
    "prepare": stages.prepare,
    "sweep": run_sweep,
    "train": train,
    "evaluate": _evaluate,
    "report": stages.report,
    "track": stages.track,  # it takes the report along
}


def run(place: Place) -> dict[str, Any]:
    """Do what is missing, then print scores, times and what of the comparison does not hold."""
    console, out = place.console, place.folder.path
    console.say(f"experiment '{place.experiment.name}' in {shown(out)}")
    road = {name: stage for name, stage in ROAD.items() if name != "sweep" or place.experiment.sweep is not None}
    results = {name: stages.timed(name, stage, place) for name, stage in road.items()}
    console.table("Time", ["stage", "wall time"], [[name, duration(one["seconds"])] for name, one in results.items()])
    rows = {suite: quickstart.summary(out, suite) for suite in place.experiment.evaluation.suites}
    for suite, found in rows.items():
        console.table(
            f"Result: {suite}",
            ["arm", "budget, FLOPs", "steps", "counted FLOPs", "seed", "mean"],
            [
                [r["arm"], f"{r['budget']:.2e}", r["steps"], f"{r['flops']:.3e}", r["seed"], _score(r["mean"])]
                for r in found
            ],
        )
    if place.experiment.budgets is not None:
        for sentence in [one.sentence for one in matching.check(gather.read(out)) if not one.ok]:
            console.warn(f"no matched comparison: {sentence}")
    if not place.worked:
        console.say("Everything was done already; nothing was run again.")
    return {"stages": results, "summary": rows}


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
