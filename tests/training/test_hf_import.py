"""What is read from a Hugging Face folder, under which names, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from data_prep.errors import CheckpointError, ConfigError
from tests.training.hf_models import saved
from tests.training.synthetic import SEQ_LEN, VOCAB
from training import hf_config, hf_import
from training.sizes import SIZES, EncoderConfig


@pytest.mark.parametrize(
    ("case", "role", "lacked"),
    [
        ("narrow discriminator", "encoder", ("rtd", "mlm")),
        ("bert", "encoder", ("mlm", "nsp")),
        ("roberta", "encoder", ("mlm",)),
    ],
)
def test_a_base_model_is_a_body_without_heads(case: str, role: str, lacked: tuple[str, ...], tmp_path: Path) -> None:
    tensors = saved(case, tmp_path / "base", base=True)
    assert not any(name.startswith(("bert.", "roberta.", "electra.")) for name in tensors)
    saved(case, tmp_path / "whole")
    body, whole = hf_import.read(tmp_path / "base"), hf_import.read(tmp_path / "whole")
    assert (body.role, body.heads, body.lacked, body.config) == (role, (), lacked, whole.config)
    assert body.tensors.keys() == {name for name in whole.tensors if not name.startswith("heads.")}
    assert all(torch.equal(tensor, whole.tensors[name]) for name, tensor in body.tensors.items())


def test_roles_heads_and_what_is_lacked(tmp_path: Path) -> None:
    expected = {
        "discriminator": ("discriminator", ("rtd",), ("mlm",)),
        "generator": ("generator", ("mlm",), ("rtd",)),
        "bert": ("encoder", ("mlm", "nsp"), ()),
        "mlm": ("encoder", ("mlm",), ("nsp",)),
        "roberta": ("encoder", ("mlm",), ()),
    }
    for case, figures in expected.items():
        saved(case, tmp_path / case)
        found = hf_import.read(tmp_path / case)
        assert (found.role, found.heads, found.lacked) == figures


def test_a_head_that_the_class_does_not_promise_is_taken_when_it_is_whole(tmp_path: Path) -> None:
    """google-bert/bert-base-uncased calls itself BertForMaskedLM and holds the next-sentence head."""
    tensors = saved("bert", tmp_path)
    edit_config(tmp_path, architectures=["BertForMaskedLM"])
    assert hf_import.read(tmp_path).heads == ("mlm", "nsp")
    save_file(
        {name: t for name, t in tensors.items() if "seq_relationship" not in name}, tmp_path / "model.safetensors"
    )
    found = hf_import.read(tmp_path)
    assert (found.heads, found.lacked) == (("mlm",), ("nsp",))
    assert "heads.nsp.pooler.weight" not in found.tensors


def test_old_names_second_names_buffers_and_shards(tmp_path: Path) -> None:
    tensors = saved("bert", tmp_path / "new")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    assert len(old.keys() - tensors.keys()) == 12  # embeddings, two a layer, the head: weights and biases
    old["bert.embeddings.position_ids"] = torch.arange(SEQ_LEN)[None]
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")  # the only one of the pair
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "config.json").write_bytes((tmp_path / "new" / "config.json").read_bytes())
    half = len(old) // 2
    files = {"model-1.safetensors": list(old)[:half], "model-2.safetensors": list(old)[half:]}
    for file, names in files.items():
        save_file({name: old[name] for name in names}, folder / file)
    index = {"weight_map": {name: file for file, names in files.items() for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    first, second = hf_import.read(tmp_path / "new"), hf_import.read(folder)
    assert first.tensors.keys() == second.tensors.keys()
    assert all(torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items())
    assert hf_config.describe(tmp_path / "new").sha256() != hf_config.describe(folder).sha256()
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-2\.safetensors is missing"):
        hf_import.read(folder)
    for changed, message in (
        ({"weight_map": {"a": "../new/model.safetensors"}}, "is not the name of a safetensors file"),
        ({"weight_map": ["model-1.safetensors"]}, r"index\.json: its weight_map names no file; get it anew"),
        ({"weight_map": {}}, "its weight_map names no file"),
        ({}, "its weight_map names no file"),
    ):
        (folder / "model.safetensors.index.json").write_text(json.dumps(changed))
        with pytest.raises(CheckpointError, match=message):
            hf_import.read(folder)


def test_only_positions_that_hang_on_the_padding_id_need_it(tmp_path: Path) -> None:
    for case, left_out in (("bert", 0), ("discriminator", 0), ("roberta", 1)):
        folder = tmp_path / case
        saved(case, folder)
        edit_config(folder, pad_token_id=left_out)
        given = hf_import.read(folder)
        config = json.loads((folder / "config.json").read_text())
        del config["pad_token_id"]
        (folder / "config.json").write_text(json.dumps(config))
        assert hf_config.describe(folder).pad == left_out  # transformers' default of each family
        edit_config(folder, pad_token_id=None)
        if case == "roberta":
            with pytest.raises(ConfigError, match="pad_token_id is None; set it to the id of the tokenizer's padding"):
                hf_import.read(folder)
            continue
        assert hf_config.describe(folder).pad is None
        found = hf_import.read(folder)
        assert found.config == given.config
        assert all(torch.equal(tensor, given.tensors[name]) for name, tensor in found.tensors.items())


def test_half_precision_is_widened_exactly(tmp_path: Path) -> None:
    tensors = saved("roberta", tmp_path)
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    words = hf_import.read(tmp_path).network().embeddings.word.weight
    assert words.dtype == torch.float32
    assert torch.equal(words, tensors["roberta.embeddings.word_embeddings.weight"].bfloat16().float())


def test_the_callers_random_numbers_are_left_alone(tmp_path: Path) -> None:
    saved("roberta", tmp_path)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    hf_import.read(tmp_path).network()
    assert torch.equal(torch.rand(3), expected)


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu_new"}, "hidden_act is 'gelu_new', and our encoder knows 'gelu' only"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"architectures": ["BertForSequenceClassification"]}, "reads one of ElectraForPreTraining, "),
        ({"architectures": None}, "architectures is None"),
        ({"architectures": [["BertModel"]]}, r"architectures is \[\['BertModel'\]\]; this version reads"),
        ({"architectures": ["BertModel", "BertModel"]}, r"architectures is \['BertModel', 'BertModel'\]"),
        ({"pad_token_id": "[PAD]"}, r"pad_token_id is '\[PAD\]'; set it to the id"),
        ({"num_attention_heads": 3}, "hidden_size 32 is not a multiple of num_heads 3"),
        ({"vocab_size": None}, "vocab_size is None and must be an integer"),
        ({"num_hidden_layers": 1}, r"bert\.encoder\.layer\.1\.\S+ \(with 15 more\) has no place"),
    ],
)  # fmt: skip
def test_what_our_encoder_cannot_be_is_refused_by_its_key(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    saved("bert", tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(ConfigError, match=message):
        hf_import.read(tmp_path)


def test_weights_that_are_not_what_the_configuration_promises_are_refused(tmp_path: Path) -> None:
    tensors = saved("bert", tmp_path)
    weights = tmp_path / "model.safetensors"

    def refused(error: type[Exception], message: str, **changes: Tensor | None) -> None:
        changed = {**tensors, **{name.replace("_0_", "."): tensor for name, tensor in changes.items()}}
        save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, weights)
        with pytest.raises(error, match=message):
            hf_import.read(tmp_path)

    query = "bert.encoder.layer.1.attention.self.query.weight"
    refused(CheckpointError, f"{query} is missing", **{query: None})
    refused(CheckpointError, r"cls\.seq_relationship\.bias is missing", **{"cls.seq_relationship.bias": None})
    refused(
        CheckpointError, r"parts of encoder\.layers\.1\.qkv\.weight are \(32, 16\), ", **{query: torch.zeros(32, 16)}
    )
    narrow = torch.zeros(VOCAB - 1, 32)
    refused(CheckpointError, r"word\.weight is \(95, 32\)", **{"bert.embeddings.word_embeddings.weight": narrow})
    untied = {"cls.predictions.decoder.weight": torch.zeros(VOCAB, 32)}
    refused(ConfigError, r"decoder\.weight is not tied to bert\.embeddings\.word_embeddings", **untied)
    refused(ConfigError, "is quantized", **{query: torch.zeros(32, 32, dtype=torch.int8)})
    refused(CheckpointError, "stands twice", **{"embeddings.LayerNorm.gamma": torch.zeros(32)})
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        hf_import.read(tmp_path)
    weights.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pickled weights only, which are never opened: put model\.safetensors"):
        hf_import.read(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        hf_import.read(tmp_path)


def test_the_public_models_have_our_sizes(tmp_path: Path) -> None:
    """Their configurations as published: google/electra-small-discriminator, -generator; FacebookAI/roberta-large."""
    common = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "vocab_size": 30522}
    small = {
        **common, "architectures": ["ElectraForPreTraining"], "embedding_size": 128, "hidden_size": 256,
        "intermediate_size": 1024, "num_attention_heads": 4, "num_hidden_layers": 12, "type_vocab_size": 2,
    }  # fmt: skip
    base_generator = {**small, "architectures": ["ElectraForMaskedLM"], "embedding_size": 768}
    roberta = {
        **common, "architectures": ["RobertaForMaskedLM"], "hidden_size": 1024, "intermediate_size": 4096,
        "num_attention_heads": 16, "num_hidden_layers": 24, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
        "max_position_embeddings": 514, "vocab_size": 50265,
    }  # fmt: skip
    (tmp_path / "model.safetensors").touch()

    def described(values: dict[str, Any]) -> hf_config.HuggingFaceFolder:
        (tmp_path / "config.json").write_text(json.dumps(values))
        return hf_config.describe(tmp_path)

    assert described(small).config == EncoderConfig(**SIZES["small"], vocab_size=30522)
    expected = EncoderConfig(**{**SIZES["base"], "num_layers": 12}, vocab_size=30522).scaled(1 / 3, 1.0)
    assert described(base_generator).config == expected
    large = EncoderConfig(**SIZES["large"], vocab_size=50265, type_vocab=1, layer_norm_eps=1e-5)
    assert described(roberta).config == large
