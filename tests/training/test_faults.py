"""Injected faults: at their step, on their rank, as often as asked over all attempts."""

import errno
import math
from pathlib import Path

import pytest

from tests.training.runs import events
from training.faults import SPIKE, Faults
from training.settings import Fault


def faults(run_dir: Path, rank: int, *several: dict[str, object]) -> Faults:
    return Faults([Fault.model_validate(one) for one in several], run_dir, rank)


def test_each_happens_so_many_times_whatever_is_restarted(tmp_path: Path) -> None:
    nan = {"kind": "nan", "step": 3, "rank": 1, "times": 2}
    first = faults(tmp_path, 1, nan)
    assert [first.loss_factor(step) for step in (1, 2)] == [1.0, 1.0]
    assert math.isnan(first.loss_factor(3))
    again = faults(tmp_path, 1, nan)  # a restarted process
    assert math.isnan(again.loss_factor(4))
    assert again.loss_factor(5) == 1.0
    assert faults(tmp_path, 0, nan).loss_factor(3) == 1.0
    assert [(one["event"], one["kind"], one["step"], one["rank"]) for one in events(tmp_path)] == [
        ("fault", "nan", 3, 1),
        ("fault", "nan", 4, 1),
    ]


def test_a_spike_is_one_of_all_ranks_whoever_they_are(tmp_path: Path) -> None:
    """Step by step at both ranks, the second time with the other one first; then restarted, on four ranks."""
    spike = {"kind": "spike", "step": 2, "times": 2}
    a, b = (faults(tmp_path, rank, spike) for rank in (0, 1))
    assert [(a.rate_factor(step), b.rate_factor(step)) for step in (1, 2)] == [(1.0, 1.0), (SPIKE, SPIKE)]
    assert [(b.rate_factor(step), a.rate_factor(step)) for step in (3, 4)] == [(SPIKE, SPIKE), (1.0, 1.0)]
    assert [faults(tmp_path, rank, spike).rate_factor(4) for rank in range(4)] == [1.0] * 4
    assert [(one["step"], one["rank"]) for one in events(tmp_path)] == [(2, "all"), (3, "all")]


def test_a_spike_that_is_left_over_is_of_the_new_ranks_too(tmp_path: Path) -> None:
    spike = {"kind": "spike", "step": 2, "times": 2}
    assert [faults(tmp_path, 0, spike).rate_factor(step) for step in (1, 2)] == [1.0, SPIKE]
    again = [faults(tmp_path, rank, spike) for rank in range(3)]
    assert [[one.rate_factor(step) for one in again] for step in (2, 3)] == [[SPIKE] * 3, [1.0] * 3]


def test_every_rank_can_be_meant(tmp_path: Path) -> None:
    nan = {"kind": "nan", "step": 0, "rank": "all"}
    assert all(math.isnan(faults(tmp_path, rank, nan).loss_factor(0)) for rank in (0, 5))


def test_a_full_disk_is_what_the_system_says(tmp_path: Path) -> None:
    full = faults(tmp_path, 0, {"kind": "full_disk", "step": 10})
    full.while_saving(9)
    with pytest.raises(OSError, match="No space left") as caught:
        full.while_saving(20)
    assert caught.value.errno == errno.ENOSPC
    full.while_saving(20)
