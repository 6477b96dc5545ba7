"""World size and micro-batch never change what a step sees."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_prep.manifest import load
from data_prep.order import Order, OrderConfig, order_of
from data_prep.reader import RowReader
from tests.training.synthetic import SEQ_LEN, SPECIAL, VOCAB, write_corpus
from training.arms import BertArm, ElectraArm
from training.flops import Counts
from training.loader import Loader, accumulation_steps, rank_slice
from training.objectives import build, to_device
from training.sizes import ModelConfig

MODEL = ModelConfig(
    embedding_size=8, hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8, max_positions=SEQ_LEN
)


# Training rows and weights of the sources (none: one unmixed corpus), shards a window, and a position from which a step
# of 50 runs over the end of an epoch (of one source, where there are several).
STREAMS = {
    "plain": ((), None, 280),
    "windows": ((), 1, 280),
    "mixed": (((300, 3), (20, 1), (130, 2)), None, 580),
    "mixed in windows": (((300, 3), (20, 1), (130, 2)), 1, 380),
}


@dataclass(frozen=True, slots=True)
class Stream:
    """A corpus on disk and the order of its training rows."""

    reader: RowReader
    order: Order
    position: int

    def loaders(self, world_size: int, micro_batch: int) -> list[Loader]:
        objective = build(BertArm(learning_rate=1e-3), MODEL.encoder(VOCAB), SPECIAL, seq_len=SEQ_LEN, packed=False)
        return [
            Loader(
                self.reader,
                objective,
                SPECIAL,
                self.order,
                global_batch=50,
                micro_batch=micro_batch,
                rank=rank,
                world_size=world_size,
            )
            for rank in range(world_size)
        ]


@pytest.fixture(scope="module", params=list(STREAMS))
def stream(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    sources, window_shards, position = STREAMS[request.param]
    folder = tmp_path_factory.mktemp("corpus")
    manifest = write_corpus(folder, sources=sources)
    order = order_of(manifest, "train", 0, OrderConfig(window_shards=window_shards))
    return Stream(RowReader(folder, "train", manifest), order, position)


def global_step(stream: Stream, world_size: int, micro_batch: int):  # type: ignore[no-untyped-def]
    steps = [loader.step_at(stream.position) for loader in stream.loaders(world_size, micro_batch)]
    batches = [batch for step in steps for batch in step.micro_batches]
    real = np.concatenate([b["fragment"].any(axis=1) for b in batches])
    joined = {name: np.concatenate([b[name] for b in batches])[real] for name in batches[0]}
    joined["row_ids"] = np.concatenate([step.row_ids for step in steps])
    counts = Counts()
    for step in steps:
        counts = counts + step.flop_counts
    return steps, joined, counts


@pytest.mark.parametrize(
    ("world_size", "micro_batch"),
    [(1, 50), (1, 7), (2, 25), (2, 8), (3, 50), (3, 5), (4, 13), (4, 1), (6, 4), (6, 9), (7, 3), (8, 7), (8, 2)],
)
def test_any_split_sees_the_same_step(stream: Stream, world_size: int, micro_batch: int) -> None:
    """Rows, masks, sampling, exchanges and counts at any world size and accumulation, where an epoch ends inside the
    batch."""
    epochs, rows = stream.order.locate(np.arange(stream.position, stream.position + 50))
    assert len(set(epochs.tolist())) > 1
    _, whole, counts = global_step(stream, 1, 50)
    steps, split, split_counts = global_step(stream, world_size, micro_batch)
    assert (split["row_ids"] == rows).all()
    for name in whole:
        assert (whole[name] == split[name]).all(), name
    assert counts == split_counts
    assert {len(step.micro_batches) for step in steps} == {math.ceil(math.ceil(50 / world_size) / micro_batch)}
    assert {batch["ids"].shape for step in steps for batch in step.micro_batches} == {(micro_batch, SEQ_LEN)}


def test_batches_follow_the_order_over_the_ends_of_epochs_without_pad_drop_or_repeat(stream: Stream) -> None:
    seen = np.concatenate([step.row_ids for step in stream.loaders(1, 50)[0].steps(0, 14)])
    assert np.array_equal(seen, stream.order.locate(np.arange(700))[1])
    for first, stop in pairwise(np.unique([0, 300, *([320, 450] if stream.reader.n_rows == 450 else [])])):
        mine = seen[(seen >= first) & (seen < stop)]  # one source, from the start of its first epoch
        epochs = [mine[start : start + stop - first] for start in range(0, len(mine), stop - first)]
        assert len(epochs) >= 2
        for epoch in epochs[:-1]:
            assert np.array_equal(np.sort(epoch), np.arange(first, stop))
        assert len(set(epochs[-1].tolist())) == len(epochs[-1])


def test_a_resumed_stream_continues(stream: Stream) -> None:
    loader = stream.loaders(1, 50)[0]
    straight = [step.row_ids for step in loader.steps(0, 8)]
    for done in (1, 4, 7):
        resumed = [step.row_ids for step in loader.steps(50 * done, 8 - done)]
        assert np.array_equal(np.concatenate(straight[done:]), np.concatenate(resumed))


def test_slices_cover_without_overlap() -> None:
    for total in (1, 7, 50):
        for world in (1, 2, 3, 8):
            slices = [rank_slice(total, rank, world) for rank in range(world)]
            assert [i for start, stop in slices for i in range(start, stop)] == list(range(total))
            largest = max(stop - start for start, stop in slices)
            assert accumulation_steps(total, 3, world) == -(-largest // 3)


def test_a_step_is_prepared_in_less_than_a_hundredth_of_its_time(corpus: Path) -> None:
    """Rows of real shards, masked and ready for a step, against ELECTRA-Small's forward and backward pass over them:
    CPU seconds of the thread that does either, which a busy machine hardly changes. Prepared beside the step, as it is
    in a run, it keeps no step waiting. It is about a tenth of what is allowed here."""
    manifest = load(corpus)
    model = ModelConfig.model_validate({"size": "small"})
    objective = build(ElectraArm(learning_rate=1e-3), model.encoder(VOCAB), SPECIAL, seq_len=SEQ_LEN, packed=False)
    order = order_of(manifest, "train", 0, OrderConfig())
    reader = RowReader(corpus, "train", manifest)
    loader = Loader(reader, objective, SPECIAL, order, global_batch=16, micro_batch=16)

    def step() -> None:
        outputs = objective(to_device(loader.step_at(0).micro_batches[0], torch.device("cpu")))
        torch.stack(list(outputs.sums.values())).sum().backward()

    loader.step_at(0)  # what is compiled or read at first
    prepared = statistics.median(cpu_seconds(lambda: loader.step_at(0)) for _ in range(9))
    assert prepared < 0.01 * cpu_seconds(step)


def cpu_seconds(act: Callable[[], Any]) -> float:
    """Of the calling thread."""
    began = time.thread_time()
    act()
    return time.thread_time() - began
