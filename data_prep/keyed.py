"""Random numbers as pure functions of a key and a counter.

Order, held-out split, masks and sampling uniforms must be the same whatever the batch composition, world size or
worker count, so no generator state exists anywhere: number `j` of row `r` under key `k` is `mix(k, r, j)`. The mixer is
the SplitMix64 finaliser (Steele, Lea & Flood 2014) applied to each word in turn. Not cryptographic.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


def key(*parts: int | str) -> np.uint64:
    """A 64-bit key from names and integers, e.g. `key("mask", seed, epoch)`; parts are not confusable."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def mix(x: U64) -> U64:
    """The SplitMix64 finaliser: a bijection of 64-bit words with full avalanche."""
    x = (x ^ (x >> np.uint64(30))) * _M1
    x = (x ^ (x >> np.uint64(27))) * _M2
    return x ^ (x >> np.uint64(31))


def bits(k: np.uint64, rows_B: NDArray[np.int64], n: int) -> U64:
    """`[B, n]` uniform 64-bit words; word (b, j) depends only on (k, rows_B[b], j)."""
    with np.errstate(over="ignore"):
        base_B = mix((rows_B.astype(np.uint64) + np.uint64(1)) * _GOLDEN ^ k)
        steps_n = np.arange(1, n + 1, dtype=np.uint64) * _GOLDEN
        return mix(base_B[:, None] + steps_n[None, :])


def uniforms(k: np.uint64, rows_B: NDArray[np.int64], n: int) -> NDArray[np.float64]:
    """`[B, n]` uniforms in [0, 1) with 53 bits, each a function of (k, row, column)."""
    return (bits(k, rows_B, n) >> np.uint64(11)).astype(np.float64) * 2.0**-53
