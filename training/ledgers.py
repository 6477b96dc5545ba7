"""What runs cost, kept apart by run, so that weights which several runs went into are paid for once. Torch-free.

A run's checkpoint carries the ledger of every run that its weights came from beside its own. Runs go by the fingerprint
of their identity; of one run at two steps the later contains the earlier, since they lie on one trajectory.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

NAMES = ("flops_counted", "flops_spent", "flops_executed", "flops_paper", "tokens", "seconds")

_COUNTS = ("tokens", "rollbacks", "rows_skipped")  # whole numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What a run cost by its step `step`, without what it began with, and how often and past how many rows it was
    rolled back. `planned`: model FLOPs by its budget, which are alike for every seed; the others are named as in
    `training.checkpoints.Progress`."""

    step: int = 0
    planned: float = 0.0
    flops_counted: float = 0.0
    flops_spent: float = 0.0
    flops_executed: float = 0.0
    flops_paper: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    rollbacks: int = 0
    rows_skipped: int = 0


Ledgers = dict[str, Ledger]  # by fingerprint


def union(several: Iterable[Ledgers]) -> Ledgers:
    """Every run once, with its latest step."""
    found: Ledgers = {}
    for ledgers in several:
        for run, ledger in ledgers.items():
            if run not in found or found[run].step < ledger.step:
                found[run] = ledger
    return found


def total(ledgers: Ledgers) -> Ledger:
    """All added up, the same to the last bit whatever their order; a sum is at no step."""
    sums = {name: math.fsum(getattr(ledger, name) for ledger in ledgers.values()) for name in (*NAMES, "planned")}
    counts = {name: sum(getattr(ledger, name) for ledger in ledgers.values()) for name in _COUNTS}
    return Ledger(**{**sums, **counts})
