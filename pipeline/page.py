"""The report as one HTML page: no network, no script, readable on paper, on a phone and by a screen reader.

Only layout is decided here: numbers come from `pipeline.analysis`, their words from `pipeline.wording`, the drawings
from `pipeline.figures`, and the sections on what was run from `pipeline.page_facts`. Every figure has a description and
its data in a table; every text is escaped.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from pipeline import wording
from pipeline.analysis import Analysis
from pipeline.gather import Contents, Run
from pipeline.page_facts import compute, limits, what_ran
from pipeline.page_parts import Head, details, document, drawing, table
from pipeline.suites import Cell, Figure, Suite, TaskFacts
from pipeline.wording import arm_name, change, count, flops_text, interval, points

_BIGRAM = (
    "bigram_shift asks whether two neighbouring words were exchanged. That is close to the replaced-token detection "
    "that ELECTRA and its variants are trained on, so it favours them by construction: it is shown, "
    "and it is not in any mean."
)


# What the table of held-out figures shows, and how it is headed; the rest is in the details.
_HELDOUT: dict[str, Head] = {
    "mlm_loss": ("MLM loss", "nats"),
    "mlm_accuracy": ("MLM accuracy", ""),
    "replaced_loss": ("Replace MLM", "loss, nats"),
    "all_tokens_loss": ("All-Tokens", "loss, nats"),
    "rtd_loss": ("RTD loss", "nats"),
    "rtd_label_entropy": ("label entropy", "nats"),
    "rtd_information": ("of it explained", "share"),
    "rtd_auc": ("RTD AUC", ""),
    "reward": ("reward", "nats"),
    "nsp_loss": ("NSP loss", "nats"),
    "nsp_accuracy": ("NSP accuracy", ""),
}


def page(contents: Contents, analysis: Analysis, drawings: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """The whole document. `drawings` holds SVG elements under `curve-SUITE`, `tasks-SUITE` and, if any, `losses`."""
    parts = [
        f"<h1>{escape(contents.name)}: score against training compute</h1>",
        f'<p class="soft">{escape(_subtitle(contents))}</p>',
        _missing(analysis.missing),
        _degenerate(contents.finished),
        '<div class="summary">' + "".join(f"<p>{escape(text)}</p>" for text in _summary(analysis)) + "</div>",
        *(_suite(suite, drawings) for suite in analysis.suites),
        _further(contents),
        _losses(contents, drawings.get("losses")),
        compute(contents, analysis),
        what_ran(contents, analysis, environment),
        limits(contents, analysis),
    ]
    return document(f"{contents.name}: score against training compute", [part for part in parts if part])


# --- sections ---------------------------------------------------------------------------------------------------------


def _score(figure: Figure) -> str:
    return f"{points(figure.value)}\n{interval(figure)}"


def _subtitle(contents: Contents) -> str:
    arms = list(dict.fromkeys(arm_name(run.arm) for run in contents.runs))
    budgets = sorted({run.budget for run in contents.runs})
    return (
        f"{len(contents.finished)} finished training runs: {wording.names(arms)} at "
        f"{wording.names([flops_text(budget) for budget in budgets])} model FLOPs."
    )


def _missing(sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<div class="missing"><strong>This experiment is incomplete.</strong><ul>{items}</ul></div>'


def _degenerate(runs: Sequence[Run]) -> str:
    """The runs whose last held-out evaluation says that nothing was learned."""
    items = "".join(f"<li>{escape(run.name)}: {escape(run.degenerate)}.</li>" for run in runs if run.degenerate)
    head = "<strong>A healthy loss that means nothing.</strong> At the end of training:"
    return f'<div class="missing">{head}<ul>{items}</ul></div>' if items else ""


def _summary(analysis: Analysis) -> list[str]:
    """Paragraphs: one a suite, and what holds for all."""
    if not analysis.suites:
        return ["No arm was evaluated yet, so there is nothing to say about scores."]
    return [*(" ".join(wording.summary(suite)) for suite in analysis.suites), wording.caution(analysis.suites)]


def _suite(suite: Suite, drawings: Mapping[str, str]) -> str:
    outside = [task for task in suite.tasks if not task.in_mean]
    caption = (
        f"Mean score against training compute. Bars: 95 % bootstrap intervals over "
        f"{wording.drawn([suite])}. Points of one budget are set slightly apart, to tell bars apart; exact "
        "figures are in the table. Dotted: always answering the commonest class."
    )
    parts = [
        f"<h2>{escape(wording.suite_title(suite))}</h2>",
        f"<p>{escape(wording.suite_note(suite))}</p>",
        drawing(drawings[f"curve-{suite.name}"], wording.curve_text(suite), caption, "curve"),
        _score_table(suite),
        _comparisons(suite),
        _published_table(suite),
    ]
    if f"tasks-{suite.name}" in drawings:
        svg, description = drawings[f"tasks-{suite.name}"], wording.multiples_text(suite)
        caption = "Each task on its own vertical scale; bars as above."
        parts += ["<h3>Task by task</h3>", drawing(svg, description, caption, "panels")]
    if outside:
        reason = _BIGRAM if [task.name for task in outside] == ["bigram_shift"] else "Shown apart from the mean."
        parts += [f"<h3>Outside the mean: {escape(wording.names([task.name for task in outside]))}</h3>"]
        parts += [f"<p>{escape(reason)}</p>", _outside_table(suite, outside)]
    parts.append(details("Data behind these figures", _data_table(suite)))
    return "\n".join(parts)


def _further(contents: Contents) -> str:
    """Where the answers behind the scores are looked at."""
    if not (contents.out / "evaluation" / "report.html").is_file():
        return ""
    return (
        '<p class="soft">Confusion matrices and calibration are in evaluation/report.html of this experiment\'s '
        "folder, the mistakes in evaluation/mistakes/.</p>"
    )


def _task_head(task: TaskFacts) -> Head:
    return task.name, f"{task.metric}, n = {task.n_dev:,}\nmajority {points(task.majority)} %"


def _score_table(suite: Suite) -> str:
    degenerate = sum(cell.degenerate for cell in suite.cells)
    total = sum(cell.finetunings for cell in suite.cells)
    head: list[Head] = [("arm", ""), ("budget", "FLOPs"), ("steps", "tokens"), ("counted FLOPs", "of the budget")]
    shown = [] if suite.wide else suite.in_mean
    head += [("spent FLOPs", ""), *map(_task_head, shown), ("mean", "95 % interval")]
    rows = [
        [
            arm_name(cell.arm),
            flops_text(cell.budget),
            f"{count(cell.steps)}\n{count(cell.tokens)}",
            f"{flops_text(cell.flops_counted, 4)}\n{100 * cell.flops_counted / cell.budget:.2f} %",
            flops_text(cell.flops_spent, 4),
            *(_score(cell.tasks[task.name]) for task in shown),
            _score(cell.mean),
        ]
        for cell in suite.cells
    ]
    caption = (
        "Scores × 100 with their 95 % intervals. Counted: the trajectory that survived; spent: with what restarts "
        f"repeated. {degenerate} of {total} fine-tunings were degenerate (one answer to everything); none was dropped."
    )
    return table(caption, head, rows, group_by=1)


def _outside_table(suite: Suite, tasks: Sequence[TaskFacts]) -> str:
    head: list[Head] = [("arm", ""), ("budget", "FLOPs"), *map(_task_head, tasks)]
    rows = [
        [arm_name(cell.arm), flops_text(cell.budget), *(_score(cell.tasks[task.name]) for task in tasks)]
        for cell in suite.cells
    ]
    return table("Scores × 100 with their 95 % intervals.", head, rows, group_by=1)


def _published_table(suite: Suite) -> str:
    """Models that are no arms."""
    shown = [] if suite.wide else suite.in_mean
    head: list[Head] = [("model", ""), ("FLOPs", ""), *map(_task_head, shown), ("mean", "95 % interval")]
    rows = [
        [
            one.name,
            wording.published_flops(one),
            *(_score(one.tasks[task.name]) if task.name in one.tasks else "–" for task in shown),
            "–" if one.mean is None else _score(one.mean),
        ]
        for one in suite.published
    ]
    note = (
        "Models that are no arms of this experiment, on the same tasks under the same protocol. Declared FLOPs are "
        "what whoever evaluated the model said, perhaps counted by other rules; nothing is compared with them."
    )
    return f"<h3>Other models</h3>\n{table(note, head, rows, words=(0, 1))}" if rows else ""


def _comparisons(suite: Suite) -> str:
    if suite.baseline is None:
        return ""
    parts = []
    if suite.differences:
        rows = [
            [
                f"{arm_name(one.arm)} − {arm_name(one.baseline)}",
                flops_text(one.budget),
                change(one.difference.value),
                f"{change(one.difference.low)} to {change(one.difference.high)}",
                wording.reading(one),
            ]
            for one in suite.differences
        ]
        head = [("difference", ""), ("budget", "FLOPs"), ("points", ""), ("95 % interval", ""), ("reading", "")]
        note = (
            "Differences of the mean at equal compute, both arms scored on the same draws; not corrected for several "
            "comparisons."
        )
        parts.append(table(note, head, rows, words=(0, 4), group_by=1))
    if suite.multipliers:
        rows = [
            [
                f"{arm_name(one.baseline)} ÷ {arm_name(one.arm)}",
                wording.multiplier_text(one.multiplier),
                wording.multiplier_interval(one.multiplier),
                points(one.multiplier.score),
            ]
            for one in suite.multipliers
        ]
        head = [("FLOPs needed", ""), ("multiplier", ""), ("95 % interval", ""), ("at a mean of", "")]
        note = (
            f"Compute multiplier: FLOPs {arm_name(suite.baseline)} needs ÷ FLOPs the arm needs, at the best score both "
            "reach, linear in log FLOPs between measured points. Never extrapolated: a bound where the curves share no "
            "score."
        )
        parts.append(table(note, head, rows))
    return "<h3>Comparisons</h3>\n" + "\n".join(parts) if parts else ""


def _data_table(suite: Suite) -> str:
    def cells() -> Iterable[tuple[Cell, str, Figure]]:
        for cell in suite.cells:
            yield cell, "mean", cell.mean
            for task in suite.tasks:
                yield cell, task.name, cell.tasks[task.name]

    head = [("arm", ""), ("score", ""), ("counted FLOPs", ""), ("value", ""), ("low", "2.5 %"), ("high", "97.5 %")]
    rows = [
        [arm_name(cell.arm), name, f"{cell.flops_counted:.6g}", f"{f.value:.4f}", f"{f.low:.4f}", f"{f.high:.4f}"]
        for cell, name, f in cells()
    ]
    return table("Scores as fractions.", head, rows, words=(0, 1))


def _losses(contents: Contents, svg: str | None) -> str:
    note = (
        "Losses of different objectives are not comparable: they are means over different positions of different "
        "questions (a generator's masked-token loss is a smaller network's; replaced-token loss is binary). Compare an "
        "arm with itself, and arms by the scores above."
    )
    runs = contents.finished
    metrics = sorted({name for run in runs if run.done for name in run.done.get("heldout", {})})
    if not metrics:
        return ""
    parts = ["<h2>Held-out losses</h2>", f"<p>{escape(note)}</p>"]
    if svg is not None:
        panels = sorted({arm_name(run.arm) for run in runs})
        description = (
            f"Line charts of training and held-out losses against training compute, for {wording.names(panels)}, "
            "one panel an arm and quantity. The last held-out values are in the table."
        )
        caption = (
            "Lines: training, mean over the steps since the line before. Points: held-out rows, the same for all arms "
            "(BERT's with half of the second segments exchanged). "
            "Each panel has its own vertical scale."
        )
        parts.append(drawing(svg, description, caption, "panels"))
    shown = [name for name in _HELDOUT if f"heldout/{name}" in metrics]
    head: list[Head] = [("run", ""), *(_HELDOUT[name] for name in shown)]
    rows = [
        [_marked(run), *(_four(run.done["heldout"].get(f"heldout/{name}")) for name in shown)]
        for run in runs
        if run.done
    ]
    note = (
        "Held-out figures at the last step. MLM: masked tokens, of the generator where there is one; RTD: replaced "
        "tokens; NSP: next sentence. Read the RTD loss beside the label entropy, the loss of a detector that knows the "
        "replaced rate and no more; an AUC of 0.5 is chance. Degenerate: less than 1 % of that entropy explained, and "
        "an AUC below 0.55."
    )
    parts.append(table(note, head, rows))
    parts.append(details("Every held-out value", _heldout_table(runs, metrics)))
    return "\n".join(parts)


def _marked(run: Run) -> str:
    return f"{run.name}\ndegenerate" if run.degenerate else run.name


def _four(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _heldout_table(runs: Sequence[Run], metrics: Sequence[str]) -> str:
    head = [("run", ""), ("step", ""), ("FLOPs so far", ""), *((name.removeprefix("heldout/"), "") for name in metrics)]
    rows = [
        [run.name, count(line["step"]), f"{line['values']['flops']:.4g}"]
        + [_four(line["values"].get(name)) for name in metrics]
        for run in runs
        for line in run.lines
        if any(name in line["values"] for name in metrics)
    ]
    return table("As recorded during training.", head, rows)
