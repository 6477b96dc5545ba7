"""One model's answers to a task's examples, its score, and the bootstrap replicates of the score.

A replicate draws groups of examples with replacement (cluster bootstrap; without groups, examples); all answers to the
same examples see the same draws. Everything is a function of the data and a key.

Shape suffixes: n examples, G groups, B replicates, F features, K classes, U distinct values.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
F = TypeVar("F", np.float32, np.float64)

_CHUNK = 4_000_000  # resampled groups held at a time: 16 MB of counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One model's answers to a task's development examples: `label` and `prediction` are classes or values `[n]`,
    `group` `[n]` says which examples are drawn together (None: each on its own). Where examples are scored one by one
    (metric `mean`), their scores are the predictions, and labels are zeros."""

    task: str
    metric: str
    seed: int  # of pre-training
    finetune_seed: int
    label: Ints | Floats
    prediction: Ints | Floats
    group: Ints | None = None

    @property
    def grouped(self) -> bool:
        """Whether any two examples are drawn together."""
        return self.group is not None and len(np.unique(self.group)) < len(self.group)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its bootstrap replicates `[B]`."""

    value: float
    samples: Floats

    def interval(self) -> tuple[float, float]:
        """The 95 % percentile interval."""
        low, high = np.percentile(self.samples, [2.5, 97.5])
        return float(low), float(high)

    def __sub__(self, other: "Estimate") -> "Estimate":
        """The paired difference: replicate by replicate."""
        return Estimate(self.value - other.value, self.samples - other.samples)


# --- metrics as functions of weighted counts ------------------------------------------------------------------------
#
# A resample is a count per group. Of classes and of means a metric is a function of a few weighted sums, and all
# replicates of all fits on the same examples are one matrix product. Ranks are found anew in every resample.

Score = Callable[[Floats, Floats, Floats], Floats]


def _accuracy(right: Floats, predicted: Floats, actual: Floats) -> Floats:
    return right / actual.sum(axis=1)


def _matthews(right: Floats, predicted: Floats, actual: Floats) -> Floats:
    """Gorodkin's R_K (2004), which is Matthews' correlation for two classes; 0 where one class only occurs."""
    n = actual.sum(axis=1)
    covariance = right * n - (predicted * actual).sum(axis=1)
    spread = (n**2 - (predicted**2).sum(axis=1)) * (n**2 - (actual**2).sum(axis=1))
    return np.divide(covariance, np.sqrt(spread), out=np.zeros_like(covariance), where=spread > 0)


def _f1(right: Floats, predicted: Floats, actual: Floats) -> Floats:
    """F1 of class 1 of two; 0 where it neither occurs nor is predicted."""
    # correct answers = TP + TN and n − predicted_1 − actual_1 = TN − TP
    true_positives = (right - (actual.sum(axis=1) - predicted[:, 1] - actual[:, 1])) / 2
    total = predicted[:, 1] + actual[:, 1]
    return np.divide(2 * true_positives, total, out=np.zeros_like(right), where=total > 0)


_OF_CLASSES: dict[str, Score] = {"accuracy": _accuracy, "matthews": _matthews, "f1": _f1}
METRICS = (*_OF_CLASSES, "pearson", "spearman", "mean")


def resampled_scores(fits: Sequence[Fit], replicates: int, key: int) -> list[Estimate]:
    """The score of each fit and its bootstrap replicates; all fits must hold the same labels and groups, and share the
    draws."""
    group_n = _group_numbers(fits[0])
    resamplers = (_Classes(fits, group_n), _Means(fits, group_n), _Correlations(fits, group_n))
    scores: list[list[Floats]] = [[] for _ in fits]
    for counts_BG in _draws(int(group_n.max()) + 1, replicates, key):
        for resampler in resamplers:
            for place, values_B in resampler.scores(counts_BG):
                scores[place].append(values_B)
    found = [np.concatenate(own) for own in scores]
    return [Estimate(float(own[0]), own[1:]) for own in found]


def _group_numbers(fit: Fit) -> Ints:
    """The group of each example `[n]`, from 0 without gaps."""
    if fit.group is None:
        return np.arange(len(fit.label))
    return np.unique(fit.group, return_inverse=True)[1].astype(np.int64)


def _draws(groups: int, replicates: int, key: int) -> Iterator[NDArray[np.float32]]:
    """How often each group is drawn, `[B, groups]` at a time; first, alone, the data themselves."""
    yield np.ones((1, groups), dtype=np.float32)
    generator = np.random.default_rng(key)
    step = max(1, _CHUNK // groups)
    for start in range(0, replicates, step):
        rows = min(step, replicates - start)
        draws = generator.integers(0, groups, size=(rows, groups)) + groups * np.arange(rows)[:, None]
        yield np.bincount(draws.ravel(), minlength=rows * groups).reshape(rows, groups).astype(np.float32)


class _Classes:
    """Metrics of classes. Their features `[n, 1 + 2 K]`: is it right; one-hot prediction; one-hot label."""

    def __init__(self, fits: Sequence[Fit], group_n: Ints) -> None:
        self._own = [(place, fit) for place, fit in enumerate(fits) if fit.metric in _OF_CLASSES]
        if self._own:
            self._classes = max(2, int(max(max(fit.label.max(), fit.prediction.max()) for _, fit in self._own)) + 1)
            features_nF = np.concatenate([self._features(fit) for _, fit in self._own], axis=1)
            self._features_GF = _by_group(features_nF, group_n)

    def _features(self, fit: Fit) -> NDArray[np.float32]:
        eye = np.eye(self._classes, dtype=np.float32)
        right = (fit.label == fit.prediction).astype(np.float32)
        return np.concatenate([right[:, None], eye[fit.prediction.astype(int)], eye[fit.label.astype(int)]], axis=1)

    def scores(self, counts_BG: NDArray[np.float32]) -> Iterator[tuple[int, Floats]]:
        if not self._own:
            return
        sums_BF = (counts_BG @ self._features_GF).astype(np.float64)  # integers below 2^24: exact in float32
        for (place, fit), part in zip(self._own, np.split(sums_BF, len(self._own), axis=1), strict=True):
            predicted, actual = part[:, 1 : 1 + self._classes], part[:, 1 + self._classes :]
            yield place, _OF_CLASSES[fit.metric](part[:, 0], predicted, actual)


class _Means:
    """The mean of what examples score one by one."""

    def __init__(self, fits: Sequence[Fit], group_n: Ints) -> None:
        self._own = [(place, fit) for place, fit in enumerate(fits) if fit.metric == "mean"]
        if self._own:
            columns = [np.ones(len(group_n)), *(fit.prediction for _, fit in self._own)]
            self._values_GF = _by_group(np.stack(columns, axis=1).astype(np.float64), group_n)

    def scores(self, counts_BG: NDArray[np.float32]) -> Iterator[tuple[int, Floats]]:
        if not self._own:
            return
        sums_BF = counts_BG.astype(np.float64) @ self._values_GF
        for column, (place, _) in enumerate(self._own, start=1):
            yield place, sums_BF[:, column] / sums_BF[:, 0]


class _Correlations:
    """Pearson's correlation of values, or (Spearman's) of their ranks in each resample, equal ones sharing their mean
    rank; 0 where either side is constant."""

    def __init__(self, fits: Sequence[Fit], group_n: Ints) -> None:
        self._own = [(place, fit) for place, fit in enumerate(fits) if fit.metric in ("pearson", "spearman")]
        self._group_n = group_n

    def scores(self, counts_BG: NDArray[np.float32]) -> Iterator[tuple[int, Floats]]:
        for place, fit in self._own:
            sides = fit.label.astype(np.float64), fit.prediction.astype(np.float64)
            step = max(1, _CHUNK // (8 * len(self._group_n)))  # several arrays of this size are held
            parts = [
                _correlation(counts_BG[start : start + step][:, self._group_n].astype(np.float64), *sides, fit.metric)
                for start in range(0, len(counts_BG), step)
            ]
            yield place, np.concatenate(parts)


def _correlation(counts_Bn: Floats, label_n: Floats, prediction_n: Floats, metric: str) -> Floats:
    """Of every row of counts."""
    if metric == "spearman":
        x_Bn, y_Bn = _ranks(counts_Bn, label_n), _ranks(counts_Bn, prediction_n)
    else:
        x_Bn, y_Bn = label_n[None, :], prediction_n[None, :]
    total_B1 = counts_Bn.sum(axis=1, keepdims=True)
    x_Bn = x_Bn - (counts_Bn * x_Bn).sum(axis=1, keepdims=True) / total_B1
    y_Bn = y_Bn - (counts_Bn * y_Bn).sum(axis=1, keepdims=True) / total_B1
    covariance_B = (counts_Bn * x_Bn * y_Bn).sum(axis=1)
    spread_B = np.sqrt((counts_Bn * x_Bn**2).sum(axis=1) * (counts_Bn * y_Bn**2).sum(axis=1))
    # of values that are all equal, rounding leaves a little
    floor = 1e-12 * float(np.abs(label_n).max() * np.abs(prediction_n).max() + 1.0)
    return np.divide(covariance_B, spread_B, out=np.zeros_like(covariance_B), where=spread_B > floor)


def _ranks(counts_Bn: Floats, values_n: Floats) -> Floats:
    """The mean rank of each value in every row of counts `[B, n]`: a value drawn c times takes c ranks."""
    _, which_n = np.unique(values_n, return_inverse=True)
    order_n = np.argsort(which_n, kind="stable")
    starts_U = np.flatnonzero(np.diff(which_n[order_n], prepend=-1))
    counts_BU = np.add.reduceat(counts_Bn[:, order_n], starts_U, axis=1)
    last_BU = np.cumsum(counts_BU, axis=1)
    ranks: Floats = (last_BU - (counts_BU - 1) / 2)[:, which_n]
    return ranks


def _by_group(features_nF: NDArray[F], group_n: Ints) -> NDArray[F]:
    """The features summed over each group's examples."""
    features_GF = np.zeros((int(group_n.max()) + 1, features_nF.shape[1]), dtype=features_nF.dtype)
    np.add.at(features_GF, group_n, features_nF)
    return features_GF
