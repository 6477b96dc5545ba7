"""Networks of ours and models of theirs, in pairs of one architecture and size, and what comparing their outputs takes.

Weights are random and large, so that a swapped or forgotten tensor cannot hide.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from data_prep.rows import SpecialIds, structure
from tests.training.synthetic import SEQ_LEN, SPECIAL, VOCAB, make_rows, with_ids
from training.arms import ArmConfig, BertArm, ElectraArm, MlmArm, NetworkGenerator, RobertaArm
from training.network import Network
from training.objectives import build
from training.sizes import ModelConfig

ROBERTA = SpecialIds(cls=0, pad=1, sep=2, unk=3, mask=4)
SIZE: dict[str, Any] = {
    "embedding_size": 32, "hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 48,
    "max_positions": SEQ_LEN,  # the last position is used, so a table that is off by one fails
}  # fmt: skip
NARROW = {"embedding_size": 16}
BIG = {"embedding_size": 128, "hidden_size": 128, "intermediate_size": 512}  # a generator's heads are 64 wide
WIDE = NetworkGenerator(width=1.0)
# class, arm, which of its networks, changes of size: what our side of each case is
CASES: dict[str, tuple[str, ArmConfig, str, dict[str, Any]]] = {
    "discriminator": ("ElectraForPreTraining", ElectraArm(learning_rate=1), "discriminator", {}),
    "narrow discriminator": ("ElectraForPreTraining", ElectraArm(learning_rate=1), "discriminator", NARROW),
    "generator": ("ElectraForMaskedLM", ElectraArm(learning_rate=1, generator=WIDE), "generator", BIG),
    "narrow generator": ("ElectraForMaskedLM", ElectraArm(learning_rate=1, generator=WIDE), "generator", BIG | NARROW),
    "bert": ("BertForPreTraining", BertArm(learning_rate=1), "encoder", {}),
    "mlm": ("BertForMaskedLM", MlmArm(learning_rate=1), "encoder", {"type_vocab": 3}),
    "roberta": (
        "RobertaForMaskedLM",
        RobertaArm(learning_rate=1),
        "encoder",
        {"type_vocab": 1, "layer_norm_eps": 1e-5},
    ),
}


def special_of(name: str) -> SpecialIds:
    return ROBERTA if name.startswith("Roberta") else SPECIAL


def randomise(module: nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape) + (0.5 if parameter.dim() == 1 else 0.0))


def our_network(case: str, seed: int = 4) -> Network:
    name, arm, which, changes = CASES[case]
    model = ModelConfig(**{**SIZE, **changes}).encoder(VOCAB)
    objective = build(arm, model, special_of(name), seq_len=SEQ_LEN, packed=False)
    randomise(objective, seed)
    return objective.eval().networks()[which]


def cast(network: Network, dtype: torch.dtype) -> Network:
    for module in (network.embeddings, network.encoder, *network.heads.values()):
        module.to(dtype)
    return network


def their_model(case: str, seed: int = 5) -> Any:
    """A random Hugging Face model, from a configuration written out here."""
    name, _, _, changes = CASES[case]
    size, roberta = SIZE | changes, name.startswith("Roberta")
    own = {"embedding_size": size["embedding_size"]} if name.startswith("Electra") else {}
    model_class = getattr(transformers, name)
    config = model_class.config_class(
        **own, vocab_size=VOCAB, hidden_size=size["hidden_size"], num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=size["intermediate_size"], max_position_embeddings=SEQ_LEN + 2 if roberta else SEQ_LEN,
        type_vocab_size=size.get("type_vocab", 2), layer_norm_eps=size.get("layer_norm_eps", 1e-12),
        pad_token_id=1 if roberta else 0,
    )  # fmt: skip
    model = model_class(config).eval()
    randomise(model, seed)
    return model


def rows_of(name: str, packed: bool) -> NDArray[np.int64]:
    rows = make_rows(6, seed=3, packed=packed)
    rows[0, :] = 20  # one fragment over the whole row
    rows[0, 0], rows[0, -1] = SPECIAL.cls, SPECIAL.sep
    return with_ids(rows, ROBERTA) if name.startswith("Roberta") else rows


def our_outputs(network: Network, rows_BL: NDArray[np.int64], special: SpecialIds, packed: bool) -> dict[str, Tensor]:
    """The logits of every head over whole rows."""
    shape = structure(rows_BL, special)
    ids, positions, types, fragment = (
        torch.from_numpy(array.astype(np.int64)) for array in (rows_BL, shape.positions, shape.types, shape.fragment)
    )
    with torch.no_grad():
        hidden = network.encoder(network.embeddings(ids, positions, types), fragment, packed)
        return {
            head: module(hidden, network.embeddings.word.weight) if head == "mlm" else module(hidden)
            for head, module in network.heads.items()
        }


def their_outputs(model: Any, **inputs: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        found = model(**inputs)
    if isinstance(model, transformers.BertForPreTraining):
        return {"mlm": found.prediction_logits, "nsp": found.seq_relationship_logits}
    return {"rtd" if isinstance(model, transformers.ElectraForPreTraining) else "mlm": found.logits}


def assert_same_outputs(network: Network, model: Any, tolerance: float) -> None:
    """On padded rows of one pair, and on packed rows against their fragments alone."""
    name, special = type(model).__name__, special_of(type(model).__name__)
    rows_BL = rows_of(name, packed=False)
    shape = structure(rows_BL, special)
    ours = our_outputs(network, rows_BL, special, packed=False)
    types = torch.from_numpy(np.minimum(shape.types, network.config.type_vocab - 1).astype(np.int64))
    real = torch.from_numpy(shape.real)
    theirs = their_outputs(model, input_ids=torch.from_numpy(rows_BL), attention_mask=real.long(), token_type_ids=types)
    assert ours.keys() == theirs.keys()
    for head, logits in ours.items():
        assert logits.std() > 0.1
        compared = slice(None) if head == "nsp" else real
        assert (logits - theirs[head])[compared].abs().max() < tolerance

    rows_BL = rows_of(name, packed=True)
    fragments = structure(rows_BL, special).fragment
    ours = our_outputs(network, rows_BL, special, packed=True)
    assert fragments.max() == 3
    for row_L, fragment_L, here in zip(rows_BL, fragments, range(len(rows_BL)), strict=True):
        for number in range(1, fragment_L.max() + 1):
            where = torch.from_numpy(fragment_L == number)
            alone = their_outputs(model, input_ids=torch.from_numpy(row_L)[where][None])
            for head in ours.keys() - {"nsp"}:
                assert (ours[head][here, where] - alone[head][0]).abs().max() < tolerance


def saved(case: str, folder: Path, *, base: bool = False) -> dict[str, Tensor]:
    model = their_model(case)
    (model.base_model if base else model).save_pretrained(folder)
    return load_file(folder / "model.safetensors")
