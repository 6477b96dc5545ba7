"""Next-sentence exchanges: half of the pairs, lengths untouched, tokens from the partner."""

import numpy as np
from scipy.stats import binomtest

from data_prep.rows import structure
from tests.training.synthetic import SPECIAL, make_rows
from training.masking import RowKeys
from training.nextsentence import CANDIDATES, exchange_second_segments, second_segments


def pair(first: list[int], second: list[int]) -> list[int]:
    row = [SPECIAL.cls, *first, SPECIAL.sep, *second, *([SPECIAL.sep] if second else [])]
    return row + [SPECIAL.pad] * (14 - len(row))


def exchange(rows: np.ndarray, others: np.ndarray, epoch: int = 0):  # type: ignore[no-untyped-def]
    index = np.arange(len(rows))

    def partners(draws: np.ndarray):  # type: ignore[no-untyped-def]
        picked = others[(draws % len(others)).astype(np.int64).ravel()]
        return picked, structure(picked, SPECIAL)

    return exchange_second_segments(
        rows, structure(rows, SPECIAL), RowKeys(0, np.full_like(index, epoch), index), partners
    )


def test_an_exchanged_segment_is_cut_or_repeated_to_the_length_it_replaces() -> None:
    rows = np.array([pair([10, 11], [20, 21, 22])] * 40)
    for second, expected in (([30, 31, 32, 33], [30, 31, 32]), ([30, 31], [30, 31, 30])):
        mixed, labels, weights = exchange(rows, np.array([pair([40], second)]))
        assert weights.all() and 0 < labels.sum() < 40
        for row, label in zip(mixed, labels, strict=True):
            assert row.tolist() == pair([10, 11], expected if label else [20, 21, 22])


def test_rows_without_a_pair_weigh_nothing_and_stay() -> None:
    rows = np.array([pair([10, 11], [])] * 10)
    mixed, labels, weights = exchange(rows, np.array([pair([40], [30, 31])]))
    assert (mixed == rows).all() and not labels.any() and not weights.any()


def test_partners_without_a_pair_exchange_nothing() -> None:
    rows = np.array([pair([10, 11], [20, 21])] * 10)
    mixed, labels, weights = exchange(rows, np.full((1, 14), SPECIAL.pad))
    assert (mixed == rows).all() and not labels.any() and weights.all()


def test_half_of_the_pairs_are_exchanged_and_the_structure_never_moves() -> None:
    rows = make_rows(2000, seed=8)
    mixed, labels, weights = exchange(rows, rows)
    before, after = structure(rows, SPECIAL), structure(mixed, SPECIAL)
    for name in ("real", "fragment", "positions", "types"):
        assert (getattr(before, name) == getattr(after, name)).all(), name
    assert binomtest(int(labels.sum()), int(weights.sum()), 0.5).pvalue > 1e-3
    start, length = second_segments(rows, before)
    first = np.arange(rows.shape[1])[None, :] < start[:, None]
    assert (mixed[first & (length > 0)[:, None]] == rows[first & (length > 0)[:, None]]).all()
    assert CANDIDATES >= 2


def test_another_epoch_tosses_other_coins() -> None:
    rows = make_rows(300, seed=8)
    assert (exchange(rows, rows, 0)[1] != exchange(rows, rows, 1)[1]).any()
    assert (exchange(rows, rows, 1)[1] == exchange(rows, rows, 1)[1]).all()
