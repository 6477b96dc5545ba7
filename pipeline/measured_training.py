"""What one rank does when training is measured: steps of each arm, as a run would make them, without a folder.

Only `pipeline.measured` calls this, in processes of its own; imports torch.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from data_prep.manifest import Manifest
from data_prep.order import order_of
from data_prep.reader import RowReader
from pipeline.assumed import WORDS
from training.engine import Engine, build_engine
from training.loader import Loader, StepBatches
from training.meter import Meter
from training.objectives import build, to_device
from training.settings import RunSpec

FEWEST, MOST = 3, 50  # steps that are timed

CPU = torch.device("cpu")
Clock = Callable[[], float]


def measure(
    specs: Sequence[dict[str, Any]],
    manifest: dict[str, Any],
    corpus: str | None,
    store: str,
    rank: int,
    world_size: int,
    threads: int,
    seconds: float,
    busy: bool,
) -> list[float]:
    """Seconds a step of each run, measured for about `seconds` each: by the clock, or, where the machine is `busy` with
    something else, CPU seconds a thread of this rank. Every rank must call."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size), "DS_ACCELERATOR": "cpu"}
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    known = Manifest.model_validate(manifest)
    reader = FullRows(known) if corpus is None else RowReader(corpus, "train", known)
    clock = (lambda: time.process_time() / threads) if busy else time.monotonic
    runs = [RunSpec.model_validate(spec) for spec in specs]
    found = [_steps(spec, known, cast(RowReader, reader), seconds, clock) for spec in runs]
    dist.barrier()
    dist.destroy_process_group()
    return found


def _steps(spec: RunSpec, manifest: Manifest, reader: RowReader, seconds: float, clock: Clock) -> float:
    identity = spec.identity
    torch.manual_seed(0)
    objective = build(
        identity.arm,
        identity.model,
        manifest.special,
        seq_len=identity.seq_len,
        packed=manifest.layout == "packed",
        compute=spec.placement.compute,
    )
    loader = Loader(
        reader,
        objective,
        manifest.special,
        order_of(manifest, "train", 0, identity.order),
        global_batch=identity.global_batch,
        micro_batch=spec.placement.micro_batch,
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
    )
    engine = build_engine(objective, identity.optimizer, spec.placement, accumulation=loader.accumulation, device=CPU)
    try:
        return _timed(engine, loader, identity.global_batch, seconds, clock)
    finally:
        engine.close()


def _timed(engine: Engine, loader: Loader, global_batch: int, seconds: float, clock: Clock) -> float:
    """The mean of some steps after the first two, which make buffers; how many they are the first rank says."""
    meter, position = Meter(engine.objective, CPU), 0
    for _ in range(2):
        began = time.monotonic()
        for batches in loader.steps(position, 1):
            _step(engine, batches, meter)
        position, once = position + global_batch, time.monotonic() - began
    count = [int(min(MOST, max(FEWEST, seconds / once)))]
    dist.broadcast_object_list(count)
    began = clock()
    for batches in loader.steps(position, count[0]):
        _step(engine, batches, meter)
    return (clock() - began) / count[0]


def _step(engine: Engine, batches: StepBatches, meter: Meter) -> None:
    """As `training.attempt` makes one, at a rate of 0."""
    totals, terms = meter.global_counts(batches), engine.objective.loss_terms()
    for host_batch in batches.micro_batches:
        outputs = engine.forward(to_device(host_batch, CPU))
        loss = sum(t.weight * outputs.sums[t.name] / totals[t.count].clamp(min=1) for t in terms)
        assert isinstance(loss, torch.Tensor)
        engine.backward(loss)
        engine.step(0.0)
        meter.add(outputs)
    meter.end_step(skipped=False)


class FullRows:
    """What a `RowReader` of an assumed corpus would give: random words to the last place, two segments a row, which
    are two fragments where rows are packed."""

    def __init__(self, manifest: Manifest) -> None:
        self.seq_len, self.n_rows = manifest.seq_len, manifest.train.rows
        self.shards = manifest.train.shards
        special, middle = manifest.special, manifest.seq_len // 2
        words = np.random.default_rng(0).integers(WORDS, manifest.vocab_size, (self.n_rows, self.seq_len))
        words[:, 0], words[:, -1] = special.cls, special.sep
        words[:, middle - manifest.pair_separators : middle] = special.sep
        if manifest.layout == "packed":
            words[:, middle - 1], words[:, middle] = special.sep, special.cls
        self._words: NDArray[np.int64] = words.astype(np.int64)

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """As `RowReader.rows`."""
        found: NDArray[np.int64] = self._words[indices]
        return found

    def shard_of(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """As `RowReader.shard_of`: all rows are in one."""
        zeros = np.zeros_like(indices)
        return zeros, zeros, zeros + self.n_rows
