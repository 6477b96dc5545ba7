"""Exact duplicates: equal text after normalisation, whatever files they lie in.

Two stages from file to file: every unit stores a 128-bit hash of each document's normalised text, and the merge turns
these hashes, never the texts, into a removal list that keeps the first document of every group in corpus order. The
result does not depend on the order in which units finish. Near duplicates are `data_prep.neardup`'s.
"""

import unicodedata
from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

HASH_BYTES = 16


def text_hashes(texts: Sequence[bytes]) -> list[bytes]:
    """Of each text in UTF-8 the XXH3-128, 16 bytes, of what two texts must share to be duplicates: NFKC without ASCII
    blanks (which NFKC makes of most others) and control characters, ASCII letters in lower case."""
    from data_prep import document_kernels

    if not texts:
        return []
    normal, may_change = document_kernels.normal_forms(texts)
    hashes = list(map(xxhash.xxh3_128_digest, normal))
    rows = np.flatnonzero(may_change).tolist()
    for row in rows:
        composed = unicodedata.normalize("NFKC", texts[row].decode()).encode()
        hashes[row] = xxhash.xxh3_128_digest(document_kernels.normal_forms([composed])[0][0])
    return hashes


def words(hashes: NDArray[np.void]) -> NDArray[np.uint64]:
    """`[n, 2]` 64-bit words of `[n]` 16-byte hashes; the first word serves as a document's key for keyed numbers."""
    return np.ascontiguousarray(hashes).view("<u8").reshape(-1, 2)


def duplicates(hash_words: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """`[n]`: True for every document but the first of its group; `hash_words` `[n, 2]` in corpus order."""
    return groups(hash_words) != np.arange(len(hash_words))


def groups(hash_words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """`[n]`: the place of the first document of each one's group, which stands for the group."""
    n = len(hash_words)
    order = np.lexsort((np.arange(n), hash_words[:, 1], hash_words[:, 0]))
    ordered = hash_words[order]
    begins = np.ones(n, dtype=np.bool_)
    begins[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    firsts = order[begins]
    found = np.empty(n, dtype=np.int64)
    found[order] = firsts[np.cumsum(begins) - 1]
    return found


def over_budget(text_bytes: NDArray[np.int64], max_bytes: int) -> NDArray[np.bool_]:
    """`[n]`: True from the document on with which the running total would pass `max_bytes`."""
    return np.asarray(np.cumsum(text_bytes) > max_bytes)
