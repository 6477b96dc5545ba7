"""The order is a bijection per epoch, a function of (seed, position) alone, shuffles well, and mixes exactly."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import manifest as manifests
from data_prep.errors import ConfigError, DataError
from data_prep.manifest import Documents, Manifest, ShardEntry, SourceStats, SplitStats
from data_prep.order import Order, OrderConfig, RowGroup, order_of
from data_prep.rows import SpecialIds


def whole(n: int, seed: int) -> Order:
    """All rows as one group without windows."""
    return Order([RowGroup(0, [n])], seed)


def stats(rows: int) -> SplitStats:
    return manifests.empty_stats(8).model_copy(update={"rows": rows})


def corpus(shards: Sequence[Sequence[int]], weights: Sequence[int | None], heldout: int = 7) -> Manifest:
    """A manifest of sources of one unit each, with shards of so many rows; all held-out rows are the last source's."""
    entries: list[ShardEntry] = []
    for unit, sizes in enumerate(shards):
        for size in sizes:
            first_row = sum(entry.rows for entry in entries)
            name = f"train/{unit:05d}-{len(entries):03d}.tar"
            entries.append(
                ShardEntry(name=name, bytes=1, sha256="x", members=1, rows=size, first_row=first_row, unit=unit)
            )
    last = len(shards) - 1
    return Manifest(
        config_sha256="c", inputs_sha256="i", seed=0, tokenizer_sha256="t", vocab_size=100,
        special=SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4), layout="packed", pair_separators=1, seq_len=8,
        dtype="uint16", units=len(shards), heldout_documents=[],
        documents=Documents(documents_in=0, out=0, train=0, heldout=0, text_bytes=0, rejected={}, topics={}),
        train=stats(sum(entry.rows for entry in entries)).model_copy(update={"shards": entries}),
        heldout=stats(heldout),
        sources=[
            SourceStats(
                kind="jsonl", weight=weight, units=1, train=stats(sum(sizes)),
                heldout=stats(heldout if unit == last else 0),
            )
            for unit, (sizes, weight) in enumerate(zip(shards, weights, strict=True))
        ],
    )  # fmt: skip


def test_the_order_of_one_group_never_changes() -> None:
    """Values of the first release: a run begun with it continues with the rows it would have seen."""
    epochs, rows = whole(1003, seed=3).locate(np.arange(3005, 3013))
    assert epochs.tolist() == [2, 2, 2, 2, 3, 3, 3, 3]
    assert rows.tolist() == [950, 315, 58, 645, 583, 664, 231, 397]
    assert whole(1003, seed=3).locate(np.arange(6))[1].tolist() == [653, 719, 432, 31, 589, 909]
    assert whole(70_001, seed=7).locate(np.arange(6))[1].tolist() == [9286, 37274, 43027, 48712, 29943, 4994]
    from_manifest = order_of(corpus([[500, 500], [3]], [None, None]), "train", 3, OrderConfig())
    assert from_manifest.locate(np.arange(6))[1].tolist() == [653, 719, 432, 31, 589, 909]
    wide = order_of(corpus([[500, 500], [3]], [None, None]), "train", 3, OrderConfig(window_shards=3))
    assert wide.locate(np.arange(6))[1].tolist() == [653, 719, 432, 31, 589, 909]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 63, 64, 65, 97, 127, 128, 1000, 4099, 65_537])
def test_every_epoch_holds_every_row_once(n: int) -> None:
    order = whole(n, seed=7)
    epochs, rows = order.locate(np.arange(3 * n))
    for epoch in range(3):
        chosen = rows[epoch * n : (epoch + 1) * n]
        assert np.array_equal(np.sort(chosen), np.arange(n))
        assert (epochs[epoch * n : (epoch + 1) * n] == epoch).all()


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 150), min_size=1, max_size=9), st.integers(1, 4), st.integers(0, 5), st.integers(0, 99))
def test_every_epoch_holds_every_row_once_in_windows_of_unequal_shards(
    shards: list[int], window_shards: int, epoch: int, seed: int
) -> None:
    order = order_of(corpus([shards], [None]), "train", seed, OrderConfig(window_shards=window_shards))
    n = sum(shards)
    epochs, rows = order.locate(np.arange(epoch * n, (epoch + 1) * n))
    assert (epochs == epoch).all()
    assert np.array_equal(np.sort(rows), np.arange(n))


def test_epoch_ends_inside_a_batch_without_pad_drop_or_repeat() -> None:
    n, batch = 10, 4
    order = whole(n, seed=0)
    batches = [order.locate(np.arange(start, start + batch)) for start in range(0, 20, batch)]
    epochs = np.concatenate([epoch for epoch, _ in batches])
    rows = np.concatenate([row for _, row in batches])
    assert epochs[8:12].tolist() == [0, 0, 1, 1]  # the third batch holds the end of one epoch and the start of the next
    assert sorted(rows[:10].tolist()) == sorted(rows[10:].tolist()) == list(range(10))


# --- windows ----------------------------------------------------------------------------------------------------------

SHARDS = [64, 100, 128, 30, 64, 64, 7, 90, 64, 11]


@pytest.mark.parametrize("window_shards", [1, 2, 3])
def test_windows_are_read_one_after_the_other(window_shards: int) -> None:
    """In any stretch of the stream no longer than the smallest window, at most two windows of shards are in use."""
    shards = SHARDS[:-1] if window_shards == 3 else SHARDS
    n = sum(shards)
    order = order_of(corpus([shards], [None]), "train", 0, OrderConfig(window_shards=window_shards))
    rows = order.locate(np.arange(3 * n))[1]
    shard = np.searchsorted(np.cumsum(shards), rows, side="right")
    sizes = [sum(shards[start : start + window_shards]) for start in range(0, len(shards), window_shards)]
    stretch = min(sizes)
    for start in range(0, 3 * n - stretch):
        assert len(set(shard[start : start + stretch].tolist())) <= 2 * window_shards
    window = shard // window_shards
    for epoch in range(3):
        runs = window[epoch * n : (epoch + 1) * n]
        order_of_windows = runs[np.flatnonzero(np.diff(runs, prepend=-1))]
        assert sorted(order_of_windows.tolist()) == list(range(len(sizes)))  # every window in one piece


def test_windows_and_the_rows_inside_are_shuffled_anew_in_every_epoch() -> None:
    """40 windows of two shards of 64 rows. Two random orders of 40 agree in one place on average, in 9 with a
    probability below 1e-5; two neighbours in a window of 128 stay neighbours twice in 128 on average."""
    n = 80 * 64
    manifest = corpus([[64] * 80], [None])
    order = order_of(manifest, "train", 0, OrderConfig(window_shards=2))
    rows = order.locate(np.arange(2 * n))[1].reshape(2, 40, 128)
    windows = rows[:, :, 0] // 128
    assert (windows[0] == windows[1]).sum() < 9
    assert (windows[0] == np.arange(40)).sum() < 9
    other = order_of(manifest, "train", 1, OrderConfig(window_shards=2)).locate(np.arange(n))[1].reshape(40, 128)
    assert (windows[0] == other[:, 0] // 128).sum() < 9
    inside = rows % 128
    assert (np.abs(np.diff(inside, axis=2)) == 1).mean() < 4 / 128  # expected: 2/128, over 10,160 pairs
    by_window = [inside[epoch][np.argsort(windows[epoch])] for epoch in (0, 1)]
    assert (by_window[0] == by_window[1]).sum() < 80  # expected: 40
    assert len({tuple(row) for row in inside.reshape(80, 128).tolist()}) == 80  # no two windows share an order


# --- mixing -----------------------------------------------------------------------------------------------------------


def mixed(sizes: Sequence[int], weights: Sequence[int], seed: int = 0) -> Order:
    starts = np.cumsum([0, *sizes]).tolist()
    return Order([RowGroup(start, [n], w) for start, n, w in zip(starts, sizes, weights, strict=False)], seed)


def sources_of(rows: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    return np.searchsorted(np.cumsum(sizes), rows, side="right")


@settings(derandomize=True, deadline=None, max_examples=80)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=7), st.integers(0, 10**6))
def test_shares_are_exact_in_every_cycle_and_near_in_every_prefix(weights: list[int], start: int) -> None:
    """A prefix is off by at most 1 - 1/(2k - 2) for k sources (Tijdeman 1980), 1/2 for two: the best there is."""
    sizes = [10 + 7 * source for source in range(len(weights))]
    reduced = np.array(weights) // math.gcd(*weights)
    total = int(reduced.sum())
    order = mixed(sizes, weights)
    turns = sources_of(order.locate(np.arange(3 * total))[1], sizes)
    had = np.cumsum(turns[:, None] == np.arange(len(weights))[None, :], axis=0)
    share = np.arange(1, 3 * total + 1)[:, None] * reduced[None, :] / total
    assert np.abs(had - share).max() <= 1 - 1 / (2 * len(weights) - 2) + 1e-9
    assert np.array_equal(had[total - 1 :: total], np.arange(1, 4)[:, None] * reduced[None, :])
    anywhere = sources_of(order.locate(np.arange(start, start + total))[1], sizes)
    assert np.array_equal(np.bincount(anywhere, minlength=len(weights)), reduced)


def test_many_small_sources_do_not_bunch() -> None:
    """One source of half the weight and a hundred that share the other half: theirs is every other place."""
    order = mixed([500] * 101, [1000] + [10] * 100)
    turns = sources_of(order.locate(np.arange(2000))[1], [500] * 101)
    had = np.cumsum(turns == 0)
    assert np.abs(had - np.arange(1, 2001) / 2).max() <= 1


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), min_size=2, max_size=5),
    st.integers(0, 99),
    st.integers(0, 600),
)
def test_each_source_keeps_its_own_order_and_epochs(sources: list[tuple[int, int]], seed: int, resumed_at: int) -> None:
    """What a source gives is its own stream, each of its epochs holds each of its rows once, whatever the others'
    sizes and weights, and a stream taken up anywhere goes on."""
    sizes, weights = [n for n, _ in sources], [w for _, w in sources]
    epochs, rows = mixed(sizes, weights, seed).locate(np.arange(600))
    turns = sources_of(rows, sizes)
    for source, n in enumerate(sizes):
        first, mine = sum(sizes[:source]), turns == source
        alone = Order([RowGroup(first, [n])], seed).locate(np.arange(mine.sum()))
        assert np.array_equal(epochs[mine], alone[0]) and np.array_equal(rows[mine], alone[1])
        assert np.array_equal(epochs[mine], np.arange(mine.sum()) // n)
        full = mine.sum() // n
        assert (np.sort(rows[mine][: full * n].reshape(full, n), axis=1) == first + np.arange(n)).all()
    assert len(set(zip(epochs.tolist(), rows.tolist(), strict=True))) == 600  # no mask is ever drawn twice
    again = mixed(sizes, weights, seed).locate(np.arange(resumed_at, 600))
    assert np.array_equal(again[0], epochs[resumed_at:]) and np.array_equal(again[1], rows[resumed_at:])


def test_a_source_smaller_than_a_batch_comes_round_within_it() -> None:
    epochs, rows = mixed([3, 1000], [1, 1]).locate(np.arange(16))
    small = rows < 3
    assert small.sum() == 8
    assert epochs[small].tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert sorted(rows[small][:3].tolist()) == sorted(rows[small][3:6].tolist()) == [0, 1, 2]
    assert (epochs[~small] == 0).all() and len(set(rows[~small].tolist())) == 8


def test_far_positions_cost_nothing_special() -> None:
    order = whole(1_000_003, seed=0)
    epoch, row = order.locate(np.array([10**15]))
    assert epoch[0] == 10**15 // 1_000_003
    assert 0 <= row[0] < 1_000_003
    # 3 · 10^14 cycles of two turns of the first source and one of the second
    epochs, rows = mixed([1000, 70], [2, 1]).locate(np.arange(9 * 10**14, 9 * 10**14 + 3))
    assert sorted(rows >= 1000) == [False, False, True]
    assert epochs[rows < 1000].tolist() == [6 * 10**11, 6 * 10**11]
    assert epochs[rows >= 1000].tolist() == [3 * 10**14 // 70]


def test_the_common_divisor_of_the_weights_is_taken_out() -> None:
    left, right = mixed([50, 50], [3_000_000, 2_000_000]), mixed([50, 50], [3, 2])
    assert np.array_equal(left.locate(np.arange(300))[1], right.locate(np.arange(300))[1])
    longest = mixed([50, 50], [65_535, 1]).locate(np.arange(65_536))[1]
    assert (longest >= 50).sum() == 1
    with pytest.raises(ConfigError, match=r"sum to 65,537 .* common divisor 2; .* at most 65,536"):
        mixed([50, 50], [2 * 65_536, 2])


def test_sources_of_a_corpus_are_mixed_by_their_weights_in_windows_of_their_own() -> None:
    shards = [[64, 64, 30], [128], [10, 5]]
    order = order_of(corpus(shards, [2, 1, 1]), "train", 5, OrderConfig(window_shards=2))
    rows = order.locate(np.arange(4 * 158))[1]
    turns = sources_of(rows, [158, 128, 15])
    assert np.array_equal(np.bincount(turns), [2 * 158, 158, 158])
    first = rows[turns == 0][:158] // 128  # an epoch of the first source: its windows are 128 and 30 rows
    assert first.tolist() in ([0] * 128 + [1] * 30, [1] * 30 + [0] * 128)


def test_the_heldout_sample_is_neither_mixed_nor_windowed() -> None:
    manifest = corpus([[64, 64], [10]], [5, 1], heldout=100)
    rows = order_of(manifest, "heldout", 3, OrderConfig(window_shards=1)).locate(np.arange(100))[1]
    assert np.array_equal(rows, whole(100, seed=3).locate(np.arange(100))[1])


def test_weights_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(ConfigError, match="give one to all or to none"):
        order_of(corpus([[64], [64]], [1, None]), "train", 0, OrderConfig())
    with pytest.raises(DataError, match=r"source 1 \(jsonl\) has a weight but no training row"):
        order_of(corpus([[64], []], [1, 1]), "train", 0, OrderConfig())


# --- the stream -------------------------------------------------------------------------------------------------------

ORDERS = {
    "plain": whole(1003, seed=3),
    "windows": Order([RowGroup(0, [400, 3, 600])], seed=3),
    "mixed": Order([RowGroup(0, [400, 100], 3), RowGroup(500, [17], 1), RowGroup(517, [486], 2)], seed=3),
}


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("name", ORDERS)
def test_any_world_size_sees_the_same_global_batch(name: str, world: int) -> None:
    order, global_batch = ORDERS[name], 50
    for step in (0, 7, 20, 41):
        positions = np.arange(step * global_batch, (step + 1) * global_batch)
        together = order.locate(positions)
        pieces = [order.locate(piece) for piece in np.array_split(positions, world)]
        for i in (0, 1):
            assert np.array_equal(np.concatenate([piece[i] for piece in pieces]), together[i])


@pytest.mark.parametrize("name", ORDERS)
def test_resume_anywhere_continues_the_stream(name: str) -> None:
    rows = ORDERS[name].locate(np.arange(4000))[1]
    for position in (0, 1, 100, 1003, 2500, 3999):
        assert np.array_equal(ORDERS[name].locate(np.arange(position, 4000))[1], rows[position:])


def test_seeds_and_epochs_differ_and_neighbours_are_torn_apart() -> None:
    n = 5000
    first = whole(n, seed=0).locate(np.arange(2 * n))[1]
    other = whole(n, seed=1).locate(np.arange(n))[1]
    # two independent permutations agree in one place on average; 15 has a probability below 1e-11
    assert (first[:n] == first[n:]).sum() < 15
    assert (first[:n] == other).sum() < 15
    assert (np.abs(np.diff(first[:n])) == 1).sum() < 20  # expected: 2
    # correlation of position and row is normal with standard deviation 1/sqrt(n) = 0.014
    assert abs(np.corrcoef(np.arange(n), first[:n])[0, 1]) < 0.07


def test_rows_are_spread_evenly_over_the_stream() -> None:
    """Chi-square over a 10 × 10 table of (position, row) deciles: 81 degrees of freedom, mean 81, deviation 12.7."""
    n = 20_000
    rows = whole(n, seed=2).locate(np.arange(n))[1]
    table = np.histogram2d(np.arange(n), rows, bins=10)[0]
    chi_square = ((table - n / 100) ** 2 / (n / 100)).sum()
    assert 35 < chi_square < 145


def test_refuses_no_rows_and_negative_positions() -> None:
    with pytest.raises(DataError, match="no rows"):
        whole(0, seed=0)
    with pytest.raises(DataError, match="no rows"):
        order_of(corpus([[]], [None]), "train", 0, OrderConfig())
    with pytest.raises(ValueError, match="start at 0"):
        whole(5, seed=0).locate(np.array([-1]))
