"""Restoring by slices, and the proof that what an engine holds is what was saved, bit by bit."""

import hashlib
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from data_prep.errors import CheckError
from tests.training.runs import MODEL
from tests.training.saved import at, engine, local, saver, take
from training import checkpoints
from training.checkpoints import proof
from training.engine import STATES, Engine
from training.settings import Placement

pytestmark = pytest.mark.usefixtures("process_group")


def by_hand(name: str, tensor: torch.Tensor) -> int:
    """The sum of its definition, in integers without bounds."""
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    a, b = (int.from_bytes(digest[at : at + 8], "little") | 1 for at in (0, 8))
    bits = tensor.numpy().view(np.int32).tolist()
    return sum(x * (a + 2 * b * i) for i, x in enumerate(bits)) % 2**64


@pytest.fixture
def tensor() -> torch.Tensor:
    """More than two chunks, with extreme bit patterns."""
    values = torch.randn(150_001, generator=torch.Generator().manual_seed(0))
    values[:4] = torch.tensor([-0.0, torch.inf, -torch.inf, torch.nan])
    values[70_000:140_000] = -torch.finfo(torch.float32).max
    return values


def test_a_checksum_is_the_sum_it_says_and_that_of_its_slices(tensor: torch.Tensor) -> None:
    whole = proof.checksum("a.b", 0, tensor)
    assert whole == by_hand("a.b", tensor)
    assert proof.checksum("a.c", 0, tensor) != whole
    edges = [0, 1, 65_535, 65_537, 100_000, 150_001]
    shares = [{"param": proof.checksum("a.b", i, tensor[i:j])} for i, j in pairwise(edges)]
    assert proof.add(shares) == {"param": whole, "exp_avg": 0, "exp_avg_sq": 0}


def test_a_checksum_sees_one_bit_and_two_elements_exchanged(tensor: torch.Tensor) -> None:
    whole = proof.checksum("a.b", 0, tensor)
    rng = np.random.default_rng(0)
    for index, bit in zip(rng.integers(0, len(tensor), 50), rng.integers(0, 32, 50), strict=True):
        bits = tensor.clone().view(torch.int32)
        bits[index] ^= -(2**31) if bit == 31 else 1 << int(bit)
        assert proof.checksum("a.b", 0, bits.view(torch.float32)) != whole
    exchanged = tensor.clone()
    exchanged[[5, 149_000]] = tensor[[149_000, 5]]
    assert proof.checksum("a.b", 0, exchanged) != whole


@pytest.fixture(scope="module")
def adam(process_group: None) -> Iterator[Engine]:
    with engine(kind="adamw") as built:
        yield built


def flip_one_bit(engine: Engine, kind: str) -> None:
    piece = list(engine.held())[3]
    bits = piece.tensors[kind].view(torch.int32)
    bits[-1] ^= 1


@torch.no_grad()
def randomize(engine: Engine) -> None:
    for piece in engine.held():
        for tensor in piece.tensors.values():
            tensor.copy_(torch.randn(len(tensor)))


def test_what_was_saved_is_proved_and_every_difference_named(adam: Engine, corpus: Path, tmp_path: Path) -> None:
    randomize(adam)
    take(saver(local(tmp_path), adam, corpus), 6)
    found = at(local(tmp_path), 6)
    randomize(adam)
    checkpoints.restore(adam, found)
    checkpoints.prove(adam, found, "rows 6")
    for kind in STATES:
        flip_one_bit(adam, kind)
        with pytest.raises(CheckError, match=rf"\({kind} \(rank 0\)\)") as caught:
            checkpoints.prove(adam, found, "rows 6")
        assert caught.value.exit_code == 9 and str(found) in str(caught.value)
        flip_one_bit(adam, kind)
    with pytest.raises(CheckError, match=r"\(the rows of the next batch \(rank 0\)\)"):
        checkpoints.prove(adam, found, "rows 7")
    adam.load(_Zeros(), updates=5)
    with pytest.raises(CheckError, match=r"exp_avg_sq, the weights .*, the count of updates"):
        checkpoints.prove(adam, found, "rows 6")


class _Zeros:
    def read(self, kind: str, name: str, start: int, stop: int) -> torch.Tensor:
        return torch.zeros(stop - start)


def test_weights_that_are_computed_with_are_proved_apart_from_the_optimizers(corpus: Path, tmp_path: Path) -> None:
    """ZeRO-1 keeps its own copy of what it updates; the network's could be another."""
    with engine(placement=Placement(micro_batch=8, zero_stage=1)) as zero1:
        randomize(zero1)
        take(saver(local(tmp_path), zero1, corpus), 1)
        found = at(local(tmp_path), 1)
        with pytest.raises(CheckError, match=r"\(the weights that are computed with \(rank 0\)\)"):
            checkpoints.prove(zero1, found, "rows 1")  # only the optimizer's were changed above
        checkpoints.restore(zero1, found)
        checkpoints.prove(zero1, found, "rows 1")


def test_the_hash_of_rows_goes_by_their_order_and_epoch() -> None:
    epochs, rows = np.array([0, 0, 1]), np.array([5, 6, 0])
    whole = checkpoints.rows_hash(epochs, rows)
    assert whole == checkpoints.rows_hash(epochs.astype(np.int32), rows)
    assert len({whole, checkpoints.rows_hash(epochs, rows[::-1]), checkpoints.rows_hash(epochs * 0, rows)}) == 3


def test_restoring_takes_the_memory_of_one_parameter(corpus: Path, tmp_path: Path) -> None:
    """Some 5 million elements in three kinds, 60 MB; the largest parameter has 0.2 million, 0.8 MB."""
    wide = MODEL.model_copy(
        update={"embedding_size": 128, "hidden_size": 256, "intermediate_size": 768, "num_layers": 4}
    )
    with engine(model=wide) as large:
        total = 12 * large.parameter_count
        longest = 4 * max(piece.length for piece in large.held())
        take(saver(local(tmp_path), large, corpus), 1)
        found = at(local(tmp_path), 1)
        tracemalloc.start()
        checkpoints.restore(large, found)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert total > 50 * longest
    assert longest < peak < 2 * longest
