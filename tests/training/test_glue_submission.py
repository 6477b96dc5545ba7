"""The zip for the GLUE server: its members, header, order and label names; and what it is never written without."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from data_prep.errors import DataError
from training.glue_submission import SIZES, task_of, write_submission
from training.tasks import Labels

Answers = dict[str, tuple[list[str], Labels]]


def answers() -> Answers:
    """The same few classes over and over; of STS-B values that leave the scale."""
    made: Answers = {}
    for name, size in SIZES.items():
        classes = len(task_of(name).labels)
        values = np.array([-0.2, 5.3, 2.0, 3.14159]) if not classes else np.arange(classes)
        made[name] = ([str(i) for i in range(size)], np.resize(values, size))
    return made


def rows(path: Path, name: str) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return archive.read(f"{name}.tsv").decode().splitlines()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("submission") / "new" / "submission.zip"
    write_submission(path, answers())
    return path


def test_every_file_has_the_servers_form(written: Path) -> None:
    path = written
    with zipfile.ZipFile(path) as archive:
        assert sorted(archive.namelist()) == sorted(f"{name}.tsv" for name in SIZES)
    for name, size in SIZES.items():
        header, *found = rows(path, name)
        assert header == "index\tprediction"
        assert [line.split("\t")[0] for line in found] == [str(i) for i in range(size)]
    words = {name: [line.split("\t")[1] for line in rows(path, name)[1:5]] for name in SIZES}
    assert words == {
        **{name: ["0", "1", "0", "1"] for name in ("CoLA", "SST-2", "MRPC", "QQP", "WNLI")},
        **{name: ["not_entailment", "entailment"] * 2 for name in ("QNLI", "RTE")},
        **{name: ["contradiction", "entailment", "neutral", "contradiction"] for name in ("MNLI-m", "MNLI-mm", "AX")},
        "STS-B": ["0.000", "5.000", "2.000", "3.142"],
    }


def test_the_same_answers_give_the_same_bytes(written: Path, tmp_path: Path) -> None:
    write_submission(tmp_path / "b.zip", dict(reversed(answers().items())))
    assert (tmp_path / "b.zip").read_bytes() == written.read_bytes()


def test_the_diagnostic_set_may_be_left_out_and_nothing_else(tmp_path: Path) -> None:
    made = answers()
    del made["AX"]
    write_submission(tmp_path / "x.zip", made)
    with zipfile.ZipFile(tmp_path / "x.zip") as archive:
        assert len(archive.namelist()) == 10
    del made["RTE"], made["MNLI-mm"]
    with pytest.raises(DataError, match="lacks MNLI-mm, RTE: predict those test sets too"):
        write_submission(tmp_path / "y.zip", made)
    assert not (tmp_path / "y.zip").exists()


def test_part_of_a_test_set_is_no_submission(tmp_path: Path) -> None:
    made = answers()
    made["WNLI"] = (made["WNLI"][0][:140], made["WNLI"][1][:140])
    with pytest.raises(
        DataError, match="the test set of WNLI has 140 examples and the official one 146: a submission needs"
    ):
        write_submission(tmp_path / "x.zip", made)
    assert list(tmp_path.iterdir()) == []
