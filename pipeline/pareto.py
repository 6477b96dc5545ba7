"""Which cells no other cell beats: the Pareto frontier over training FLOPs, trained parameters and score.

A cell is beaten where another one asks for no more FLOPs and no more parameters, scores no less, and is better in one
of the three. The frontier of the scores themselves is one thing, and how sure it is another: `share` is the share of
bootstrap replicates in which nothing beats the cell. Parameters are those trained, a generator's too.

Shape suffixes: N cells, B replicates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.resampling import Estimate, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A cell on the plane of what it costs, and whether anything beats it."""

    arm: str
    flops: float
    parameters: float
    score: float
    frontier: bool
    share: float  # of replicates in which it is on the frontier


def points(
    arms: Sequence[str], flops: Sequence[float], parameters: Sequence[float], scores: Sequence[Estimate]
) -> list[Point]:
    """One a cell, in their order."""
    no_dearer_NN = _no_more(flops) & _no_more(parameters)
    cheaper_NN = no_dearer_NN & ~no_dearer_NN.T
    now = unbeaten(np.array([[one.value for one in scores]]), no_dearer_NN, cheaper_NN)[0]
    share = unbeaten(np.stack([one.samples for one in scores], axis=1), no_dearer_NN, cheaper_NN).mean(axis=0)
    return [
        Point(
            arm=arms[i],
            flops=flops[i],
            parameters=parameters[i],
            score=scores[i].value,
            frontier=bool(now[i]),
            share=float(share[i]),
        )
        for i in range(len(arms))
    ]


def _no_more(costs: Sequence[float]) -> NDArray[np.bool_]:
    """`[N, N]`: whether the row's cost is no more than the column's."""
    costs_N = np.asarray(costs, dtype=np.float64)
    return costs_N[:, None] <= costs_N[None, :]


def unbeaten(scores_BN: Floats, no_dearer_NN: NDArray[np.bool_], cheaper_NN: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """`[B, N]`: whether no cell beats this one; the row of the square arrays is the cell that might."""
    beaten_BN = np.zeros(scores_BN.shape, dtype=bool)
    for other in range(scores_BN.shape[1]):
        own_B1 = scores_BN[:, other : other + 1]
        better_BN = no_dearer_NN[other] & (own_B1 > scores_BN)
        as_good_BN = cheaper_NN[other] & (own_B1 >= scores_BN)
        beaten_BN |= better_BN | as_good_BN
    return ~beaten_BN
