"""What becomes of an export: it is trained further, and fine-tuned to the same answers; and one that slices of ZeRO-3
make up."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from data_prep import tokenizer as tokenizers
from data_prep.manifest import load
from data_prep.tokenizer import Tokenizer
from pipeline import proof
from pipeline.export import export
from pipeline.export_sources import at
from tests.conftest import TOPICS
from tests.pipeline import exported
from tests.pipeline.test_proof import ELECTRA, examined_here
from tests.training import synthetic
from tests.training.engine_ranks import run_group
from tests.training.runs import CPU
from tests.training.world_ranks import work
from training import hf_export, hf_import
from training.checkpoints import load_objective
from training.finetune import Answered, Classifier, finetune
from training.first_weights import begin
from training.heads import ReplacedTokenHead
from training.network import Network
from training.objectives import Objective, build
from training.pretrained import load_network
from training.protocol import Protocol
from training.run import plan_run
from training.settings import TrainingConfig
from training.tasks import Example, Task, TaskData
from training.text_batches import encode

pytestmark = pytest.mark.usefixtures("process_group")
TASK = Task(suite="probes", name="topic", metrics=("accuracy",))
PROTOCOL = Protocol(max_length=32, epochs=4, learning_rate=3e-3, batch_size=16)


def as_drawn(objective: Objective) -> None:
    """Weights about as large as a network begins with, which can be fine-tuned."""
    for name, parameter in objective.named_parameters():
        if parameter.dim() > 1:
            parameter.mul_(0.2)
        else:
            parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "_examined", examined_here)


@pytest.fixture(scope="module")
def run(process_group: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose export lies in the folder `export` of its experiment."""
    out = exported.experiment(tmp_path_factory.mktemp("used") / "out")
    run = exported.begun_run(out, ELECTRA, change=as_drawn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "_examined", examined_here)
        export(at(run), out / "export")
    return run


@pytest.mark.slow
@pytest.mark.multi
def test_slices_of_zero_3_are_put_together(tmp_path: Path) -> None:
    """Two ranks train at stage 3; each has saved a part of every parameter, and one process exports."""
    out, run = tmp_path / "out", tmp_path / "out" / "runs" / "electra"
    synthetic.write_corpus(out / "corpus")
    (tmp_path / "stage.json").write_text(json.dumps({"run_dir": str(run), "zero_stage": 3, "stop": 4}))
    run_group(2, out / "corpus", tmp_path, work)
    source = at(run)
    parts = source.checkpoint.manifest["parts"]
    assert len(parts) == source.checkpoint.manifest["world_size"] == 2 and source.checkpoint.progress.step == 4
    assert source.checkpoint.spec.placement.zero_stage == 3
    found = export(source, tmp_path / "to")
    assert [one.architecture for one in found] == ["ElectraForPreTraining", "ElectraForMaskedLM"]
    assert all(one.largest_difference <= 1e-4 and one.exact_difference <= 1e-9 for one in found)
    objective, _ = load_objective(source.checkpoint.folder)
    for kind, network in objective.networks().items():
        tensors = hf_import.read(tmp_path / "to" / kind).tensors
        assert all(torch.equal(tensors[name], parameter) for name, parameter in network.parameters().items())
        assert float(tensors["embeddings.word.weight"].std()) > 0


def test_training_goes_on_with_an_export_as_with_its_checkpoint(run: Path, tmp_path: Path) -> None:
    """Both folders together fill both networks, bit for bit, and the vocabulary is known to be the same."""
    out = run.parents[1]
    manifest = load(out / "corpus")
    folders = [out / "export" / "discriminator", out / "export" / "generator"]
    arm = ELECTRA.model_copy(update={"init_from": folders})
    training = TrainingConfig.model_validate(exported.PLACEMENT)
    spec = plan_run(arm=arm, model=exported.TINY, training=training, manifest=manifest, budget=1e12, seed=5)
    objective = build(arm, spec.identity.model, manifest.special, seq_len=exported.SEQ_LEN, packed=False)
    told = begin(objective, spec, tmp_path)
    assert [(event["network"], event["lacked"]) for event in told] == [("discriminator", []), ("generator", [])]
    assert {given["vocabulary"] for event in told for given in event["from"]} == {True}
    assert [given["differs"] for event in told for given in event["from"]] == [[], []]
    trained = load_objective(run / "checkpoints" / "step-00000003")[0].networks()
    for kind, network in objective.networks().items():
        wanted = trained[kind].parameters()
        assert all(torch.equal(parameter, wanted[name]) for name, parameter in network.parameters().items()), kind


def test_a_checkpoint_and_its_export_are_fine_tuned_to_the_same_answers(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By us, from either; and transformers, given the fine-tuned weights as an export of them, answers alike."""
    out = run.parents[1]
    words = tokenizers.load(out / "corpus" / "tokenizer")
    data, kept = _topics(900), _kept_classifiers(monkeypatch)
    ours = _answers(run / "checkpoints" / "step-00000003", words, data)
    exported_ones = _answers(out / "export" / "discriminator", words, data)
    assert ours.metrics["accuracy"] > 0.9
    assert np.array_equal(ours.scores, exported_ones.scores)
    theirs = _transformers_answers(kept[0], words, data.dev)
    assert (theirs == ours.prediction).mean() >= 0.995


def _kept_classifiers(monkeypatch: pytest.MonkeyPatch) -> list[Classifier]:
    """Every classifier that is made from now on."""
    kept: list[Classifier] = []
    init = Classifier.__init__

    def keeping(self: Classifier, *arguments: object) -> None:
        init(self, *arguments)  # type: ignore[arg-type]
        kept.append(self)

    monkeypatch.setattr(Classifier, "__init__", keeping)
    return kept


def _answers(folder: Path, words: Tokenizer, data: TaskData) -> Answered:
    network, _ = load_network(folder)
    body = (network.config, network.embeddings, network.encoder)
    return finetune(body, data, task=TASK, tokenizer=words, protocol=PROTOCOL, seed=0, device=CPU).sides[0]


def _transformers_answers(tuned: Classifier, words: Tokenizer, dev: list[Example]) -> np.ndarray:
    """By a body of theirs that carries the fine-tuned weights, and the same last layer."""
    config = tuned.embeddings.word.embedding_dim, tuned.head.in_features
    size = exported.TINY.encoder(len(tuned.embeddings.word.weight))
    assert config == (size.embedding_size, size.hidden_size)
    network = Network(size, tuned.embeddings, tuned.encoder, {"rtd": ReplacedTokenHead(size)})
    body = hf_export.build_model(network, "ElectraForPreTraining", words.special).electra
    batches, answers = encode(dev, words, PROTOCOL.max_length), np.empty(len(dev), dtype=np.int64)
    for which_B in np.array_split(np.arange(len(dev)), 8):
        batch = batches.batch(which_B, CPU)
        inputs = {"input_ids": batch["ids"], "attention_mask": batch["fragment"], "token_type_ids": batch["types"]}
        with torch.no_grad():
            answers[which_B] = tuned.head(body(**inputs).last_hidden_state[:, 0]).argmax(-1).numpy()
    return answers


def _topics(count: int) -> TaskData:
    """Which topic two nouns are of; half of the examples are the dev side."""
    rng = np.random.default_rng(1)
    nouns = list(TOPICS.values())
    examples = [
        Example(f"The {rng.choice(nouns[i % 3])} and the {rng.choice(nouns[i % 3])} {rng.integers(99)}.", None, i % 3)
        for i in range(count)
    ]
    return TaskData(
        suite="probes", task="topic", classes=tuple(TOPICS), train=examples[: count // 2], dev=examples[count // 2 :]
    )
