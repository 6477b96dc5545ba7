"""The report's figures on how training went: losses along each run, and what the labels of detection hold.

Drawn as all figures are (`pipeline.figure_parts`). A line of a long run is drawn through the means of its stretches, so
that a figure's size does not grow with the run's.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.figure_parts import COLOURS, DASHES, GREY, MARKERS, as_svg, log_axis, panels, style
from pipeline.gather import Run
from pipeline.learning_signal import Along, entropy
from pipeline.wording import LOSS_UNITS, LOSSES, arm_name, flops_text

DRAWN = 6_000  # points of all lines together, about


def losses(runs: Sequence[Run], arms: Sequence[str]) -> str | None:
    """Training and held-out losses along each run, one panel an arm and quantity, each with its own scale; None where
    no held-out figure was recorded."""
    shown = loss_panels(runs)
    if not shown:
        return None
    budgets = sorted({run.budget for run in runs})
    most = max(24, min(120, DRAWN // sum(run.arm == arm for arm, _ in shown for run in runs)))
    with style() as plt:
        figure, grid = panels(plt, len(shown), 3, (3.4, 2.8))
        for axes, (arm, name) in zip(grid, shown, strict=True):
            own = [run for run in runs if run.arm == arm]
            _loss_panel(axes, own, name, budgets, COLOURS[arms.index(arm) % len(COLOURS)], most)
            axes.set_title(f"{arm_name(arm)}: {LOSSES[name]}")
            axes.set_ylabel(LOSS_UNITS[name])
            log_axis(axes)
        _loss_legend(figure, plt, budgets)
        figure.supxlabel("training compute so far, model FLOPs (log scale)", fontsize=9)
        return as_svg(figure, "losses")


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


def stretches(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """(FLOPs, value) points as they are, or, where there are more than `most`, so many stretches of equal length: where
    each ends, and its mean."""
    if len(points) <= most:
        return list(points)
    parts = np.array_split(np.asarray(points, dtype=np.float64), most)
    return [(float(part[-1, 0]), float(part[:, 1].mean())) for part in parts]


def labels(along: Sequence[Along], arms: Sequence[str]) -> str | None:
    """The entropy of a label against the share of replaced tokens, with the held-out evaluations of each run on it;
    None where none detects."""
    if not along:
        return None
    with style() as plt:
        figure, axes = plt.subplots(figsize=(5.6, 3.4))
        highest = label_reach(along)
        rates = np.linspace(1e-4, highest, 120)
        axes.plot(rates, [entropy(float(rate)) for rate in rates], color=GREY, linewidth=1.2)
        named = set()
        for one in along:
            index = arms.index(one.arm)
            axes.plot(
                one.rates, one.bits,
                color=COLOURS[index % len(COLOURS)], marker=MARKERS[index % len(MARKERS)], linestyle="none",
                markersize=6, markeredgecolor="white", markeredgewidth=0.6,
                label=None if one.arm in named else arm_name(one.arm),
            )  # fmt: skip
            named.add(one.arm)
        axes.plot([0.06], [entropy(0.06)], color=GREY, marker="x", linestyle="none", label="the paper's 6 %")
        axes.legend(frameon=False, loc="lower right")
        axes.set_xlabel("share of replaced tokens, of those judged")
        axes.set_ylabel("entropy of a label, bits")
        axes.set_ylim(0, 1.05)
        axes.set_xlim(0, highest)
        return as_svg(figure, "labels")


def label_reach(along: Sequence[Along]) -> float:
    """How far the axis of replaced shares goes: past every evaluation (of masked positions alone, nearly all are
    replaced at first) and the paper's 6 %."""
    return min(1.0, max(0.08, 1.3 * max(rate for one in along for rate in one.rates)))


# --- panels -----------------------------------------------------------------------------------------------------------


def _loss_panel(axes: Any, runs: Sequence[Run], name: str, budgets: Sequence[float], colour: str, most: int) -> None:
    """Training figures as lines, dashed by budget; held-out figures as points, with a marker by budget; at most `most`
    points of a run."""
    for run in runs:
        mark = budgets.index(run.budget)
        for kind in ("train", "heldout"):
            points = stretches(loss_points(run, f"{kind}/{name}"), most)
            if not points:
                continue
            x, y = zip(*points, strict=True)
            if kind == "train":
                axes.plot(x, y, color=colour, linestyle=DASHES[mark % len(DASHES)], linewidth=1.1, alpha=0.75)
            else:
                axes.plot(
                    x, y, color=colour, marker=MARKERS[mark % len(MARKERS)], linestyle="none", markersize=6,
                    markeredgecolor="white", markeredgewidth=0.7,
                )  # fmt: skip


def loss_points(run: Run, name: str) -> list[tuple[float, float]]:
    """(FLOPs so far, value) of a quantity wherever a run recorded it."""
    return [(line["values"]["flops"], line["values"][name]) for line in run.lines if name in line["values"]]


def _loss_legend(figure: Any, plt: Any, budgets: Sequence[float]) -> None:
    handles = []
    for mark, budget in enumerate(budgets):
        line = {"linestyle": DASHES[mark % len(DASHES)], "linewidth": 1.2}
        point = {"marker": MARKERS[mark % len(MARKERS)], "linestyle": "none", "markersize": 6}
        handles += [
            plt.Line2D([], [], color=GREY, label=f"training, budget {flops_text(budget)}", **line),
            plt.Line2D([], [], color=GREY, label=f"held-out, budget {flops_text(budget)}", **point),
        ]
    figure.legend(handles=handles, loc="outside upper left", ncols=min(4, len(budgets)), frameon=False, fontsize=8)
