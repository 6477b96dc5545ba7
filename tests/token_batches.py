"""Documents for the packer tests: every token of a corpus is different, so where each one went can be seen."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_prep.packing import Packer
from data_prep.rows import SpecialIds, structure
from data_prep.token_batch import TokenBatch

BERT = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
ROBERTA = SpecialIds(cls=0, pad=1, sep=2, unk=3, mask=4)
FIRST = 10  # the first id that is no special one
DTYPE = np.dtype("<u4")

Lengths = list[list[int]]  # of the sentences of documents, in tokens

lengths = st.lists(st.lists(st.sampled_from([0, 1, 2, 3, 5, 12, 25, 60, 200]), max_size=12), max_size=10)


def token_batch(
    documents: Sequence[Sequence[int]], first: int = FIRST, keys: Sequence[int] | None = None
) -> TokenBatch:
    """Documents with sentences of these lengths; their tokens count from `first` on."""
    sentences = [length for document in documents for length in document]
    return TokenBatch(
        ids=np.arange(first, first + sum(sentences), dtype=DTYPE),
        sentence_ends=np.cumsum(sentences, dtype=np.int64),
        document_ends=np.cumsum([len(document) for document in documents], dtype=np.int64),
        keys=np.array(list(range(len(documents))) if keys is None else keys, dtype=np.uint64),
    )


def token_lists(documents: Lengths, first: int = FIRST) -> list[list[list[int]]]:
    """The same as lists."""
    tokens = iter(range(first, first + sum(map(sum, documents))))
    return [[[next(tokens) for _ in range(length)] for length in document] for document in documents]


def pack(packer: Packer, documents: Lengths, cuts: Sequence[int] = ()) -> NDArray[np.uint32]:
    """All rows; the documents are given in batches that end at `cuts`."""
    found, first = [], FIRST
    for start, stop in zip([0, *cuts], [*cuts, len(documents)], strict=True):
        part = documents[start:stop]
        found.append(packer.add(token_batch(part, first, list(range(start, stop)))))
        first += sum(map(sum, part))
    return np.concatenate([*found, packer.flush()])


def fragments(rows: NDArray[np.uint32], special: SpecialIds) -> list[list[int]]:
    """The tokens of all fragments, without special ids; asserts that the rows are put together as rows.py says."""
    found = []
    parts = structure(rows, special)
    for row, numbers, real in zip(rows.tolist(), parts.fragment.tolist(), parts.real.tolist(), strict=True):
        length = sum(real)
        assert length and all(real[:length])  # padding at the end only
        for number in range(1, max(numbers) + 1):
            tokens = [token for token, n in zip(row, numbers, strict=True) if n == number]
            assert tokens[0] == special.cls and tokens[-1] == special.sep
            found.append([token for token in tokens if token >= FIRST])
    return found
