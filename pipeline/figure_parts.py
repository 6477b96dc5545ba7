"""What the report's figures are drawn with: style, marks of arms, names beside lines, axes, SVG text.

Every arm has its own colour (Okabe & Ito 2008), marker and dash, and its name stands beside its line. Text is drawn as
outlines, so a figure looks the same everywhere; the same numbers give the same bytes. matplotlib is imported when
needed.
"""

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pipeline.suites import Figure
from pipeline.wording import flops_text, number_text

# Okabe and Ito's colours in an order that also falls apart in grey, without yellow, which white paper swallows, and two
# more, so that nine objectives differ in each of colour, marker and dash.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9", "#7A4E1D", "#882255")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "*")
DASHES: tuple[Any, ...] = (
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
GREY = "#595959"
_DECIMALS = re.compile(r"(\.\d\d)\d+")


# --- names beside lines ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    """The last point of a line, and what stands beside it."""

    budget: float
    x: float
    y: float
    name: str
    colour: str
    weight: str = "bold"


def label_ends(figure: Any, ends: Mapping[Any, Sequence[End]], size: float) -> None:
    """The names of lines, by the axes they are on, to the right of their points; call it when all else is drawn, for a
    name's place depends on the layout."""
    figure.draw_without_rendering()
    for axes, own in ends.items():
        for budget in dict.fromkeys(end.budget for end in own):
            _label(axes, [end for end in own if end.budget == budget], size)


def _label(axes: Any, ends: Sequence[End], size: float) -> None:
    """Of lines that end at one budget, moved apart where they would touch."""
    right = max(end.x for end in ends)
    heights = [axes.transData.transform((right, end.y))[1] for end in ends]
    placed = spread(heights, 1.25 * size * axes.figure.dpi / 72)
    for end, height, wanted in zip(ends, heights, placed, strict=True):
        offset = (wanted - height) * 72 / axes.figure.dpi
        axes.annotate(
            end.name, (right, end.y), xytext=(9, offset), textcoords="offset points", color=end.colour,
            fontsize=size, va="center", ha="left", fontweight=end.weight, annotation_clip=False,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip


def spread(positions: Sequence[float], gap: float) -> list[float]:
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


# --- bars ------------------------------------------------------------------------------------------------------------


def bars(figures: Sequence[Figure]) -> list[list[float]]:
    """How far each interval × 100 reaches below its value and above; nothing where it does not reach it, as by a
    rounding error, or where few examples are skewed."""
    below = [max(0.0, 100 * (one.value - one.low)) for one in figures]
    return [below, [max(0.0, 100 * (one.high - one.value)) for one in figures]]


# --- axes ------------------------------------------------------------------------------------------------------------


def compute_axis(axes: Any, budgets: Sequence[float], *, small: bool = False) -> None:
    """A log axis with room for names at its right, ticked at the budgets themselves."""
    axes.set_xscale("log")
    distinct = sorted(set(budgets))
    low, high = distinct[0], distinct[-1]
    span = max(high / low, 1.6)
    axes.set_xlim(low / span**0.14, high * span ** (0.55 if small else 0.26))
    from matplotlib.ticker import NullLocator

    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(distinct, [flops_text(budget) for budget in distinct])


def log_axis(axes: Any, until: float = math.inf, at: Sequence[float] = ()) -> None:
    """A log axis with at most four numbers on it: those of `at`, ascending, that lie well apart, or round ones, none
    beyond `until`, where only names stand."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = _apart(at, (high / low) ** 0.25) or round_numbers(low, min(high, 1.05 * until))
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    axes.xaxis.set_minor_locator(NullLocator())


def _apart(numbers: Sequence[float], factor: float) -> list[float]:
    """Those of ascending numbers that are larger by this factor than the one before."""
    found: list[float] = []
    for number in numbers:
        if not found or number >= found[-1] * factor:
            found.append(number)
    return found


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


# --- drawing ---------------------------------------------------------------------------------------------------------


def panels(plt: Any, count: int, columns: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    """A figure with so many panels, `columns` in a row at most, each of a width and a height in inches."""
    across = min(columns, count)
    down = -(-count // across)
    figure, grid = plt.subplots(down, across, figsize=(size[0] * across, size[1] * down), squeeze=False)
    flat = list(grid.flat)
    for axes in flat[count:]:
        axes.remove()
    return figure, flat[:count]


@contextmanager
def style() -> Iterator[Any]:
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


def as_svg(figure: Any, name: str) -> str:
    """The figure as an `<svg>` element without prologue; ids begin with `name`, so that a page may hold several."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = _smaller(text[text.index("<svg") :])
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)


def _smaller(text: str) -> str:
    """Without what draws nothing: metadata, indentation, ids that nobody refers to, and digits beyond a hundredth of a
    point. Comments stay: they say in letters what is drawn as outlines."""
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\b(?:d|x|y)="[^"]*"|translate\([^)]*\)', lambda found: _DECIMALS.sub(r"\1", found[0]), text)
    text = re.sub(r"\s*\n\s*", "\n", text)
    text = re.sub(r"DejaVuSans-(?:(Bold)-)?", lambda found: "b" if found[1] else "g", text)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    return re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", text)
