"""What the scores can carry: bootstrap intervals, paired differences and the compute multiplier.

A cell is an arm at a budget. Its mean score is the mean over tasks of the mean over pre-training seeds of the mean over
fine-tuning seeds. The bootstrap draws groups of development examples (all examples of a document together, because they
are not independent: the cluster bootstrap, Davison & Hinkley 1997, § 3.8; where examples have no groups, examples), and
seeds where there is more than one, with replacement (Efron 1979; seeds × examples as in the Multi-Bootstrap, Sellam et
al. 2022). Two cells that were scored on the same examples see the same draws, so their difference is paired; tasks are
drawn independently. Everything is a function of the data and a fixed key: the same results give the same report.

With one pre-training seed the intervals say nothing of how another seed would have come out. No p-values, no
correction for several comparisons, no extrapolation.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from data_prep import keyed
from data_prep.errors import DataError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Cell = TypeVar("Cell")

REPLICATES = 2000
_CHUNK = 4_000_000  # resampled groups held at a time: 16 MB of counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One fine-tuning's answers to a task's development examples: `label` and `prediction` are classes `[n]`, `group`
    `[n]` says which examples are drawn together (None: each on its own)."""

    task: str
    metric: str
    seed: int  # of pre-training
    finetune_seed: int
    label: Ints
    prediction: Ints
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
# A resample is a count per group, so every metric below is a function of a few weighted sums, and all replicates of
# all fits on the same examples are one matrix product.


def _features(fit: Fit, classes: int) -> NDArray[np.float32]:
    """`[n, 1 + 2 K]`: is it right; one-hot prediction; one-hot label."""
    eye = np.eye(classes, dtype=np.float32)
    right = (fit.label == fit.prediction).astype(np.float32)
    return np.concatenate([right[:, None], eye[fit.prediction], eye[fit.label]], axis=1)


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


METRICS: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "accuracy": _accuracy,
    "matthews": _matthews,
    "f1": _f1,
}


def resampled_scores(fits: Sequence[Fit], replicates: int, key: int) -> list[Estimate]:
    """The score of each fit and its bootstrap replicates; all fits must hold the same labels and groups, and share the
    draws."""
    classes = int(max(max(fit.label.max(), fit.prediction.max()) for fit in fits)) + 1
    if classes < 2:
        classes = 2
    features_nF = np.concatenate([_features(fit, classes) for fit in fits], axis=1)
    features_GF = _by_group(features_nF, fits[0].group)
    n = len(features_GF)
    generator = np.random.default_rng(key)
    sums = [features_GF.sum(axis=0, dtype=np.float64)[None, :]]  # row 0: the data themselves
    step = max(1, _CHUNK // n)
    for start in range(0, replicates, step):
        rows = min(step, replicates - start)
        draws = generator.integers(0, n, size=(rows, n)) + n * np.arange(rows)[:, None]
        counts = np.bincount(draws.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float32)
        sums.append((counts @ features_GF).astype(np.float64))  # integers below 2^24: exact in float32
    sums_BF = np.concatenate(sums)
    estimates = []
    for fit, part in zip(fits, np.split(sums_BF, len(fits), axis=1), strict=True):
        score = METRICS[fit.metric](part[:, 0], part[:, 1 : 1 + classes], part[:, 1 + classes :])
        estimates.append(Estimate(float(score[0]), score[1:]))
    return estimates


def _by_group(features_nF: NDArray[np.float32], group: Ints | None) -> NDArray[np.float32]:
    """The features summed over each group's examples."""
    if group is None:
        return features_nF
    names, which_n = np.unique(group, return_inverse=True)
    features_GF = np.zeros((len(names), features_nF.shape[1]), dtype=np.float32)
    np.add.at(features_GF, which_n, features_nF)
    return features_GF


# --- cells ----------------------------------------------------------------------------------------------------------


def bootstrap(
    cells: Mapping[Cell, Sequence[Fit]], *, replicates: int = REPLICATES, seed: int = 0
) -> dict[Cell, dict[str, Estimate]]:
    """For every cell, the estimate of each of its tasks. Every pre-training seed of a cell must have every task.

    DataError for a metric that has no resampling here.
    """
    scores: dict[int, Estimate] = {}  # by id(fit)
    for (task, digest), same in _same_examples(fit for fits in cells.values() for fit in fits).items():
        if unknown := {fit.metric for fit in same} - METRICS.keys():
            raise DataError(f"No interval is defined for the metric {unknown.pop()!r}; known are {', '.join(METRICS)}.")
        key = int(keyed.key("examples", seed, task, digest))
        scores |= {id(fit): one for fit, one in zip(same, resampled_scores(same, replicates, key), strict=True)}
    return {name: _over_seeds(str(name), fits, scores, replicates, seed) for name, fits in cells.items()}


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """The unweighted mean, replicate by replicate."""
    return Estimate(
        float(np.mean([one.value for one in estimates])), np.mean([one.samples for one in estimates], axis=0)
    )


def _same_examples(fits: Iterable[Fit]) -> dict[tuple[str, str], list[Fit]]:
    """The fits that share their draws, by task and the digest of labels and groups."""
    same: dict[tuple[str, str], list[Fit]] = {}
    for fit in fits:
        same.setdefault((fit.task, _digest(fit)), []).append(fit)
    return same


def _digest(fit: Fit) -> str:
    group = np.arange(len(fit.label)) if fit.group is None else fit.group
    return hashlib.sha256(np.stack([fit.label, group]).astype(np.int64).tobytes()).hexdigest()


def _over_seeds(
    name: str, fits: Sequence[Fit], scores: Mapping[int, Estimate], replicates: int, seed: int
) -> dict[str, Estimate]:
    """Means over seeds, the seeds drawn anew in each replicate; a pre-training seed is drawn for all tasks at once."""
    generator = np.random.default_rng(int(keyed.key("seeds", seed, name)))
    seeds = sorted({fit.seed for fit in fits})
    weight_BS = _draw(generator, replicates, len(seeds))
    result = {}
    for task in sorted({fit.task for fit in fits}):
        per_seed = []
        for one_seed in seeds:
            own = sorted((f for f in fits if f.task == task and f.seed == one_seed), key=lambda f: f.finetune_seed)
            if not own:
                raise ValueError(f"cell {name}: pre-training seed {one_seed} has no result of {task}")
            weight_BF = _draw(generator, replicates, len(own))
            samples_BF = np.stack([scores[id(fit)].samples for fit in own], axis=1)
            value = float(np.mean([scores[id(fit)].value for fit in own]))
            per_seed.append(Estimate(value, (weight_BF * samples_BF).sum(axis=1)))
        samples_BS = np.stack([one.samples for one in per_seed], axis=1)
        result[task] = Estimate(float(np.mean([one.value for one in per_seed])), (weight_BS * samples_BS).sum(axis=1))
    return result


def _draw(generator: np.random.Generator, replicates: int, count: int) -> Floats:
    """`[B, count]` weights of a draw of `count` out of `count` with replacement; all ones for a single one."""
    return generator.multinomial(count, np.full(count, 1 / count), size=replicates) / count


# --- compute multiplier ---------------------------------------------------------------------------------------------

Kind = Literal["equal", "at least", "at most", "undefined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplier:
    """FLOPs the baseline needs ÷ FLOPs the other arm needs for `score`; `low`, `high`: 95 %, None where unbounded."""

    kind: Kind
    value: float | None
    score: float
    low: float | None = None
    high: float | None = None


def flops_needed(flops: Sequence[float], scores: Sequence[float], target: float) -> tuple[float, Kind]:
    """The least FLOPs at which a curve reaches `target`, linear in log FLOPs between its points (in ascending order).

    `("at most", first)` where its first point is above the target already, `("at least", last)` where it never gets
    there: a curve says nothing outside its own points.
    """
    if scores[0] >= target:
        return flops[0], "equal" if scores[0] == target else "at most"
    for left in range(len(flops) - 1):
        low, high = scores[left], scores[left + 1]
        if low < target <= high:
            share = (target - low) / (high - low)
            return float(np.exp((1 - share) * np.log(flops[left]) + share * np.log(flops[left + 1]))), "equal"
    return flops[-1], "at least"


def multiplier(
    baseline_flops: Sequence[float], baseline: Sequence[float], other_flops: Sequence[float], other: Sequence[float]
) -> Multiplier:
    """At the best score that both curves reach; a one-sided bound where one lies above the other altogether."""
    target = min(max(baseline), max(other))
    needed_baseline, kind_baseline = flops_needed(baseline_flops, baseline, target)
    needed_other, kind_other = flops_needed(other_flops, other, target)
    ratio = needed_baseline / needed_other
    if kind_baseline == kind_other == "equal":
        return Multiplier(kind="equal", value=ratio, score=target)
    if kind_baseline == "equal":  # the other needs at most its smallest budget, so the ratio is at least this
        return Multiplier(kind="at least", value=ratio, score=target)
    if kind_other == "equal":
        return Multiplier(kind="at most", value=ratio, score=target)
    return Multiplier(kind="undefined", value=None, score=target)


def multiplier_with_interval(
    baseline_flops: Sequence[float],
    baseline: Sequence[Estimate],
    other_flops: Sequence[float],
    other: Sequence[Estimate],
) -> Multiplier:
    """The multiplier of the point estimates with the 95 % interval of its replicates.

    A replicate that is only a bound counts as unbounded on its open side, so the interval is never narrower than the
    replicates warrant, and None stands for an end that they leave open.
    """
    point = multiplier(baseline_flops, [e.value for e in baseline], other_flops, [e.value for e in other])
    lows, highs = [], []
    for scores in zip(*(e.samples for e in (*baseline, *other)), strict=True):
        one = multiplier(baseline_flops, scores[: len(baseline)], other_flops, scores[len(baseline) :])
        lows.append(one.value if one.value is not None and one.kind != "at most" else 0.0)
        highs.append(one.value if one.value is not None and one.kind != "at least" else np.inf)
    low = float(np.percentile(lows, 2.5, method="lower"))
    high = float(np.percentile(highs, 97.5, method="higher"))
    return Multiplier(
        kind=point.kind,
        value=point.value,
        score=point.score,
        low=low if low > 0 else None,
        high=high if np.isfinite(high) else None,
    )
