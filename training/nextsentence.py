"""BERT's next-sentence pairs, made when loading and never stored.

A coin keyed by (seed, epoch, row) decides whether the second segment of a `segments` row is exchanged for the second
segment of another row of the shard. The partner is drawn among the rows whose second segment has the same length and
whose row is full or not full alike: nothing is cut or padded, so lengths, counts, shapes and the padding of a row never
move, and neither a length nor a broken end gives the label away. (Cutting to fit did: 72 % from the surface alone.)
Rows without a second segment weigh 0, and so do rows that no other could be exchanged with, whatever their coin: with
the one answer they can have they would shift the share of exchanged rows, the more the smaller the shard, and their
length would give it away.

Not done: a guard against a partner from the same document (shards hold thousands of rows, so this is rare).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from data_prep.keyed import bits, key, uniforms
from data_prep.rows import RowStructure
from training.masking import RowKeys

Int = NDArray[np.int64]

# From one uint64 draw a row [B] to a partner of each row: ids [B, L], where its second segment starts [B], and whether
# there is a partner at all [B].
Partners = Callable[[NDArray[np.uint64]], tuple[Int, Int, NDArray[np.bool_]]]


def second_segments(rows: RowStructure) -> tuple[Int, Int]:
    """Start and length `[B]` of each row's second segment without its final separator; length 0 where there is none."""
    inside = (rows.types == 1) & ~rows.special
    length = inside.sum(axis=1).astype(np.int64)
    start = np.where(length > 0, inside.argmax(axis=1), 0).astype(np.int64)
    return start, length


class PairIndex:
    """The rows of one shard grouped by what an exchange must keep: second-segment length, and fullness of the row.

    Some tens of bytes a row, kept for every shard a rank has touched.
    """

    def __init__(self, shape: RowStructure) -> None:
        self._start, length = second_segments(shape)
        full = shape.real.all(axis=1)
        group = length * 2 + full
        self._by_group = np.argsort(group, kind="stable").astype(np.int32)
        self._rank = np.empty(len(group), dtype=np.int32)
        self._rank[self._by_group] = np.arange(len(group), dtype=np.int32)
        counts = np.bincount(group)
        ends = np.cumsum(counts)
        self._group_start, self._group_size = (ends - counts)[group], counts[group]

    def partners(self, rows: Int, draws: NDArray[np.uint64]) -> tuple[Int, Int, NDArray[np.bool_]]:
        """For rows `[n]` of the shard: another row of the same group each, uniformly by the draw, the start of its
        second segment, and whether there is one (the row itself where not)."""
        start, size = self._group_start[rows], self._group_size[rows]
        step = 1 + (draws % np.maximum(size - 1, 1).astype(np.uint64)).astype(np.int64)
        place = start + (self._rank[rows] - start + step) % size
        partner = self._by_group[place].astype(np.int64)
        return partner, self._start[partner], size > 1


def exchange_second_segments(
    rows_BL: Int, shape: RowStructure, keys: RowKeys, partners: Partners
) -> tuple[Int, Int, NDArray[np.float32]]:
    """Rows with some second segments exchanged `[B, L]`, labels `[B]` (1: exchanged), weights `[B]` (1: has a pair that
    could be exchanged)."""
    start, length = second_segments(shape)
    counter = keys.counter()
    coin = uniforms(key("next-sentence", keys.seed), counter, 1)[:, 0] < 0.5
    other_BL, other_start, found = partners(bits(key("next-sentence-partner", keys.seed), counter, 1)[:, 0])
    could_be = found & (length > 0)
    exchanged = coin & could_be
    offset_BL = np.arange(rows_BL.shape[1])[None, :] - start[:, None]
    inside_BL = exchanged[:, None] & (offset_BL >= 0) & (offset_BL < length[:, None])
    source_BL = np.where(inside_BL, other_start[:, None] + offset_BL, 0)
    mixed_BL = np.where(inside_BL, np.take_along_axis(other_BL, source_BL, axis=1), rows_BL)
    return mixed_BL, exchanged.astype(np.int64), could_be.astype(np.float32)
