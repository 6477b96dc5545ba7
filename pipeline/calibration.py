"""What a classifier mistakes for what, and whether its confidence means anything: pure arithmetic.

Calibration is the reliability table of Guo et al. (2017): examples by the confidence of their answer in bins of equal
width, and in each the mean confidence beside the share that is right. The expected calibration error is the mean gap,
weighted by examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Answers with a confidence above `low` and up to `high` (the first bin holds 0 too)."""

    low: float
    high: float
    n: int
    confidence: float
    accuracy: float


def confusion(label: NDArray[np.int64], prediction: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """How often each class (rows) was answered by each class (columns) `[K, K]`."""
    found = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(found, (label, prediction), 1)
    return found


def reliability(confidence: NDArray[np.float64], right: NDArray[np.bool_], bins: int = BINS) -> list[Bin]:
    """The bins that hold an answer. `confidence` `[n]` from 0 to 1."""
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    return [
        Bin(
            low=number / bins,
            high=(number + 1) / bins,
            n=int(own.sum()),
            confidence=float(confidence[own].mean()),
            accuracy=float(right[own].mean()),
        )
        for number in range(bins)
        if (own := place == number).any()
    ]


def calibration_error(found: Sequence[Bin]) -> float:
    """The expected calibration error of a reliability table."""
    total = sum(one.n for one in found)
    return sum(one.n / total * abs(one.accuracy - one.confidence) for one in found)
