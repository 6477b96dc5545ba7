"""ZeRO 0 to 3 and plain DDP at world sizes 1, 2 and 3, held to a float64 sum in one process.

The reference is one batch of the whole step through the objective in float64, PyTorch's autograd, its clip and our
optimizer: no ranks, no micro-batches, no engine.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.training.engine_ranks import (
    BEFORE,
    CONTINUED,
    ENGINES,
    OTHER_ARMS,
    RATE,
    ROWS,
    SAVED,
    SHARED,
    SMALL,
    STEPS,
    WORDS,
    WORLDS,
    loader_of,
    measure,
    objective_of,
    run_group,
)
from tests.training.runs import CPU, assert_equal
from training import checkpoints
from training.arms import ArmConfig
from training.engine import STATES
from training.objectives import to_device
from training.optimizer import build_optimizer, set_learning_rate
from training.settings import OptimizerConfig

pytestmark = [pytest.mark.multi, pytest.mark.slow, pytest.mark.usefixtures("process_group")]

Found = dict[tuple[int, int], dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="module")
def found(corpus: Path, folder: Path, process_group: None) -> Found:
    """What every rank of every world size has seen, by (world size, rank)."""
    for world in WORLDS:
        if world > 1:
            run_group(world, corpus, folder)
        else:
            measure(corpus, folder, 0, 1)
    ranks = [(world, rank) for world in WORLDS for rank in range(world)]
    return {(world, rank): json.loads((folder / f"{world}-{rank}.json").read_text()) for world, rank in ranks}


@dataclass(frozen=True, slots=True)
class Reference:
    losses: list[float]
    norms: list[float]
    heldout: float
    word_gradient: torch.Tensor  # of the first step


def reference(
    corpus: Path, arm: ArmConfig = SHARED, kind: str = "reference_adam", skip: int | None = None, steps: int = STEPS
) -> Reference:
    torch.manual_seed(0)
    objective = objective_of(arm, SMALL).double()
    loader = loader_of(corpus, objective, ROWS, 0, 1)
    terms = objective.loss_terms()
    optimizer = build_optimizer(objective, OptimizerConfig.model_validate({"kind": kind}))
    set_learning_rate(optimizer, RATE)
    losses, norms, heldout, word_gradient = [], [], math.nan, torch.empty(0)
    for number in range(steps):
        batches = loader.step_at(number * ROWS)
        (batch,) = batches.micro_batches
        sums = objective(to_device(batch, CPU)).sums
        loss = torch.stack([t.weight * sums[t.name] / batches.loss_counts[t.count] for t in terms]).sum()
        optimizer.zero_grad()
        loss.backward()
        if number == 0:
            word_gradient = objective.get_parameter(WORDS).grad.clone()
        norms.append(float(nn.utils.clip_grad_norm_(objective.parameters(), 1.0)))
        losses.append(loss.item())
        if number != skip:
            optimizer.step()
        if number + 1 == SAVED:
            heldout = heldout_loss(corpus, objective)
    return Reference(losses, norms, heldout, word_gradient)


def heldout_loss(corpus: Path, objective: nn.Module) -> float:
    """All forty held-out rows in one batch."""
    (batch,) = loader_of(corpus, objective, 40, 0, 1, "heldout").sample(0, 40, 1).micro_batches
    with torch.no_grad():
        statistics = objective.eval()(to_device(batch, CPU)).statistics
    objective.train()
    return objective.metrics({name: value.numpy() for name, value in statistics.items()})["loss"]


@pytest.fixture(scope="module")
def expected(corpus: Path) -> Reference:
    return reference(corpus)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ENGINES)
def test_losses_and_norms_are_those_of_one_float64_sum(
    name: str, world: int, found: Found, expected: Reference
) -> None:
    """Five steps, unequal mask counts, ragged shares. The clip (norm 1) would hide a wrong scale of the gradient from
    the losses, so it is the norm before it that is compared."""
    assert all(norm > 4 for norm in expected.norms)
    for rank in range(world):
        for accumulation in (1, 4):
            seen = found[world, rank][f"straight {name} {accumulation}"]
            assert seen["losses"] == pytest.approx(expected.losses, rel=1e-5)
            assert seen["norms"] == pytest.approx(expected.norms, rel=1e-5)
            assert seen["skipped"] == [0] * STEPS
        assert found[world, rank][f"straight {name} 1"]["heldout"] == pytest.approx(expected.heldout, rel=1e-5)


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("world", [3, 2])
def test_rows_masks_and_uniforms_do_not_depend_on_the_ranks(world: int, accumulation: int, found: Found) -> None:
    whole = found[1, 0]["data 1"]
    assert [len(rows) for rows in whole["rows"]] == [ROWS, ROWS]
    shares = [found[world, rank][f"data {accumulation}"] for rank in range(world)]
    for name in whole:
        for step in range(2):
            assert [value for share in shares for value in share[name][step]] == whole[name][step]


def test_the_tied_word_table_has_the_whole_gradient_under_zero3(found: Found, expected: Reference) -> None:
    """Both embeddings look words up in it and the generator's head multiplies by it; divided among two ranks."""
    for rank in range(2):
        gradient = torch.tensor(found[2, rank]["word gradient"], dtype=torch.float64)
        torch.testing.assert_close(
            gradient, expected.word_gradient, rtol=1e-4, atol=1e-6 * float(expected.word_gradient.abs().max())
        )


@pytest.mark.parametrize("name", ENGINES)
def test_a_gradient_of_one_rank_that_is_not_finite_skips_the_step_on_all(name: str, found: Found, corpus: Path) -> None:
    """AdamW: had the skipped step been counted, the bias correction of the third would be another."""
    clean = reference(corpus, kind="adamw", skip=1, steps=3)
    for rank in range(2):
        seen = found[2, rank][f"spoiled {name}"]
        assert seen["unchanged"] == [False, True, False]
        assert seen["skipped"] == [0, 1, 1]
        assert seen["norms"] == pytest.approx([clean.norms[0], math.inf, clean.norms[2]], rel=1e-5)
        assert seen["losses"] == pytest.approx(clean.losses, rel=1e-5)


@pytest.mark.parametrize("name", ENGINES)
def test_with_dropout_two_runs_are_the_same_to_the_bit(name: str, found: Found, expected: Reference) -> None:
    for rank in range(2):
        first, second = found[2, rank][f"repeated {name}"]["digests"]
        assert first == second
        assert found[2, rank][f"repeated {name}"]["losses"][0] != pytest.approx(expected.losses[0], rel=1e-4)


@pytest.mark.parametrize("label", OTHER_ARMS)
@pytest.mark.parametrize("name", ENGINES)
def test_frozen_networks_and_bodies_used_twice(name: str, label: str, found: Found, corpus: Path) -> None:
    exact = reference(corpus, arm=OTHER_ARMS[label], steps=2)
    for rank in range(2):
        assert found[2, rank][f"{label} {name}"]["losses"] == pytest.approx(exact.losses, rel=1e-5)
        assert found[2, rank][f"{label} {name}"]["norms"] == pytest.approx(exact.norms, rel=1e-5)


@pytest.mark.parametrize("name", ENGINES)
def test_bf16_rounds_and_no_more(name: str, found: Found, expected: Reference) -> None:
    """Eight bits of mantissa: figures differ from float32's, by less than a hundredth."""
    for rank in range(2):
        seen = found[2, rank][f"bf16 {name}"]
        for figures, exact in ((seen["losses"], expected.losses), (seen["norms"], expected.norms)):
            assert figures[0] == pytest.approx(exact[0], rel=1e-2)
            assert figures[0] != pytest.approx(exact[0], rel=1e-6)


@pytest.mark.parametrize("world", BEFORE)
@pytest.mark.parametrize(("name", "source"), CONTINUED)
def test_a_checkpoint_goes_on_under_another_engine_and_world_size(
    name: str, source: str, world: int, found: Found, folder: Path, expected: Reference
) -> None:
    """Saved by two ranks and restored by one, saved by one and restored by three. What is restored is proved on every
    rank, which what was there before fails on every one, and saved again, to the bit, with the same checksums."""

    def stored(run: str) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
        saved = checkpoints.verify(folder / run / f"step-{SAVED:08d}")
        tensors = checkpoints.load_tensors(saved, ("param", *STATES))
        flat = {f"{kind}/{key}": tensor for kind, named in tensors.items() for key, tensor in named.items()}
        return saved.manifest["proof"], flat

    before = f"{source}@{BEFORE[world]}"
    (proof, tensors), (first_proof, first_tensors) = stored(f"{before} in {name}@{world}"), stored(before)
    assert proof == first_proof and set(proof) == {"param", *STATES}
    assert_equal(tensors, first_tensors)
    for rank in range(world):
        seen = found[world, rank][f"continued {name} {source}"]
        for other in range(world):
            kinds = "param, exp_avg, exp_avg_sq, the weights that are computed with"
            assert f"{kinds} (rank {other})" in seen["refused"]
        assert seen["losses"] == pytest.approx(expected.losses[SAVED:], rel=1e-5)
        assert seen["norms"] == pytest.approx(expected.norms[SAVED:], rel=1e-5)
