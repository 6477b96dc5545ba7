"""The Pareto frontier of cells worked out by hand."""

import numpy as np
import pytest

from pipeline import pareto
from pipeline.resampling import Estimate


def cells(*rows: tuple[float, float, list[float]]) -> list[pareto.Point]:
    """Points of (FLOPs, parameters, replicates), each scored as its first replicate."""
    scores = [Estimate(samples[0], np.array(samples)) for _, _, samples in rows]
    return pareto.points([f"arm{i}" for i in range(len(rows))], [r[0] for r in rows], [r[1] for r in rows], scores)


def test_a_cell_that_costs_no_more_and_scores_more_beats_another() -> None:
    found = cells((1, 10, [0.5]), (1, 10, [0.6]), (2, 10, [0.55]), (2, 5, [0.4]))
    assert [point.frontier for point in found] == [False, True, False, True]


def test_equals_do_not_beat_one_another_and_a_cheaper_equal_does() -> None:
    assert [point.frontier for point in cells((1, 10, [0.5]), (1, 10, [0.5]))] == [True, True]
    assert [point.frontier for point in cells((1, 10, [0.5]), (2, 10, [0.5]))] == [True, False]
    assert [point.frontier for point in cells((1, 10, [0.5]), (1, 9, [0.5]))] == [False, True]


def test_more_flops_and_fewer_parameters_are_no_order() -> None:
    assert all(point.frontier for point in cells((1, 10, [0.5]), (2, 5, [0.4])))


def test_the_share_is_of_replicates() -> None:
    one, other = cells((1, 10, [0.6, 0.5, 0.5, 0.5]), (1, 10, [0.5, 0.6, 0.5, 0.7]))
    assert (one.frontier, other.frontier) == (True, False)
    assert one.share == pytest.approx(2 / 4)  # the first, and the third, in which nothing is better
    assert other.share == pytest.approx(3 / 4)


def test_an_arm_alone_is_beaten_by_its_own_smaller_budget() -> None:
    found = cells((1, 10, [0.5]), (3, 10, [0.45]), (10, 10, [0.6]))
    assert [point.frontier for point in found] == [True, False, True]
