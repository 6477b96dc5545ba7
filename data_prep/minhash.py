"""MinHash signatures of many texts at once, and the keys of their bands.

The signature of a text is, for each of a fixed family of hash functions, the minimum over its shingles; two texts agree
at a place with the probability of their Jaccard similarity (Broder 1997). The functions are `a·x + b` modulo 2³² with
odd `a`, over the upper half of shingle hashes that are already uniform. Texts that agree in a whole band of rows share
that band's key: with 14 bands of 8 rows a pair at 0.8 does so with a chance of 1 − (1 − 0.8⁸)¹⁴ = 0.92, at 0.9 with
0.9996. Signatures only propose pairs; whether two texts are near duplicates is for exact sets to say.
"""

import numpy as np
from numpy.typing import NDArray

from data_prep import keyed
from data_prep.shingles import Hashes, starts

Signatures = NDArray[np.uint32]

_BLOCK = 16_384  # shingles at a time, times `_AT_ONCE` functions: half a megabyte, which stays in the cache
_AT_ONCE = 8


def signatures(shingles: Hashes, ends: NDArray[np.int64], size: int) -> Signatures:
    """`[texts, size]`: the minima of `size` hash functions; texts end at the running `ends`.

    A text without shingles has the largest value everywhere.
    """
    values = (shingles >> np.uint64(32)).astype(np.uint32)
    result = np.full((size, len(ends)), 0xFFFFFFFF, dtype=np.uint32)
    begins = starts(ends)
    texts = np.flatnonzero(ends > begins)  # `reduceat` knows no empty segment
    begins, stops = begins[texts], ends[texts]
    factors, addends = _family(size)
    buffer = np.empty((_AT_ONCE, min(_BLOCK, len(values))), dtype=np.uint32)
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        first = int(np.searchsorted(stops, start, side="right"))
        last = int(np.searchsorted(begins, start + len(block)))
        segments = np.maximum(begins[first:last] - start, 0)
        into = texts[first:last]
        for row in range(0, size, _AT_ONCE):
            rows = slice(row, min(row + _AT_ONCE, size))
            hashed = buffer[: rows.stop - row, : len(block)]
            np.multiply(block, factors[rows, None], out=hashed)
            np.add(hashed, addends[rows, None], out=hashed)
            minima = np.minimum.reduceat(hashed, segments, axis=1)
            result[rows, into] = np.minimum(result[rows, into], minima)
    return np.ascontiguousarray(result.T)


def band_keys(signatures: Signatures, bands: int) -> Hashes:
    """`[texts, bands]`: one 64-bit key for each band of consecutive rows; no two bands share keys."""
    texts, size = signatures.shape
    rows = size // bands
    parts = signatures.reshape(texts, bands, rows).astype(np.uint64)
    keys: Hashes = np.broadcast_to(keyed.bits(keyed.key("band"), np.arange(bands), 1)[:, 0], (texts, bands)).copy()
    for row in range(rows):
        keys = keyed.mix(keys ^ parts[:, :, row])
    return keys


def _family(size: int) -> tuple[Signatures, Signatures]:
    drawn = keyed.bits(keyed.key("minhash"), np.arange(size), 2)
    words = (drawn >> np.uint64(32)).astype(np.uint32)
    return words[:, 0] | np.uint32(1), words[:, 1]
