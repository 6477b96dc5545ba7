"""The order is a bijection per epoch, a function of (seed, position) alone, and shuffles well."""

import numpy as np
import pytest

from data_prep.errors import DataError
from data_prep.order import Order


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 63, 64, 65, 97, 127, 128, 1000, 4099, 65_537])
def test_every_epoch_holds_every_row_once(n: int) -> None:
    order = Order(n, seed=7)
    epochs, rows = order.locate(np.arange(3 * n))
    for epoch in range(3):
        chosen = rows[epoch * n : (epoch + 1) * n]
        assert np.array_equal(np.sort(chosen), np.arange(n))
        assert (epochs[epoch * n : (epoch + 1) * n] == epoch).all()


def test_epoch_ends_inside_a_batch_without_pad_drop_or_repeat() -> None:
    n, batch = 10, 4
    order = Order(n, seed=0)
    batches = [order.locate(np.arange(start, start + batch)) for start in range(0, 20, batch)]
    epochs = np.concatenate([epoch for epoch, _ in batches])
    rows = np.concatenate([row for _, row in batches])
    assert epochs[8:12].tolist() == [0, 0, 1, 1]  # the third batch holds the end of one epoch and the start of the next
    assert sorted(rows[:10].tolist()) == sorted(rows[10:].tolist()) == list(range(10))


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 8])
def test_any_world_size_sees_the_same_global_batch(world: int) -> None:
    order, global_batch = Order(1003, seed=3), 50
    for step in (0, 7, 20, 41):
        positions = np.arange(step * global_batch, (step + 1) * global_batch)
        whole = order.locate(positions)[1]
        pieces = [order.locate(piece)[1] for piece in np.array_split(positions, world)]
        assert np.array_equal(np.concatenate(pieces), whole)


def test_resume_anywhere_continues_the_stream() -> None:
    order = Order(101, seed=5)
    rows = order.locate(np.arange(400))[1]
    for position in (0, 1, 100, 101, 250):
        assert np.array_equal(Order(101, seed=5).locate(np.arange(position, 400))[1], rows[position:])


def test_seeds_and_epochs_differ_and_neighbours_are_torn_apart() -> None:
    n = 5000
    first = Order(n, seed=0).locate(np.arange(2 * n))[1]
    other = Order(n, seed=1).locate(np.arange(n))[1]
    # two independent permutations agree in one place on average; 15 has a probability below 1e-11
    assert (first[:n] == first[n:]).sum() < 15
    assert (first[:n] == other).sum() < 15
    assert (np.abs(np.diff(first[:n])) == 1).sum() < 20  # expected: 2
    # correlation of position and row is normal with standard deviation 1/sqrt(n) = 0.014
    assert abs(np.corrcoef(np.arange(n), first[:n])[0, 1]) < 0.07


def test_rows_are_spread_evenly_over_the_stream() -> None:
    """Chi-square over a 10 × 10 table of (position, row) deciles: 81 degrees of freedom, mean 81, deviation 12.7."""
    n = 20_000
    rows = Order(n, seed=2).locate(np.arange(n))[1]
    table = np.histogram2d(np.arange(n), rows, bins=10)[0]
    chi_square = ((table - n / 100) ** 2 / (n / 100)).sum()
    assert 35 < chi_square < 145


def test_far_positions_cost_nothing_special() -> None:
    order = Order(1_000_003, seed=0)
    epoch, row = order.locate(np.array([10**15]))
    assert epoch[0] == 10**15 // 1_000_003
    assert 0 <= row[0] < 1_000_003


def test_refuses_no_rows_and_negative_positions() -> None:
    with pytest.raises(DataError, match="no rows"):
        Order(0, seed=0)
    with pytest.raises(ValueError, match="start at 0"):
        Order(5, seed=0).locate(np.array([-1]))
