"""Every figure of the report in words, from the numbers it draws: what a screen reader says instead of it."""

from collections.abc import Sequence

from pipeline.figures_training import loss_panels, loss_points
from pipeline.gather import Run
from pipeline.learning_signal import Along, entropy
from pipeline.published import Model
from pipeline.suites import Cell, Figure, Published, Suite
from pipeline.wording import (
    LOSSES,
    arm_name,
    count,
    flops_text,
    hours_text,
    interval,
    names,
    points,
    score_label,
    suite_name,
)


def curve_text(suite: Suite) -> str:
    """The main figure."""
    lines = [
        f"{arm_name(arm)}: "
        + ", ".join(
            f"{points(cell.mean.value)} ({interval(cell.mean)}) at {flops_text(cell.budget)}"
            for cell in _of(suite, arm)
        )
        for arm in _arms(suite)
    ]
    return (
        f"Line chart with one line an arm. Across: training compute in model FLOPs, logarithmic. Up: mean "
        f"{score_label(suite.in_mean)}, with 95 % intervals. {'. '.join(lines)}. A constant answer scores "
        f"{points(suite.floor)}.{_others(suite.published)}"
    )


def _others(published: Sequence[Published]) -> str:
    known = [
        f"{one.name} {points(one.mean.value)} at {flops_text(one.flops)} FLOPs{' (declared)' if one.declared else ''}"
        for one in published
        if one.mean is not None and one.flops
    ]
    return f" Other models: {names(known)}." if known else ""


def axes_text(suite: Suite, hours: str) -> str:
    """The same scores along tokens and hours."""
    lines = [
        f"{arm_name(arm)}: "
        + ", ".join(
            f"{points(cell.mean.value)} after {flops_text(cell.tokens)} tokens and {hours_text(cell.device_hours)} "
            f"{hours}"
            for cell in _of(suite, arm)
        )
        for arm in _arms(suite)
    ]
    return (
        f"Two line charts of the mean {score_label(suite.in_mean)}, one line an arm: along the tokens read in training "
        f"and along {hours}, both logarithmic. {'. '.join(lines)}."
    )


def multiples_text(suite: Suite, beside: Sequence[Suite]) -> str:
    """The small multiples: how each line goes from its smallest to its largest budget."""
    tasks = [] if suite.wide else suite.tasks
    lines = [f"{task.name}: {_ends(suite, [cell.tasks[task.name] for cell in suite.cells])}" for task in tasks]
    lines += [f"{suite_name(one)}: {_ends(one, [cell.mean for cell in one.cells])}" for one in beside]
    return (
        f"{len(lines)} line charts of score × 100 against training compute in model FLOPs on a logarithmic axis, one "
        f"line an arm, each on its own vertical scale; from the smallest budget to the largest: {'. '.join(lines)}."
    )


def _ends(suite: Suite, figures: Sequence[Figure]) -> str:
    said = []
    for arm in _arms(suite):
        own = [one for cell, one in zip(suite.cells, figures, strict=True) if cell.arm == arm]
        ends = points(own[0].value) if len(own) == 1 else f"{points(own[0].value)} to {points(own[-1].value)}"
        said.append(f"{arm_name(arm)} {ends}")
    return ", ".join(said)


def frontier_text(suite: Suite) -> str:
    """The cells that nothing beats."""
    told = [
        f"{arm_name(point.arm)} at {flops_text(point.flops)} with {count(point.parameters)} parameters scores "
        f"{points(point.score)}"
        for point in suite.pareto
        if point.frontier
    ]
    return (
        f"Scatter chart of the mean score of {len(suite.pareto)} cells against training FLOPs, and against trained "
        f"parameters where they differ. Nothing beats {len(told)} of them: {'; '.join(told)}."
    )


def reference_text(suite: Suite, models: Sequence[Model]) -> str:
    """Arms and published models."""
    known = [f"{model.name} {model.glue:.1f} at {flops_text(model.flops)}" for model in models]
    own = [
        f"{arm_name(cell.arm)} {points(cell.mean.value)} at {flops_text(cell.flops_paper)}"
        for cell in suite.cells
        if cell.flops_paper is not None
    ]
    return (
        "Chart of mean GLUE score against training FLOPs as the ELECTRA paper counts them, logarithmic. This "
        f"experiment: {', '.join(own)}. Published: {', '.join(known)}."
    )


def losses_text(runs: Sequence[Run]) -> str:
    """Losses along the runs: where each held-out quantity begins and ends at the largest budget of its arm."""
    told = []
    for arm, name in loss_panels(runs):
        run = max((one for one in runs if one.arm == arm), key=lambda one: one.budget)
        values = [value for _, value in loss_points(run, f"heldout/{name}")]
        if values:
            told.append(f"{arm_name(arm)}, {LOSSES[name]}: {values[0]:.3g} to {values[-1]:.3g}")
    return (
        f"{len(told)} line charts of training and held-out losses against training compute, one an arm and quantity. "
        f"Held-out, from the first evaluation to the last at the largest budget: {'; '.join(told)}."
    )


def labels_text(along: Sequence[Along]) -> str:
    """What the labels of detection hold."""
    told = [
        f"{one.run} from {100 * one.rates[0]:.1f} % and {one.bits[0]:.2f} bit to {100 * one.rates[-1]:.1f} % and "
        f"{one.bits[-1]:.2f} bit"
        for one in along
    ]
    return (
        "Line chart of the entropy of a label, in bits, against the share of replaced tokens, with the held-out "
        f"evaluations of each run on it: {'; '.join(told)}. At 6 % replaced it is {entropy(0.06):.2f} bit."
    )


def _arms(suite: Suite) -> list[str]:
    return list(dict.fromkeys(cell.arm for cell in suite.cells))


def _of(suite: Suite, arm: str) -> list[Cell]:
    return [cell for cell in suite.cells if cell.arm == arm]
