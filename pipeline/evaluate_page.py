"""`evaluation/report.html`: every result there is, task by task, with confusion matrices and calibration.

One self-contained page made of `results.jsonl` and the answers behind it; no clock, so the same results give the same
bytes. Scores against training compute, with intervals, are in the experiment's report, which names this page.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from data_prep import storage
from pipeline import gather
from pipeline.calibration import calibration_error, confusion, reliability
from pipeline.console import duration
from pipeline.evaluate_mistakes import answers, arrays_of, probabilities, side_arrays
from pipeline.evaluate_table import Line, Mean, hundredth, lines, means
from pipeline.page_parts import Head, details, document, table
from training.protocol import TASKS
from training.tasks import load_task

Result = dict[str, Any]

FILE = "report.html"
_NOTE = (
    "Scores × 100 on the development sets: the median over fine-tuning seeds, the smallest and largest, the "
    "interquartile range (IQR). Degenerate: one answer to everything, or no finite loss; counted, none dropped."
)
_SUITES = {
    "glue": "GLUE",
    "probes": "Built-in probes",
    "squad": "SQuAD",
    "blimp": "BLiMP, main networks",
    "blimp_generator": "BLiMP, generators",
}


def write(out: Path) -> Path:
    """Write the page of the results in `out`. DataError where a record or an answers file is broken."""
    rows = gather.read_results(out)
    path = out / "evaluation" / FILE
    storage.write_bytes(path, page(out / "evaluation", rows).encode("utf-8", "replace"))
    return path


def page(evaluation: Path, rows: Sequence[Result]) -> str:
    """The whole document."""
    found = lines(rows)
    parts = ["<h1>Evaluation</h1>", _means(means(found)), f"<p>{escape(_NOTE)}</p>"]
    for suite in dict.fromkeys(line.suite for line in found):
        parts.append(f"<h2>{escape(_SUITES.get(suite, suite))}</h2>")
        own = [line for line in found if line.suite == suite]
        if suite.startswith("blimp"):
            parts.append(_paradigms(own))
        else:
            for task in dict.fromkeys(line.task for line in own):
                parts += _task(evaluation, [line for line in own if line.task == task], rows)
    return document("Evaluation", [part for part in parts if part])


def _means(found: Sequence[Mean]) -> str:
    head: list[Head] = [("model", ""), ("suite", ""), ("mean", "× 100"), ("SE", "over paradigms"), ("over", "")]
    body = [
        [
            one.model,
            f"{_SUITES.get(one.suite, one.suite)}{' (subset)' if one.subset else ''}",
            "–" if one.value is None else hundredth(one.value),
            "–" if one.standard_error is None else hundredth(one.standard_error),
            f"{one.tasks} {'paradigms' if one.scorer else 'tasks'}",
        ]
        for one in found
    ]
    note = (
        "Means of the tasks' medians, of one suite, model and protocol each; a dash where a task that belongs to the "
        "mean was not evaluated."
    )
    return table(note, head, body, words=(0, 1, 4)) if body else ""


def _task(evaluation: Path, own: Sequence[Line], rows: Sequence[Result]) -> list[str]:
    first = own[0]
    cut = ", of a declared subset" if first.subset else ""
    title = f"{first.task}: {first.metric}, {first.n_dev:,} examples{cut}"
    head: list[Head] = [("model", ""), ("median", "min to max"), ("IQR", ""), ("n", "seeds"), ("degenerate", "")]
    head += [("wall", "CPU"), ("protocol", "")]
    body = [
        [
            line.model,
            f"{hundredth(line.median)}\n{hundredth(line.low)} to {hundredth(line.high)}",
            hundredth(line.iqr),
            str(line.n),
            str(line.degenerate),
            f"{duration(line.seconds)}\n{duration(line.cpu_seconds)}",
            line.protocol,
        ]
        for line in own
    ]
    parts = [f"<h3>{escape(title)}</h3>", table("By model.", head, body, words=(0, 6))]
    for line in own:
        of_line = [r for r in rows if (r["suite"], r["task"], r["run"]) == (line.suite, line.task, line.model)]
        parts.append(details(f"{line.model}: what was mistaken, and calibration", _answers(evaluation, of_line)))
    return parts


def _answers(evaluation: Path, rows: Sequence[Result]) -> str:
    """The answers of all seeds together."""
    if rows[0]["suite"] == "squad":
        shares = np.array([share for row in rows for _, share in answers(evaluation, row)])
        exact, given = (
            np.concatenate([arrays_of(evaluation, row)[name] for row in rows]) for name in ("exact", "given")
        )
        return _calibration(shares[given], exact[given] == 1)  # of no answer there is no probability
    data = load_task(evaluation / rows[0]["data"])
    found = [side_arrays(evaluation, row) for row in rows]
    label, said = (np.concatenate([one[name] for one in found]) for name in ("label", "prediction"))
    if largest := TASKS[data.suite][data.task].largest:
        label, said = (np.clip(np.rint(values), 0, largest).astype(np.int64) for values in (label, said))
        note = "Values rounded to whole numbers: gold (rows), answered (columns); all seeds together."
        return _confusion(label, said, [str(value) for value in range(int(largest) + 1)], note)
    sure = np.concatenate([probabilities(one["score"]).max(axis=1) for one in found])
    note = "Gold (rows), answered (columns); all seeds together."
    return _confusion(label, said, data.classes, note) + _calibration(sure, label == said)


def _confusion(label: Any, prediction: Any, names: Sequence[str], note: str) -> str:
    counts = confusion(label, prediction, len(names))
    body = [[name, *(f"{count:,}" for count in row)] for name, row in zip(names, counts.tolist(), strict=True)]
    return table(note, [("gold", ""), *((name, "") for name in names)], body)


def _calibration(confidence: Any, right: Any) -> str:
    found = reliability(confidence, right)
    body = [
        [f"{one.low:.1f} to {one.high:.1f}", f"{one.n:,}", f"{one.confidence:.3f}", f"{one.accuracy:.3f}"]
        for one in found
    ]
    note = (
        f"Calibration: answers by their confidence, which is the largest probability given. Expected calibration error "
        f"{calibration_error(found):.3f}."
    )
    head = [("confidence", ""), ("answers", ""), ("mean confidence", ""), ("share right", "")]
    return table(note, head, body)


def _paradigms(own: Sequence[Line]) -> str:
    models = list(dict.fromkeys(line.model for line in own))
    scorers = {line.model: line.scorer for line in own}
    by_place = {(line.task, line.model): line for line in own}
    tasks = list(dict.fromkeys(line.task for line in own))
    head: list[Head] = [("paradigm", ""), ("pairs", ""), *((model, f"by {scorers[model]}") for model in models)]
    body = []
    for task in tasks:
        there = [by_place.get((task, model)) for model in models]
        pairs = max(line.n_dev for line in there if line is not None)
        body.append([task, f"{pairs:,}", *("–" if line is None else hundredth(line.median) for line in there)])
    note = "Share of pairs × 100 whose good sentence scores higher; a tie is no hit, and chance is 50. No fine-tuning."
    return details("Paradigm by paradigm", table(note, head, body))
