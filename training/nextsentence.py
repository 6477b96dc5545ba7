"""BERT's next-sentence pairs, made when loading and never stored.

A coin keyed by (seed, epoch, row) decides whether the second segment of a `segments` row is exchanged for the second
segment of another row of the shard. The exchanged segment is cut to the length it replaces; where a few keyed
candidates are all shorter, the longest is repeated from its start until it fills the place. So lengths, counts, shapes
and the padding of a row never move, and every arm pays for the same tokens. Rows without a second segment weigh 0.

Not done: a guard against a partner from the same document (shards hold thousands of rows, so this is rare).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from data_prep.keyed import bits, key, uniforms
from data_prep.rows import RowStructure
from training.masking import RowKeys

Int = NDArray[np.int64]

# From uint64 draws [B, T] to other rows of each row's shard: ids [B·T, L] and their structure. A shard of one row has
# no other: its partners are padding.
Partners = Callable[[NDArray[np.uint64]], tuple[Int, RowStructure]]

CANDIDATES = 4


def second_segments(rows_BL: Int, structure: RowStructure) -> tuple[Int, Int]:
    """Start and length `[B]` of each row's second segment without its final separator; length 0 where there is none."""
    inside = (structure.types == 1) & ~structure.special
    length = inside.sum(axis=1).astype(np.int64)
    start = np.where(length > 0, inside.argmax(axis=1), 0).astype(np.int64)
    return start, length


def exchange_second_segments(
    rows_BL: Int,
    structure: RowStructure,
    keys: RowKeys,
    partners: Partners,
) -> tuple[Int, Int, NDArray[np.float32]]:
    """Rows with some second segments exchanged `[B, L]`, labels `[B]` (1: exchanged), weights `[B]` (1: has a pair)."""
    start, length = second_segments(rows_BL, structure)
    counter = keys.counter()
    coin = uniforms(key("next-sentence", keys.seed), counter, 1)[:, 0] < 0.5
    draws = bits(key("next-sentence-partner", keys.seed), counter, CANDIDATES)
    other_rows, other_structure = partners(draws)
    shape_BT = (len(rows_BL), CANDIDATES)
    other_start, other_length = (x.reshape(shape_BT) for x in second_segments(other_rows, other_structure))
    choice = _first_long_enough(other_length, length)
    rows_index = np.arange(len(rows_BL))
    b_start, b_length = other_start[rows_index, choice], other_length[rows_index, choice]
    exchanged = coin & (length > 0) & (b_length > 0)

    column = np.arange(rows_BL.shape[1])[None, :]
    offset = column - start[:, None]
    source = b_start[:, None] + offset % np.maximum(b_length, 1)[:, None]
    inside = exchanged[:, None] & (offset >= 0) & (offset < length[:, None])
    chosen_BL = other_rows.reshape(*shape_BT, -1)[rows_index, choice]
    mixed = np.where(inside, np.take_along_axis(chosen_BL, source, axis=1), rows_BL)
    return mixed, exchanged.astype(np.int64), (length > 0).astype(np.float32)


def _first_long_enough(other_length: Int, length: Int) -> Int:
    """The first candidate at least as long as what it replaces; the longest where none is."""
    enough = other_length >= length[:, None]
    return np.where(enough.any(axis=1), enough.argmax(axis=1), other_length.argmax(axis=1))
