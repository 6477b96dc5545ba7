"""The figure that lays an experiment's GLUE means beside those the ELECTRA paper published.

Both are counted under the paper's convention of FLOPs (`training.paper_flops`), which is not that of the other figures.
Where an experiment ends far below the published models, the axis is broken between them.
"""

from collections.abc import Sequence
from typing import Any

from pipeline.figure_parts import COLOURS, DASHES, GREY, MARKERS, as_svg, bars, log_axis, spread, style
from pipeline.published import Model
from pipeline.suites import Cell, Suite
from pipeline.wording import arm_name

_NEAR = 30.0  # times as many FLOPs as ours: one axis shows both


def reference(suite: Suite, models: Sequence[Model]) -> str | None:
    """Mean score against training FLOPs as the paper counts them, arms and published models; None where a run did not
    record what it took by that count."""
    known = [(cell, cell.flops_paper) for cell in suite.cells if cell.flops_paper is not None]
    if len(known) < len(suite.cells):
        return None
    near = min(model.flops for model in models) < _NEAR * max(flops for _, flops in known)
    with style() as plt:
        if near:
            figure, axes = plt.subplots(figsize=(8.2, 4.8))
            ours = theirs = axes
        else:
            figure, (ours, theirs) = plt.subplots(
                1, 2, figsize=(8.6, 4.8), sharey=True, gridspec_kw={"width_ratios": (1, 1.5)}
            )
            theirs.spines["left"].set_visible(False)
            theirs.tick_params(axis="y", length=0)
        _arms(ours, suite, known)
        ours.set_ylabel("mean GLUE score × 100")
        ours.legend(frameon=False, loc="upper left")
        _published(theirs, models)
        for axes in {id(one): one for one in (ours, theirs)}.values():
            log_axis(axes)
        _names(theirs, models)
        figure.supxlabel("training compute, FLOPs as the ELECTRA paper counts them (log scale)", fontsize=9)
        return as_svg(figure, f"reference-{suite.name}")


def _arms(axes: Any, suite: Suite, known: Sequence[tuple[Cell, float]]) -> None:
    for index, arm in enumerate(suite.arms):
        own = [(cell, flops) for cell, flops in known if cell.arm == arm]
        if not own:
            continue
        means = [cell.mean for cell, _ in own]
        axes.errorbar(
            [flops for _, flops in own], [100 * one.value for one in means], yerr=bars(means), label=arm_name(arm),
            color=COLOURS[index % len(COLOURS)], marker=MARKERS[index % len(MARKERS)],
            linestyle=DASHES[index % len(DASHES)], markersize=6, linewidth=1.5, capsize=2.5, elinewidth=1.0,
            markeredgecolor="white", markeredgewidth=0.6,
        )  # fmt: skip
    axes.margins(x=0.15)


def _published(axes: Any, models: Sequence[Model]) -> None:
    """Crosses, those of the paper's own method as rings."""
    for model in models:
        ring = {"marker": "o", "markerfacecolor": "white"} if model.is_electra else {"marker": "x"}
        axes.plot([model.flops], [model.glue], color=GREY, linestyle="none", markersize=6, zorder=3, **ring)
    axes.margins(x=0.15)


def _names(axes: Any, models: Sequence[Model]) -> None:
    """In a column at the right, each led to by a thin line."""
    axes.figure.draw_without_rendering()
    right = axes.get_xlim()[1]
    heights = [axes.transData.transform((right, model.glue))[1] for model in models]
    placed = spread(heights, 10.5 * axes.figure.dpi / 72)
    for model, height, wanted in zip(models, heights, placed, strict=True):
        offset = (wanted - height) * 72 / axes.figure.dpi
        axes.annotate(
            f"{model.name}  {model.glue:.1f}", (right, model.glue), xytext=(26, offset), textcoords="offset points",
            color=GREY, fontsize=7.5, va="center", ha="left", annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": "#bbbbbb", "linewidth": 0.6, "shrinkA": 2, "shrinkB": 0, "relpos": (0, 0.5),
            },
        )  # fmt: skip
        axes.plot([model.flops, right], [model.glue, model.glue], color="#dddddd", linewidth=0.6, zorder=1)
    axes.set_xlim(right=right)
