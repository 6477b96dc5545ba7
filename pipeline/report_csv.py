"""The report's numbers as CSV: `scores.csv`, `runs.csv` and `curves.csv`, for whoever draws figures of their own.

Comma-separated, one header line, numbers with all their digits, an empty field where there is none. Scores are
fractions, FLOPs model FLOPs unless a column says otherwise.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from pipeline import run_facts
from pipeline.analysis import Analysis
from pipeline.gather import Contents, Run
from pipeline.suites import Cell, Figure


def tables(contents: Contents, analysis: Analysis) -> dict[str, bytes]:
    """The three files, by name."""
    return {
        "scores.csv": _file(_SCORES, _scores(analysis)),
        "runs.csv": _file(_RUNS, (_run(run, contents) for run in [*contents.runs, *contents.first_stages])),
        "curves.csv": _file(_CURVES, _curves([*contents.runs, *contents.first_stages])),
    }


def _file(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return text.getvalue().encode()


_SCORES = (
    *("suite", "task", "in_mean", "arm", "budget", "seeds", "score", "low", "high"),
    *("flops_counted", "flops_spent", "flops_paper", "tokens", "device_hours", "parameters"),
)


def _scores(analysis: Analysis) -> Iterable[Sequence[Any]]:
    """The mean of each cell, then its tasks."""
    for suite in analysis.suites:
        for cell in suite.cells:
            yield _score(suite.name, "mean", True, cell, cell.mean)
            for task in suite.tasks:
                yield _score(suite.name, task.name, task.in_mean, cell, cell.tasks[task.name])


def _score(suite: str, task: str, in_mean: bool, cell: Cell, figure: Figure) -> Sequence[Any]:
    return (
        *(suite, task, in_mean, cell.arm, cell.budget, cell.seeds, figure.value, figure.low, figure.high),
        *(cell.flops_counted, cell.flops_spent, cell.flops_paper, cell.tokens, cell.device_hours, cell.parameters),
    )


_RUNS = (
    *("run", "arm", "objective", "budget", "seed", "part_of", "planned_steps", "last_step", "finished"),
    *("flops_counted", "flops_spent", "flops_paper", "tokens", "seconds", "device_hours", "goodput", "mfu"),
    *("attempts", "rollbacks", "rows_skipped", "parameters", "processes", "hardware", "degenerate"),
)


def _run(run: Run, contents: Contents) -> Sequence[Any]:
    done, totals = run.done or {}, run.totals
    return (
        *(run.name, run.arm, run.objective, run.budget, run.seed, run.part_of, run.steps, run.last_step),
        run.done is not None,
        *(done.get(name) for name in ("flops_counted", "flops_spent", "flops_paper", "tokens", "seconds")),
        run_facts.device_hours(run, contents) if run.done else None,
        None if totals is None else totals.goodput,
        run_facts.mfu(run),
        *(done.get(name) for name in ("attempts", "rollbacks", "rows_skipped", "parameters", "world_size")),
        *(done.get("hardware"), run.degenerate),
    )


_CURVES = ("run", "step", "flops", "tokens", "seconds", "quantity", "value")
_OF_THE_STEP = ("flops", "tokens", "seconds")


def _curves(runs: Sequence[Run]) -> Iterable[Sequence[Any]]:
    """Everything recorded along training, a line a quantity."""
    for run in runs:
        for line in run.lines:
            values = line["values"]
            for name in sorted(values):
                if name not in _OF_THE_STEP:
                    yield run.name, line["step"], *(values.get(one) for one in _OF_THE_STEP), name, values[name]
