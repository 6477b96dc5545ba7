"""The documents stage: every record is accounted for, and neither batches nor their order show in what is kept."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster import tasks
from data_prep import records, tables, units
from data_prep.corpus import CorpusConfig
from data_prep.errors import DataError, PreflightError
from data_prep.plan import make_plan
from data_prep.sources import InputFile
from data_prep.storage import folder
from data_prep.units import DocumentsTask, documents_unit

LINES = [
    json.dumps({"text": "plain words", "id": "a\x00b", "topic": "t\u2028u"}),
    "{broken",
    json.dumps({"text": "a lone \ud800 half and a pair \ud83d\ude00"}),
    json.dumps({"text": " \u00a0 "}),
    json.dumps({"text": "nul \x00 bel \x07 next \x85 mark \ufeff line\u2028end"}, ensure_ascii=False),
    json.dumps({"text": 5}),
    "",
    json.dumps({"text": "“curly” …"}, ensure_ascii=False),
    json.dumps({"text": "x" * 1000}),
    json.dumps({"text": "last", "id": " two  blanks "}),
]
CLEAN = [
    "plain words",
    "a lone \ufffd half and a pair \U0001f600",
    "nul bel next\nmark line\nend",
    "“curly” …",
    "x" * 1000,
    "last",
]


def prepare(tmp_path: Path, lines: list[str], **options: Any) -> tuple[dict[str, Any], list[tables.DocumentBatch]]:
    """The stage's result and the documents it kept."""
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8", newline="")
    bounds = {"min_chars": 0, "min_letters": 0.0, "max_symbols": 1.0}
    config = CorpusConfig.model_validate(
        {
            "sources": [{"kind": "jsonl", "path": str(path), "id_field": "id", "topic_field": "topic"}],
            "cleaning": bounds,
            "tokenizer": {"vocab_size": 300},
        }
    )
    corpus = folder(tmp_path / "corpus")
    corpus.prepare()
    (unit,) = make_plan(config, 0).units
    files = [InputFile("in.jsonl", str(path))]
    result = documents_unit(DocumentsTask(corpus=corpus.location, config=config, unit=unit, files=files, **options))
    del result["cpu_seconds"]
    return result, list(tables.read_documents(corpus, 0))


@pytest.mark.parametrize("read_bytes", [1, 30, 1 << 18])
def test_batches_do_not_show(tmp_path: Path, read_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = prepare(tmp_path, LINES)
    monkeypatch.setattr(units, "READ_BYTES", read_bytes)
    result, (batch,) = prepare(tmp_path, LINES)
    assert (result, [batch]) == expected
    assert batch.texts == CLEAN
    assert batch.ids[:2] == ["a b", f"in.jsonl:{len(LINES[0]) + len(LINES[1]) + 2}"]
    assert batch.ids[-1] == " two  blanks "  # printable as it is, whatever names stand beside it
    assert batch.topics[:2] == ["t\nu", "in"]
    assert result["rejected"] == {"bad_json": 1, "empty": 1, "no_text_field": 1}
    assert result["documents_in"] == 9 and result["documents"] == 6
    assert result["first_bad"] == f"in.jsonl:{len(LINES[0]) + 1} (bad_json)"
    assert result["text_bytes"] == sum(len(text.encode()) for text in CLEAN)
    assert not result["cut_off"]


@pytest.mark.parametrize("read_bytes", [1, 30, 1 << 18])
@pytest.mark.parametrize(("limit", "kept", "seen"), [(0, 0, 0), (1, 1, 1), (11, 1, 1), (12, 2, 3), (10**6, 6, 9)])
def test_a_limit_ends_the_stage_after_the_document_that_reaches_it(
    tmp_path: Path, read_bytes: int, limit: int, kept: int, seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "READ_BYTES", read_bytes)
    result, _ = prepare(tmp_path, LINES, limit_bytes=limit)
    assert result["documents"] == kept and result["documents_in"] == seen
    assert result["documents_in"] == result["documents"] + sum(result["rejected"].values())
    assert result["cut_off"] == (seen < 9)


def test_a_limit_that_is_reached_by_the_last_record_cuts_nothing_off(tmp_path: Path) -> None:
    result, _ = prepare(tmp_path, LINES[:1], limit_bytes=11)
    assert not result["cut_off"] and result["read_bytes"] == 11


def jsonl(place: Path) -> tuple[dict[str, Any], Path]:
    path = place / "in.jsonl"
    path.write_text("".join(json.dumps({"text": f"text number {n}"}) + "\n" for n in range(300)))
    return {"kind": "jsonl", "path": str(path)}, path


def parquet(place: Path) -> tuple[dict[str, Any], Path]:
    path = place / "in.parquet"
    pq.write_table(pa.table({"text": [f"text number {n}" for n in range(300)]}), path)
    return {"kind": "parquet", "path": str(path)}, path


def saved(place: Path) -> tuple[dict[str, Any], Path]:
    import datasets

    path = place / "in"
    datasets.Dataset.from_dict({"text": [f"text number {n}" for n in range(300)]}).save_to_disk(path, num_shards=2)
    return {"kind": "datasets", "path": str(path)}, sorted(path.glob("*.arrow"))[1]


def streamed(place: Path) -> tuple[dict[str, Any], Path]:
    (place / "in").mkdir()
    _, path = parquet(place / "in")
    return {"kind": "datasets", "path": str(place / "in")}, path


def documentation(place: Path) -> tuple[dict[str, Any], Path]:
    """A package that lies in `place`, where `test_an_input_is_the_planned_one` looks for installed ones."""
    path = place / "package" / "module.py"
    path.parent.mkdir()
    path.write_text('"""' + "A number of words, one after the other. " * 50 + '"""\n')
    return {"kind": "installed_docs", "packages": ["package"]}, path


@pytest.mark.parametrize("make", [jsonl, parquet, saved, streamed, documentation])
def test_an_input_is_the_planned_one(
    tmp_path: Path, make: Callable[[Path], tuple[dict[str, Any], Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is gone, or another one, where the unit runs ends it: no document is ever lost in silence."""
    monkeypatch.setattr("data_prep.installed_docs.sysconfig.get_path", lambda kind: str(tmp_path))
    source, path = make(tmp_path)
    config = CorpusConfig.model_validate({"sources": [source], "cleaning": {"min_chars": 0}})
    corpus = folder(tmp_path / "corpus")
    corpus.prepare()
    plan = make_plan(config, 0)
    (unit,) = plan.units
    task = DocumentsTask(corpus=corpus.location, config=config, unit=unit, files=plan.inputs(unit))
    task = DocumentsTask.model_validate(task.model_dump())
    result = documents_unit(task)
    assert result["rejected"] == {} and result["documents"] == (1 if make is documentation else 300)
    content = path.read_bytes()

    def refused() -> Exception:
        with pytest.raises((OSError, DataError)) as caught:
            documents_unit(task)
        return caught.value

    path.write_bytes(content.replace(b"number", b"nvmber"))  # of the same size, and a good file in most formats
    assert isinstance(refused(), DataError) and "since the plan was made" in str(refused())
    path.write_bytes(content[: len(content) // 2])
    assert isinstance(refused(), DataError)
    path.unlink()
    gone = refused()
    if make is not streamed:  # a folder without data is told by `datasets` in its own words
        assert isinstance(gone, FileNotFoundError) and gone.filename == str(path)
    path.parent.rename(tmp_path.with_name(tmp_path.name + "-not-mounted"))
    gone = refused()
    assert isinstance(gone, FileNotFoundError) and str(tmp_path) in gone.filename


def test_a_file_that_grows_while_it_is_read_is_another_one(tmp_path: Path) -> None:
    source, path = jsonl(tmp_path)
    config = CorpusConfig.model_validate({"sources": [source], "cleaning": {"min_chars": 0}})
    plan = make_plan(config, 0)
    task = DocumentsTask(corpus=str(tmp_path), config=config, unit=plan.units[0], files=plan.inputs(plan.units[0]))
    found = units._read(task)
    next(found)
    path.write_bytes(path.read_bytes() + b"{}\n")
    with pytest.raises(DataError, match=r"in\.jsonl has changed since the plan was made"):
        list(found)


@pytest.mark.parametrize("make", [jsonl, parquet])
@pytest.mark.parametrize("number", [errno.EIO, errno.ETIMEDOUT, errno.ECONNRESET, None])
def test_a_reading_that_fails_for_a_moment_is_tried_again(
    tmp_path: Path,
    make: Callable[[Path], tuple[dict[str, Any], Path]],
    number: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, path = make(tmp_path)
    config = CorpusConfig.model_validate({"sources": [source], "cleaning": {"min_chars": 0}})
    corpus = folder(tmp_path / "corpus")
    corpus.prepare()
    plan = make_plan(config, 0)
    files = plan.inputs(plan.units[0])
    task = DocumentsTask(corpus=corpus.location, config=config, unit=plan.units[0], files=files)
    unit = tasks.Unit(name="documents 00000", payload=task, folder=corpus, record="documents/00000.json", identity="x")
    failures = 2

    class Flaky:
        def __init__(self, address: str) -> None:
            self._file = open(address, "rb")  # noqa: SIM115

        def read(self, size: int) -> bytes:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise OSError(number, "for a moment") if number else OSError("for a moment")
            return self._file.read(size)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    monkeypatch.setattr(records, "open_input", Flaky)
    monkeypatch.setattr(tasks, "_PAUSES", (0.0, 0.0))
    result, error = tasks._execute(documents_unit, unit)
    assert error is None and result is not None
    assert (result["documents"], result["rejected"]) == (300, {})
    failures = 100
    result, error = tasks._execute(documents_unit, unit)
    assert result is None and isinstance(error, PreflightError)
    assert str(error).startswith(f"documents 00000: {path} (for a moment); put this right and run again")
