"""Position in the data stream → (epoch, row): keyed bijections, so the whole state of the order is one integer.

One group of rows: position p is epoch p // N, row PERM(p mod N; seed, epoch). PERM is a Feistel network on the smallest
power of two that holds N, with cycle-walking (Black & Rogaway 2002): outputs ≥ N are encrypted again until they fall
inside, which keeps it a bijection of [0, N). With windows of shards, PERM first permutes the windows, then the rows
inside each, so that few shards are in use at a time. With several weighted groups (the sources of a corpus), a table
over one cycle of Σ weights positions says whose turn it is; each group then counts its own positions and epochs.

Guarantees: every epoch of a group holds each of its rows once; every cycle holds each group exactly `weight` times,
every prefix within one of its share; nothing depends on world size, batch size or worker count; any position is
reached without walking to it, and no state is kept per row. Not cryptographic.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt

from data_prep import keyed
from data_prep.errors import ConfigError, DataError
from data_prep.manifest import Manifest, Split
from data_prep.settings import Settings

ROUNDS = 6
# A Feistel network over very few bits reaches few permutations; the spare domain costs walks only for tiny corpora.
MIN_BITS = 6
LONGEST_CYCLE = 65_536  # Σ of the weights, their common divisor taken out

I64 = NDArray[np.int64]


class OrderConfig(Settings):
    """How the training rows are shuffled."""

    window_shards: PositiveInt | None = None  # shuffle within windows of so many shards; None: over all rows at once


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Consecutive rows of a split that are shuffled together, as the row counts of its consecutive windows."""

    first_row: int
    windows: Sequence[int]
    weight: int = 1


class Order:
    """The order of groups of rows under `seed`."""

    def __init__(self, groups: Sequence[RowGroup], seed: int) -> None:
        self.seed = seed
        self._groups = [_Shuffle(group, seed) for group in groups]
        self._weights = reduced_weights([group.weight for group in groups])
        self._turns, self._turns_before = _interleave(tuple(self._weights))

    def locate(self, positions: I64) -> tuple[I64, I64]:
        """Epochs `[n]` and rows `[n]` of stream positions `[n]` (each ≥ 0). The epoch is that of the row's own group,
        the row is numbered within the split, so (seed, epoch, row) never occurs twice in a stream."""
        positions = np.asarray(positions, dtype=np.int64)
        if positions.size and positions.min() < 0:
            raise ValueError("positions in the data stream start at 0")
        if len(self._groups) == 1:
            return self._groups[0].locate(positions)
        cycles, places = np.divmod(positions, len(self._turns))
        turns = self._turns[places]
        epochs, rows = np.empty_like(positions), np.empty_like(positions)
        for number in np.unique(turns):
            chosen = turns == number
            counts = cycles[chosen] * self._weights[number] + self._turns_before[places[chosen]]
            epochs[chosen], rows[chosen] = self._groups[number].locate(counts)
        return epochs, rows


class _Shuffle:
    """The rows of one group: position within the group → epoch and row."""

    def __init__(self, group: RowGroup, seed: int) -> None:
        self._first, self._seed = group.first_row, seed
        self._sizes: I64 = np.asarray(group.windows, dtype=np.int64)
        self._starts: I64 = np.cumsum(self._sizes) - self._sizes
        self._n_rows = int(self._sizes.sum())
        if self._n_rows < 1:
            raise DataError(
                "There are no rows to order: the split is empty; use a larger corpus or another held-out share."
            )
        self._windows = lru_cache(maxsize=4)(self._window_order)  # consecutive steps ask for the same one or two

    def locate(self, positions: I64) -> tuple[I64, I64]:
        epochs, offsets = np.divmod(positions, self._n_rows)
        rows = np.empty_like(offsets)
        for epoch in np.unique(epochs).tolist():
            chosen = np.flatnonzero(epochs == epoch)
            windows, ends = self._windows(epoch)
            turns = np.searchsorted(ends, offsets[chosen], side="right")
            for turn in np.unique(turns).tolist():
                here, window = chosen[turns == turn], int(windows[turn])
                size, start = int(self._sizes[window]), self._first + int(self._starts[window])
                rows[here] = start + permute(offsets[here] - (int(ends[turn]) - size), size, self._key(epoch, start))
        return epochs, rows

    def _window_order(self, epoch: int) -> tuple[I64, I64]:
        """The windows of an epoch in their order, and how many rows there are up to the end of each."""
        count = len(self._sizes)
        windows = permute(np.arange(count), count, keyed.key("windows", self._seed, epoch, self._first))
        return windows, np.cumsum(self._sizes[windows])

    def _key(self, epoch: int, start: int) -> np.uint64:
        return keyed.key("order", self._seed, epoch, *([start] if start else []))


def permute(values: I64, n: int, key: np.uint64) -> I64:
    """The images of `values` (each in [0, n)) under the bijection of [0, n) that belongs to `key`."""
    if n == 1:  # a single window, above all: no need to walk to it
        return np.zeros_like(values)
    bits = max(MIN_BITS, (n - 1).bit_length())
    low_bits, high_bits = np.uint64(bits // 2), np.uint64(bits - bits // 2)
    rounds = keyed.bits(key, np.zeros(1, dtype=np.int64), ROUNDS)[0]
    found = _encrypt(values.astype(np.uint64), rounds, low_bits, high_bits)
    outside = np.flatnonzero(found >= n)
    while outside.size:
        found[outside] = _encrypt(found[outside], rounds, low_bits, high_bits)
        outside = outside[found[outside] >= n]
    return found.astype(np.int64)


def _encrypt(values: keyed.U64, rounds: keyed.U64, low_bits: np.uint64, high_bits: np.uint64) -> keyed.U64:
    """One pass of the network: the two halves, possibly one bit apart in width, take turns being mixed."""
    low_mask, high_mask = _mask(low_bits), _mask(high_bits)
    low = values & low_mask
    high = values >> low_bits
    with np.errstate(over="ignore"):
        for i, key in enumerate(rounds):
            if i % 2 == 0:
                high ^= keyed.mix(low + key) & high_mask
            else:
                low ^= keyed.mix(high + key) & low_mask
    return (high << low_bits) | low


def _mask(bits: np.uint64) -> np.uint64:
    return (np.uint64(1) << bits) - np.uint64(1)


def reduced_weights(weights: Sequence[int]) -> list[int]:
    """The weights without their common divisor. ConfigError when a cycle of them would still be too long."""
    divisor = math.gcd(*weights)
    reduced = [weight // divisor for weight in weights]
    if sum(reduced) > LONGEST_CYCLE:
        raise ConfigError(
            f"corpus.sources: the weights sum to {sum(reduced):,} without their common divisor {divisor:,}; choose "
            f"smaller ones in about the same proportions, with a sum of at most {LONGEST_CYCLE:,} once divided by it"
        )
    return reduced


@lru_cache(maxsize=4)
def _interleave(weights: tuple[int, ...]) -> tuple[I64, I64]:
    """Whose turn each place of a cycle of W = Σ weights is, and how many turns the same group had before it.

    Tijdeman's chairman assignment (1980): turn j of a group of weight w has to fall into a window of places such that
    |turns had − share| ≤ 1 − 1/c, c = 2·groups − 2, after every place. He proved that one schedule meets all windows;
    taking the open window that closes first finds it, since every turn takes one place.
    """
    total, c = sum(weights), max(2, 2 * len(weights) - 2)
    opening = sorted(
        (
            -(-total * (c * j + 1) // (c * weight)) - 1,  # the first place allowed, from 0
            total * (c * (j + 1) - 1) // (c * weight),  # the last
            group,
        )
        for group, weight in enumerate(weights)
        for j in range(weight)
    )
    turns, before = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    had = [0] * len(weights)
    waiting: list[tuple[int, int]] = []
    following = 0
    for place in range(total):
        while following < total and opening[following][0] <= place:
            heapq.heappush(waiting, opening[following][1:])
            following += 1
        group = heapq.heappop(waiting)[1]
        turns[place], before[place] = group, had[group]
        had[group] += 1
    return turns, before


def mixing_weights(manifest: Manifest) -> list[int] | None:
    """The weights of the sources; None when rows are not mixed by weight. ConfigError when only some sources have one,
    DataError when one of them has no training row to give."""
    weights = [source.weight for source in manifest.sources if source.weight is not None]
    if not weights:
        return None
    if len(weights) < len(manifest.sources):
        raise ConfigError("corpus.sources: some sources have a weight and others do not; give one to all or to none")
    for number, source in enumerate(manifest.sources):
        if source.train.rows == 0:
            raise DataError(
                f"corpus.sources: source {number} ({source.kind}) has a weight but no training row; remove it or give "
                "it more text"
            )
    return reduced_weights(weights)


def order_of(manifest: Manifest, split: Split, seed: int, config: OrderConfig) -> Order:
    """The order of a split: sources mixed by their weights, else all rows as one group.

    The held-out split is never mixed nor cut into windows: its first positions are a uniform sample without repeats of
    what is held out, whatever the weights, also of a source that has no row there. Errors: see `mixing_weights`.
    """
    stats = manifest.split(split)
    if split == "heldout":
        return Order([RowGroup(0, [stats.rows])], seed)
    weights = mixing_weights(manifest)
    if weights is None:
        return Order([RowGroup(0, _windows([shard.rows for shard in stats.shards], config))], seed)
    groups: list[RowGroup] = []
    first_row = first_unit = 0
    for source, weight in zip(manifest.sources, weights, strict=True):
        units = range(first_unit, first_unit + source.units)
        windows = _windows([shard.rows for shard in stats.shards if shard.unit in units], config)
        groups.append(RowGroup(first_row, windows, weight))
        first_row += source.train.rows
        first_unit += source.units
    return Order(groups, seed)


def _windows(shards: Sequence[int], config: OrderConfig) -> list[int]:
    """Rows of consecutive shards, summed over windows."""
    size = config.window_shards or max(1, len(shards))
    return [sum(shards[start : start + size]) for start in range(0, len(shards), size)]
