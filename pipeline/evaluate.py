"""Evaluate: every finished run of an experiment, or one model, on every task with every seed, as units on Ray.

The same command again runs only what is missing (`pipeline.evaluate_units`), and a killed one goes on where it was.
Afterwards there are, in `evaluation/`: `results.jsonl`, one row a dev side; `report.html`; and in `mistakes/` a file
for each model and task. Statistics over results with their intervals are the report's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.tasks import Unit, run_units
from data_prep import storage
from data_prep.errors import ConfigError, PreflightError
from data_prep.storage import Location
from pipeline import evaluate_data, evaluate_mistakes, evaluate_page, gather
from pipeline.console import Console
from pipeline.evaluate_results import order, warn_degenerate, write_grids, write_results
from pipeline.evaluate_submission import refuse_incomplete, submit
from pipeline.evaluate_targets import Model, finished_runs, refuse_unfit
from pipeline.evaluate_units import is_done, is_whole, units
from pipeline.evaluate_work import work
from training.protocol import EvaluationConfig

Result = dict[str, Any]

ENV = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def _nothing() -> None:
    """Ray is running already, or nothing is left to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """What is evaluated: all runs of the experiment, or (`single`) one model into its folder."""

    models: list[Model]
    runs: list[Model]  # the finished ones of the experiment
    corpus: Location | None
    single: bool


def evaluate(
    out: Path, config: EvaluationConfig, *, console: Console, before_work: Callable[[], None] = _nothing
) -> list[Result]:
    """Evaluate all finished runs under `out`; returns the rows of this grid, sorted, and rewrites results.jsonl.

    `before_work` is called when there is something to run, which needs a Ray session. Raises CheckpointError without a
    finished run, DataError for missing or too little task data, ConfigError for tasks of another suite.
    """
    evaluate_data.task_names(config)
    runs = finished_runs(out)
    grid = _Grid(models=runs, runs=runs, corpus=gather.corpus_folder(out), single=False)
    return _evaluate(out, config, grid, None, console, before_work)


def evaluate_model(
    out: Path,
    config: EvaluationConfig,
    model: Model,
    *,
    corpus: Location | None,
    console: Console,
    before_work: Callable[[], None] = _nothing,
    submission: Path | None = None,
) -> list[Result]:
    """As `evaluate`, of one model into the folder `out`, which may be that of an experiment. `corpus`: what probes are
    made of. With `submission`, GLUE's test sets are answered too, and the zip is written there."""
    if submission is not None:
        refuse_incomplete(config)
    runs = finished_runs(out) if any((out / "runs").glob("*/done.json")) else []
    if any(run.name == model.name and run.sha256 != model.sha256 for run in runs):
        raise ConfigError(f"{out} has a run called {model.name} already: give this model another name with --name")
    grid = _Grid(models=[model], runs=runs, corpus=corpus, single=True)
    return _evaluate(out, config, grid, submission, console, before_work)


def _evaluate(
    out: Path,
    config: EvaluationConfig,
    grid: _Grid,
    submission: Path | None,
    console: Console,
    before_work: Callable[[], None],
) -> list[Result]:
    refuse_unfit(grid.models, config)
    evaluation = storage.make_folder(out / "evaluation")
    storage.LocalFolder(evaluation).remove_temporaries()
    folder = storage.make_folder(evaluation / "tasks")
    found = evaluate_data.materials(config, grid.corpus, folder, tests=submission is not None)
    todo = units(grid.models, found, config, evaluation)
    if not all(map(is_done, todo)):
        before_work()
        _refuse_missing_gpus(config.gpus_per_unit)
    rows = _run(todo, config, console)
    warn_degenerate(rows, console)
    write_grids(evaluation, todo, config, grid.models[0].name if grid.single else None)
    write_results(evaluation, config, grid.runs, console)
    evaluate_mistakes.write(evaluation, rows)
    evaluate_page.write(out)
    if submission is not None:
        submit(evaluation, rows, found, submission)
        console.say(f"submission: {submission}")
    return rows


def _refuse_missing_gpus(wanted: float) -> None:
    """PreflightError where Ray has no GPU to give, for which it would wait for ever."""
    if wanted > 0:
        import ray

        there = ray.cluster_resources().get("GPU", 0.0)
        if there < wanted:
            raise PreflightError(
                f"evaluation.gpus_per_unit is {wanted:g} and Ray has {there:g} GPUs: set it to 0 for CPU threads"
            )


def _run(todo: list[Unit], config: EvaluationConfig, console: Console) -> list[Result]:
    with console.stage("evaluate", len(todo), "units") as stage:

        def on_record(unit: Unit, result: Result, reused: bool) -> None:
            rows = result["rows"]
            shown = rows if unit.payload["kind"] == "pairs" else rows[:1]
            score = sum(row["score"] for row in shown) / len(shown)
            stage.advance(1, run=rows[0]["run"], task=unit.payload["task"], score=score)

        results = run_units(
            work, todo, num_cpus=1, num_gpus=config.gpus_per_unit, env=ENV, on_record=on_record, intact=is_whole
        )
    # what is said of a model, as its FLOPs, may be another thing than when the unit was done
    rows = [row | unit.payload["facts"] for unit, result in zip(todo, results, strict=True) for row in result["rows"]]
    return sorted(rows, key=order)
