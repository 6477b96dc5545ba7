"""SQuAD fine-tuning: what a tiny body learns, that a seed decides everything, and what counts as degenerate."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from data_prep import tokenizer as tokenizers
from data_prep.errors import ConfigError
from data_prep.tokenizer import Tokenizer
from tests.training.squad_cases import VOCABULARY, toy_data
from training import finetune_spans as module
from training.encoder import Embeddings, Encoder
from training.fine_steps import build_optimizer
from training.finetune import Backbone
from training.finetune_spans import SpanReader, SpanTuned, finetune_spans
from training.settings import Compute
from training.sizes import EncoderConfig
from training.squad import SpanData, Version
from training.squad_answers import Answer, Answered
from training.squad_protocol import SpanProtocol

CPU = torch.device("cpu")
PROTOCOL = SpanProtocol(
    learning_rate=5e-3, epochs=2, batch_size=16, max_length=24, max_query=4, doc_stride=8, max_answer=4
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("tokenizer") / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return tokenizers.load(path)


def backbone() -> Backbone:
    config = EncoderConfig(
        vocab_size=64, embedding_size=16, hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64,
        max_positions=64,
    )  # fmt: skip
    torch.manual_seed(0)
    return config, Embeddings(config), Encoder(config, Compute())


def changed(**changes: object) -> SpanProtocol:
    return SpanProtocol.model_validate(PROTOCOL.model_dump() | changes)


def run(tokenizer: Tokenizer, data: SpanData, protocol: SpanProtocol = PROTOCOL, seed: int = 0) -> SpanTuned:
    return finetune_spans(backbone(), data, tokenizer=tokenizer, protocol=protocol, seed=seed, device=CPU)


@pytest.mark.parametrize("head", ["plain", "joint"])
@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_a_learnable_task_is_learned(tokenizer: Tokenizer, head: str, version: Version) -> None:
    """Texts of up to 25 tokens in windows with room for 18: some answers stand in one window of two."""
    data = toy_data(version)
    tuned = run(tokenizer, data, changed(head=head))
    assert all(value > 0.9 for value in tuned.metrics.values())
    assert not tuned.degenerate
    assert (tuned.n_train, tuned.n_dev, tuned.n_unplaced) == (200, 60, 0)
    assert tuned.n_windows > 250
    assert [a.id for a in tuned.answered] == [q.id for p in data.dev for q in p.questions]
    assert tuned.group.tolist() == list(range(60))
    assert set(data.task.metrics) <= set(tuned.metrics)
    assert tuned.majority == pytest.approx(0.0 if version == "1.1" else 1 / 3)


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_the_same_seed_twice_is_identical_and_questions_scores_are_what_the_metrics_are_the_means_of(
    tokenizer: Tokenizer, version: Version
) -> None:
    data, short = toy_data(version, train=120), changed(head="joint", epochs=1, learning_rate=1e-3)
    first, second, other = (run(tokenizer, data, short, seed) for seed in (0, 0, 1))
    assert first.answered == second.answered
    assert first.answered != other.answered
    of_f1, of_exact = data.task.metrics[:2]
    assert 0 < first.metrics[of_exact] < first.metrics[of_f1] < 1
    assert np.mean(first.f1) == pytest.approx(first.metrics[of_f1])
    assert np.mean(first.exact) == pytest.approx(first.metrics[of_exact])


def test_a_model_that_never_answers_is_degenerate(tokenizer: Tokenizer) -> None:
    """Trained on unanswerable questions alone, it answers every question with nothing."""
    data = toy_data("2.0", train=120, dev=30)
    impossible = [p for p in data.train if p.questions[0].impossible]
    tuned = run(tokenizer, SpanData(version="2.0", train=impossible, dev=data.dev))
    assert tuned.degenerate
    assert tuned.metrics["NoAns_exact"] == 1.0
    assert tuned.metrics["exact"] == pytest.approx(tuned.majority) == pytest.approx(1 / 3)


def test_answers_that_are_worth_no_more_than_none_are_degenerate(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three has no answer, and what is said of the others is wrong in ways of its own: a third is right at best,
    which is as much as silence gives, to the last digit of a share or not."""
    data = toy_data("2.0", train=6, dev=3)
    ids = [q.id for p in data.dev for q in p.questions]
    said = [
        Answered(i, (Answer(text, 0, 1, 0.0, 1.0),), null)
        for i, text, null in zip(ids, "xyz", (5.0, -1.0, -2.0), strict=True)
    ]
    monkeypatch.setattr(module, "answer", lambda *_: said)
    tuned = run(tokenizer, data)
    assert tuned.metrics["best_exact"] > tuned.majority == 1 / 3  # by a rounding
    assert tuned.degenerate
    assert tuned.given.tolist() == [False, False, False]
    assert tuned.exact.tolist() == [1.0, 0.0, 0.0]
    golds = [q.answers[0].text for p in data.dev for q in p.questions if not q.impossible]
    said[1:] = [Answered(i, (Answer(text, 0, 1, 0.0, 1.0),), -1.0) for i, text in zip(ids[1:], golds, strict=True)]
    good = run(tokenizer, data)
    assert not good.degenerate
    assert (good.given.tolist(), good.exact.tolist()) == ([False, True, True], [1.0, 1.0, 1.0])


@pytest.mark.parametrize("head", ["plain", "joint"])
def test_a_loss_that_is_not_finite_ends_the_training_and_is_degenerate(tokenizer: Tokenizer, head: str) -> None:
    tuned = run(tokenizer, toy_data("2.0", train=60, dev=10), changed(learning_rate=1e30, head=head))
    assert tuned.degenerate
    assert np.isfinite([*tuned.metrics.values(), *(a.null_score for a in tuned.answered)]).all()


def test_at_most_max_train_examples_are_used(tokenizer: Tokenizer) -> None:
    limited = changed(max_train_examples=17, epochs=1)
    assert run(tokenizer, toy_data("1.1", train=40, dev=5), limited).n_train == 17
    assert run(tokenizer, toy_data("1.1", train=10, dev=5), limited).n_train == 10


def test_more_tokens_than_positions_is_a_configuration_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(
        ConfigError, match=r"evaluation\.squad_protocol\.max_length 384 is longer than model\.max_positions 64"
    ):
        run(tokenizer, toy_data("1.1", train=4, dev=2), SpanProtocol())


def test_the_papers_protocol_resolved_by_hand() -> None:
    """configure_finetuning.py; of a two-layer body of the small size: head 1, layers .8² and .8³, the rest .8⁴."""
    paper = SpanProtocol.model_validate({"name": "electra_paper", "size": "small"})
    assert (paper.learning_rate, paper.layer_decay, paper.epochs, paper.batch_size) == (1e-4, 0.8, 2, 32)
    assert (paper.max_length, paper.max_query, paper.doc_stride, paper.max_answer) == (512, 64, 128, 30)
    assert (paper.beam, paper.n_best, paper.answerable_weight, paper.null_threshold) == (20, 20, 0.5, -2.75)
    assert (paper.adam, paper.schedule, paper.loss, paper.head) == ("reference_adam", "reference", "sum", "joint")
    large = SpanProtocol.model_validate({"name": "electra_paper", "size": "large"})
    assert (large.learning_rate, large.layer_decay) == (5e-5, 0.9)
    assert len({paper.fingerprint(), large.fingerprint(), SpanProtocol().fingerprint()}) == 3
    with pytest.raises(ValidationError, match="electra_paper has head joint; leave it out, or name the protocol plain"):
        SpanProtocol.model_validate({"name": "electra_paper", "size": "small", "head": "plain"})

    model = SpanReader(backbone(), paper)
    groups = build_optimizer(model, paper).param_groups
    scale = {id(p): (group["lr_scale"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert scale[id(model.head.get_parameter("start.weight"))] == (1.0, 0.01)
    assert scale[id(model.head.get_parameter("null_hidden.bias"))] == (1.0, 0.0)
    for i, power in ((1, 2), (0, 3)):
        assert scale[id(model.encoder.get_parameter(f"layers.{i}.ffn_in.weight"))] == (pytest.approx(0.8**power), 0.01)
    assert scale[id(model.embeddings.word.weight)] == (pytest.approx(0.8**4), 0.01)
    assert set(scale) == {id(p) for p in model.parameters()}
