"""Pairs of documents: their numbers, pairs proposed by shared keys, groups of connected pairs.

A document's number is `unit · 2³² + row`, so numbers ascend in corpus order. Everything here is a function of the sets
of keys and pairs, never of the order in which they come. Pure arithmetic; no files.
"""

import numpy as np
from numpy.typing import NDArray

Documents = NDArray[np.int64]

_ROW_BITS = 32
ROW_MASK = (1 << _ROW_BITS) - 1
_WHOLE = 16  # buckets up to this size propose all their pairs
_NEIGHBOURS = 2  # larger ones propose each document's next ones, and each with the first


def pack(unit: int, rows: NDArray[np.integer]) -> Documents:
    """The numbers of documents of a unit."""
    return rows.astype(np.int64) + (unit << _ROW_BITS)


def unit_of(documents: Documents) -> NDArray[np.int64]:
    """The units of documents."""
    return documents >> _ROW_BITS


def row_of(documents: Documents) -> NDArray[np.int64]:
    """The rows of documents within their units."""
    return documents & ROW_MASK


def bucket_pairs(keys: NDArray[np.uint64], documents: Documents) -> tuple[Documents, int]:
    """Pairs `[n, 2]`, sorted, each once, of documents that share a key; and how many large buckets left out.

    A bucket of thousands (a boilerplate page) has millions of pairs. Beyond `_WHOLE` documents only as many pairs as
    connect it are proposed, and some more, in case a few are not similar after all.
    """
    order = np.lexsort((documents, keys))
    keys, documents = keys[order], documents[order]
    begins = np.flatnonzero(np.concatenate([np.ones(min(len(keys), 1), dtype=np.bool_), keys[1:] != keys[:-1]]))
    sizes = np.diff(begins, append=len(keys))
    begins, sizes = begins[sizes > 1], sizes[sizes > 1]
    whole = sizes <= _WHOLE
    proposed = [_at_distance(documents, begins, sizes, distance) for distance in range(1, _NEIGHBOURS + 1)]
    proposed += [
        _at_distance(documents, begins[whole], sizes[whole], distance)
        for distance in range(_NEIGHBOURS + 1, int(sizes[whole].max(initial=0)))
    ]
    for begin, size in zip(begins[~whole].tolist(), sizes[~whole].tolist(), strict=True):
        others = documents[begin + _NEIGHBOURS + 1 : begin + size]
        proposed.append(np.stack([np.full(len(others), documents[begin]), others], axis=1))
    pairs = np.concatenate(proposed)
    return unique_pairs(pairs), int((sizes * (sizes - 1) // 2).sum()) - len(pairs)


def _at_distance(documents: Documents, begins: NDArray[np.int64], sizes: NDArray[np.int64], distance: int) -> Documents:
    """Each document of some buckets with the one `distance` places after it in the same bucket."""
    counts = np.maximum(sizes - distance, 0)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    first = np.repeat(begins, counts) + within
    return np.stack([documents[first], documents[first + distance]], axis=1)


def unique_pairs(pairs: Documents) -> Documents:
    """The pairs `[n, 2]` sorted, each once."""
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    new = np.ones(len(pairs), dtype=np.bool_)
    new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    return pairs[new]


def components(pairs: Documents) -> tuple[Documents, Documents]:
    """All documents in `pairs` `[n, 2]`, sorted, and for each the first document it is connected with.

    Every round hooks the root of each tree to the smallest root it has a pair with, then flattens the trees.
    """
    documents, places = np.unique(pairs, return_inverse=True)
    first, second = places.reshape(-1, 2).T
    root = np.arange(len(documents))
    while (root[first] != root[second]).any():
        low = np.minimum(root[first], root[second])
        np.minimum.at(root, np.maximum(root[first], root[second]), low)
        while (root[root] != root).any():
            root = root[root]
    return documents, documents[root]
