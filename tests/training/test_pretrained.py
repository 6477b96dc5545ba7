"""A trained network is gone on from, whether it is in a checkpoint or in a Hugging Face folder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from data_prep import tokenizer as tokenizers
from data_prep.errors import CheckpointError
from tests.training.hf_models import assert_same_outputs
from tests.training.runs import CPU, ELECTRA, events, spec_for
from tests.training.synthetic import VOCAB
from training.checkpoints import load_tensors, verify
from training.finetune import finetune
from training.loop import train
from training.pretrained import load_network
from training.protocol import Protocol
from training.tasks import Example, Task, TaskData

WORDS = [f"word{chr(97 + i)}{chr(97 + j)}" for i in range(6) for j in range(6)]


def hugging_face(name: str, folder: Path, vocab_size: int = VOCAB) -> Any:
    """A small random model in a folder."""
    model_class = getattr(transformers, name)
    own = {"embedding_size": 16} if name.startswith("Electra") else {}
    config = model_class.config_class(
        **own, vocab_size=vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64, initializer_range=0.1,
    )  # fmt: skip
    torch.manual_seed(7)
    model = model_class(config)
    model.save_pretrained(folder)
    return model


def test_a_hugging_face_folder_says_which_heads_it_lacks(tmp_path: Path) -> None:
    expected = {
        "ElectraForPreTraining": (["rtd"], ["mlm"]),
        "BertForMaskedLM": (["mlm"], ["nsp"]),
        "BertModel": ([], ["mlm", "nsp"]),
    }
    for name, (carried, lacked) in expected.items():
        hugging_face(name, tmp_path / name)
        network, found = load_network(tmp_path / name)
        assert (list(network.heads), found) == (carried, lacked)
        assert not network.encoder.training and not network.embeddings.training


def test_a_hugging_face_folder_is_fine_tuned(tmp_path: Path) -> None:
    """The gradient goes through the imported layers: with their rate at 0 they stay, and the task is not learned."""
    torch.set_num_threads(1)
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    tokenizer = tokenizers.load(vocabulary)
    hugging_face("ElectraForPreTraining", tmp_path / "model", tokenizer.vocab_size)
    network, _ = load_network(tmp_path / "model")
    before = {name: parameter.detach().clone() for name, parameter in network.parameters().items()}
    rng = np.random.default_rng(0)
    examples = [Example(" ".join([WORDS[i % 2], *rng.choice(WORDS[2:], 4)]), None, i % 2) for i in range(400)]
    data = TaskData(suite="probes", task="toy", classes=("no", "yes"), train=examples[:300], dev=examples[300:])
    tuned = finetune(
        (network.config, network.embeddings, network.encoder),
        data,
        task=Task(suite="probes", name="toy", metrics=("accuracy",)),
        tokenizer=tokenizer,
        protocol=Protocol(learning_rate=2e-3, epochs=3, batch_size=32, max_length=16),
        seed=0,
        device=CPU,
    )
    assert tuned.sides[0].metrics["accuracy"] > 0.95
    moved = {name for name, parameter in network.parameters().items() if not torch.equal(parameter, before[name])}
    assert {name for name in before if not name.startswith("heads.")} == moved


@pytest.mark.usefixtures("process_group")
def test_a_hugging_face_folder_is_continued(corpus: Path, tmp_path: Path) -> None:
    """By init_from, through the loop, to a checkpoint: at a rate of next to nothing it still is transformers' model."""
    model = hugging_face("ElectraForPreTraining", tmp_path / "hf").eval()
    arm = ELECTRA.model_copy(update={"init_from": [tmp_path / "hf"], "learning_rate": 1e-12})
    train(spec_for(arm, corpus, steps=1), corpus, tmp_path / "run", CPU)
    (told, _) = [event for event in events(tmp_path / "run") if event["event"] == "weights"]
    assert (told["network"], told["lacked"]) == ("discriminator", [])
    assert [gave["folder"] for gave in told["from"]] == [str(tmp_path / "hf")]
    network, lacked = load_network(tmp_path / "run" / "checkpoints" / "step-00000001")
    assert lacked == []
    assert_same_outputs(network, model, 1e-4)


@pytest.mark.usefixtures("process_group")
def test_a_checkpoint_gives_the_network_that_is_fine_tuned(corpus: Path, tmp_path: Path) -> None:
    train(spec_for(ELECTRA, corpus, steps=1), corpus, tmp_path, CPU)
    folder = tmp_path / "checkpoints" / "step-00000001"
    network, lacked = load_network(folder)
    assert lacked == [] and list(network.heads) == ["rtd"]
    assert not network.encoder.training and not network.embeddings.training
    stored, ours = load_tensors(verify(folder))["param"], network.parameters()
    for name, key in (
        ("embeddings.word.weight", "embeddings.word.weight"),
        ("encoder.layers.1.qkv.weight", "discriminator.layers.1.qkv.weight"),  # not the generator's, of the same size
        ("heads.rtd.out.weight", "discriminator_head.out.weight"),
    ):
        assert torch.equal(ours[name], stored[key]), name
    part = folder / "part-00000.safetensors"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="was cut or altered"):
        load_network(folder)


def test_a_folder_without_a_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="it is not a finished checkpoint"):
        load_network(tmp_path)
