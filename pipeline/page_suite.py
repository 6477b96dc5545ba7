"""The report's section on a suite: its scores against compute, tokens and hours, task by task, compared, and the
frontier.

Part of the page (`pipeline.page`): layout only, every text escaped. Every figure has a description and its data.
"""

from collections.abc import Mapping, Sequence
from html import escape

from pipeline import descriptions, wording
from pipeline.figures import has_bands
from pipeline.page_parts import Head, drawing, table
from pipeline.page_reference import reference_section
from pipeline.suites import Figure, Suite, TaskFacts
from pipeline.wording import arm_name, change, count, covered, flops_text, hours_text, points, score

_BIGRAM = (
    "bigram_shift asks whether two neighbouring words were exchanged. That is close to the replaced-token detection "
    "that ELECTRA and its variants are trained on, so it favours them by construction: it is shown, "
    "and it is not in any mean."
)


def suite_section(suite: Suite, beside: Sequence[Suite], hours: str, drawings: Mapping[str, str]) -> str:
    """Everything about one suite. `beside`: suites whose means are drawn next to its tasks; `hours`: what the hours of
    devices are called."""
    outside = [task for task in suite.tasks if not task.in_mean]
    parts = [
        f"<h2>{escape(wording.suite_title(suite))}</h2>",
        f"<p>{escape(wording.suite_note(suite))}</p>",
        _curve(suite, drawings),
        _score_table(suite),
        _comparisons(suite),
        _published_table(suite),
        _further_axes(suite, hours, drawings),
        _multiples(suite, beside, drawings),
    ]
    if outside:
        reason = _BIGRAM if [task.name for task in outside] == ["bigram_shift"] else "Shown apart from the mean."
        parts += [f"<h3>Outside the mean: {escape(wording.names([task.name for task in outside]))}</h3>"]
        parts += [f"<p>{escape(reason)}</p>", _outside_table(suite, outside)]
    parts += [_frontier(suite, drawings), reference_section(suite, drawings)]
    return "\n".join(part for part in parts if part)


def _floor(suite: Suite) -> str:
    """What scores as much without having learned anything."""
    return "Choosing by chance" if suite.name.startswith("blimp") else "Always answering the commonest class"


# --- figures ----------------------------------------------------------------------------------------------------------


def _curve(suite: Suite, drawings: Mapping[str, str]) -> str:
    caption = (
        f"Mean score against training compute. Bars{' and bands' * has_bands(suite)}: 95 % intervals over "
        f"{wording.drawn([suite])}. Points of one budget are set slightly apart, to tell bars apart; exact figures are "
        f"in the table. {_floor(suite)} scores {points(suite.floor)} (dotted, unless far below)."
    )
    head: list[Head] = [("arm", ""), ("counted FLOPs", ""), ("mean", ""), ("low", "2.5 %"), ("high", "97.5 %")]
    rows = [[arm_name(cell.arm), f"{cell.flops_counted:.6g}", *_fractions(cell.mean)] for cell in suite.cells]
    data = table("Mean scores as fractions. Every task is in scores.csv beside this page.", head, rows)
    return drawing(drawings[f"curve-{suite.name}"], descriptions.curve_text(suite), caption, "curve", data)


def _further_axes(suite: Suite, hours: str, drawings: Mapping[str, str]) -> str:
    caption = (
        "The same means along other axes. Tokens: an objective whose step is dearer reads fewer for the same FLOPs. "
        f"{hours[0].upper()}{hours[1:]}: training alone, on the hardware named under compute and throughput, and as "
        "busy as that was."
    )
    head: list[Head] = [("arm", ""), ("budget", "FLOPs"), ("tokens", ""), (hours, ""), ("mean", "95 % interval")]
    rows = [
        [
            arm_name(cell.arm),
            flops_text(cell.budget),
            count(cell.tokens),
            hours_text(cell.device_hours),
            score(cell.mean),
        ]
        for cell in suite.cells
    ]
    data = table("Means over pre-training seeds.", head, rows, group_by=1)
    text = descriptions.axes_text(suite, hours)
    return "<h3>By tokens and by hours</h3>\n" + drawing(drawings[f"axes-{suite.name}"], text, caption, "panels", data)


def _multiples(suite: Suite, beside: Sequence[Suite], drawings: Mapping[str, str]) -> str:
    if f"tasks-{suite.name}" not in drawings:
        return ""
    also = f" {wording.names([wording.suite_name(one) for one in beside])} beside them, by the mean." if beside else ""
    caption = f"Each task on its own vertical scale; bars as above.{also}"
    rows = [
        [task.name, arm_name(cell.arm), f"{cell.flops_counted:.6g}", *_fractions(cell.tasks[task.name])]
        for task in ([] if suite.wide else suite.tasks)
        for cell in suite.cells
    ]
    rows += [
        [wording.suite_name(one), arm_name(cell.arm), f"{cell.flops_counted:.6g}", *_fractions(cell.mean)]
        for one in beside
        for cell in one.cells
    ]
    head = [("task", ""), ("arm", ""), ("counted FLOPs", ""), ("score", ""), ("low", "2.5 %"), ("high", "97.5 %")]
    data = table("Scores as fractions.", head, rows, words=(0, 1), group_by=0)
    text = descriptions.multiples_text(suite, beside)
    return "<h3>Task by task</h3>\n" + drawing(drawings[f"tasks-{suite.name}"], text, caption, "panels", data)


def _frontier(suite: Suite, drawings: Mapping[str, str]) -> str:
    if f"frontier-{suite.name}" not in drawings:
        return ""
    caption = (
        "Filled: no other cell asks for no more FLOPs and no more parameters and scores no less. Dashed: the best mean "
        "so far from left to right. Parameters are those trained, a generator's too, which is not fine-tuned."
    )
    head: list[Head] = [("arm", ""), ("budget", "FLOPs"), ("parameters", "trained"), ("mean", "")]
    head += [("on the frontier", ""), ("of replicates", "share on it")]
    rows = [
        [
            arm_name(point.arm),
            flops_text(point.flops),
            count(point.parameters),
            points(point.score),
            "yes" if point.frontier else "no",
            f"{100 * point.share:.0f} %",
        ]
        for point in suite.pareto
    ]
    note = (
        "A cell that a replicate of the bootstrap puts on the frontier in half of the cases is on it by luck as much "
        "as by merit."
    )
    data = table(note, head, rows, group_by=1)
    text = descriptions.frontier_text(suite)
    return "<h3>Pareto frontier</h3>\n" + drawing(drawings[f"frontier-{suite.name}"], text, caption, "panels", data)


def _fractions(figure: Figure) -> list[str]:
    return [f"{value:.4f}" for value in (figure.value, figure.low, figure.high)]


# --- tables -----------------------------------------------------------------------------------------------------------


def _task_head(task: TaskFacts) -> Head:
    return task.name, f"{task.metric}, n = {task.n_dev:,}\nmajority {points(task.majority)} %"


def _score_table(suite: Suite) -> str:
    shown = [] if suite.wide else suite.in_mean
    head: list[Head] = [("arm", ""), ("budget", "FLOPs"), ("mean", "95 % interval"), ("covers", "seeds")]
    rows = [
        [
            arm_name(cell.arm),
            flops_text(cell.budget),
            score(cell.mean),
            covered(cell.seeds, "score"),
            *(score(cell.tasks[task.name]) for task in shown),
        ]
        for cell in suite.cells
    ]
    caption = (
        "Scores × 100 with their 95 % intervals. Covers: in how many of the simulated experiments with so many "
        f"pre-training seeds the mean's interval held the truth.{_degenerate(suite)}"
    )
    return table(caption, [*head, *map(_task_head, shown)], rows, group_by=1)


def _degenerate(suite: Suite) -> str:
    if not suite.tuned:
        return ""
    degenerate = sum(cell.degenerate for cell in suite.cells)
    total = sum(cell.finetunings for cell in suite.cells)
    return f" {degenerate} of {total} fine-tunings were degenerate (one answer to everything); none was dropped."


def _outside_table(suite: Suite, tasks: Sequence[TaskFacts]) -> str:
    head: list[Head] = [("arm", ""), ("budget", "FLOPs"), *map(_task_head, tasks)]
    rows = [
        [arm_name(cell.arm), flops_text(cell.budget), *(score(cell.tasks[task.name]) for task in tasks)]
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
            *(score(one.tasks[task.name]) if task.name in one.tasks else "–" for task in shown),
            "–" if one.mean is None else score(one.mean),
        ]
        for one in suite.published
    ]
    note = (
        "Models that are no arms of this experiment, on the same tasks under the same protocol. Declared FLOPs are "
        "what whoever evaluated the model said, perhaps counted by other rules; nothing is compared with them."
    )
    return f"<h3>Other models</h3>\n{table(note, head, rows, words=(0, 1))}" if rows else ""


def _comparisons(suite: Suite) -> str:
    parts = [part for part in (_differences(suite), _multipliers(suite)) if part]
    return "<h3>Comparisons</h3>\n" + "\n".join(parts) if parts else ""


def _differences(suite: Suite) -> str:
    if not suite.differences:
        return ""
    rows = [
        [
            f"{arm_name(one.arm)} − {arm_name(one.baseline)}",
            flops_text(one.budget),
            change(one.difference.value),
            f"{change(one.difference.low)} to {change(one.difference.high)}\n{covered(one.seeds, 'difference')}",
            wording.reading(one),
        ]
        for one in suite.differences
    ]
    head: list[Head] = [("difference", ""), ("budget", "FLOPs"), ("points", ""), ("95 % interval", "covers")]
    note = (
        "Differences of the mean at equal compute, both arms scored on the same draws; not corrected for several "
        "comparisons. Covers: in how many of the simulated experiments with so few pre-training seeds the interval "
        "held the truth."
    )
    return table(note, [*head, ("reading", "")], rows, words=(0, 4), group_by=1)


def _multipliers(suite: Suite) -> str:
    if not suite.multipliers:
        return ""
    rows = [
        [
            f"{arm_name(one.baseline)} ÷ {arm_name(one.arm)}",
            wording.multiplier_text(one.multiplier),
            f"{wording.multiplier_interval(one.multiplier)}\n{covered(one.seeds, 'multiplier')}",
            points(one.multiplier.score),
        ]
        for one in suite.multipliers
    ]
    head = [("FLOPs needed", ""), ("multiplier", ""), ("95 % interval", "covers"), ("at a mean of", "")]
    note = (
        f"Compute multiplier: FLOPs {arm_name(suite.multipliers[0].baseline)} needs ÷ FLOPs the arm needs, at the best "
        "score both reach, linear in log FLOPs between measured points. Never extrapolated: a bound where the curves "
        "share no score."
    )
    return table(note, head, rows)
