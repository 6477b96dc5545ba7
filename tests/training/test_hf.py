"""Hugging Face models carry our weights, and our networks theirs: equal outputs, and equal bits there and back."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.training.hf_models import (
    CASES,
    NARROW,
    ROBERTA,
    SIZE,
    assert_same_outputs,
    cast,
    our_network,
    our_outputs,
    randomise,
    rows_of,
    special_of,
    their_model,
)
from tests.training.synthetic import SEQ_LEN, SPECIAL, VOCAB
from training import hf_export, hf_import, hf_names
from training.arms import AllTokensMlmArm, ArmConfig, BertArm
from training.network import Network, fill
from training.objectives import build
from training.sizes import ModelConfig

PRECISIONS = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])


@PRECISIONS
@pytest.mark.parametrize("case", CASES)
def test_our_weights_in_their_model(case: str, dtype: torch.dtype, tolerance: float) -> None:
    network = cast(our_network(case), dtype)
    name = CASES[case][0]
    model = hf_export.build_model(network, name, special_of(name))
    assert type(model).__name__ == name
    assert_same_outputs(network, model, tolerance)


@pytest.mark.parametrize("case", ["narrow discriminator", "generator", "bert", "roberta"])
def test_dropout_stands_where_theirs_does(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every dropout, of either, multiplying by .9 instead, training mode gives equal outputs."""
    monkeypatch.setattr("training.dropout._Dropout.apply", lambda x, rate: 0.9 * x)
    monkeypatch.setattr(
        "torch.nn.functional.dropout", lambda x, p=0.5, training=True, inplace=False: 0.9 * x if p and training else x
    )
    network = cast(our_network(case), torch.float64)
    name = CASES[case][0]
    model = hf_export.build_model(network, name, special_of(name))
    model.set_attn_implementation("eager")
    in_evaluation = our_outputs(network, rows_of(name, packed=False), special_of(name), packed=False)
    for module in (network.embeddings, network.encoder, *network.heads.values(), model):
        module.train()
    assert_same_outputs(network, model, 1e-9)
    in_training = our_outputs(network, rows_of(name, packed=False), special_of(name), packed=False)
    assert all((in_training[head] - in_evaluation[head]).abs().max() > 1e-3 for head in in_training)


@PRECISIONS
@pytest.mark.parametrize("case", CASES)
def test_their_weights_in_our_network(case: str, dtype: torch.dtype, tolerance: float, tmp_path: Path) -> None:
    model = their_model(case)
    model.save_pretrained(tmp_path)
    imported = hf_import.read(tmp_path)
    network = our_network(case)
    assert imported.config == network.config
    assert fill(network, imported.tensors, "x") == []
    assert_same_outputs(cast(network, dtype), model.to(dtype), tolerance)
    own = imported.network()
    assert own.heads.keys() == set(imported.heads) == network.heads.keys()
    for name, parameter in own.parameters().items():
        assert torch.equal(parameter.to(dtype), network.parameters()[name]), name


@pytest.mark.parametrize("case", CASES)
def test_there_and_back_changes_no_bit(case: str, tmp_path: Path) -> None:
    name = CASES[case][0]
    network = our_network(case)
    hf_export.build_model(network, name, special_of(name)).save_pretrained(tmp_path)
    imported = hf_import.read(tmp_path)
    assert imported.tensors.keys() == network.parameters().keys()
    assert all(torch.equal(tensor, network.parameters()[name]) for name, tensor in imported.tensors.items())
    again = hf_export.build_model(imported.network(), name, special_of(name)).state_dict()
    stored = load_file(tmp_path / "model.safetensors")
    assert stored and all(torch.equal(again[name], tensor) for name, tensor in stored.items())


def test_an_exported_model_is_its_own_copy_and_stays_tied() -> None:
    for case in ("narrow generator", "bert", "roberta"):
        network = our_network(case)
        model = hf_export.build_model(network, CASES[case][0], special_of(CASES[case][0]))
        words = model.get_input_embeddings().weight
        assert model.get_output_embeddings().weight is words
        assert words.data_ptr() != network.embeddings.word.weight.data_ptr()


def test_roberta_counts_positions_from_behind_its_padding_id() -> None:
    network = our_network("roberta")
    model = hf_export.build_model(network, "RobertaForMaskedLM", ROBERTA)
    table = model.roberta.embeddings.position_embeddings.weight
    assert model.config.max_position_embeddings == len(table) == SEQ_LEN + 2
    assert torch.equal(table[2:], network.embeddings.position.weight)
    ids = torch.tensor([[0, 9, 2, 1]])
    assert model.roberta.embeddings.create_position_ids_from_input_ids(ids, 1).tolist() == [[2, 3, 4, 1]]


def test_the_configuration_says_what_the_network_is() -> None:
    config = hf_export.build_model(our_network("roberta"), "RobertaForMaskedLM", ROBERTA).config
    assert (config.layer_norm_eps, config.type_vocab_size, config.hidden_act) == (1e-5, 1, "gelu")
    assert (config.bos_token_id, config.pad_token_id, config.eos_token_id) == (0, 1, 2)
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)


def test_which_class_carries_which_network() -> None:
    def chosen(case: str, separators: int = 1) -> str:
        return hf_export.architecture(our_network(case), separators, generator=CASES[case][2] == "generator")

    for case, (name, *_) in CASES.items():
        assert chosen(case, 2 if case == "roberta" else 1) == name
    assert chosen("mlm", 2) == "RobertaForMaskedLM"  # it is the tokenizer that decides, not the objective
    assert chosen("roberta", 1) == "BertForMaskedLM"


def test_what_a_class_has_no_place_for_is_named() -> None:
    def main(arm: ArmConfig, changes: dict[str, Any]) -> Network:
        model = ModelConfig(**{**SIZE, **changes}).encoder(VOCAB)
        objective = build(arm, model, SPECIAL, seq_len=SEQ_LEN, packed=False).eval()
        randomise(objective, 6)
        return objective.networks()["encoder"]

    narrow = main(BertArm(learning_rate=1), NARROW)
    assert hf_export.architecture(narrow, 1) == "ElectraForMaskedLM"
    assert hf_export.left_behind(narrow, "ElectraForMaskedLM") == ["nsp"]
    model = hf_export.build_model(narrow, "ElectraForMaskedLM", SPECIAL)
    without = Network(narrow.config, narrow.embeddings, narrow.encoder, {"mlm": narrow.heads["mlm"]})
    assert_same_outputs(without, model, 1e-4)
    copying = main(AllTokensMlmArm(learning_rate=1), {})
    assert hf_export.left_behind(copying, hf_export.architecture(copying, 1)) == ["copy"]
    assert hf_export.left_behind(our_network("bert"), "BertForPreTraining") == []


def test_every_class_we_name_exists() -> None:
    for name in hf_names.ARCHITECTURES:
        assert getattr(transformers, name).__name__ == name
