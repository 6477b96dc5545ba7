"""The statistics against cases that can be computed by hand."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from scipy.stats import t as student_t
from sklearn.metrics import f1_score, matthews_corrcoef

from data_prep.errors import DataError
from pipeline.resampling import Estimate, Fit, resampled_scores
from pipeline.seed_noise import Scores, noise
from pipeline.statistics import (
    bootstrap,
    flops_needed,
    mean,
    multiplier,
    multiplier_with_interval,
)


def make_fit(label, prediction, *, task="t", metric="accuracy", seed=0, finetune_seed=0, group=None) -> Fit:
    return Fit(
        task=task,
        metric=metric,
        seed=seed,
        finetune_seed=finetune_seed,
        label=np.asarray(label, dtype=np.int64),
        prediction=np.asarray(prediction, dtype=np.int64),
        group=None if group is None else np.asarray(group, dtype=np.int64),
    )


def right_share(n: int, right: int) -> tuple[list[int], list[int]]:
    """`n` examples of alternating classes of which the first `right` are answered correctly."""
    label = [i % 2 for i in range(n)]
    return label, [value if i < right else 1 - value for i, value in enumerate(label)]


@pytest.mark.parametrize("classes", [2, 5])
def test_scores_equal_scikit_learn(classes: int) -> None:
    generator = np.random.default_rng(1)
    label = generator.integers(0, classes, 300)
    prediction = np.where(generator.random(300) < 0.5, label, generator.integers(0, classes, 300))
    found = resampled_scores([make_fit(label, prediction, metric="matthews")], 5, 0)[0]
    assert found.value == pytest.approx(matthews_corrcoef(label, prediction), abs=1e-12)
    if classes == 2:
        found = resampled_scores([make_fit(label, prediction, metric="f1")], 5, 0)[0]
        assert found.value == pytest.approx(f1_score(label, prediction), abs=1e-12)


def test_replicates_equal_scikit_learn_on_the_same_draws() -> None:
    generator = np.random.default_rng(2)
    label, prediction = generator.integers(0, 2, 40), generator.integers(0, 2, 40)
    found = resampled_scores([make_fit(label, prediction, metric="matthews")], 50, key=7)[0]
    draws = np.random.default_rng(7).integers(0, 40, size=(50, 40))
    expected = [matthews_corrcoef(label[row], prediction[row]) for row in draws]
    assert found.samples == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
@pytest.mark.parametrize("grouped", [False, True])
def test_correlations_equal_scipy_on_the_same_draws(metric: str, grouped: bool) -> None:
    """Values with ties, as STS-B's are, and documents of one to three examples."""
    generator = np.random.default_rng(4)
    label = np.round(generator.uniform(0, 5, 40) * 2) / 2
    prediction = np.round(label + generator.normal(0, 1.5, 40), 1)
    group = np.sort(generator.integers(0, 20, 40)) if grouped else np.arange(40)
    fit = Fit(task="t", metric=metric, seed=0, finetune_seed=0, label=label, prediction=prediction, group=group)
    found = resampled_scores([fit], 30, key=7)[0]
    scipys = {"pearson": pearsonr, "spearman": spearmanr}[metric]
    assert found.value == pytest.approx(scipys(label, prediction).statistic, abs=1e-12)
    names = np.unique(group)
    draws = np.random.default_rng(7).integers(0, len(names), size=(30, len(names)))
    rows = [np.concatenate([np.flatnonzero(group == names[g]) for g in draw]) for draw in draws]
    assert found.samples == pytest.approx([scipys(label[row], prediction[row]).statistic for row in rows], abs=1e-12)


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_correlation_with_a_constant_is_zero(metric: str) -> None:
    constant = np.full(50, 0.1 + 0.2)  # sums of which are not exact
    fit = Fit(task="t", metric=metric, seed=0, finetune_seed=0, label=np.arange(50.0), prediction=constant)
    found = resampled_scores([fit], 20, 0)[0]
    assert found.value == 0.0
    assert not found.samples.any()


def test_a_mean_is_resampled_as_it_stands_beside_classes_on_the_same_draws() -> None:
    scores = np.array([0.0, 0.25, 1.0, 0.5])
    one = Fit(task="t", metric="mean", seed=0, finetune_seed=0, label=np.zeros(4), prediction=scores)
    two = make_fit([0, 0, 0, 0], [1, 1, 0, 1])
    mean_of, accuracy = resampled_scores([one, two], 60, key=3)
    draws = np.random.default_rng(3).integers(0, 4, size=(60, 4))
    assert mean_of.value == scores.mean()
    assert mean_of.samples == pytest.approx(scores[draws].mean(axis=1), abs=1e-12)
    assert accuracy.samples == pytest.approx((draws == 2).mean(axis=1), abs=1e-7)


def test_matthews_of_a_constant_answer_is_zero() -> None:
    found = resampled_scores([make_fit([0, 1, 1, 0], [1, 1, 1, 1], metric="matthews")], 20, 0)[0]
    assert found.value == 0.0
    assert not found.samples.any()


def test_accuracy_has_the_binomial_standard_error() -> None:
    label, prediction = right_share(400, 300)
    found = resampled_scores([make_fit(label, prediction)], 20_000, 0)[0]
    expected = (0.75 * 0.25 / 400) ** 0.5
    assert found.value == 0.75
    assert found.samples.std() == pytest.approx(expected, rel=0.03)  # 6 standard errors of a deviation over 20,000
    low, high = found.interval()
    assert low == pytest.approx(0.75 - 1.96 * expected, abs=0.004)
    assert high == pytest.approx(0.75 + 1.96 * expected, abs=0.004)


def test_examples_of_a_document_are_drawn_together() -> None:
    """50 documents of 8 examples that are right or wrong together: the error is that of 50 examples, √8 of 400's."""
    group = np.random.default_rng(0).permutation(np.repeat(np.arange(50) * 10**15, 8))
    right = group < 30 * 10**15
    label = np.zeros(400, dtype=np.int64)
    found = resampled_scores([make_fit(label, (~right).astype(int), group=group)], 20_000, 0)[0]
    assert found.value == 0.6
    assert found.samples.std() == pytest.approx((0.6 * 0.4 / 50) ** 0.5, rel=0.03)


def test_groups_of_unequal_size_give_the_ratio_of_sums_over_drawn_groups() -> None:
    """Document a: 3 right of 3; b: 0 of 1. Drawn twice with replacement: aa 1, ab and ba 3/4, bb 0."""
    found = resampled_scores([make_fit([0, 0, 0, 1], [0, 0, 0, 0], group=[7, 7, 7, 2])], 20_000, 0)[0]
    values, counts = np.unique(found.samples, return_counts=True)
    assert values.tolist() == [0.0, 0.75, 1.0]
    assert counts / 20_000 == pytest.approx([0.25, 0.5, 0.25], abs=0.015)


def test_arms_see_the_same_documents_and_other_groupings_are_other_draws() -> None:
    label, prediction = right_share(100, 60)
    group = np.arange(100) // 5
    cells = {name: [make_fit(label, prediction, group=group)] for name in "ab"}
    cells["c"] = [make_fit(label, prediction)]
    found = bootstrap(cells, replicates=200)
    assert not (found["a"]["t"] - found["b"]["t"]).samples.any()
    assert (found["a"]["t"] - found["c"]["t"]).samples.any()
    assert cells["a"][0].grouped and not cells["c"][0].grouped


def test_draws_do_not_depend_on_how_many_are_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    label, prediction = right_share(50, 30)
    whole = resampled_scores([make_fit(label, prediction)], 100, 3)[0]
    monkeypatch.setattr("pipeline.resampling._CHUNK", 350)
    pieces = resampled_scores([make_fit(label, prediction)], 100, 3)[0]
    assert np.array_equal(whole.samples, pieces.samples)


def test_same_answers_differ_by_exactly_nothing() -> None:
    """Paired draws: two arms that answer alike have a difference of zero in every replicate."""
    label, prediction = right_share(100, 60)
    found = bootstrap({"a": [make_fit(label, prediction)], "b": [make_fit(label, prediction)]}, replicates=200)
    assert found["a"]["t"].samples.std() > 0
    assert not (found["a"]["t"] - found["b"]["t"]).samples.any()


def test_paired_difference_has_the_standard_error_of_the_discordant_examples() -> None:
    """b is right where a is, and on 10 more of 100: the difference is a share of .1 with error sqrt(.1 × .9 / 100)."""
    label, worse = right_share(100, 60)
    _, better = right_share(100, 70)
    found = bootstrap({"a": [make_fit(label, worse)], "b": [make_fit(label, better)]}, replicates=20_000)
    difference = found["b"]["t"] - found["a"]["t"]
    assert difference.value == pytest.approx(0.1)
    assert difference.samples.std() == pytest.approx(0.03, rel=0.03)
    assert (difference.samples >= 0).all()


def test_other_examples_are_drawn_independently() -> None:
    label, prediction = right_share(200, 150)
    other = [1 - value for value in label]  # another development set: other labels, same share of right answers
    flipped = [1 - value for value in prediction]
    found = bootstrap({"a": [make_fit(label, prediction)], "b": [make_fit(other, flipped)]}, replicates=20_000)
    single = (0.75 * 0.25 / 200) ** 0.5
    difference = found["a"]["t"] - found["b"]["t"]
    assert difference.samples.std() == pytest.approx(single * 2**0.5, rel=0.03)


def of_values(values: Sequence[float], *, task: str = "t", finetuned: bool = False) -> list[Fit]:
    """A fit a seed, of pre-training or of fine-tuning, that scores the value on every example: examples add nothing."""
    return [
        Fit(
            task=task,
            metric="mean",
            seed=0 if finetuned else seed,
            finetune_seed=seed if finetuned else 0,
            label=np.zeros(4),
            prediction=np.full(4, value),
        )
        for seed, value in enumerate(values)
    ]


FIVE = [0.50, 0.52, 0.47, 0.55, 0.51]


@pytest.mark.parametrize("finetuned", [False, True])
def test_seeds_alone_give_the_textbooks_t_interval(finetuned: bool) -> None:
    found = bootstrap({"a": of_values(FIVE, finetuned=finetuned)}, replicates=200_000)["a"]["t"]
    half = student_t.ppf(0.975, df=4) * np.std(FIVE, ddof=1) / 5**0.5  # 2.776 × .0291 / 2.236 = .0361
    assert found.value == pytest.approx(0.51)
    assert found.interval() == pytest.approx((0.51 - half, 0.51 + half), abs=0.02 * half)


def test_cells_of_a_pool_have_the_pooled_spread_and_all_degrees_of_freedom() -> None:
    """Variances .0008 of two and .0002 of two, one degree each: together .0005 with two."""
    cells = {("a", 1.0): of_values([0.50, 0.54]), ("a", 2.0): of_values([0.60, 0.62])}
    found = bootstrap(cells, pool=lambda cell: cell[0], replicates=200_000)
    half = student_t.ppf(0.975, df=2) * (0.0005 / 2) ** 0.5
    for name, value in ((("a", 1.0), 0.52), (("a", 2.0), 0.61)):
        assert found[name]["t"].interval() == pytest.approx((value - half, value + half), abs=0.02 * half)
    apart = found[("a", 1.0)]["t"].samples - 0.52, found[("a", 2.0)]["t"].samples - 0.61
    assert abs(np.corrcoef(np.sign(apart))[0, 1]) < 0.01  # they share their spread, not their deviations


def test_a_cell_of_one_seed_has_the_spread_of_its_pool() -> None:
    cells = {("a", 1.0): of_values(FIVE), ("a", 2.0): of_values([0.7])}
    found = bootstrap(cells, pool=lambda cell: cell[0], replicates=200_000)[("a", 2.0)]["t"]
    half = student_t.ppf(0.975, df=4) * np.std(FIVE, ddof=1)
    assert found.interval() == pytest.approx((0.7 - half, 0.7 + half), abs=0.02 * half)


def test_pre_training_seeds_leave_fine_tuning_seeds_nothing_to_add() -> None:
    """The spread of the means of seeds has that of fine-tunings within it."""
    fits = [
        replace(fit, seed=seed, finetune_seed=number)
        for seed, pair in enumerate([(0.4, 0.6), (0.45, 0.65)])
        for number, fit in enumerate(of_values(pair))
    ]
    found = bootstrap({"a": fits}, replicates=200_000)["a"]["t"]
    half = student_t.ppf(0.75, df=1) * np.std([0.5, 0.55], ddof=1) / 2**0.5  # quartiles: the tails of t with 1 are wild
    assert np.percentile(found.samples, [25, 75]) == pytest.approx([0.525 - half, 0.525 + half], abs=0.03 * half)


def test_seeds_and_examples_add_up() -> None:
    label, prediction = right_share(400, 300)
    fits = [make_fit(label, prediction, seed=seed) for seed in range(2)]
    fits += [make_fit(*right_share(400, right), seed=seed) for right, seed in ((290, 2), (310, 3))]
    found = bootstrap({"a": fits}, replicates=200_000)["a"]["t"]
    of_seeds = np.var([0.75, 0.75, 0.725, 0.775], ddof=1) / 4 * 3 / 1  # the variance of t with 3 is 3 / (3 − 2)
    assert found.samples.var() == pytest.approx(of_seeds + 0.75 * 0.25 / 400, rel=0.1)


def test_what_seeds_owe_to_the_examples_is_not_counted_twice() -> None:
    """Squares of .0008 of which examples explain half: the quartiles of t with 1 are ± its scale, √(.0004 / 2)."""
    scores = Scores(
        ["t"], np.array([[0.50], [0.54]]), np.array([0.0004]), {"t": np.zeros(2)}, {"t": 0.0}, {"t": 2}, {"t": 0}
    )
    moved_B = noise({"a": scores}, str, 200_000, 0)["a"][:, 0]
    assert np.percentile(moved_B, [25, 75]) == pytest.approx([-(0.0002**0.5), 0.0002**0.5], rel=0.03)


def test_seeds_apart_by_their_examples_alone_add_nothing() -> None:
    """Two seeds of 400 examples, wrong on 99 and on 101 others: examples score .5 or 1, the error is √(.0625/400)."""
    label = [0] * 400
    first = [1] * 99 + [0] * 301
    second = [0] * 99 + [1] * 101 + [0] * 200
    fits = [make_fit(label, answers, seed=seed) for seed, answers in enumerate((first, second))]
    found = bootstrap({"a": fits}, replicates=20_000)["a"]["t"]
    assert found.value == 0.75
    assert found.samples.std() == pytest.approx((0.0625 / 400) ** 0.5, rel=0.03)


def test_a_pre_training_seed_moves_all_tasks_at_once() -> None:
    """The same deviations on both tasks: the mean over tasks keeps the spread of one task."""
    found = bootstrap({"a": of_values(FIVE) + of_values(FIVE, task="u")}, replicates=1000)["a"]
    assert np.allclose(found["t"].samples, found["u"].samples)
    assert mean(list(found.values())).samples.std() == pytest.approx(found["t"].samples.std())


def test_mean_over_tasks_is_unweighted() -> None:
    small, large = right_share(10, 10), right_share(1000, 500)
    cell = [make_fit(*small, task="small"), make_fit(*large, task="large")]
    assert mean(list(bootstrap({"a": cell}, replicates=10)["a"].values())).value == 0.75


def test_the_same_results_give_the_same_intervals_whatever_their_order() -> None:
    label, one = right_share(80, 50)
    _, two = right_share(80, 55)
    cells = {"a": [make_fit(label, one)], "b": [make_fit(label, two)]}
    forward = bootstrap(cells, replicates=100)
    backward = bootstrap(dict(reversed(cells.items())), replicates=100)
    assert all(np.array_equal(forward[name]["t"].samples, backward[name]["t"].samples) for name in cells)


def test_a_metric_without_resampling_is_refused() -> None:
    with pytest.raises(DataError, match="'bleu'"):
        bootstrap({"a": [make_fit([0, 1], [0, 1], metric="bleu")]})


# --- compute multiplier ---------------------------------------------------------------------------------------------


def test_flops_needed_is_linear_in_log_flops() -> None:
    assert flops_needed([1e10, 1e12], [0.5, 0.7], 0.6) == (pytest.approx(1e11), "equal")
    assert flops_needed([1e10, 1e12], [0.5, 0.7], 0.55) == (pytest.approx(10**10.5), "equal")


def test_flops_needed_never_leaves_the_curve() -> None:
    assert flops_needed([1e10, 1e12], [0.5, 0.7], 0.4) == (1e10, "at most")
    assert flops_needed([1e10, 1e12], [0.5, 0.7], 0.8) == (1e12, "at least")
    assert flops_needed([1e10, 1e12], [0.5, 0.7], 0.5) == (1e10, "equal")


def test_flops_needed_takes_the_first_crossing_of_a_curve_that_turns() -> None:
    assert flops_needed([1e10, 1e12, 1e14], [0.5, 0.7, 0.5], 0.6) == (pytest.approx(1e11), "equal")


def test_a_curve_shifted_by_four_has_the_multiplier_four() -> None:
    found = multiplier([4e10, 4e11, 4e12], [0.5, 0.6, 0.7], [1e10, 1e11, 1e12], [0.5, 0.6, 0.7])
    assert (found.kind, found.value, found.score) == ("equal", pytest.approx(4.0), 0.7)


def test_the_score_compared_at_is_the_best_that_both_reach() -> None:
    """The baseline ends at .6 after 1e12; the other passes .6 half-way (in log) between 1e10 and 1e12."""
    found = multiplier([1e10, 1e12], [0.5, 0.6], [1e10, 1e12], [0.55, 0.65])
    assert (found.kind, found.value, found.score) == ("equal", pytest.approx(10.0), 0.6)


def test_a_curve_above_another_gives_a_lower_bound() -> None:
    """The other's smallest budget already beats the baseline's largest."""
    found = multiplier([1e10, 1e12], [0.5, 0.6], [1e10, 1e12], [0.65, 0.7])
    assert (found.kind, found.value) == ("at least", pytest.approx(100.0))


def test_a_curve_below_another_gives_an_upper_bound() -> None:
    found = multiplier([1e10, 1e12], [0.65, 0.7], [1e10, 1e12], [0.5, 0.6])
    assert (found.kind, found.value) == ("at most", pytest.approx(0.01))


def test_curves_that_only_fall_give_the_ratio_of_first_points_or_nothing() -> None:
    """Both begin at their best: equal scores compare exactly, otherwise the lower one's best is at its first point."""
    assert multiplier([1e10, 1e12], [0.7, 0.6], [1e10, 1e12], [0.7, 0.6]).value == pytest.approx(1.0)
    assert multiplier([2e10, 2e12], [0.7, 0.6], [1e10, 1e12], [0.9, 0.8]).kind == "at least"


def constant(value: float, spread: float = 0.0, n: int = 1000) -> Estimate:
    """Replicates on an even grid of `spread` around the value: their percentiles are known."""
    return Estimate(value, value + spread * np.linspace(-1, 1, n))


def test_interval_of_the_multiplier_follows_the_replicates() -> None:
    """The baseline's last score moves evenly over .6 ± .02 and sets the target; the other's curve is fixed.

    The baseline needs 1e12 for its own best, the other 10^(10 + 2 (target − .5) / .2) for it, so the multiplier is
    10^(2 − 10 (target − .5)): 10 at .6, and 10^(1 ∓ .19) at the 2.5 and 97.5 % points .6 ± .019.
    """
    found = multiplier_with_interval(
        [1e10, 1e12], [constant(0.5), constant(0.6, 0.02)], [1e10, 1e12], [constant(0.5), constant(0.7)]
    )
    assert found.value == pytest.approx(10.0)
    assert found.low == pytest.approx(10**0.81, rel=0.01)
    assert found.high == pytest.approx(10**1.19, rel=0.01)


def test_interval_is_open_where_replicates_are_bounds_only() -> None:
    """In a tenth of the replicates the other's first point beats the baseline's best: no upper end."""
    found = multiplier_with_interval(
        [1e10, 1e12], [constant(0.5), constant(0.6)], [1e10, 1e12], [constant(0.56, 0.05), constant(0.7)]
    )
    assert found.kind == "equal"
    assert found.low is not None
    assert found.high is None
