"""Task data and its file; metrics against their formulas written plainly; the mean against the paper's table."""

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from data_prep.errors import DataError
from training.glue import TASKS
from training.tasks import METRICS, Example, Task, TaskData, load_task, score, suite_mean

# --- metrics ----------------------------------------------------------------------------------------------------------


def test_metrics_equal_hand_arithmetic() -> None:
    # 2 true positives, 1 false positive, 1 false negative, 4 true negatives
    label = np.array([1, 1, 1, 0, 0, 0, 0, 0])
    prediction = np.array([1, 1, 0, 1, 0, 0, 0, 0])
    assert METRICS["accuracy"](label, prediction) == 6 / 8
    assert METRICS["f1"](label, prediction) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert METRICS["matthews"](label, prediction) == pytest.approx((2 * 4 - 1 * 1) / math.sqrt(3 * 3 * 5 * 5))
    # ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: deviations −1.5, 0, 0, 1.5 and −1.5, −.5, .5, 1.5
    values, guesses = np.array([0.0, 2.0, 2.0, 5.0]), np.array([1.0, 2.0, 3.0, 40.0])
    assert METRICS["spearman"](values, guesses) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    # deviations −2.25, −.25, −.25, 2.75 and −10.5, −9.5, −8.5, 28.5
    expected = (2.25 * 10.5 + 0.25 * 9.5 + 0.25 * 8.5 + 2.75 * 28.5) / math.sqrt(12.75 * 1085)
    assert METRICS["pearson"](values, guesses) == pytest.approx(expected)


def _counts(label: list[int], prediction: list[int]) -> tuple[int, int, int, int]:
    pairs = list(zip(label, prediction, strict=True))
    return pairs.count((1, 1)), pairs.count((0, 1)), pairs.count((1, 0)), pairs.count((0, 0))


def _plain_f1(label: list[int], prediction: list[int]) -> float:
    tp, fp, fn, _ = _counts(label, prediction)
    return float(Fraction(2 * tp, 2 * tp + fp + fn)) if tp + fp + fn else 0.0


def _plain_matthews(label: list[int], prediction: list[int]) -> float:
    tp, fp, fn, tn = _counts(label, prediction)
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return (tp * tn - fp * fn) / math.sqrt(product) if product else 0.0


def _plain_pearson(x: list[float], y: list[float]) -> float:
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    both = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return both / math.sqrt(math.fsum((a - mean_x) ** 2 for a in x) * math.fsum((b - mean_y) ** 2 for b in y))


def _plain_spearman(x: list[float], y: list[float]) -> float:
    def ranks(values: list[float]) -> list[float]:
        return [sum(v < u for v in values) + (sum(v == u for v in values) + 1) / 2 for u in values]

    return _plain_pearson(ranks(x), ranks(y))


@pytest.mark.parametrize("seed", range(5))
def test_metrics_equal_their_formulas_on_random_predictions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    label, prediction = rng.integers(0, 2, 97), rng.integers(0, 2, 97)
    values, guesses = rng.integers(0, 26, 97) / 5, rng.normal(2, 1, 97).round(1)  # ties on both sides
    of_classes: dict[str, Callable[..., float]] = {"f1": _plain_f1, "matthews": _plain_matthews}
    of_values: dict[str, Callable[..., float]] = {"pearson": _plain_pearson, "spearman": _plain_spearman}
    for name, plain in of_classes.items():
        assert METRICS[name](label, prediction) == pytest.approx(plain(label.tolist(), prediction.tolist()), abs=1e-12)
    for name, plain in of_values.items():
        assert METRICS[name](values, guesses) == pytest.approx(plain(values.tolist(), guesses.tolist()), abs=1e-12)


def test_what_is_undefined_is_nought() -> None:
    label = np.array([1, 1, 0, 0])
    ones, zeros = np.ones(4, dtype=np.int64), np.zeros(4, dtype=np.int64)
    assert METRICS["matthews"](label, ones) == 0.0
    assert METRICS["f1"](label, zeros) == 0.0
    assert METRICS["f1"](label, ones) == pytest.approx(2 / 3)
    for name in ("pearson", "spearman"):
        assert METRICS[name](np.array([1.0, 2.0, 3.0]), np.full(3, 2.5)) == 0.0
        assert METRICS[name](np.full(3, 2.5), np.array([1.0, 2.0, 3.0])) == 0.0


def test_a_task_of_glue_has_its_official_metrics_and_the_papers_one_first() -> None:
    assert {name: task.metrics for name, task in TASKS.items()} == {
        "CoLA": ("matthews", "accuracy"),
        "SST-2": ("accuracy",),
        "MRPC": ("accuracy", "f1"),
        "STS-B": ("spearman", "pearson"),
        "QQP": ("accuracy", "f1"),
        "MNLI": ("accuracy",),
        "QNLI": ("accuracy",),
        "RTE": ("accuracy",),
        "WNLI": ("accuracy",),
    }
    assert [name for name, task in TASKS.items() if not task.in_mean] == ["WNLI"]
    assert {name: task.largest for name, task in TASKS.items() if task.largest} == {"STS-B": 5.0}
    values = score(TASKS["MRPC"], np.array([1, 1, 0]), np.array([1, 0, 0]))
    assert values == {"accuracy": pytest.approx(2 / 3), "f1": pytest.approx(2 / 3)}


def test_the_two_sides_of_mnli_are_results_of_their_own_and_one_is_in_the_mean() -> None:
    sides = TASKS["MNLI"].sides()
    assert [(side.name, side.in_mean, side.metrics) for side in sides] == [
        ("MNLI", True, ("accuracy",)),
        ("MNLI-mm", False, ("accuracy",)),
    ]
    assert [side.name for side in TASKS["RTE"].sides()] == ["RTE"]


# Clark et al. 2020, table 2: CoLA SST MRPC STS QQP MNLI QNLI RTE, average
@pytest.mark.parametrize(
    ("row", "average"),
    [
        ((60.6, 93.2, 88.0, 90.0, 91.3, 86.6, 92.3, 70.4), 84.0),  # BERT
        ((66.1, 95.6, 91.4, 92.2, 92.0, 89.3, 94.0, 82.7), 87.9),  # RoBERTa-100K
        ((67.0, 95.9, 89.1, 91.2, 91.5, 89.6, 93.5, 79.5), 87.2),  # BERT (theirs)
        ((69.3, 96.0, 90.6, 92.1, 92.4, 90.5, 94.5, 86.8), 89.0),  # ELECTRA-400K
        ((69.1, 96.9, 90.8, 92.6, 92.4, 90.9, 95.0, 88.0), 89.5),  # ELECTRA-1.75M
    ],
)
def test_the_mean_is_the_papers(row: tuple[float, ...], average: float) -> None:
    names = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE")
    scores = dict(zip(names, row, strict=True))
    outside = {"WNLI": 0.0, "MNLI-mm": 0.0}
    found = suite_mean(list(TASKS.values()), scores | outside)
    assert found is not None
    assert round(found, 1) == average
    assert suite_mean(list(TASKS.values()), {name: scores[name] for name in names[1:]}) is None


# --- task data --------------------------------------------------------------------------------------------------------


def test_task_data_comes_back_as_it_was_written(tmp_path: Path) -> None:
    awkward = [Example('tab\tquote" \u2028 line\nbreak', None, 0), Example("a", "é \\", 1)]
    grouped = [Example("a", None, 0, 2**62), Example("b", None, 1, 2**62), Example("c", None, 1, 5)]
    documents = TaskData(suite="probes", task="t", classes=("no", "yes"), train=awkward, dev=grouped)
    documents.save(tmp_path / "documents.jsonl")
    assert load_task(tmp_path / "documents.jsonl").groups("t").tolist() == [2**62, 2**62, 5]
    data = TaskData(
        suite="glue", task="RTE", classes=("no", "yes"), train=awkward, dev=awkward[::-1], subset=True,
        also={"RTE-2": grouped}, skipped=("train.tsv:7",),
    )  # fmt: skip
    assert data.groups("RTE").tolist() == [0, 1]  # each its own
    data.save(tmp_path / "x.jsonl")
    assert load_task(tmp_path / "x.jsonl") == data
    assert load_task(tmp_path / "x.jsonl").sha256() == data.sha256()


def test_every_part_of_the_data_is_in_its_hash() -> None:
    one, two = [Example("a", None, 0)], [Example("b", None, 1)]

    def made(train: list[Example] = one, dev: list[Example] = two, **more: object) -> str:
        facts: dict[str, object] = {"suite": "glue", "task": "t", "classes": ("no", "yes"), **more}
        return TaskData(train=train, dev=dev, **facts).sha256()  # type: ignore[arg-type]

    changed = [
        made(), made(train=two), made(dev=one), made(subset=True), made(also={"t-2": one}), made(also={"t-2": two}),
        made(skipped=("train.tsv:2",)), made(classes=("yes", "no")), made(train=one + two, dev=[]),
    ]  # fmt: skip
    assert len(set(changed)) == len(changed)


def test_values_stay_numbers_and_have_no_majority(tmp_path: Path) -> None:
    task = Task(suite="glue", name="STS-B", metrics=("spearman",), largest=5.0)
    data = TaskData(
        suite="glue", task=task.name, classes=(), train=[Example("a", "b", 5.0)], dev=[Example("c", "d", 3.8)]
    )
    data.save(tmp_path / "x.jsonl")
    found = load_task(tmp_path / "x.jsonl")
    assert found == data
    assert all(isinstance(example.label, float) for example in [*found.train, *found.dev])
    assert data.majority("STS-B") == 0.0


@pytest.mark.parametrize("content", ["{}\n", "", '{"suite": "glue"', '{"also": []}\n["nowhere", "a", null, 0]\n'])
def test_a_file_that_is_no_task_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(DataError, match=r"x\.jsonl is not a readable task file"):
        load_task(tmp_path / "x.jsonl")
