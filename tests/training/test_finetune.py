"""Fine-tuning: what the network is fed, what it can and cannot learn, and that a seed decides everything."""

import itertools
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch

from data_prep import tokenizer as tokenizers
from data_prep.errors import ConfigError
from data_prep.tokenizer import Tokenizer
from training.encoder import Embeddings, Encoder
from training.finetune import Answered, Backbone, Classifier, FineTuned, finetune, predictions
from training.protocol import Protocol
from training.settings import Compute
from training.sizes import EncoderConfig
from training.tasks import Example, Task, TaskData, Unlabelled
from training.text_batches import ascending, bucketed, encode, truncated

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


def answers(
    tokenizer: Tokenizer, data: TaskData, protocol: Protocol = PROTOCOL, seed: int = 0, body: Backbone | None = None
) -> Answered:
    (dev,) = run(tokenizer, data, protocol, seed, body).sides
    return dev


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


def test_the_head_is_one_linear_layer_on_the_first_position(tokenizer: Tokenizer) -> None:
    """The paper's: no dense layer and no GELU between (transformers' ElectraClassificationHead has both)."""
    body = backbone()
    torch.manual_seed(0)
    model = Classifier(body, 3, Protocol()).eval()
    bodies = {id(parameter) for module in body[1:] for parameter in module.parameters()}
    own = {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in bodies}
    assert {name: tuple(parameter.shape) for name, parameter in own.items()} == {
        "head.weight": (3, 32),
        "head.bias": (3,),
    }
    batch = encode(learnable(6, 0), tokenizer, 32).batch(np.arange(6), CPU)
    with torch.no_grad():
        h_BLD = body[2](body[1](batch["ids"], batch["positions"], batch["types"]), batch["fragment"])
        expected = h_BLD[:, 0].double() @ own["head.weight"].double().T + own["head.bias"].double()
        torch.testing.assert_close(model(batch).double(), expected, atol=1e-6, rtol=1e-4)
        trained = model.train()(batch)
    assert not torch.allclose(trained.double(), expected, atol=1e-4)  # dropout


def test_ascending_batches_hold_every_index_once_within_their_tokens() -> None:
    lengths = np.random.default_rng(0).integers(3, 100, 203)
    batches = list(ascending(lengths, 400))
    assert np.concatenate(batches).tolist() == np.argsort(lengths, kind="stable").tolist()
    sizes = [len(batch) * int(lengths[batch].max()) for batch in batches]
    assert max(sizes) <= 400
    # none could have taken the next one's first example too
    following = itertools.pairwise(batches)
    assert all((len(batch) + 1) * lengths[after[0]] > 400 for batch, after in following)
    assert [batch.tolist() for batch in ascending(np.array([500, 600]), 400)] == [[0], [1]]


# --- what it learns ---------------------------------------------------------------------------------------------------


def test_a_learnable_task_is_learned(tokenizer: Tokenizer) -> None:
    tuned = answers(tokenizer, data_of(learnable(800, 0), learnable(200, 1)))
    assert tuned.metrics["accuracy"] > 0.9
    assert not tuned.degenerate
    assert (len(tuned.label), tuned.majority) == (200, 0.5)
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
    project = body[2].project
    assert project is not None
    parts = {"embeddings": body[1], "project": project, "first": body[2].layers[0], "top": body[2].layers[1]}
    before = {part: [p.detach().clone() for p in module.parameters()] for part, module in parts.items()}
    run(tokenizer, data_of(learnable(40, 0), learnable(20, 1)), protocol, body=body)
    for part, expected in {"embeddings": 0.125, "project": 0.125, "first": 0.25, "top": 0.5}.items():
        moved = max(
            float((p.detach() - q).abs().max()) for p, q in zip(parts[part].parameters(), before[part], strict=True)
        )
        assert moved == pytest.approx(1e-2 * expected * share, rel=1e-2), part


def test_random_labels_stay_at_chance(tokenizer: Tokenizer) -> None:
    tuned = answers(tokenizer, data_of(random_labels(800, 0), random_labels(400, 7)))
    assert abs(tuned.metrics["accuracy"] - 0.5) < 3 * 0.5 / np.sqrt(400)


def test_the_same_seed_twice_is_identical_and_another_is_not(tokenizer: Tokenizer) -> None:
    data = data_of(learnable(120, 0), learnable(60, 1))
    first, second, other = answers(tokenizer, data), answers(tokenizer, data), answers(tokenizer, data, seed=1)
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
    tuned = answers(tokenizer, data_of(only_ones, learnable(60, 1)))
    assert tuned.degenerate
    assert set(tuned.prediction.tolist()) == {1}
    assert tuned.metrics["accuracy"] == 0.5


def test_a_loss_that_is_not_finite_ends_the_training_and_is_degenerate(tokenizer: Tokenizer) -> None:
    tuned = answers(
        tokenizer, data_of(learnable(200, 0), learnable(60, 1)), Protocol(learning_rate=1e30, max_length=32)
    )
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


# --- values -----------------------------------------------------------------------------------------------------------

VALUES = Task(suite="glue", name="STS-B", metrics=("spearman", "pearson"), largest=5.0)


def valued(count: int, seed: int) -> list[Example]:
    """Pairs worth 4.5 exactly when the first text holds one word, else .5."""
    return [Example(e.text_a, WORDS[2], 0.5 + 4.0 * e.label) for e in learnable(count, seed)]


def values_of(train: list[Example], dev: list[Example]) -> TaskData:
    return TaskData(suite="glue", task="STS-B", classes=(), train=train, dev=dev)


def test_values_are_learned_on_their_own_scale(tokenizer: Tokenizer) -> None:
    data, protocol = values_of(valued(800, 0), valued(200, 1)), PROTOCOL.model_copy(update={"learning_rate": 4e-3})
    tuned = finetune(backbone(), data, task=VALUES, tokenizer=tokenizer, protocol=protocol, seed=0, device=CPU)
    (dev,) = tuned.sides
    assert list(dev.metrics) == ["spearman", "pearson"]
    assert dev.metrics["pearson"] > 0.9
    assert dev.scores.shape == (200, 1) and dev.label.dtype == np.float64
    assert float(np.abs(dev.prediction - dev.label).mean()) < 0.5  # of a constant, at best 2
    assert not dev.degenerate


def test_the_loss_of_a_value_is_the_squared_error_of_its_share_of_the_largest(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a head that gives 0: (label / 5)², example by example."""
    import training.finetune as module

    seen: list[list[float]] = []

    def watched(_: Any, batches: Any, losses_of: Callable[..., torch.Tensor], **rest: Any) -> bool:
        seen.extend(sorted(losses_of(batch).tolist()) for batch in batches)
        return True

    monkeypatch.setattr(module, "fit", watched)
    protocol = Protocol(epochs=1, batch_size=4, max_length=32, head_init=1e-12)
    train = [Example("wordab", "wordac", value) for value in (0.0, 2.0, 3.5, 5.0)]
    data = values_of(train, train)
    finetune(backbone(), data, task=VALUES, tokenizer=tokenizer, protocol=protocol, seed=0, device=CPU)
    assert seen == [pytest.approx([0.0, 0.4**2, 0.7**2, 1.0], abs=1e-6)]


def test_values_that_are_all_alike_are_degenerate(tokenizer: Tokenizer) -> None:
    protocol = PROTOCOL.model_copy(update={"learning_rate": 1e-12, "head_init": 1e-12})
    data = values_of(valued(40, 0), valued(20, 1))
    (dev,) = finetune(backbone(), data, task=VALUES, tokenizer=tokenizer, protocol=protocol, seed=0, device=CPU).sides
    assert dev.degenerate
    assert np.ptp(dev.prediction) < 1e-9


def test_what_is_no_number_is_some_answer() -> None:
    nan = np.float32(np.nan)
    assert predictions(np.array([[nan, 1.0], [nan, nan], [0.0, 1.0]], dtype=np.float32), TASK).tolist() == [1, 0, 1]
    values = np.array([[nan], [np.inf], [2.5]], dtype=np.float32)
    assert predictions(values, VALUES).tolist() == [0.0, 0.0, 2.5]


# --- sides, test sets, both orders ------------------------------------------------------------------------------------

MNLI = Task(suite="glue", name="MNLI", metrics=("accuracy",), also=("MNLI-mm",))


def test_one_fine_tuning_answers_every_side_and_test_set(tokenizer: Tokenizer) -> None:
    first, second = learnable(200, 1), [Example(e.text_a, None, 1 - int(e.label)) for e in learnable(100, 1)]
    data = TaskData(
        suite="glue", task="MNLI", classes=("no", "yes"), train=learnable(800, 0), dev=first, also={"MNLI-mm": second}
    )
    test = Unlabelled("MNLI-m", tuple(map(str, range(200))), first)
    tuned = finetune(
        backbone(), data, task=MNLI, tokenizer=tokenizer, protocol=PROTOCOL, seed=0, device=CPU, tests=[test]
    )
    matched, mismatched = tuned.sides
    assert [(side.task.name, side.task.in_mean) for side in tuned.sides] == [("MNLI", True), ("MNLI-mm", False)]
    assert matched.metrics["accuracy"] > 0.9
    # the other side holds the first hundred texts with the opposite labels
    assert np.array_equal(mismatched.prediction, matched.prediction[:100])
    assert mismatched.metrics["accuracy"] == pytest.approx((matched.prediction[:100] != matched.label[:100]).mean())
    assert np.array_equal(tuned.tests["MNLI-m"], matched.prediction)


def test_both_orders_are_trained_on_where_the_protocol_says_so(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import training.finetune as module

    seen: list[list[Example]] = []

    def watched(examples: list[Example], *rest: Any) -> Any:
        seen.append(list(examples))
        return encode(examples, *rest)

    monkeypatch.setattr(module, "encode", watched)
    train = [Example("wordaa", "wordab", 1, 7), Example("wordac", "wordad", 0)]
    data = TaskData(suite="glue", task="MRPC", classes=("no", "yes"), train=train, dev=train)
    task = Task(suite="glue", name="MRPC", metrics=("accuracy",))
    protocol = Protocol(epochs=1, max_length=32, doubled=("MRPC",))
    tuned = finetune(backbone(), data, task=task, tokenizer=tokenizer, protocol=protocol, seed=0, device=CPU)
    assert seen[0] == [*train, Example("wordab", "wordaa", 1, 7), Example("wordad", "wordac", 0)]
    assert seen[1] == train  # dev as it is
    assert tuned.n_train == 2
    other = Task(suite="glue", name="RTE", metrics=("accuracy",))
    same = TaskData(suite="glue", task="RTE", classes=("no", "yes"), train=train, dev=train)
    finetune(backbone(), same, task=other, tokenizer=tokenizer, protocol=protocol, seed=0, device=CPU)
    assert seen[2] == train


def test_the_papers_protocol_trains_on_a_value_task(tokenizer: Tokenizer) -> None:
    """Every piece of it at once: summed loss, its Adam, its schedule, Glorot's head, both orders, ten epochs."""
    protocol = Protocol.model_validate({"name": "electra_paper", "size": "small"}).model_copy(
        update={"max_length": 32, "learning_rate": 2e-3, "layer_decay": 1.0}
    )
    data = values_of(valued(180, 0), valued(100, 1))
    (dev,) = finetune(backbone(), data, task=VALUES, tokenizer=tokenizer, protocol=protocol, seed=0, device=CPU).sides
    assert dev.metrics["pearson"] > 0.9
    assert float(np.abs(dev.prediction - dev.label).mean()) < 0.5
    assert not dev.degenerate
