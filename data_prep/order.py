"""Position in the data stream → (epoch, row): a keyed bijection, so the whole state of the order is one integer.

Position p is epoch p // N, row PERM(p mod N; seed, epoch). PERM is a Feistel network on the smallest power of two that
holds N, with cycle-walking (Black & Rogaway 2002): outputs ≥ N are encrypted again until they fall inside, which keeps
it a bijection of [0, N). Nothing is stored per row, nothing depends on world size, batch size or worker count, and any
position is reached in O(1). Not cryptographic.
"""

import numpy as np
from numpy.typing import NDArray

from data_prep import keyed
from data_prep.errors import DataError

ROUNDS = 6
# A Feistel network over very few bits reaches few permutations; the spare domain costs walks only for tiny corpora.
MIN_BITS = 6

I64 = NDArray[np.int64]


class Order:
    """The order of `n_rows` rows under `seed`: every epoch holds each row exactly once, each epoch in its own order."""

    def __init__(self, n_rows: int, seed: int) -> None:
        if n_rows < 1:
            raise DataError(
                "There are no rows to order: the split is empty; use a larger corpus or another held-out share."
            )
        self.n_rows = n_rows
        self.seed = seed
        bits = max(MIN_BITS, (n_rows - 1).bit_length())
        self._low_bits = np.uint64(bits // 2)
        self._high_bits = np.uint64(bits - bits // 2)

    def locate(self, positions: I64) -> tuple[I64, I64]:
        """Epochs `[n]` and rows `[n]` of stream positions `[n]` (each ≥ 0); positions may span epochs."""
        positions = np.asarray(positions, dtype=np.int64)
        if positions.size and positions.min() < 0:
            raise ValueError("positions in the data stream start at 0")
        epochs, offsets = np.divmod(positions, self.n_rows)
        rows = np.empty_like(offsets)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            rows[chosen] = self._permute(offsets[chosen], int(epoch))
        return epochs, rows

    def _permute(self, offsets: I64, epoch: int) -> I64:
        keys = keyed.bits(keyed.key("order", self.seed, epoch), np.zeros(1, dtype=np.int64), ROUNDS)[0]
        values = self._encrypt(offsets.astype(np.uint64), keys)
        outside = np.flatnonzero(values >= self.n_rows)
        while outside.size:
            values[outside] = self._encrypt(values[outside], keys)
            outside = outside[values[outside] >= self.n_rows]
        return values.astype(np.int64)

    def _encrypt(self, values: keyed.U64, keys: keyed.U64) -> keyed.U64:
        """One pass of the network: the two halves, possibly one bit apart in width, take turns being mixed."""
        low_bits, high_bits = self._low_bits, self._high_bits
        low = values & _mask(low_bits)
        high = values >> low_bits
        with np.errstate(over="ignore"):
            for i, key in enumerate(keys):
                if i % 2 == 0:
                    high ^= keyed.mix(low + key) & _mask(high_bits)
                else:
                    low ^= keyed.mix(high + key) & _mask(low_bits)
        return (high << low_bits) | low


def _mask(bits: np.uint64) -> np.uint64:
    return (np.uint64(1) << bits) - np.uint64(1)
