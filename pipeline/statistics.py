"""What the scores can carry: bootstrap intervals, paired differences and the compute multiplier.

A cell is an arm at a budget. Its mean score is the mean over tasks of the mean over pre-training seeds of the mean over
fine-tuning seeds. The bootstrap draws groups of development examples with replacement (all examples of a document
together, because they are not independent: the cluster bootstrap, Davison & Hinkley 1997, § 3.8; where examples have no
groups, examples; Efron 1979), and to each replicate adds what other seeds would have moved it by
(`pipeline.seed_noise`): seeds × examples, as in the Multi-Bootstrap (Sellam et al. 2022). Two cells that were scored on
the same examples see the same draws, so their difference is paired; tasks are drawn independently. Everything is a
function of the data and a fixed key: the same results give the same report. How often the intervals cover what they
should: `pipeline.coverage`.

With one pre-training seed the intervals say nothing of how another seed would have come out. No p-values, no
correction for several comparisons, no extrapolation.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from data_prep import keyed
from data_prep.errors import DataError
from pipeline.resampling import METRICS, Estimate, Fit, resampled_scores
from pipeline.seed_noise import Scores, noise

Cell = TypeVar("Cell")

REPLICATES = 2000


# --- cells ----------------------------------------------------------------------------------------------------------


def _alone(cell: Cell) -> Hashable:
    return str(cell)


def bootstrap(
    cells: Mapping[Cell, Sequence[Fit]],
    *,
    pool: Callable[[Cell], Hashable] = _alone,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> dict[Cell, dict[str, Estimate]]:
    """For every cell, the estimate of each of its tasks. Every pre-training seed of a cell must have every task.
    `pool`: of cells with the same value (an arm at its budgets) the spread over seeds is estimated together.

    DataError for a metric that has no resampling here.
    """
    scores: dict[int, Estimate] = {}  # by id(fit)
    for (task, digest), same in _same_examples(fit for fits in cells.values() for fit in fits).items():
        if unknown := {fit.metric for fit in same} - set(METRICS):
            raise DataError(f"No interval is defined for the metric {unknown.pop()!r}; known are {', '.join(METRICS)}.")
        key = int(keyed.key("examples", seed, task, digest))
        scores |= {id(fit): one for fit, one in zip(same, resampled_scores(same, replicates, key), strict=True)}
    found = {name: _of_seeds(str(name), fits, scores) for name, fits in cells.items()}
    moved = noise({name: by_seed for name, (by_seed, _) in found.items()}, pool, replicates, seed)
    return {
        name: {
            task: Estimate(one.value, one.samples + moved[name][:, place])
            for place, (task, one) in enumerate(estimates.items())
        }
        for name, (_, estimates) in found.items()
    }


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
    label = fit.label if fit.label.dtype.kind == "f" else fit.label.astype(np.int64)
    return hashlib.sha256(label.tobytes() + group.astype(np.int64).tobytes()).hexdigest()


def _of_seeds(name: str, fits: Sequence[Fit], scores: Mapping[int, Estimate]) -> tuple[Scores, dict[str, Estimate]]:
    """A cell's scores by seed, and each task's mean over seeds with the replicates that its examples give."""
    seeds, tasks = sorted({fit.seed for fit in fits}), sorted({fit.task for fit in fits})
    by_seed_ST, of_examples_T = np.empty((len(seeds), len(tasks))), np.empty(len(tasks))
    estimates, deviations, of_examples, finetunings, freedom = {}, {}, {}, {}, {}
    for column, task in enumerate(tasks):
        means, apart = [], []
        for row, one_seed in enumerate(seeds):
            own = [scores[id(fit)] for fit in fits if fit.task == task and fit.seed == one_seed]
            if not own:
                raise ValueError(f"cell {name}: pre-training seed {one_seed} has no result of {task}")
            means.append(mean(own))
            by_seed_ST[row, column] = means[-1].value
            apart += [one - means[-1] for one in own]
        estimates[task] = mean(means)
        of_examples_T[column] = sum((one - estimates[task]).samples.var() for one in means)
        deviations[task] = np.array([one.value for one in apart])
        of_examples[task] = float(sum(one.samples.var() for one in apart))
        finetunings[task] = len(deviations[task])
        freedom[task] = len(deviations[task]) - len(seeds)
    return Scores(tasks, by_seed_ST, of_examples_T, deviations, of_examples, finetunings, freedom), estimates


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
