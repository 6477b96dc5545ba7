"""The report's section on learning rates: what was tried for each arm, and what was chosen.

Part of the page (`pipeline.page`): layout only, every text escaped.
"""

from html import escape

from pipeline import wording
from pipeline.gather import Contents
from pipeline.page_parts import Head, table
from pipeline.swept import Choice, Swept, choice
from pipeline.wording import arm_name, flops_text


def sweep_section(contents: Contents) -> str:
    """Empty where no sweep chose the rates."""
    found = choice(contents)
    if found is None:
        return ""
    return f"<h2>Learning rates</h2>\n<p>{escape(_text(found))}</p>\n{_table(found)}"


def _text(found: Choice) -> str:
    by = "held-out loss of pre-training" if found.choose_by == "heldout_loss" else f"mean {found.choose_by} score"
    counts = sorted({len(one.tries) for one in found.arms})
    many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    seeds = "one seed" if found.seeds == 1 else f"{found.seeds} seeds"
    where = wording.names([flops_text(budget) for budget in found.budgets])
    total = sum(one.flops_counted for one in found.arms)
    return (
        f"Each arm's learning rate was chosen among {many} by the {found.best} {by} at {where} "
        f"model FLOPs, with {seeds} that no result has. The sweep took {flops_text(total)} model FLOPs of its own, "
        "which are in no curve."
    )


def _table(found: Choice) -> str:
    head: list[Head] = [("arm", ""), ("rate", ""), (found.choose_by.replace("_", " "), "mean"), ("chosen", "")]
    head.append(("sweep's FLOPs", "of the arm"))
    rows = [
        [
            arm_name(arm.arm),
            f"{tried.rate:g}",
            "diverged" if tried.value is None else f"{tried.value:.4f}",
            _mark(arm, tried.rate),
            flops_text(arm.flops_counted) if first else "",
        ]
        for arm in found.arms
        for first, tried in zip([True, *[False] * len(arm.tries)], arm.tries, strict=False)
    ]
    return table("What was tried; of equal values the lower rate is taken.", head, rows, words=(0, 3), group_by=0)


def _mark(arm: Swept, rate: float) -> str:
    if rate != arm.rate:
        return ""
    return "chosen" if arm.end_of_grid is None else f"chosen, the {arm.end_of_grid} of its grid"
