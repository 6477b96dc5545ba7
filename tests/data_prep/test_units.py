"""The documents stage: every record is accounted for, and neither batches nor their order show in what is kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from data_prep import tables, units
from data_prep.corpus import CorpusConfig
from data_prep.plan import make_plan
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
    files = [("in.jsonl", str(path), "")]
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
