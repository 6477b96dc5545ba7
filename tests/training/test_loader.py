"""World size and micro-batch never change what a step sees."""

from pathlib import Path

import numpy as np
import pytest

from data_prep.manifest import load
from data_prep.shards import RowReader
from tests.training.synthetic import SEQ_LEN, SPECIAL, VOCAB
from training.flops import Counts
from training.loader import Loader, accumulation_steps, rank_slice
from training.objectives import build
from training.settings import BertArm, ModelConfig

MODEL = ModelConfig(
    embedding_size=8, hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8, max_positions=SEQ_LEN
)


def loaders(corpus: Path, world_size: int, micro_batch: int) -> list[Loader]:
    reader = RowReader(corpus, "train", load(corpus))
    objective = build(BertArm(learning_rate=1e-3), MODEL.encoder(VOCAB), SPECIAL, seq_len=SEQ_LEN, packed=False)
    return [
        Loader(
            reader,
            objective,
            SPECIAL,
            seed=0,
            global_batch=50,
            micro_batch=micro_batch,
            rank=rank,
            world_size=world_size,
        )
        for rank in range(world_size)
    ]


def global_step(corpus: Path, world_size: int, micro_batch: int, position: int):  # type: ignore[no-untyped-def]
    steps = [loader.step_at(position) for loader in loaders(corpus, world_size, micro_batch)]
    batches = [batch for step in steps for batch in step.micro_batches]
    real = np.concatenate([b["fragment"].any(axis=1) for b in batches])
    joined = {name: np.concatenate([b[name] for b in batches])[real] for name in batches[0]}
    counts = Counts()
    for step in steps:
        counts = counts + step.flop_counts
    return steps, joined, counts


@pytest.mark.parametrize(("world_size", "micro_batch"), [(2, 8), (3, 50), (4, 13), (6, 4), (7, 3)])
def test_any_split_sees_the_same_step(corpus: Path, world_size: int, micro_batch: int) -> None:
    """Rows, masks, sampling, exchanges and counts; the position is chosen so that an epoch ends inside the batch."""
    _, whole, counts = global_step(corpus, 1, 50, position=280)
    steps, split, split_counts = global_step(corpus, world_size, micro_batch, position=280)
    for name in whole:
        assert (whole[name] == split[name]).all(), name
    assert counts == split_counts
    assert len({len(step.micro_batches) for step in steps}) == 1
    assert {batch["ids"].shape for step in steps for batch in step.micro_batches} == {(micro_batch, SEQ_LEN)}


def test_an_epoch_holds_every_row_once(corpus: Path) -> None:
    rows = np.concatenate([step.row_ids for step in loaders(corpus, 1, 50)[0].steps(0, 6)])
    assert sorted(rows.tolist()) == list(range(300))


def test_a_resumed_stream_continues(corpus: Path) -> None:
    loader = loaders(corpus, 1, 50)[0]
    straight = [step.row_ids for step in loader.steps(0, 8)]
    resumed = [step.row_ids for step in loader.steps(200, 4)]
    for left, right in zip(straight[4:], resumed, strict=True):
        assert (left == right).all()


def test_slices_cover_without_overlap() -> None:
    for total in (1, 7, 50):
        for world in (1, 2, 3, 8):
            slices = [rank_slice(total, rank, world) for rank in range(world)]
            assert [i for start, stop in slices for i in range(start, stop)] == list(range(total))
            largest = max(stop - start for start, stop in slices)
            assert accumulation_steps(total, 3, world) == -(-largest // 3)
