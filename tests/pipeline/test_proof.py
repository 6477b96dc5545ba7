"""Exported folders give what training gives, whatever the kind of model; folders that do not are found out."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from data_prep.errors import CheckError
from pipeline import proof, proof_fresh
from pipeline.export import export
from pipeline.export_sources import at
from tests.pipeline import exported
from training import hf_import
from training.arms import ArmConfig, BertArm, ElectraArm, MlmArm, NetworkGenerator, RobertaArm
from training.checkpoints import load_objective
from training.objectives import Objective
from training.sizes import SIZES

pytestmark = pytest.mark.usefixtures("process_group")

ELECTRA = ElectraArm(learning_rate=1e-3, generator=NetworkGenerator(width=1.0))
ROBERTA = RobertaArm(learning_rate=1e-3)
EVEN = {"embedding_size": 32}  # as wide as the body
CASES: dict[str, tuple[ArmConfig, str, dict[str, Any], dict[str, list[str]]]] = {
    "narrow electra": (ELECTRA, "wordpiece", {}, {"ElectraForPreTraining": [], "ElectraForMaskedLM": []}),
    "even electra": (ELECTRA, "wordpiece", EVEN, {"ElectraForPreTraining": [], "ElectraForMaskedLM": []}),
    "electra of bytes": (ELECTRA, "bpe", {}, {"ElectraForPreTraining": [], "ElectraForMaskedLM": []}),
    "bert": (BertArm(learning_rate=1e-3), "wordpiece", EVEN, {"BertForPreTraining": []}),
    "narrow bert": (BertArm(learning_rate=1e-3), "wordpiece", {}, {"ElectraForMaskedLM": ["nsp"]}),
    "mlm": (MlmArm(learning_rate=1e-3), "wordpiece", EVEN, {"BertForMaskedLM": []}),
    "no token types": (ROBERTA, "wordpiece", EVEN | {"type_vocab": 1}, {"BertForMaskedLM": []}),
    "roberta": (ROBERTA, "bpe", EVEN | {"type_vocab": 1, "layer_norm_eps": 1e-5}, {"RobertaForMaskedLM": []}),
}

Pairs = Mapping[Path, Path]


def examined_here(folders: Pairs) -> list[dict[str, Any]]:
    return [proof_fresh.examine(*pair) for pair in folders.items()]


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own takes seconds; that there is one is tested in test_export.py."""
    monkeypatch.setattr(proof, "_examined", examined_here)


# --- what is right ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_network_is_exported_and_comes_back(case: str, tmp_path: Path) -> None:
    arm, kind, changes, classes = CASES[case]
    out = exported.experiment(tmp_path / "out", kind)
    run = exported.begun_run(out, arm, exported.TINY.model_copy(update=changes))
    found = export(at(run), tmp_path / "to")
    assert {one.architecture: one.left_behind for one in found} == classes
    assert all(one.new and one.largest_difference <= 1e-4 and one.exact_difference <= 1e-9 for one in found)
    _assert_comes_back(run, tmp_path / "to", 3)
    for one in found:
        files = {path.name for path in (tmp_path / "to" / one.folder).iterdir()}
        assert files == {
            *("README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
            *(("vocab.txt",) if kind == "wordpiece" else ("vocab.json", "merges.txt")),
        }


def _assert_comes_back(run: Path, target: Path, step: int) -> None:
    """Our own import has every bit of the checkpoint, but for heads that the class has no place for."""
    objective, _ = load_objective(run / "checkpoints" / f"step-{step:08d}")
    for kind, network in objective.networks().items():
        imported = hf_import.read(target / kind)
        wanted = {
            name: parameter
            for name, parameter in network.parameters().items()
            if not name.startswith("heads.") or name.split(".")[1] in imported.heads
        }
        assert imported.config == network.config
        assert imported.tensors.keys() == wanted.keys()
        assert all(torch.equal(imported.tensors[name], parameter) for name, parameter in wanted.items())


def as_if_trained(objective: Objective) -> None:
    """Weights of a size that keeps the logits of a wide network to a few units: fp32 is compared absolutely."""
    for parameter in objective.parameters():
        if parameter.dim() > 1:
            parameter.mul_(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "width"), [("small", 0.25), ("base", 1 / 3), ("large", 0.25)])
def test_the_papers_sizes_but_for_their_depth(size: str, width: float, tmp_path: Path) -> None:
    """Base and Large have embeddings as wide as the body, and generators with narrower ones than that."""
    numbers = SIZES[size] | {"num_layers": 1, "max_positions": 64}
    model = exported.TINY.model_copy(update=numbers)
    out = exported.experiment(tmp_path / "out")
    arm = ElectraArm(learning_rate=1e-3, generator=NetworkGenerator(width=width))
    run = exported.begun_run(out, arm, model, change=as_if_trained)
    found = {one.folder: one for one in export(at(run), tmp_path / "to")}
    assert all(one.exact_difference <= 1e-9 for one in found.values())
    _assert_comes_back(run, tmp_path / "to", 3)
    projected = {
        kind: any("embeddings_project" in name for name in load_file(tmp_path / "to" / kind / "model.safetensors"))
        for kind in found
    }
    assert projected == {"discriminator": size == "small", "generator": True}


@pytest.mark.parametrize(("dtype", "bits"), [("bf16", 8), ("fp16", 11)])
def test_narrower_weights_are_the_rounded_ones(dtype: Any, bits: int, tmp_path: Path) -> None:
    out = exported.experiment(tmp_path / "out")
    run = exported.begun_run(out, ELECTRA)
    one, _ = export(at(run), tmp_path / "to", dtype)
    stored = load_file(tmp_path / "to" / "discriminator" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {{"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]}
    weights = load_objective(run / "checkpoints" / "step-00000003")[0].networks()["discriminator"].parameters()
    words = weights["embeddings.word.weight"]
    gap = (stored["electra.embeddings.word_embeddings.weight"].float() - words).abs() / words.abs()
    assert 0 < gap.max() <= 2.0**-bits
    assert one.exact_difference <= 1e-9 < 1e-4 < one.largest_difference < 1
    card = (tmp_path / "to" / "discriminator" / "README.md").read_text()
    assert f"Weights are {dtype}." in card
    again, _ = export(at(run), tmp_path / "to", "fp32")  # another type is another export
    assert again.new and again.largest_difference <= 1e-4


# --- planted faults ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(process_group: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of each family as they are just before they are proved, with what they must come to beside them
    (`NAME.expected`)."""
    place = tmp_path_factory.mktemp("good")

    def keep(folders: Pairs) -> list[dict[str, Any]]:
        for folder, expected in folders.items():
            name = f"{arm.label}-{folder.name.strip('.').removesuffix('.tmp')}"
            shutil.copytree(folder, place / name)
            shutil.copytree(expected, place / f"{name}.expected")
        return examined_here(folders)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "_examined", keep)
        for arm, kind, changes in ((ELECTRA, "wordpiece", {}), (ROBERTA, "bpe", EVEN | {"type_vocab": 1})):
            out = exported.experiment(place / "of" / arm.label, kind)
            run = exported.begun_run(out, arm, exported.TINY.model_copy(update=changes))
            export(at(run), place / "to" / arm.label)
    return place


def weights(change: Callable[[dict[str, Tensor]], None]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return spoil


def configured(name: str = "config.json", **values: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return spoil


def tokenizer(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        state = json.loads((folder / "tokenizer.json").read_text())
        change(state)
        (folder / "tokenizer.json").write_text(json.dumps(state))

    return spoil


def drop_layer(tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if ".layer.1." in name]:
        del tensors[name]


def swap_queries_and_keys(tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if ".layer.0.attention.self.query." in name]:
        other = name.replace("query", "key")
        tensors[name], tensors[other] = tensors[other], tensors[name]


def untie(tensors: dict[str, Tensor]) -> None:
    tensors["generator_lm_head.weight"] = tensors["electra.embeddings.word_embeddings.weight"].flip(0)


def double(tensors: dict[str, Tensor]) -> None:
    tensors["generator_lm_head.weight"] = tensors["electra.embeddings.word_embeddings.weight"].clone()


def untie_in_both(folder: Path) -> None:
    weights(untie)(folder)
    configured(tie_word_embeddings=False)(folder)


def nudge(tensors: dict[str, Tensor]) -> None:
    tensors["discriminator_predictions.dense_prediction.bias"] += 1e-6


def shift_positions(tensors: dict[str, Tensor]) -> None:
    name = "roberta.embeddings.position_embeddings.weight"
    tensors[name] = tensors[name].roll(1, 0)


def swap_tokens(state: dict[str, Any]) -> None:
    vocab = state["model"]["vocab"]
    vocab["the"], vocab["##s"] = vocab["##s"], vocab["the"]


def swap_lines(folder: Path) -> None:
    lines = (folder / "vocab.txt").read_text().splitlines(keepends=True)
    lines[10], lines[11] = lines[11], lines[10]
    (folder / "vocab.txt").write_text("".join(lines))


def keep_case(state: dict[str, Any]) -> None:
    state["normalizer"]["lowercase"] = False


def wrong_frame(state: dict[str, Any]) -> None:
    special = state["post_processor"]["special_tokens"]
    special["[CLS]"]["ids"], special["[SEP]"]["ids"] = special["[SEP]"]["ids"], special["[CLS]"]["ids"]


def forget_the_mask(state: dict[str, Any]) -> None:
    state["added_tokens"] = [one for one in state["added_tokens"] if one["content"] != "[MASK]"]


D, G, R = "electra-discriminator", "electra-generator", "roberta-encoder"
FAULTS: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a dropped layer": (D, weights(drop_layer), "does not load completely (missing keys: electra.encoder.layer.1."),
    "a layer not counted": (D, configured(num_hidden_layers=1), "does not load completely (unexpected keys: electra."),
    "queries and keys swapped": (D, weights(swap_queries_and_keys), "its logits differ from the training model's by"),
    "an untied output": (G, weights(untie), "holds generator_lm_head.weight, which is tied, a second time"),
    "tied weights twice": (G, weights(double), "holds generator_lm_head.weight, which is tied, a second time"),
    "untied by configuration": (G, untie_in_both, "model.safetensors holds generator_lm_head.weight, which is tied"),
    "a value off by 1e-6": (D, weights(nudge), "its logits differ from the training model's by 1e-06 in float64"),
    "positions off by one": (R, weights(shift_positions), "its logits differ from the training model's by"),
    "another epsilon": (D, configured(layer_norm_eps=1e-6), "its logits differ from the training model's by"),
    "another activation": (D, configured(hidden_act="gelu_new"), "its logits differ from the training model's by"),
    "another class": (D, configured(architectures=["ElectraForMaskedLM"]), "which is not ElectraForPreTraining"),
    "another type": (D, configured(dtype="bfloat16"), "loads as torch.bfloat16, and holds float32"),
    "vocabulary order": (D, tokenizer(swap_tokens), "its tokenizer has another vocabulary, or another order of it"),
    "order of vocab.txt": (D, swap_lines, "its vocab.txt is not what its tokenizer goes by"),
    "no merges.txt": (R, lambda folder: (folder / "merges.txt").unlink(), "cannot be used (FileNotFoundError"),
    "case": (D, tokenizer(keep_case), "its tokenizer.json makes other tokens of 'The chef ate the meal.'"),
    "case by configuration": (
        D, configured("tokenizer_config.json", do_lower_case=False), "its tokenizer makes other tokens of 'The chef"
    ),
    "special ids in the frame": (D, tokenizer(wrong_frame), "its tokenizer.json makes other tokens of ''"),
    "no mask": (D, tokenizer(forget_the_mask), "its tokenizer.json does not know its mask token"),
    "the wrong cls": (D, configured("tokenizer_config.json", cls_token="[SEP]"), "its tokenizer's cls token is 3 inst"),
    "the wrong pad": (D, configured(pad_token_id=1), "config.json: pad_token_id is 1 instead of 0"),
    "another type of the second": (
        D, configured("tokenizer_config.json", model_input_names=["input_ids", "attention_mask"]),
        "its tokenizer gives a pair of texts other token types",
    ),
    "no length": (R, configured("tokenizer_config.json", model_max_length=512), "its tokenizer cuts at 512 tokens"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_whoever_loads_the_folder(fault: str, good: Path, tmp_path: Path) -> None:
    """By transformers alone: nothing of ours helps the folder or looks into it."""
    name, spoil, words = FAULTS[fault]
    shutil.copytree(good / name, tmp_path / name)
    spoil(tmp_path / name)
    problems = proof_fresh.examine(tmp_path / name, good / f"{name}.expected")["problems"]
    assert problems and words in problems[0], problems


@pytest.mark.parametrize("name", [D, G, R])
def test_without_a_fault_nothing_is_found(name: str, good: Path) -> None:
    found = proof_fresh.examine(good / name, good / f"{name}.expected")
    assert found["problems"] == [] and found["difference"] <= 1e-4 and 0 <= found["exact"] <= 1e-9


def test_an_untied_output_layer_is_no_output_of_ours(good: Path, tmp_path: Path) -> None:
    """Where the folder says so itself, it loads without a word; its weights come back by no import of ours."""
    shutil.copytree(good / G, tmp_path / "generator")
    untie_in_both(tmp_path / "generator")
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "generator")
    assert model.get_output_embeddings().weight is not model.get_input_embeddings().weight
    network = hf_import.read(good / G).network()
    with pytest.raises(CheckError, match=r"^generator: the exported folder does not come back .*not tied"):
        proof.prove_values(tmp_path / "generator", network)
