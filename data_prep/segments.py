"""Token ids → rows, the layout `segments`: one fragment `cls A sep (B sep)` a row, after build_pretraining_dataset.

Sentences gather until they reach a target length; one row in ten has a single segment, one in twenty is followed by a
row with a random shorter target. Two rules differ from the reference so that the text stays in order and rows are a
function of (seed, document): once B has begun no later sentence joins A, and a document begins with the full target.
What a row has no room for is carried on to the next row of the document, or, with `discard_overflow`, dropped as the
reference drops it, and counted. A document's end ends a row; RoBERTa pairs have two separators between A and B.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep import keyed
from data_prep.rows import SpecialIds
from data_prep.token_batch import TokenBatch

SINGLE_SEGMENT = 0.1  # share of rows with A only
SHORT_TARGET = 0.05  # share of rows with a random shorter target length
SHORTEST_TARGET = 5


class SegmentPacker:
    """The layout `segments`."""

    def __init__(
        self,
        *,
        seq_len: int,
        special: SpecialIds,
        pair_separators: int,
        seed: int,
        dtype: np.dtype[Any],
        discard_overflow: bool = False,
    ) -> None:
        self.discarded_tokens = 0
        self._seq_len, self._special, self._seed, self._dtype = seq_len, special, seed, dtype
        self._separators, self._discard = pair_separators, discard_overflow
        self._keys = np.empty(0, dtype=np.uint64)  # numbers are drawn by, one for so many of every document

    def add(self, batch: TokenBatch) -> NDArray[Any]:
        """The rows of these documents: rows never wait for another document."""
        from data_prep import row_kernels

        ids = batch.narrowed(self._dtype)
        rows = self._plan(batch.without_empty_sentences())
        if self._discard:
            self.discarded_tokens += len(ids) - int((rows[:, 2] - rows[:, 0]).sum())
        out = np.empty((len(rows), self._seq_len), dtype=self._dtype)
        special = self._special
        row_kernels.write_segments(ids, rows, self._separators, special.cls, special.sep, special.pad, out)
        return out

    def flush(self) -> NDArray[Any]:
        """Nothing."""
        return np.empty((0, self._seq_len), dtype=self._dtype)

    def _plan(self, batch: TokenBatch) -> NDArray[np.int64]:
        """(start, end of A, end of B) of each row: A begins at its start and B where A ends."""
        from data_prep import row_kernels

        rows = np.empty((len(batch.ids), 3), dtype=np.int64)  # a row has at least one token
        found = -1
        while found < 0:
            found = row_kernels.plan_segments(
                batch.sentence_ends,
                batch.document_ends,
                batch.keys.view(np.int64),
                self._keys,
                self._seq_len,
                self._separators,
                SINGLE_SEGMENT,
                SHORT_TARGET,
                SHORTEST_TARGET,
                self._discard,
                rows,
            )
            if found < 0:  # a document longer than any before it
                blocks = range(len(self._keys), 2 * len(self._keys) + 1)
                more = [keyed.key("segments", self._seed, block) for block in blocks]
                self._keys = np.append(self._keys, np.array(more, dtype=np.uint64))
        return rows[:found]
