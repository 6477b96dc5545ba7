"""The report's figures of scores as SVG text, legible in print, in grey and to the colour-blind.

The data behind each figure and its description in words are the page's (`pipeline.page_suite`,
`pipeline.descriptions`). All are drawn with the marks of `pipeline.figure_parts`; matplotlib is imported when needed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.figure_parts import (
    COLOURS,
    DASHES,
    GREY,
    MARKERS,
    End,
    as_svg,
    bars,
    compute_axis,
    label_ends,
    log_axis,
    panels,
    style,
)
from pipeline.suites import Cell, Figure, Suite
from pipeline.wording import arm_name, score_label, suite_name

BANDS = 4  # arms, above which intervals are bars alone
COMPUTE = "training compute, model FLOPs (log scale)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What one panel shows: a figure for each cell. `arms`: all of the experiment, whose marks follow their order."""

    title: str
    label: str
    floor: float
    arms: Sequence[str]
    cells: Sequence[Cell]
    figures: Sequence[Figure]


def means(suite: Suite, title: str = "") -> Scores:
    """The mean over a suite's tasks."""
    return Scores(
        title=title,
        label=f"mean {score_label(suite.in_mean)}",
        floor=suite.floor,
        arms=suite.arms,
        cells=suite.cells,
        figures=[cell.mean for cell in suite.cells],
    )


def curve(suite: Suite) -> str:
    """Mean score against training FLOPs, one line an arm, with bars and bands for the 95 % interval."""
    with style() as plt:
        figure, axes = plt.subplots(figsize=(5.9, 3.9))
        ends = _score_lines(axes, means(suite), _counted, spread=0.035, band=has_bands(suite))
        drawn = _other_models(axes, suite)
        axes.set_xlabel(COMPUTE)
        axes.set_ylabel(f"mean {score_label(suite.in_mean)}")
        compute_axis(axes, [*(cell.budget for cell in suite.cells), *drawn])
        label_ends(figure, {axes: ends}, 10.5)
        return as_svg(figure, f"curve-{suite.name}")


def has_bands(suite: Suite) -> bool:
    """Whether the intervals are drawn as bands too: those of many arms would be mud."""
    return len({cell.arm for cell in suite.cells}) <= BANDS


def further_axes(suite: Suite, hours: str) -> str:
    """Mean score against the tokens read and against the hours of devices, which `hours` names."""
    sides: list[tuple[str, Callable[[Cell], float]]] = [
        ("tokens read in training (log scale)", lambda cell: cell.tokens),
        (f"{hours} of training (log scale)", lambda cell: cell.device_hours),
    ]
    with style() as plt:
        figure, grid = panels(plt, len(sides), 2, (4.6, 3.7))
        ends = {}
        for axes, (label, value) in zip(grid, sides, strict=True):
            ends[axes] = _score_lines(axes, means(suite), value)
            axes.set_xlabel(label)
            axes.set_ylabel(f"mean {score_label(suite.in_mean)}", fontsize=8.5)
            low, high = (end(value(cell) for cell in suite.cells) for end in (min, max))
            axes.set_xlim(low / (high / low) ** 0.1 / 1.1, high * (high / low) ** 0.42 * 1.3)
            log_axis(axes, until=high)
        label_ends(figure, ends, 10)
        return as_svg(figure, f"axes-{suite.name}")


def small_multiples(suite: Suite, beside: Sequence[Suite] = ()) -> str:
    """Each task's score against training FLOPs, one panel a task; after them the means of suites to be seen beside."""
    shown = [*task_panels(suite), *(means(one, f"{suite_name(one)}, mean of {len(one.in_mean)}") for one in beside)]
    with style() as plt:
        figure, grid = panels(plt, len(shown), 3, (3.4, 3.1))
        ends = {}
        for axes, scores in zip(grid, shown, strict=True):
            ends[axes] = _score_lines(axes, scores, _counted, spread=0.06, small=True)
            axes.set_title(scores.title)
            axes.set_ylabel(scores.label)
            compute_axis(axes, [cell.budget for cell in scores.cells], small=True)
        figure.supxlabel(COMPUTE, fontsize=9)
        label_ends(figure, ends, 8)
        return as_svg(figure, f"tasks-{suite.name}")


def task_panels(suite: Suite) -> list[Scores]:
    """A panel a task; none of a suite with too many."""
    if suite.wide:
        return []
    return [
        Scores(
            title=f"{task.name if task.in_mean else f'{task.name} (not in the mean)'}, n = {task.n_dev:,}",
            label=score_label([task]),
            floor=task.floor,
            arms=suite.arms,
            cells=suite.cells,
            figures=[cell.tasks[task.name] for cell in suite.cells],
        )
        for task in suite.tasks
    ]


def frontier(suite: Suite) -> str:
    """Cells by score and training FLOPs, and by score and trained parameters; those that nothing beats are filled."""
    distinct = len({point.parameters for point in suite.pareto})
    with style() as plt:
        figure, grid = panels(plt, 1 if distinct == 1 else 2, 2, (4.6, 3.6))
        _frontier_panel(grid[0], suite, [point.flops for point in suite.pareto], "training compute, model FLOPs")
        if distinct > 1:
            _frontier_panel(grid[1], suite, [point.parameters for point in suite.pareto], "trained parameters")
        handles = [plt.Line2D([], [], label=arm_name(arm), **_dots(suite, arm, True)) for arm in _drawn_arms(suite)]
        figure.legend(handles=handles, loc="outside upper left", ncols=min(5, len(handles)), frameon=False, fontsize=9)
        return as_svg(figure, f"frontier-{suite.name}")


# --- panels -----------------------------------------------------------------------------------------------------------


def _counted(cell: Cell) -> float:
    return cell.flops_counted


def _score_lines(
    axes: Any,
    scores: Scores,
    across: Callable[[Cell], float],
    *,
    spread: float = 0.0,
    small: bool = False,
    band: bool = False,
) -> list[End]:
    """Lines with bars for one figure a cell, each arm set aside by a small factor so that bars of one budget do not
    hide one another. Where each ends, for its name."""
    ends = []
    for index, arm in enumerate(scores.arms):
        own = [(cell, one) for cell, one in zip(scores.cells, scores.figures, strict=True) if cell.arm == arm]
        if not own:
            continue
        aside = (1 + spread) ** (index - (len(scores.arms) - 1) / 2)
        colour = COLOURS[index % len(COLOURS)]
        x = [across(cell) * aside for cell, _ in own]
        y, low, high = ([100 * getattr(one, end) for _, one in own] for end in ("value", "low", "high"))
        if band and len(own) > 1:
            axes.fill_between(x, low, high, color=colour, alpha=0.11, linewidth=0)
        axes.errorbar(
            x, y, yerr=bars([one for _, one in own]),
            color=colour, marker=MARKERS[index % len(MARKERS)],
            linestyle=DASHES[index % len(DASHES)], markersize=5 if small else 7, linewidth=1.3 if small else 1.8,
            capsize=2 if small else 3.5, elinewidth=1.0, markeredgecolor="white", markeredgewidth=0.6,
        )  # fmt: skip
        ends.append(End(own[-1][0].budget, x[-1], y[-1], arm_name(arm), colour))
    axes.margins(y=0.14)
    if ends and floor_is_drawn(scores.floor, scores.figures):
        axes.axhline(100 * scores.floor, color=GREY, linewidth=0.9, linestyle=(0, (1, 2)))
        # the floor's name among those of the arms that go furthest, so that none covers another
        last = max(ends, key=lambda end: end.budget)
        ends.append(End(last.budget, last.x, 100 * scores.floor, "constant answer", GREY, "normal"))
    axes.set_xscale("log")
    return ends


def floor_is_drawn(floor: float, figures: Sequence[Figure]) -> bool:
    """Whether the score of a constant answer is on the axis: not where most of the figure would be empty for it."""
    low, high = min(one.low for one in figures), max(one.high for one in figures)
    return floor > low - (high - low)


def _other_models(axes: Any, suite: Suite) -> list[float]:
    """Models that were evaluated here and not trained here, as crosses with their names; those whose FLOPs or mean are
    not known are in the table alone. Their FLOPs."""
    known = [(one.flops, one.mean, one) for one in suite.published if one.flops and one.mean]
    for flops, mean, one in known:
        axes.errorbar(
            [flops], [100 * mean.value], yerr=bars([mean]), color=GREY, marker="x", capsize=3.5, elinewidth=1.0
        )
        name = f"{one.name} (declared FLOPs)" if one.declared else one.name
        axes.annotate(
            name, (flops, 100 * mean.value), xytext=(0, 9), textcoords="offset points", color=GREY, fontsize=8.5,
            ha="center", annotation_clip=False,
        )  # fmt: skip
    return [flops for flops, _, _ in known]


def _frontier_panel(axes: Any, suite: Suite, across: Sequence[float], label: str) -> None:
    """Points, and a step line through the best scores so far from left to right."""
    for point, x in zip(suite.pareto, across, strict=True):
        axes.plot([x], [100 * point.score], **_dots(suite, point.arm, point.frontier))
    best: list[tuple[float, float]] = []
    for x, point in sorted(zip(across, suite.pareto, strict=True), key=lambda one: (one[0], -one[1].score)):
        if not best or 100 * point.score > best[-1][1]:
            best.append((x, 100 * point.score))
    best.append((max(across), best[-1][1]))
    axes.step(*zip(*best, strict=True), where="post", color=GREY, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
    axes.set_xlabel(f"{label} (log scale)")
    axes.set_ylabel(f"mean {score_label(suite.in_mean)}", fontsize=8.5)
    axes.margins(x=0.12, y=0.12)
    log_axis(axes, at=sorted(set(across)))


def _dots(suite: Suite, arm: str, filled: bool) -> dict[str, Any]:
    index = suite.arms.index(arm)
    colour = COLOURS[index % len(COLOURS)]
    marker = MARKERS[index % len(MARKERS)]
    return {
        "marker": marker,
        "color": colour,
        "linestyle": "none",
        "markersize": 8,
        "markerfacecolor": colour if filled else "white",
    }


def _drawn_arms(suite: Suite) -> list[str]:
    there = {point.arm for point in suite.pareto}
    return [arm for arm in suite.arms if arm in there]
