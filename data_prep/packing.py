"""Token ids → rows: the layout `packed`, and the choice between the two layouts.

`packed`: several fragments `cls … sep` a row (RoBERTa's DOC-SENTENCES). A document that fits a row is one fragment. A
longer one is cut after the last whole sentence that fits, or after an earlier one where that fills an open row; only a
sentence longer than a row is cut itself, between two words. A fragment goes to the open row with the least room that
is enough for it (best fit; the oldest of equals). Every token lands in exactly one row; the
fragments of a document may stand in rows far apart, for attention never crosses one anyway. The number of open rows is
bounded, hence memory. A unit's rows are a function of its documents in order.
"""

from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import DataError
from data_prep.rows import SpecialIds
from data_prep.segments import SegmentPacker
from data_prep.token_batch import TokenBatch

__all__ = ["BestFitPacker", "Layout", "Packer", "TokenBatch", "make_packer"]

Layout = Literal["segments", "packed"]

OPEN_ROWS = 1024
SHORTEST_FRAGMENT = 3  # places: cls, one token, sep
# A fragment that could be longer holds so many tokens, or a sixteenth of a row: fewer would be too little context to be
# worth a full row. (At 512 this keeps padding under two percent, and fragments as long as filling in order makes them.)
SHORTEST_FILLING = 16


class Packer(Protocol):
    """Takes documents in order, gives padded rows `[n, seq_len]`; `flush` gives what is left at the end of a unit."""

    discarded_tokens: int  # tokens that stand in no row

    def add(self, batch: TokenBatch) -> NDArray[Any]: ...

    def flush(self) -> NDArray[Any]: ...


def make_packer(
    layout: Layout,
    *,
    seq_len: int,
    special: SpecialIds,
    pair_separators: int,
    seed: int,
    continues: NDArray[np.bool_],
    dtype: np.dtype[Any],
    discard_overflow: bool = False,
) -> Packer:
    """The packer of a layout. `continues[id]`: the token continues a word. `discard_overflow` is for `segments`."""
    if layout == "packed":
        return BestFitPacker(seq_len=seq_len, special=special, continues=continues, dtype=dtype)
    return SegmentPacker(
        seq_len=seq_len,
        special=special,
        pair_separators=pair_separators,
        seed=seed,
        dtype=dtype,
        discard_overflow=discard_overflow,
    )


class BestFitPacker:
    """The layout `packed`."""

    discarded_tokens = 0

    def __init__(
        self,
        *,
        seq_len: int,
        special: SpecialIds,
        continues: NDArray[np.bool_],
        dtype: np.dtype[Any],
        open_rows: int = OPEN_ROWS,
    ) -> None:
        self._seq_len, self._special, self._continues = seq_len, special, continues
        self._limit = open_rows
        self._rows = np.empty((0, seq_len), dtype=dtype)  # the open ones, oldest first
        self._rooms = np.empty(0, dtype=np.int64)  # places free in each

    def add(self, batch: TokenBatch) -> NDArray[Any]:
        """The rows that these documents complete."""
        from data_prep import row_kernels

        ids = batch.narrowed(self._rows.dtype)
        if ids.size and int(ids.max()) >= len(self._continues):
            raise DataError(f"token id {int(ids.max())} is none of the tokenizer's {len(self._continues)} tokens.")
        fragments, closed, rooms = self._plan(ids, batch)
        rows = np.full((len(rooms), self._seq_len), self._special.pad, dtype=self._rows.dtype)
        rows[: len(self._rows)] = self._rows
        row_kernels.write_fragments(
            ids, fragments[0], fragments[1], self._special.cls, self._special.sep, rows.reshape(-1)
        )
        still_open = rooms > 0
        self._rows, self._rooms = rows[still_open], rooms[still_open]
        return rows[closed]

    def flush(self) -> NDArray[Any]:
        """The open rows, oldest first."""
        rows, self._rows, self._rooms = self._rows, self._rows[:0], self._rooms[:0]
        return rows

    def _plan(self, ids: NDArray[Any], batch: TokenBatch) -> tuple[NDArray[np.int64], ...]:
        """(where fragments end and where they go `[2, f]`, the slots of the rows that close, the room of all rows)."""
        from data_prep import row_kernels

        n_open, fragments = len(self._rows), -1
        most = n_open + len(batch.keys) + 4 * len(ids) // self._seq_len  # enough for text
        while fragments < 0:
            most *= 2
            places, closed, rooms = (np.empty(shape, dtype=np.int64) for shape in ((2, most), most, most))
            rooms[:n_open] = self._rooms
            fragments, n_closed, slots = row_kernels.best_fit(
                ids,
                batch.sentence_ends,
                batch.token_ends(),
                self._continues,
                self._seq_len,
                max(SHORTEST_FILLING, (self._seq_len - 2) // 16),
                SHORTEST_FRAGMENT,
                self._limit,
                n_open,
                rooms,
                np.empty(self._seq_len + 1, dtype=np.int64),
                np.empty(most, dtype=np.int64),
                places[0],
                places[1],
                closed,
            )
        return places[:, :fragments], closed[:n_closed], rooms[:slots]
