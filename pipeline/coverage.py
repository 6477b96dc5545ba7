"""How often the 95 % intervals of a report hold the truth, by the number of pre-training seeds: simulated, not assumed.

The experiments are those of `tests.pipeline.simulated`: two arms on three budgets a factor of √10 apart, one of which
needs a quarter of the other's FLOPs; curves straight in log FLOPs and saturating ones, half and half; noise of
pre-training, of fine-tuning and of examples as small models on GLUE have it. `python -m tests.benchmarks.coverage`
prints this table anew. An interval with an open end counts as one that holds everything on that side: `closed` says how
many of the multiplier's had none. A real experiment's noise may be of another kind, so the table tells of the method,
not of the experiment. Of one seed nothing is claimed: its interval knows examples alone.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["score", "difference", "multiplier"]

EXPERIMENTS = 500  # behind every figure, whose binomial error is .01


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Shares of the simulated experiments; `seeds`: with how many they were simulated."""

    seeds: int
    score: float
    difference: float
    multiplier: float
    closed: float

    def share(self, kind: Kind) -> float:
        """In how many of them the interval of this kind held the truth."""
        return {"score": self.score, "difference": self.difference, "multiplier": self.multiplier}[kind]


TABLE: tuple[Coverage, ...] = (
    Coverage(seeds=2, score=0.952, difference=0.962, multiplier=0.982, closed=0.424),
    Coverage(seeds=3, score=0.964, difference=0.964, multiplier=0.972, closed=0.722),
    Coverage(seeds=5, score=0.968, difference=0.936, multiplier=0.968, closed=0.950),
    Coverage(seeds=10, score=0.950, difference=0.942, multiplier=0.928, closed=1.000),
)


def of(seeds: int) -> Coverage | None:
    """The simulated coverage with so many pre-training seeds, or the next fewer that were simulated; None with one, of
    which nothing is claimed."""
    simulated = [row for row in TABLE if row.seeds <= seeds]
    return max(simulated, key=lambda row: row.seeds, default=None)
