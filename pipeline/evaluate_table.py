"""Results as tables: one line a model and task, and the means that may be taken.

A line has the median over fine-tuning seeds with the smallest and largest score and the interquartile range, how many
there were, how many of them degenerate (counted in, never dropped), and what they took. A suite's mean is that of its
tasks' medians, and only where every task that belongs to it is there: GLUE's is the paper's, over eight. It never mixes
suites, models or protocols. Paradigms of BLiMP are one line, their mean with its standard error over paradigms.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipeline.console import Console, duration
from training.protocol import TASKS
from training.tasks import suite_mean

Result = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A model on a task. Scores are fractions. `seconds` and `cpu_seconds` are those of all seeds together."""

    model: str
    suite: str
    task: str
    metric: str
    median: float
    low: float
    high: float
    iqr: float
    n: int
    degenerate: int
    n_dev: int
    subset: bool
    skipped: int
    protocol: str
    scorer: str | None
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """The mean of a suite; None where a task that belongs to it was not evaluated. `standard_error`: of paradigms."""

    model: str
    suite: str
    value: float | None
    tasks: int
    subset: bool
    scorer: str | None = None
    standard_error: float | None = None


def lines(rows: Sequence[Result]) -> list[Line]:
    """One line a model, suite and task, in the order of the rows."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for row in rows:
        groups.setdefault((row["suite"], row["task"], row["run"]), []).append(row)
    return [_line(own) for own in groups.values()]


def _line(rows: Sequence[Result]) -> Line:
    scores, first = [row["score"] for row in rows], rows[0]
    low, high = np.percentile(scores, [25, 75])
    return Line(
        model=first["run"],
        median=float(np.median(scores)),
        low=min(scores),
        high=max(scores),
        iqr=float(high - low),
        n=len(rows),
        degenerate=sum(row["degenerate"] for row in rows),
        protocol=protocol_name(first["protocol"]),
        seconds=sum(row["seconds"] for row in rows),
        cpu_seconds=sum(row.get("cpu_seconds", 0.0) for row in rows),
        skipped=first.get("skipped", 0),
        scorer=first.get("scorer"),
        **{name: first[name] for name in ("suite", "task", "metric", "n_dev", "subset")},
    )


def protocol_name(protocol: Result) -> str:
    """`electra_paper small 1a2b3c4d`: the fingerprint tells one `plain` from another."""
    words = (protocol["name"], protocol.get("size"), protocol["fingerprint"][:8])
    return " ".join(word for word in words if word)


def means(found: Sequence[Line]) -> list[Mean]:
    """The mean of every model and suite that has one. Spans have none, and are told of by version."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in found:
        if line.suite != "squad":
            groups.setdefault((line.suite, line.model), []).append(line)
    return [_mean(suite, model, own) for (suite, model), own in groups.items()]


def _mean(suite: str, model: str, own: Sequence[Line]) -> Mean:
    scores = {line.task: line.median for line in own}
    if suite in TASKS:
        belong = [task.name for task in TASKS[suite].values() if task.in_mean]
        subset = any(line.subset for line in own if line.task in belong)
        value = suite_mean([*TASKS[suite].values()], scores)
        return Mean(model=model, suite=suite, value=value, tasks=len(belong), subset=subset)
    values = [*scores.values()]
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return Mean(
        model=model, suite=suite, value=float(np.mean(values)), tasks=len(values), subset=own[0].subset,
        scorer=own[0].scorer, standard_error=error,
    )  # fmt: skip


def as_json(rows: Sequence[Result]) -> Result:
    """The tables as plain data."""
    found = lines(rows)
    return {"tasks": [asdict(line) for line in found], "means": [asdict(mean) for mean in means(found)]}


# --- on the console ---------------------------------------------------------------------------------------------------

_HEAD = ["model", "task", "metric", "median", "min to max", "IQR", "n", "degenerate", "dev examples", "wall", "CPU"]


def show(rows: Sequence[Result], console: Console) -> None:
    """A table a suite and protocol, and one of the means."""
    found = lines(rows)
    tables: dict[tuple[str, str], list[Line]] = {}
    for line in found:
        if not line.suite.startswith("blimp"):
            tables.setdefault((line.suite, line.protocol), []).append(line)
    for (suite, protocol), own in tables.items():
        console.table(f"{suite}, protocol {protocol}; scores × 100", _HEAD, [_cells(line) for line in own])
    if cells := [_mean_cells(mean) for mean in means(found)]:
        console.table("Means", ["model", "suite", "mean", "SE", "over", "note"], cells)


def _cells(line: Line) -> list[str]:
    return [
        line.model,
        f"{line.task} (subset)" if line.subset else line.task,
        line.metric,
        hundredth(line.median),
        f"{hundredth(line.low)} to {hundredth(line.high)}",
        hundredth(line.iqr),
        str(line.n),
        str(line.degenerate),
        f"{line.n_dev:,}" + (f", {line.skipped} rows skipped" if line.skipped else ""),
        duration(line.seconds),
        duration(line.cpu_seconds),
    ]


def _mean_cells(mean: Mean) -> list[str]:
    if mean.value is None:
        why = f"not evaluated on all {mean.tasks} tasks of the mean"
        return [mean.model, mean.suite, "–", "–", f"{mean.tasks} tasks", why]
    what = "paradigms" if mean.suite.startswith("blimp") else "tasks"
    notes = [f"scorer {mean.scorer}" if mean.scorer else "of medians", "of subsets" if mean.subset else ""]
    error = "–" if mean.standard_error is None else hundredth(mean.standard_error)
    return [
        mean.model,
        mean.suite,
        hundredth(mean.value),
        error,
        f"{mean.tasks} {what}",
        ", ".join(note for note in notes if note),
    ]


def hundredth(score: float) -> str:
    """A score of 0.613 as `61.3`."""
    return f"{100 * score:.1f}"
