"""The whole road on one command: prepare, train, evaluate, report, track, export; then where to look.

Each stage is one call and resumes, so running the road again does what is missing, or says that all is done. The same
road serves any experiment file; `configs/quickstart.yaml` is the one that fits a laptop. Nothing here knows how a
stage does its work (`pipeline.stages`).
"""

import json
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import gather, stages
from pipeline.console import duration
from pipeline.place import Place, shown
from pipeline.proof import auto_class
from pipeline.stages import Result
from pipeline.tracking import TRACKING_URI
from pipeline.train_stage import train

# Report before track: the mirror takes the report along.
ROAD: dict[str, stages.Stage] = {
    "prepare": stages.prepare,
    "train": train,
    "evaluate": partial(stages.evaluate, tables=False),  # the summary has the means
    "report": stages.report,
    "track": stages.track,
    "export": stages.export,
}


def road(place: Place) -> Result:
    """Walk every stage, then print times, scores and the next commands."""
    console, experiment = place.console, place.experiment
    console.say(f"electra quickstart: experiment '{experiment.name}' in {shown(place.folder.path)}")
    results: dict[str, Result] = {}
    for name, stage in ROAD.items():
        results[name] = stages.timed(name, stage, place)
    total = sum(result["seconds"] for result in results.values())
    console.table(
        "Time",
        ["stage", "wall time"],
        [*([name, duration(result["seconds"])] for name, result in results.items()), ["all", duration(total)]],
    )
    suite = experiment.evaluation.suites[0]
    rows = summary(place.folder.path, suite)
    console.table(
        "Result",
        ["arm", "budget, FLOPs", "steps", "counted FLOPs", "seed", f"{suite} mean"],
        [[r["arm"], f"{r['budget']:.2e}", r["steps"], _sci(r["flops"]), r["seed"], _score(r["mean"])] for r in rows],
    )
    console.say(next_commands(place.folder.path, results["export"]["exported"][0]))
    if not place.worked:
        console.say("Everything was done already; nothing was run again.")
    return {"stages": results, "summary": rows}


def summary(out: Path, suite: str) -> list[dict[str, Any]]:
    """One row a finished run: arm, budget, seed, steps, counted FLOPs and the mean score of `suite` (None before
    evaluation): the mean over the tasks that enter it of the mean over fine-tunings."""
    contents = gather.read(out)
    rows = []
    for run in contents.finished:
        assert run.done is not None
        scores: dict[str, list[float]] = {}
        for result in contents.results:
            if result["run"] == run.name and result["suite"] == suite and result["in_mean"]:
                scores.setdefault(result["task"], []).append(result["score"])
        tasks = [sum(of_task) / len(of_task) for of_task in scores.values()]
        rows.append(
            {
                "run": run.name,
                "arm": run.arm,
                "budget": run.budget,
                "seed": run.seed,
                "steps": run.done["step"],
                "flops": run.done["flops_counted"],
                "mean": sum(tasks) / len(tasks) if tasks else None,
            }
        )
    return rows


def next_commands(out: Path, exported: Result) -> str:
    """Where to look: the report, MLflow, and the exported model, in three lines of Python."""
    mlflow = shlex.join([shown(Path(sys.executable).parent / "mlflow"), "ui", "--backend-store-uri"])
    look = f"""
Look further:
  open {shlex.quote(shown(out / "report" / "report.html"))}
"""
    if not os.environ.get(TRACKING_URI):
        address = shlex.quote(f"sqlite:///{out / 'mlflow.db'}")
        look += f"  {mlflow} {address}\n"
    folder = json.dumps(shown(out / "export" / exported["folder"]), ensure_ascii=False)
    auto = auto_class(exported["architecture"])
    look += f"""
  from transformers import {auto}, AutoTokenizer
  tokenizer = AutoTokenizer.from_pretrained({folder})
  model = {auto}.from_pretrained({folder})
"""
    return look


def _sci(value: float) -> str:
    return f"{value:.3e}"


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
