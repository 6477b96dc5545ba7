"""Next-sentence exchanges: half of the pairs, nothing but the second segment moved, no label on the surface."""

import numpy as np
from scipy.stats import binomtest

from data_prep.rows import structure
from tests.training.synthetic import SPECIAL, make_rows, partners_within
from training.masking import RowKeys
from training.nextsentence import exchange_second_segments, second_segments


def pair(first: list[int], second: list[int], width: int = 14) -> list[int]:
    row = [SPECIAL.cls, *first, SPECIAL.sep, *second, *([SPECIAL.sep] if second else [])]
    return row + [SPECIAL.pad] * (width - len(row))


def exchange(rows: np.ndarray, epoch: int = 0):  # type: ignore[no-untyped-def]
    index = np.arange(len(rows))
    keys = RowKeys(0, np.full_like(index, epoch), index)
    return exchange_second_segments(rows, structure(rows, SPECIAL), keys, partners_within(rows))


def test_a_segment_is_exchanged_for_one_of_its_own_length_and_fullness() -> None:
    """Three words, padded: only words 30-32 fit; four words, or a full row, never."""
    rows = np.array(
        [pair([10, 11], [20, 21, 22]), pair([12], [30, 31, 32]), pair([13], [40, 41, 42, 43])] * 20
        + [pair([14] * 8, [50, 51, 52])] * 20
    )
    assert (rows[-1] != SPECIAL.pad).all()
    mixed, labels, weights = exchange(rows)
    assert weights.all() and 20 < labels.sum() < 60
    for before, after, label in zip(rows, mixed, labels, strict=True):
        changed = np.flatnonzero(before != after)
        assert label or not len(changed)
        second = after[structure(after[None], SPECIAL).types[0] == 1][:-1]
        if len(second) == 4:
            assert second.tolist() == [40, 41, 42, 43]
        elif (after == SPECIAL.pad).any():
            assert second.tolist() in ([20, 21, 22], [30, 31, 32])
        else:
            assert second.tolist() == [50, 51, 52]


def test_rows_without_a_pair_weigh_nothing_and_stay() -> None:
    rows = np.array([pair([10, 11], [])] * 10)
    mixed, labels, weights = exchange(rows)
    assert (mixed == rows).all() and not labels.any() and not weights.any()


def test_a_length_that_occurs_once_is_not_exchanged_and_weighs_nothing() -> None:
    rows = np.array([pair([10], [20] * n) for n in range(1, 9)])
    mixed, labels, weights = exchange(rows)
    assert (mixed == rows).all() and not labels.any() and not weights.any()


def test_half_of_what_weighs_is_exchanged_where_many_rows_have_no_partner() -> None:
    """As held out, where shards are small: every second row is alone with its length."""
    common = [pair([10], [20 + i % 50, 30], width=210) for i in range(200)]
    alone = [pair([11], [40] * n, width=210) for n in range(3, 203)]
    rows = np.array(common + alone)
    shares = [exchange(rows, epoch)[1:] for epoch in range(10)]
    labels, weights = (np.stack(parts) for parts in zip(*shares, strict=True))
    assert weights[:, :200].all() and not weights[:, 200:].any()
    assert binomtest(int(labels[weights > 0].sum()), 2000, 0.5).pvalue > 1e-3


def test_half_of_the_pairs_are_exchanged_and_nothing_else_moves() -> None:
    rows = make_rows(3000, seed=8)
    mixed, labels, weights = exchange(rows)
    before, after = structure(rows, SPECIAL), structure(mixed, SPECIAL)
    for name in ("real", "fragment", "positions", "types", "special"):
        assert (getattr(before, name) == getattr(after, name)).all(), name
    assert binomtest(int(labels.sum()), int(weights.sum()), 0.5).pvalue > 1e-3
    second = (before.types == 1) & ~before.special
    assert (mixed[~second] == rows[~second]).all()


def test_partners_are_drawn_uniformly_and_never_oneself() -> None:
    rows = np.array([pair([10], [20 + i]) for i in range(6)] * 1000)
    mixed, labels, _ = exchange(rows)
    _, length = second_segments(structure(rows, SPECIAL))
    assert (length == 1).all()
    words = mixed[labels == 1][:, 3] - 20
    counts = np.bincount(words, minlength=6)
    assert binomtest(int(counts[0]), int(counts.sum()), 1 / 6).pvalue > 1e-3


def test_another_epoch_tosses_other_coins() -> None:
    rows = make_rows(300, seed=8)
    assert (exchange(rows, 0)[1] != exchange(rows, 1)[1]).any()
    assert (exchange(rows, 1)[0] == exchange(rows, 1)[0]).all()
