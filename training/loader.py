"""From a position in the data stream to the micro-batches of one rank.

The global batch of a step is the next `global_batch` positions; rank r takes a contiguous slice, floor or ceil where
it does not divide; every rank runs the same number of micro-batches of one fixed shape, the last filled with rows of
padding that weigh nothing. So world size, micro-batch and accumulation never change what a step sees, and the state of
the stream is one integer. A single thread prepares the next step while the current one computes.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.order import Order
from data_prep.reader import RowReader
from data_prep.rows import SpecialIds, fragment_lengths, structure
from training.flops import Counts
from training.masking import RowKeys
from training.nextsentence import PairIndex, Partners
from training.objectives import HostBatch, Objective, RowBatch, counts

Int = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepBatches:
    """One rank's share of a step: micro-batches of equal shape, and the counts of their losses and FLOPs."""

    micro_batches: list[HostBatch]
    loss_counts: dict[str, int]
    flop_counts: Counts
    row_ids: Int  # stream rows of this rank, in order


def rank_slice(total: int, rank: int, world_size: int) -> tuple[int, int]:
    """Start and stop of a rank's contiguous share of `total` items; shares differ by one at most."""
    return total * rank // world_size, total * (rank + 1) // world_size


def accumulation_steps(global_batch: int, micro_batch: int, world_size: int) -> int:
    """Micro-batches every rank runs a step: enough for the largest share."""
    largest = -(-global_batch // world_size)
    return -(-largest // micro_batch)


class Loader:
    """Steps of a split for one rank; masks and whatever else is drawn go by the seed of the order."""

    def __init__(
        self,
        reader: RowReader,
        objective: Objective,
        special: SpecialIds,
        order: Order,
        *,
        global_batch: int,
        micro_batch: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._reader = reader
        self._objective = objective
        self._special = special
        self._order = order
        self._global_batch = global_batch
        self._micro_batch = micro_batch
        self._slice = rank_slice(global_batch, rank, world_size)
        self._pair_indices: dict[int, PairIndex] = {}
        self.accumulation = accumulation_steps(global_batch, micro_batch, world_size)

    def steps(self, position: int, count: int) -> Iterator[StepBatches]:
        """`count` consecutive steps from a stream position, one prepared ahead."""
        if count == 0:
            return
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader") as pool:
            ahead = pool.submit(self.step_at, position)
            for following in range(1, count):
                current = ahead.result()
                ahead = pool.submit(self.step_at, position + following * self._global_batch)
                yield current
            yield ahead.result()

    def step_at(self, position: int) -> StepBatches:
        """This rank's share of the step that begins at `position`."""
        start, stop = self._slice
        epochs, rows = self._order.locate(np.arange(position + start, position + stop, dtype=np.int64))
        return self._assemble(epochs, rows, self.accumulation)

    def sample(self, start: int, stop: int, micro_batches: int) -> StepBatches:
        """Positions `start` to `stop` of the first epoch as `micro_batches` batches: a fixed random sample of the
        split, always under the same masks."""
        epochs, rows = self._order.locate(np.arange(start, stop, dtype=np.int64))
        return self._assemble(epochs, rows, micro_batches)

    def _assemble(self, epochs: Int, rows: Int, micro_batches: int) -> StepBatches:
        size = self._micro_batch
        batches = [
            self._prepare(epochs[i * size : (i + 1) * size], rows[i * size : (i + 1) * size])
            for i in range(micro_batches)
        ]
        found = [counts(batch) for batch in batches]
        totals = {name: sum(c[name] for c in found) for name in found[0]}
        squares = sum(int((fragment_lengths(batch["fragment"]) ** 2).sum()) for batch in batches)
        # rows that hold a pair, as the manifest counts them for the plan: those without a partner weigh nothing
        pairs = sum(int(batch["types"].any(axis=1).sum()) for batch in batches) if "pairs" in totals else 0
        flops = Counts(tokens=totals["real"], squares=squares, masked=totals["masked"], pairs=pairs)
        return StepBatches(batches, totals, flops, rows)

    def _prepare(self, epochs: Int, rows: Int) -> HostBatch:
        stored = self._reader.rows(rows).astype(np.int64)
        filler = self._micro_batch - len(rows)
        if filler:  # weight-0 rows keep the shape; their keys are never used
            stored = np.concatenate(
                [stored, np.full((filler, self._reader.seq_len), self._special.pad, dtype=np.int64)]
            )
            epochs = np.concatenate([epochs, np.zeros(filler, dtype=np.int64)])
            rows = np.concatenate([rows, np.zeros(filler, dtype=np.int64)])
        keys = RowKeys(self._order.seed, epochs, rows)
        return self._objective.prepare(RowBatch(stored, structure(stored, self._special), keys, self._partners(rows)))

    def _partners(self, rows: Int) -> Partners:
        """Partners for next-sentence exchanges of a batch, from each row's own shard."""

        def fetch(draws: NDArray[np.uint64]) -> tuple[Int, Int, NDArray[np.bool_]]:
            shards, first, _ = self._reader.shard_of(rows)
            partner, start = np.empty_like(rows), np.empty_like(rows)
            found = np.empty(len(rows), dtype=np.bool_)
            for shard in np.unique(shards):
                here = shards == shard
                index = self._pair_index(int(shard))
                partner[here], start[here], found[here] = index.partners(rows[here] - first[here], draws[here])
            return self._reader.rows(first + partner).astype(np.int64), start, found

        return fetch

    def _pair_index(self, shard: int) -> PairIndex:
        if shard not in self._pair_indices:
            entry = self._reader.shards[shard]
            stored = self._reader.rows(np.arange(entry.first_row, entry.first_row + entry.rows))
            self._pair_indices[shard] = PairIndex(structure(stored, self._special))
        return self._pair_indices[shard]
