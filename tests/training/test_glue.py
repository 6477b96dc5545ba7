"""GLUE readers on small files with awkward rows and on the real files; metrics against hand arithmetic."""

import math
import os
from pathlib import Path

import numpy as np
import pytest

from data_prep.errors import DataError
from training.glue import GLUE, TASKS, load_glue
from training.tasks import METRICS, Example, TaskData, load_task, score

COLA = 'gj04\t1\t\tThe sailors rode the breeze.\ngj04\t0\t*\tThem "ran.\n'
RTE = "index\tsentence1\tsentence2\tlabel\n0\tA man.\tA person.\tentailment\n1\tA cat.\tA dog.\tnot_entailment\n"


def write(folder: Path, name: str, text: str, encoding: str = "utf-8") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(text.encode(encoding))
    return folder / name


def test_cola_has_no_header_and_keeps_its_quotes(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        write(tmp_path / "CoLA", f"{split}.tsv", COLA)
    data = load_glue(tmp_path, "CoLA")
    assert data.train == [Example("The sailors rode the breeze.", None, 1), Example('Them "ran.', None, 0)]
    assert not data.subset


def test_quotes_empty_ids_byte_order_mark_and_crlf_are_read_as_the_format_says(tmp_path: Path) -> None:
    rows = 'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t\t\t"He left.\tHe said "no".\r\n0\t7\t\tOne.\tTwo.\r\n'
    write(tmp_path / "MRPC", "train.tsv", rows, "utf-8-sig")
    write(tmp_path / "MRPC", "dev.tsv", rows)
    expected = [Example('"He left.', 'He said "no".', 1), Example("One.", "Two.", 0)]
    data = load_glue(tmp_path, "MRPC")
    assert data.train == expected
    assert data.dev == expected


@pytest.mark.parametrize("subset_side", ["train", "dev"])
def test_a_subset_file_on_either_side_is_read_and_named_as_one(tmp_path: Path, subset_side: str) -> None:
    for split in ("train", "dev"):
        write(tmp_path / "RTE", f"{split}.subset.tsv" if split == subset_side else f"{split}.tsv", RTE)
    data = load_glue(tmp_path, "RTE")
    assert data.subset
    assert [example.label for example in data.dev] == [1, 0]  # class 1 is entailment


def test_a_whole_file_is_preferred_to_a_subset(tmp_path: Path) -> None:
    write(tmp_path / "RTE", "train.tsv", RTE)
    write(tmp_path / "RTE", "dev.tsv", RTE)
    write(tmp_path / "RTE", "dev.subset.tsv", RTE[: RTE.rindex("1\tA cat")])
    data = load_glue(tmp_path, "RTE")
    assert len(data.dev) == 2
    assert not data.subset


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\n", r"dev\.tsv:2: 3 columns where 4"),
        ("index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tmaybe\n", r"dev\.tsv:2: label 'maybe'"),
        ("index\tpremise\thypothesis\tlabel\n0\tA.\tB.\tentailment\n", r"dev\.tsv:1: the header has no column"),
        ("index\tsentence1\tsentence2\tlabel\n", r"dev\.tsv holds no examples"),
        ("", r"dev\.tsv:1: the header has no column"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    write(tmp_path / "RTE", "train.tsv", RTE)
    write(tmp_path / "RTE", "dev.tsv", content)
    with pytest.raises(DataError, match=message):
        load_glue(tmp_path, "RTE")


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    write(tmp_path / "CoLA", "train.tsv", COLA)
    write(tmp_path / "CoLA", "dev.tsv", "gj04\t1\t\tcaf\u00e9.\n", "latin-1")
    with pytest.raises(DataError, match=r"dev\.tsv is not unquoted UTF-8"):
        load_glue(tmp_path, "CoLA")


def test_a_missing_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="CoLA is not a folder"):
        load_glue(tmp_path, "CoLA")
    write(tmp_path / "CoLA", "train.tsv", COLA)
    with pytest.raises(DataError, match=r"neither dev\.tsv nor dev\.subset\.tsv"):
        load_glue(tmp_path, "CoLA")


REAL = os.environ.get("ELECTRA_TEST_DATA") or None  # set but empty: the Makefile found no such folder


@pytest.mark.skipif(REAL is None, reason="ELECTRA_TEST_DATA names no folder with the real GLUE files (glue/CoLA, …)")
@pytest.mark.parametrize(
    ("name", "train", "dev", "positive"),
    # official sizes; positives of dev: 721 acceptable, 279 equivalent, 146 entailed
    [("CoLA", 8551, 1043, 721), ("MRPC", 3668, 408, 279), ("RTE", 2490, 277, 146)],
)
def test_the_real_files_have_their_official_sizes(name: str, train: int, dev: int, positive: int) -> None:
    data = load_glue(Path(str(REAL)) / "glue", name)
    assert (len(data.train), len(data.dev)) == (train, dev)
    assert sum(example.label for example in data.dev) == positive
    assert data.majority == max(positive, dev - positive) / dev


def test_metrics_equal_hand_arithmetic() -> None:
    # 2 true positives, 1 false positive, 1 false negative, 4 true negatives
    label = np.array([1, 1, 1, 0, 0, 0, 0, 0])
    prediction = np.array([1, 1, 0, 1, 0, 0, 0, 0])
    assert METRICS["accuracy"](label, prediction) == 6 / 8
    assert METRICS["f1"](label, prediction) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert METRICS["matthews"](label, prediction) == pytest.approx((2 * 4 - 1 * 1) / math.sqrt(3 * 3 * 5 * 5))


def test_metrics_of_one_class_predicted() -> None:
    label = np.array([1, 1, 0, 0])
    ones, zeros = np.ones(4, dtype=np.int64), np.zeros(4, dtype=np.int64)
    assert METRICS["matthews"](label, ones) == 0.0
    assert METRICS["f1"](label, zeros) == 0.0
    assert METRICS["f1"](label, ones) == pytest.approx(2 / 3)


def test_the_score_of_a_task_is_the_metric_the_paper_averages() -> None:
    assert {name: task.metrics[0] for name, task in TASKS.items()} == {
        "CoLA": "matthews",
        "MRPC": "accuracy",
        "RTE": "accuracy",
    }
    assert all(task.in_mean and task.suite == "glue" for task in TASKS.values())
    values = score(GLUE["MRPC"].task, np.array([1, 1, 0]), np.array([1, 0, 0]))
    assert values == {"accuracy": pytest.approx(2 / 3), "f1": pytest.approx(2 / 3)}


def test_task_data_comes_back_as_it_was_written(tmp_path: Path) -> None:
    awkward = [Example('tab\tquote" \u2028 line\nbreak', None, 0), Example("a", "é \\", 1)]
    grouped = [Example("a", None, 0, 2**62), Example("b", None, 1, 2**62), Example("c", None, 1, 5)]
    documents = TaskData(suite="probes", task="t", classes=("no", "yes"), train=awkward, dev=grouped)
    documents.save(tmp_path / "documents.jsonl")
    assert load_task(tmp_path / "documents.jsonl").dev_groups.tolist() == [2**62, 2**62, 5]
    data = TaskData(suite="glue", task="RTE", classes=("no", "yes"), train=awkward, dev=awkward[::-1], subset=True)
    assert data.dev_groups.tolist() == [0, 1]  # each its own
    data.save(tmp_path / "x.jsonl")
    assert load_task(tmp_path / "x.jsonl") == data
    assert load_task(tmp_path / "x.jsonl").sha256() == data.sha256()
    other = TaskData(suite="glue", task="RTE", classes=("no", "yes"), train=awkward, dev=awkward, subset=True)
    assert other.sha256() != data.sha256()
    (tmp_path / "x.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"x\.jsonl is not a readable task file"):
        load_task(tmp_path / "x.jsonl")
