"""SQuAD's reader: what it takes, what it refuses and in which words, and the sizes of the real files."""

import json
from pathlib import Path
from typing import Any

import pytest

from data_prep.errors import DataError
from tests.training.squad_cases import document, entry, needs_real, squad_folder, toy_data
from training.squad import TASKS, Gold, Paragraph, Question, Version, load_span_data, load_squad, read_squad

TEXT = "Gold is café-yellow.\r\n金 is gold 😀"


def written(folder: Path, content: str, name: str = "dev-v2.0.json", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(content.encode(encoding))
    return path


def test_offsets_are_characters_and_text_is_left_alone(tmp_path: Path) -> None:
    """At both edges of a text, behind CRLF, and of one character outside the basic plane."""
    answers = ("Gold", 0), ("café-yellow", 8), ("金", 22), ("😀", 32)
    path = written(tmp_path, document(TEXT, entry("a", *answers, is_impossible=False)))
    assert len(TEXT) == 33
    (found,) = read_squad(path, "2.0")
    assert found == Paragraph("Ore", TEXT, (Question("a", "Which?", tuple(Gold(*a) for a in answers)),))


def test_an_impossible_question_has_no_answers_and_its_plausible_ones_are_not_read(tmp_path: Path) -> None:
    raw = entry("a", is_impossible=True, plausible_answers=[{"text": "nowhere", "answer_start": 999}])
    (found,) = read_squad(written(tmp_path, document(TEXT, raw)), "2.0")
    assert found.questions == (Question("a", "Which?", ()),)
    assert found.questions[0].impossible


def test_a_byte_order_mark_and_a_missing_version_are_read(tmp_path: Path) -> None:
    content = json.loads(document(TEXT, entry("a", ("Gold", 0))))
    del content["version"]
    path = written(tmp_path, json.dumps(content, ensure_ascii=False), encoding="utf-8-sig")
    assert read_squad(path, "1.1")[0].context == TEXT


@pytest.mark.parametrize(
    ("questions", "fault"),
    [
        ([entry("q7", ("Gold", -1))], r"has answer 'Gold' at characters -1 to 3 of a text of 33"),
        ([entry("q7", ("yes 😀", 31))], r"has answer 'yes 😀' at characters 31 to 36 of a text of 33"),
        ([entry("q7", ("", 3))], r"has answer '' at characters 3 to 3"),
        ([entry("q7", ("gold", 0))], r"has answer 'gold' where the text says 'Gold'"),
        ([entry("q7", ("Gold", 0), ("is", 6))], r"has answer 'is' where the text says 's '"),
        ([entry("q7", ("Gold", 0), is_impossible=True)], r"is_impossible but has an answer"),
        ([entry("q7", is_impossible=False)], r"has no answer but is not is_impossible"),
        ([entry("q7", ("Gold", 0)), entry("q7", ("Gold", 0))], r"stands there twice"),
    ],
)
def test_a_faulty_question_is_named_with_its_article_and_file(
    tmp_path: Path, questions: list[dict[str, Any]], fault: str
) -> None:
    path = written(tmp_path, document(TEXT, *questions))
    with pytest.raises(
        DataError, match=rf"dev-v2\.0\.json: question 'q7' of article 'Ore' {fault}.*: correct the file\."
    ):
        read_squad(path, "2.0")


def test_a_question_without_an_answer_is_a_fault_in_1_1(tmp_path: Path) -> None:
    path = written(tmp_path, document(TEXT, entry("q7"), version="1.1"))
    with pytest.raises(DataError, match=r"question 'q7' of article 'Ore' has no answer: correct the file\."):
        read_squad(path, "1.1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"is not a SQuAD 2\.0 file \(Expecting value"),
        ("[]", r"is not a SQuAD 2\.0 file"),
        ('{"version": "v2.0"}', r"is not a SQuAD 2\.0 file \(it has no 'data'\)"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', r"is not a SQuAD 2\.0 file \(it has no 'context'\)"),
        ('{"data": []}', r"holds no questions"),
        (document(TEXT, {**entry("a", ("Gold", 0)), "question": 5}), r"is not a SQuAD 2\.0 file \(5 is no text\)"),
        (document(f"{TEXT} \ud83d", entry("a", ("Gold", 0))), r"is not a SQuAD 2\.0 file \('utf-8' codec can't encode"),
        (document(TEXT, entry("a", ("Gold", 0)), version="1.1"), r"says that it is SQuAD version 1\.1, not 2\.0"),
    ],
)
def test_what_is_no_such_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=rf"dev-v2\.0\.json {message}"):
        read_squad(written(tmp_path, content), "2.0")


def test_a_subset_is_read_where_there_is_nothing_else_and_named_as_one(tmp_path: Path) -> None:
    whole = document(TEXT, entry("a", ("Gold", 0)))
    with pytest.raises(DataError, match=r"nowhere is not a folder: it must hold train-v2\.0\.json"):
        load_squad(tmp_path / "nowhere", "2.0")
    written(tmp_path, whole, "train-v2.0.json")
    with pytest.raises(DataError, match=r"neither dev-v2\.0\.json nor dev-v2\.0\.subset\.json"):
        load_squad(tmp_path, "2.0")
    written(tmp_path, whole, "dev-v2.0.subset.json")
    assert load_squad(tmp_path, "2.0").subset
    written(tmp_path, document(TEXT, entry("b", ("Gold", 0))), "dev-v2.0.json")
    data = load_squad(tmp_path, "2.0")
    assert not data.subset
    assert data.dev[0].questions[0].id == "b"


def test_data_comes_back_as_it_was_written(tmp_path: Path) -> None:
    data = toy_data("2.0", train=7, dev=5)
    data.save(tmp_path / "squad.jsonl")
    assert load_span_data(tmp_path / "squad.jsonl") == data
    assert load_span_data(tmp_path / "squad.jsonl").sha256() == data.sha256()
    assert toy_data("2.0", train=7, dev=6).sha256() != data.sha256()
    assert data.task is TASKS["SQuAD2.0"]
    (tmp_path / "squad.jsonl").write_text('["train"')
    with pytest.raises(DataError, match=r"squad\.jsonl is not a readable task file .*; delete it and evaluate again\."):
        load_span_data(tmp_path / "squad.jsonl")


@needs_real
@pytest.mark.parametrize(
    ("version", "train", "dev", "unanswerable"), [("1.1", 2910, 838, (0, 0)), ("2.0", 4326, 1752, (2275, 893))]
)
def test_the_real_files_have_their_sizes(version: Version, train: int, dev: int, unanswerable: tuple[int, int]) -> None:
    data = load_squad(squad_folder(), version)
    sides = [[q for p in side for q in p.questions] for side in (data.train, data.dev)]
    assert [len(side) for side in sides] == [train, dev]
    assert tuple(sum(q.impossible for q in side) for side in sides) == unanswerable
    assert data.subset
