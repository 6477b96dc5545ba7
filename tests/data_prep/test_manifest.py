"""The manifest: one hash for one corpus, documents that add up, and errors that name the file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from data_prep import manifest as manifests
from data_prep.errors import CheckError, DataError


def part(train: int, heldout: int, removed: dict[str, int], topics: dict[str, int]) -> dict[str, Any]:
    def stats(rows: int) -> dict[str, Any]:
        return manifests.empty_stats(8).model_copy(update={"rows": rows}).model_dump(mode="json")

    return {
        "train": stats(train),
        "heldout": stats(heldout),
        "documents": {"train": train, "heldout": heldout, "text_bytes": 10 * (train + heldout)},
        "topics": topics,
        "removed": removed,
        "heldout_documents": {"name": "heldout_documents/00000.parquet", "documents": heldout, "sha256": "h"},
    }


def merge(
    documents: list[dict[str, Any]],
    rows: list[dict[str, Any]],
    sources: Sequence[tuple[str, int | None, int]] | None = None,
) -> manifests.Manifest:
    tokenizer = {
        "sha256": "t",
        "vocab_size": 100,
        "special": {"cls": 2, "sep": 3, "pad": 0, "mask": 4, "unk": 1},
        "pair_separators": 1,
    }
    return manifests.merge(
        documents,
        rows,
        tokenizer,
        config_sha256="c",
        inputs_sha256="i",
        seed=3,
        layout="segments",
        seq_len=8,
        sources=sources or [("jsonl", None, len(rows))],
    )


DOCUMENTS = [
    {"documents_in": 10, "rejected": {"too_short": 3}},
    {"documents_in": 6, "rejected": {"too_short": 1, "bad_json": 1}},
]
ROWS = [part(5, 1, {"duplicate": 1}, {"a": 4, "b": 2}), part(2, 1, {"duplicate": 1}, {"a": 1, "c": 2})]


def test_documents_in_is_out_plus_rejected() -> None:
    documents = merge(DOCUMENTS, ROWS).documents
    assert (documents.documents_in, documents.out, documents.train, documents.heldout) == (16, 9, 7, 2)
    assert documents.rejected == {"bad_json": 1, "duplicate": 2, "too_short": 4}
    assert documents.documents_in == documents.out + sum(documents.rejected.values())
    assert documents.topics == {"a": 5, "b": 2, "c": 2}
    assert documents.text_bytes == 90


def test_sources_take_their_units_in_order_and_the_weights_are_part_of_the_hash() -> None:
    documents = [{"documents_in": n, "rejected": {}} for n in (6, 3, 4, 0)]
    rows = [part(5, 1, {}, {}), part(2, 1, {}, {}), part(4, 0, {}, {}), part(0, 0, {}, {})]
    manifest = merge(documents, rows, [("jsonl", 3, 2), ("text", 1, 1), ("parquet", 1, 1)])
    found = [(s.kind, s.weight, s.units, s.train.rows, s.heldout.rows) for s in manifest.sources]
    assert found == [("jsonl", 3, 2, 7, 2), ("text", 1, 1, 4, 0), ("parquet", 1, 1, 0, 0)]
    assert all(not stats.shards for source in manifest.sources for stats in (source.train, source.heldout))
    other = merge(documents, rows, [("jsonl", 2, 2), ("text", 1, 1), ("parquet", 1, 1)])
    assert other.sha256 != manifest.sha256
    with pytest.raises(ValueError, match="units"):
        merge(documents, rows, [("jsonl", None, 3)])


def test_a_document_unaccounted_for_is_a_check_error() -> None:
    lost = [{**DOCUMENTS[0], "documents_in": 11}, DOCUMENTS[1]]
    with pytest.raises(CheckError, match="17 documents came in"):
        merge(lost, ROWS)


def test_no_training_row_is_a_data_error() -> None:
    with pytest.raises(DataError, match="held-out"):
        merge([{"documents_in": 2, "rejected": {}}], [part(0, 2, {}, {})])


def test_no_heldout_row_is_a_data_error() -> None:
    with pytest.raises(DataError, match=r"held-out split; raise corpus\.heldout_fraction"):
        merge([{"documents_in": 2, "rejected": {}}], [part(2, 0, {}, {})])


def test_saved_and_loaded_it_is_the_same_and_so_is_its_hash(tmp_path: Path) -> None:
    manifest = merge(DOCUMENTS, ROWS)
    manifests.save(manifest, tmp_path)
    loaded = manifests.load(tmp_path)
    assert loaded == manifest
    assert loaded.sha256 == manifest.sha256
    assert merge(DOCUMENTS, [ROWS[1], ROWS[0]]).sha256 == manifest.sha256  # here the order makes no difference
    changed = manifest.model_copy(update={"seed": 4})
    assert changed.sha256 != manifest.sha256


def test_absent_torn_or_foreign_manifests_are_data_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="run `electra prepare` first"):
        manifests.load(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text('{"version": 1, "see')
    with pytest.raises(DataError, match=r"manifest\.json is not valid JSON"):
        manifests.load(tmp_path)
    path.write_text('{"version": 99}')
    with pytest.raises(DataError, match="not a manifest of this version"):
        manifests.load(tmp_path)
