"""What a packer is given: the token ids of some documents in one flat array, and where sentences and documents end.

No special ids are among them; the packer adds those. How documents are put together in batches never decides what rows
come out: a batch is a way to carry documents and means nothing.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import DataError


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Documents in order; every end is a running one."""

    ids: NDArray[Any]  # the token ids of all sentences, one after the other
    sentence_ends: NDArray[np.int64]  # where each sentence ends in `ids`
    document_ends: NDArray[np.int64]  # where each document's sentences end in `sentence_ends`
    keys: NDArray[np.uint64]  # of each document's content: chance goes by it

    def token_ends(self) -> NDArray[np.int64]:
        """Where each document ends in `ids`."""
        return np.concatenate([[0], self.sentence_ends])[self.document_ends]

    def without_empty_sentences(self) -> "TokenBatch":
        """The same tokens; a sentence of no tokens leaves no trace."""
        kept = np.diff(self.sentence_ends, prepend=0) > 0
        if kept.all():
            return self
        document_ends = np.concatenate([[0], np.cumsum(kept)])[self.document_ends]
        return TokenBatch(self.ids, self.sentence_ends[kept], document_ends, self.keys)

    def narrowed(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The ids as `dtype`. DataError where one does not fit it: it would wrap into another token."""
        if self.ids.size and self.ids.dtype != dtype:
            worst = max(int(self.ids.max()), -int(self.ids.min()))
            if worst > np.iinfo(dtype).max:
                raise DataError(
                    f"token id {worst} does not fit rows of {dtype.name}; the tokenizer names no such token."
                )
        return self.ids.astype(dtype, copy=False)
