"""The report's figures as SVG text, legible in print, in grey and to the colour-blind.

Every arm has its own colour (Okabe & Ito 2008), marker and dash, and its name stands beside its line. Text is drawn as
outlines, so a figure looks the same everywhere; the same numbers give the same bytes. The data behind each figure and
its description in words are the page's (`pipeline.page`, `pipeline.wording`). matplotlib is imported when needed.
"""

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pipeline.gather import Run
from pipeline.suites import Figure, Suite
from pipeline.wording import LOSS_UNITS, LOSSES, arm_name, flops_text, score_label

# Okabe and Ito's colours in an order that also falls apart in grey, without yellow, which white paper swallows, and two
# more, so that nine objectives differ in each of colour, marker and dash.
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9", "#7A4E1D", "#882255")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "*")
_DASHES: tuple[Any, ...] = (
    "solid",
    (0, (6, 2)),
    (0, (2, 1.5)),
    (0, (6, 2, 1.5, 2)),
    (0, (1, 1)),
    (0, (9, 3)),
    (0, (4, 1)),
    (0, (3, 3)),
    (0, (8, 2, 1, 2, 1, 2)),
)
_GREY = "#595959"

_COMPUTE = "training compute, model FLOPs (log scale)"


def curve(suite: Suite) -> str:
    """Mean score against training FLOPs, one line an arm, bars for the 95 % interval."""
    with _style() as plt:
        figure, axes = plt.subplots(figsize=(7.2, 4.3))
        _score_lines(axes, suite, [cell.mean for cell in suite.cells], suite.floor, spread=0.035)
        drawn = _published_points(axes, suite)
        axes.set_xlabel(_COMPUTE)
        axes.set_ylabel(f"mean {score_label(suite.in_mean)}")
        _compute_axis(axes, [*(cell.budget for cell in suite.cells), *drawn])
        return _svg(figure, f"curve-{suite.name}")


def small_multiples(suite: Suite) -> str:
    """Each task's score against training FLOPs, one panel a task."""
    tasks = suite.tasks
    with _style() as plt:
        columns = min(3, len(tasks))
        rows = -(-len(tasks) // columns)
        figure, grid = plt.subplots(rows, columns, figsize=(3.4 * columns, 3.1 * rows), squeeze=False)
        for axes, task in zip(grid.flat, tasks, strict=False):
            scores = [cell.tasks[task.name] for cell in suite.cells]
            _score_lines(axes, suite, scores, task.floor, spread=0.06, small=True)
            title = task.name if task.in_mean else f"{task.name} (not in the mean)"
            axes.set_title(f"{title}, n = {task.n_dev:,}")
            axes.set_ylabel(score_label([task]))
            _compute_axis(axes, [cell.budget for cell in suite.cells], small=True)
        for axes in list(grid.flat)[len(tasks) :]:
            axes.remove()
        figure.supxlabel(_COMPUTE, fontsize=9)
        return _svg(figure, f"tasks-{suite.name}")


def losses(runs: Sequence[Run], arms: Sequence[str]) -> str | None:
    """Training and held-out losses along each run, one panel an arm and quantity, each with its own scale; None where
    no held-out figure was recorded."""
    panels = loss_panels(runs)
    if not panels:
        return None
    budgets = sorted({run.budget for run in runs})
    with _style() as plt:
        columns = min(3, len(panels))
        rows = -(-len(panels) // columns)
        figure, grid = plt.subplots(rows, columns, figsize=(3.4 * columns, 2.7 * rows + 0.5), squeeze=False)
        for axes, (arm, name) in zip(grid.flat, panels, strict=False):
            own = [run for run in runs if run.arm == arm]
            _loss_panel(axes, own, name, budgets, _COLOURS[arms.index(arm) % len(_COLOURS)])
            axes.set_title(f"{arm_name(arm)}: {LOSSES[name]}")
            axes.set_ylabel(LOSS_UNITS[name])
            _log_axis(axes)
        for axes in list(grid.flat)[len(panels) :]:
            axes.remove()
        _loss_legend(figure, plt, budgets)
        figure.supxlabel("training compute so far, model FLOPs (log scale)", fontsize=9)
        return _svg(figure, "losses")


def loss_panels(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """(arm, quantity) of every held-out figure that is drawn, arms in their order."""
    recorded = {
        (run.arm, name.removeprefix("heldout/"))
        for run in runs
        for line in run.lines
        for name in line["values"]
        if name.startswith("heldout/")
    }
    arms = dict.fromkeys(run.arm for run in runs)
    return [(arm, name) for arm in arms for name in LOSSES if (arm, name) in recorded]


# --- panels -----------------------------------------------------------------------------------------------------------


def _score_lines(
    axes: Any, suite: Suite, figures: Sequence[Figure], floor: float, *, spread: float, small: bool = False
) -> None:
    """Lines with bars for one figure a cell, each arm set aside by a small factor so that bars of one budget do not
    hide one another."""
    ends = []
    for index, arm in enumerate(suite.arms):
        own = [(cell, figure) for cell, figure in zip(suite.cells, figures, strict=True) if cell.arm == arm]
        if not own:
            continue
        aside = (1 + spread) ** (index - (len(suite.arms) - 1) / 2)
        x = [cell.flops_counted * aside for cell, _ in own]
        y = [100 * figure.value for _, figure in own]
        bars = [[100 * (f.value - f.low) for _, f in own], [100 * (f.high - f.value) for _, f in own]]
        axes.errorbar(
            x, y, yerr=bars,
            color=_COLOURS[index % len(_COLOURS)], marker=_MARKERS[index % len(_MARKERS)],
            linestyle=_DASHES[index % len(_DASHES)], markersize=5 if small else 7, linewidth=1.3 if small else 1.8,
            capsize=2 if small else 3.5, elinewidth=1.0, markeredgecolor="white", markeredgewidth=0.6,
        )  # fmt: skip
        ends.append(_End(own[-1][0].budget, x[-1], y[-1], arm_name(arm), _COLOURS[index % len(_COLOURS)]))
    axes.axhline(100 * floor, color=_GREY, linewidth=0.9, linestyle=(0, (1, 2)))
    axes.margins(y=0.14)
    if ends:  # the floor's name among those of the arms that go furthest, so that none covers another
        last = max(ends, key=lambda end: end.budget)
        ends.append(_End(last.budget, last.x, 100 * floor, "constant answer", _GREY, "normal"))
    for budget in {end.budget for end in ends}:
        _label_ends(axes, [end for end in ends if end.budget == budget], 8 if small else 10.5)


def _published_points(axes: Any, suite: Suite) -> list[float]:
    """Other models, as crosses with their names; those whose FLOPs or mean are not known are in the table alone. Their
    FLOPs."""
    known = [(one.flops, one.mean, one) for one in suite.published if one.flops and one.mean]
    for flops, mean, one in known:
        bars = [[100 * (mean.value - mean.low)], [100 * (mean.high - mean.value)]]
        axes.errorbar([flops], [100 * mean.value], yerr=bars, color=_GREY, marker="x", capsize=3.5, elinewidth=1.0)
        name = f"{one.name} (declared FLOPs)" if one.declared else one.name
        axes.annotate(
            name, (flops, 100 * mean.value), xytext=(0, 9), textcoords="offset points", color=_GREY, fontsize=8.5,
            ha="center", annotation_clip=False,
        )  # fmt: skip
    return [flops for flops, _, _ in known]


@dataclass(frozen=True, slots=True)
class _End:
    """The last point of a line, and what stands beside it."""

    budget: float
    x: float
    y: float
    name: str
    colour: str
    weight: str = "bold"


def _label_ends(axes: Any, ends: Sequence[_End], size: float) -> None:
    """The names of lines that end at one budget, to the right of their points, moved apart where they would touch."""
    axes.figure.canvas.draw()
    right = max(end.x for end in ends)
    heights = [axes.transData.transform((right, end.y))[1] for end in ends]
    placed = _spread(heights, 1.25 * size * axes.figure.dpi / 72)
    for end, height, wanted in zip(ends, heights, placed, strict=True):
        offset = (wanted - height) * 72 / axes.figure.dpi
        axes.annotate(
            end.name, (right, end.y), xytext=(9, offset), textcoords="offset points", color=end.colour,
            fontsize=size, va="center", ha="left", fontweight=end.weight, annotation_clip=False,
        )  # fmt: skip


def _spread(positions: Sequence[float], gap: float) -> list[float]:
    """Positions moved as little as needed to lie at least `gap` apart, in the same order: each group of names that
    would touch is set around its own middle."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    groups: list[list[int]] = []
    for index in order:
        groups.append([index])
        while len(groups) > 1 and _top(groups[-2], positions, gap) + gap > _bottom(groups[-1], positions, gap):
            groups[-2:] = [groups[-2] + groups[-1]]
    placed = list(positions)
    for group in groups:
        for rank, index in enumerate(group):
            placed[index] = _bottom(group, positions, gap) + rank * gap
    return placed


def _bottom(group: Sequence[int], positions: Sequence[float], gap: float) -> float:
    return sum(positions[i] for i in group) / len(group) - gap * (len(group) - 1) / 2


def _top(group: Sequence[int], positions: Sequence[float], gap: float) -> float:
    return _bottom(group, positions, gap) + gap * (len(group) - 1)


def _loss_panel(axes: Any, runs: Sequence[Run], name: str, budgets: Sequence[float], colour: str) -> None:
    """Training figures as lines, dashed by budget; held-out figures as points, with a marker by budget."""
    for run in runs:
        style = budgets.index(run.budget)
        for kind in ("train", "heldout"):
            points = [
                (line["values"]["flops"], line["values"][f"{kind}/{name}"])
                for line in run.lines
                if f"{kind}/{name}" in line["values"]
            ]
            if not points:
                continue
            x, y = zip(*points, strict=True)
            if kind == "train":
                axes.plot(x, y, color=colour, linestyle=_DASHES[style % len(_DASHES)], linewidth=1.1, alpha=0.75)
            else:
                axes.plot(
                    x, y, color=colour, marker=_MARKERS[style % len(_MARKERS)], linestyle="none", markersize=6,
                    markeredgecolor="white", markeredgewidth=0.7,
                )  # fmt: skip


def _loss_legend(figure: Any, plt: Any, budgets: Sequence[float]) -> None:
    handles = []
    for style, budget in enumerate(budgets):
        line = {"linestyle": _DASHES[style % len(_DASHES)], "linewidth": 1.2}
        point = {"marker": _MARKERS[style % len(_MARKERS)], "linestyle": "none", "markersize": 6}
        handles += [
            plt.Line2D([], [], color=_GREY, label=f"training, budget {flops_text(budget)}", **line),
            plt.Line2D([], [], color=_GREY, label=f"held-out, budget {flops_text(budget)}", **point),
        ]
    figure.legend(handles=handles, loc="outside upper left", ncols=min(4, len(handles)), frameon=False, fontsize=8)


def _compute_axis(axes: Any, budgets: Sequence[float], *, small: bool = False) -> None:
    """A log axis with room for names at its right, ticked at the budgets themselves."""
    axes.set_xscale("log")
    distinct = sorted(set(budgets))
    low, high = distinct[0], distinct[-1]
    span = max(high / low, 1.6)
    axes.set_xlim(low / span**0.14, high * span ** (0.55 if small else 0.26))
    from matplotlib.ticker import NullLocator

    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(distinct, [flops_text(budget) for budget in distinct])


def _log_axis(axes: Any) -> None:
    """A log axis with at most four round numbers on it."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(round_numbers(*axes.get_xlim())))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: flops_text(value)))
    axes.xaxis.set_minor_locator(NullLocator())


def round_numbers(low: float, high: float) -> list[float]:
    """One to four numbers within a range: of the powers of ten, with their multiples by 3, or by 2 and 5, or by all
    digits, the first set that has two there; else its middle."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for digits in ((1,), (1, 3), (1, 2, 5), range(1, 10)):
        found = [digit * 10.0**power for power in powers for digit in digits if low <= digit * 10.0**power <= high]
        if len(found) >= 2:
            break
    return found[:: math.ceil(len(found) / 4)] if found else [math.sqrt(low * high)]


# --- drawing ----------------------------------------------------------------------------------------------------------


@contextmanager
def _style() -> Iterator[Any]:
    """pyplot without a display, in our style; figures are closed afterwards."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rules: Any = {
        "font.family": "DejaVu Sans",  # matplotlib brings it
        "font.size": 9.5,
        "axes.titlesize": 9.5,
        "axes.labelsize": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#dddddd",
        "grid.linewidth": 0.6,
        "figure.constrained_layout.use": True,
        "figure.facecolor": "white",
        "svg.fonttype": "path",
        "svg.hashsalt": "electra",
    }
    with matplotlib.rc_context(rules):
        yield plt
        plt.close("all")


def _svg(figure: Any, name: str) -> str:
    """The figure as an `<svg>` element without prologue; ids begin with `name`, so that a page may hold several."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
