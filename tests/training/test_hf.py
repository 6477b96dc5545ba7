"""Hugging Face models with our weights compute what our networks compute."""

import numpy as np
import pytest
import torch

from data_prep.rows import structure
from tests.training.synthetic import SPECIAL, VOCAB, make_rows
from training import hf
from training.objectives import Electra
from training.settings import ElectraArm, ModelConfig


def objective(embedding_size: int) -> Electra:
    torch.manual_seed(4)
    model = ModelConfig(
        embedding_size=embedding_size,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        intermediate_size=64,
        max_positions=64,
        init_range=0.2,  # large weights, so that a swapped matrix cannot hide
    )
    arm = ElectraArm(learning_rate=1e-3, generator_width=0.5)
    found = Electra(arm, model.encoder(VOCAB), SPECIAL, 32, False)
    for name, parameter in found.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
    return found.eval()


@pytest.mark.parametrize("embedding_size", [16, 32], ids=["projected", "as wide as hidden"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_logits_are_equal(embedding_size: int, dtype: torch.dtype, tolerance: float) -> None:
    ours = objective(embedding_size).to(dtype)
    rows = make_rows(8, seed=3)
    shape = structure(rows, SPECIAL)
    ids, types = torch.from_numpy(rows), torch.from_numpy(shape.types.astype(np.int64))
    positions, real = torch.from_numpy(shape.positions.astype(np.int64)), torch.from_numpy(shape.real)
    inputs = {"input_ids": ids, "attention_mask": real.long(), "token_type_ids": types}
    with torch.no_grad():
        x = ours.embeddings(ids, positions, types)
        scores = ours.discriminator_head(ours.discriminator(x, real.long()))
        logits = ours.generator_head(ours.generator(x, real.long()), ours.embeddings.word.weight)
        theirs = hf.discriminator(ours, SPECIAL).to(dtype)(**inputs).logits
        assert (theirs - scores)[real].abs().max() < tolerance
        theirs = hf.generator(ours, SPECIAL).to(dtype)(**inputs).logits
        assert (theirs - logits)[real].abs().max() < tolerance


def test_the_generator_stays_tied_and_is_its_own_copy() -> None:
    ours = objective(16)
    model = hf.generator(ours, SPECIAL)
    words = model.get_input_embeddings().weight
    assert model.generator_lm_head.weight is words
    assert words.data_ptr() != ours.embeddings.word.weight.data_ptr()
