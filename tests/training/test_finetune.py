"""Fine-tuning: what the network is fed, what it can and cannot learn, and that a seed decides everything."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from data_prep import tokenizer as tokenizers
from data_prep.errors import ConfigError
from data_prep.tokenizer import Tokenizer
from training.encoder import Embeddings, Encoder
from training.finetune import Backbone, FineTuned, finetune, learning_rate
from training.protocol import EvaluationConfig, Protocol
from training.settings import Compute
from training.sizes import EncoderConfig
from training.tasks import Example, Task, TaskData
from training.text_batches import bucketed, encode, truncated

CPU = torch.device("cpu")
WORDS = [f"word{chr(97 + i)}{chr(97 + j)}" for i in range(6) for j in range(6)]
TASK = Task(suite="probes", name="toy", metrics=("accuracy",))
PROTOCOL = Protocol(learning_rate=2e-3, epochs=4, batch_size=32, max_length=32)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("tokenizer") / "vocab.txt"
    marks = ["[", "]", "cls", "sep", "mask", "pad"]
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *marks, *WORDS]) + "\n")
    return tokenizers.load(path)


def backbone(seed: int = 0, attention: Literal["auto", "reference"] = "auto", **changes: object) -> Backbone:
    size = {
        "vocab_size": 64, "embedding_size": 16, "hidden_size": 32, "num_layers": 2, "num_heads": 2,
        "intermediate_size": 64, "max_positions": 64,
    }  # fmt: skip
    config = EncoderConfig.model_validate(size | changes)
    torch.manual_seed(seed)
    return config, Embeddings(config), Encoder(config, Compute(attention=attention))


def sentences(count: int, seed: int) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [list(rng.choice(WORDS, int(rng.integers(3, 12)))) for _ in range(count)]


def learnable(count: int, seed: int) -> list[Example]:
    """Class 1 exactly when the text holds one word, at any place."""
    examples = []
    for i, words in enumerate(sentences(count, seed)):
        label = i % 2
        words = [w for w in words if w != WORDS[0]] or [WORDS[1]]
        if label:
            words.insert(len(words) // 2, WORDS[0])
        examples.append(Example(" ".join(words), None, label))
    return examples


def random_labels(count: int, seed: int) -> list[Example]:
    labels = np.random.default_rng(seed + 1).integers(0, 2, count)
    return [
        Example(" ".join(words), None, int(label)) for words, label in zip(sentences(count, seed), labels, strict=True)
    ]


def data_of(train: list[Example], dev: list[Example]) -> TaskData:
    return TaskData(suite="probes", task="toy", classes=("no", "yes"), train=train, dev=dev)


def run(
    tokenizer: Tokenizer, data: TaskData, protocol: Protocol = PROTOCOL, seed: int = 0, body: Backbone | None = None
) -> FineTuned:
    body = body or backbone()
    return finetune(body, data, task=TASK, tokenizer=tokenizer, protocol=protocol, seed=seed, device=CPU)


# --- what the network is fed ------------------------------------------------------------------------------------------


def test_a_pair_has_its_separators_types_and_positions_and_special_text_stays_text(tokenizer: Tokenizer) -> None:
    examples = [Example("wordaa [SEP] wordab", "wordac", 1), Example("wordad", None, 0)]
    encoded = encode(examples, tokenizer, 32)
    batch = {name: tensor.tolist() for name, tensor in encoded.batch(np.array([0, 1]), CPU).items()}
    pad, unk, cls, sep = 0, 1, 2, 3
    aa, ab, ac, ad, bracket, text_sep, close = 11, 12, 13, 14, 5, 8, 6
    assert batch["ids"][0] == [cls, aa, bracket, text_sep, close, ab, sep, ac, sep]
    assert batch["types"][0] == [0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert batch["positions"][0] == list(range(9))
    assert batch["ids"][1] == [cls, ad, sep] + [pad] * 6
    assert batch["fragment"][1] == [1, 1, 1] + [0] * 6
    assert batch["types"][1] == [0] * 9
    assert batch["positions"][1] == [0, 1, 2] + [0] * 6
    assert batch["labels"] == [1, 0]
    assert unk not in batch["ids"][0]


def test_two_separators_between_segments_where_the_tokenizer_has_them(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "pair_separators", 2)
    encoded = encode([Example("wordaa", "wordab", 0)], tokenizer, 32)
    assert encoded.ids.tolist() == [2, 11, 3, 3, 12, 3]
    assert encoded.second.tolist() == [4]


def test_a_long_text_is_cut_to_max_length_and_keeps_its_last_separator(tokenizer: Tokenizer) -> None:
    long, short = " ".join(WORDS), " ".join(WORDS[:3])
    encoded = encode([Example(long, None, 0), Example(long, short, 0), Example(long, long, 0)], tokenizer, 12)
    assert encoded.lengths.tolist() == [12, 12, 12]
    assert [encoded.ids[end - 1] for end in encoded.starts[1:]] == [3, 3, 3]
    assert encoded.second.tolist() == [12, 8, 7]  # cls + 6 + sep | 3 + sep;  cls + 5 + sep | 4 + sep


def test_truncation_pops_from_the_longer_one_token_at_a_time() -> None:
    for first in range(0, 15):
        for second in range(0, 15):
            for budget in range(2, 20):
                a, b = first, second
                while a + b > budget:  # Devlin et al. 2019, `_truncate_seq_pair`
                    if a > b:
                        a -= 1
                    else:
                        b -= 1
                assert truncated(first, second, budget) == (a, b)


def test_buckets_hold_every_index_once_and_little_padding() -> None:
    lengths = np.random.default_rng(0).integers(3, 100, 1003)
    batches = list(bucketed(lengths, 8, seed=0, epoch=0))
    assert sorted(np.concatenate(batches).tolist()) == list(range(1003))
    assert sorted({len(batch) for batch in batches}) == [3, 8]
    assert len(batches) == 126
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    assert padded < 1.06 * lengths.sum()
    same = list(bucketed(lengths, 8, seed=0, epoch=0))
    assert all(np.array_equal(x, y) for x, y in zip(batches, same, strict=True))
    for other in (bucketed(lengths, 8, seed=0, epoch=1), bucketed(lengths, 8, seed=1, epoch=0)):
        assert not np.array_equal(np.concatenate(list(other)), np.concatenate(batches))


@pytest.mark.parametrize("changes", [{}, {"attention": "reference"}, {"num_layers": 1}, {"embedding_size": 32}])
def test_first_position_equals_the_whole_encoder(tokenizer: Tokenizer, changes: dict[str, Any]) -> None:
    config, embeddings, encoder = backbone(**changes)
    encoder.eval()
    encoded = encode(learnable(6, 0), tokenizer, 32)
    batch = encoded.batch(np.arange(6), CPU)
    with torch.no_grad():
        x_BLE = embeddings.eval()(batch["ids"], batch["positions"], batch["types"])
        expected = encoder(x_BLE, batch["fragment"])[:, 0]
        first = encoder(x_BLE, batch["fragment"], first=True)[:, 0]
    torch.testing.assert_close(first, expected, atol=2e-6, rtol=1e-5)
    assert expected.shape == (6, config.hidden_size)


def test_learning_rate_against_a_table_by_hand() -> None:
    protocol = Protocol(learning_rate=1.0, warmup_fraction=0.2)
    table = [1 / 2, 1, 8 / 8, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]
    assert [learning_rate(step, 10, protocol) for step in range(10)] == pytest.approx(table)
    without = Protocol(learning_rate=1.0, warmup_fraction=0.0)
    assert [learning_rate(step, 4, without) for step in range(4)] == [1, 3 / 4, 2 / 4, 1 / 4]


# --- what it learns ---------------------------------------------------------------------------------------------------


def test_a_learnable_task_is_learned(tokenizer: Tokenizer) -> None:
    tuned = run(tokenizer, data_of(learnable(800, 0), learnable(200, 1)))
    assert tuned.metrics["accuracy"] > 0.9
    assert not tuned.degenerate
    assert (tuned.n_train, tuned.n_dev, tuned.majority) == (800, 200, 0.5)
    assert tuned.label.tolist() == [0, 1] * 100
    assert tuned.metrics["accuracy"] == np.mean(tuned.prediction == tuned.label)
    assert np.array_equal(tuned.scores.argmax(axis=1), tuned.prediction)


@pytest.mark.parametrize(("offset", "share"), [(False, 1.0), (True, 0.5)])
def test_layers_learn_at_their_own_rates(tokenizer: Tokenizer, offset: bool, share: float) -> None:
    """One step: AdamW's first update is the rate times the gradient's sign, so the largest change is the rate itself.
    Two layers, decay .5: top .5, first .25, embeddings and projection .125; once more with the reference's offset."""
    protocol = Protocol(
        learning_rate=1e-2, epochs=1, batch_size=40, max_length=32, warmup_fraction=0.0, weight_decay=0.0,
        layer_decay=0.5, layer_decay_offset=offset,
    )  # fmt: skip
    body = backbone()
    parts = {"embeddings": body[1], "project": body[2].project, "first": body[2].layers[0], "top": body[2].layers[1]}
    before = {part: [p.detach().clone() for p in module.parameters()] for part, module in parts.items()}
    run(tokenizer, data_of(learnable(40, 0), learnable(20, 1)), protocol, body=body)
    for part, expected in {"embeddings": 0.125, "project": 0.125, "first": 0.25, "top": 0.5}.items():
        moved = max(
            float((p.detach() - q).abs().max()) for p, q in zip(parts[part].parameters(), before[part], strict=True)
        )
        assert moved == pytest.approx(1e-2 * expected * share, rel=1e-2), part


def test_random_labels_stay_at_chance(tokenizer: Tokenizer) -> None:
    tuned = run(tokenizer, data_of(random_labels(800, 0), random_labels(400, 7)))
    assert abs(tuned.metrics["accuracy"] - 0.5) < 3 * 0.5 / np.sqrt(400)


def test_the_same_seed_twice_is_identical_and_another_is_not(tokenizer: Tokenizer) -> None:
    data = data_of(learnable(120, 0), learnable(60, 1))
    first, second, other = run(tokenizer, data), run(tokenizer, data), run(tokenizer, data, seed=1)
    assert np.array_equal(first.scores, second.scores)
    assert not np.array_equal(first.scores, other.scores)


def test_the_callers_random_numbers_are_left_alone(tokenizer: Tokenizer) -> None:
    body = backbone()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run(tokenizer, data_of(learnable(64, 0), learnable(20, 1)), body=body)
    assert torch.equal(torch.rand(3), expected)


def test_one_predicted_class_is_degenerate(tokenizer: Tokenizer) -> None:
    only_ones = [Example(example.text_a, None, 1) for example in learnable(200, 0)]
    tuned = run(tokenizer, data_of(only_ones, learnable(60, 1)))
    assert tuned.degenerate
    assert set(tuned.prediction.tolist()) == {1}
    assert tuned.metrics["accuracy"] == 0.5


def test_a_loss_that_is_not_finite_ends_the_training_and_is_degenerate(tokenizer: Tokenizer) -> None:
    tuned = run(tokenizer, data_of(learnable(200, 0), learnable(60, 1)), Protocol(learning_rate=1e30, max_length=32))
    assert tuned.degenerate
    assert np.isfinite(tuned.metrics["accuracy"])


def test_at_most_max_train_examples_are_used(tokenizer: Tokenizer) -> None:
    limited = PROTOCOL.model_copy(update={"max_train_examples": 40, "learning_rate": 1e-12})
    data = data_of(learnable(200, 0), learnable(20, 1))
    assert run(tokenizer, data, limited).n_train == 40
    whole = limited.model_copy(update={"max_train_examples": 500})
    assert run(tokenizer, data, whole).n_train == 200


def test_more_tokens_than_positions_is_a_configuration_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match=r"max_length 128 is longer than model\.max_positions 64"):
        run(tokenizer, data_of(learnable(40, 0), learnable(20, 1)), Protocol())


# --- the protocol -----------------------------------------------------------------------------------------------------


def test_every_number_of_a_protocol_changes_its_fingerprint() -> None:
    changes: dict[str, object] = {
        "learning_rate": 2e-3, "epochs": 7, "batch_size": 32, "max_length": 64, "max_train_examples": 10,
        "warmup_fraction": 0.2, "weight_decay": 0.0, "grad_clip": 2.0, "dropout": 0.0, "head_init": 0.1,
        "layer_decay": 0.9, "layer_decay_offset": True,
    }  # fmt: skip
    assert set(changes) | {"name"} == set(Protocol.model_fields)
    prints = {Protocol.model_validate({name: value}).fingerprint() for name, value in changes.items()}
    assert len(prints | {Protocol().fingerprint()}) == len(changes) + 1


def test_an_unknown_task_and_a_folder_without_its_suite_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"no task is called 'CoLa'; there are sentence_order, .*CoLA"):
        EvaluationConfig.model_validate({"tasks": ["CoLa"]})
    with pytest.raises(ValidationError, match="set suite to 'glue'"):
        EvaluationConfig(glue_dir=Path("glue"))
    assert EvaluationConfig(suite="glue", glue_dir=Path("glue"), tasks=["CoLA"]).tasks == ["CoLA"]
