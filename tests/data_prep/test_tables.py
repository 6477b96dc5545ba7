"""The table of clean documents: what was stored is read again, and the portions it came in do not show."""

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep import dedup, tables
from data_prep.errors import DataError
from data_prep.storage import folder

NAMES = [f"n{number}" for number in range(7)]
TEXTS = ["one", "", "zwei ü", "三\n三", "\U0001f600 " * 9, "six", "sieben"]


def store(path: Path, names: list[str], texts: list[str], portion: int, topics: list[str] | None = None) -> str:
    """Store in portions of so many documents; returns the writer's sha256."""
    encoded = [text.encode() for text in texts]
    topics = [f"topic of {name}" for name in names] if topics is None else topics
    hashes = dedup.text_hashes(encoded)
    with tables.document_writer(folder(path), 3) as writer:
        for start in range(0, len(names), portion):
            part = slice(start, start + portion)
            writer.extend(names[part], topics[part], encoded[part], hashes[part])
    return writer.sha256


@pytest.mark.parametrize("batch_bytes", [1, 8, 1 << 20])
@pytest.mark.parametrize("portion", [1, 2, 7])
def test_documents_come_back_in_order(
    tmp_path: Path, portion: int, batch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "BATCH_BYTES", batch_bytes)
    store(tmp_path, NAMES, TEXTS, portion)
    batches = list(tables.read_documents(folder(tmp_path), 3))
    firsts = [batch.first for batch in batches]
    assert firsts == [0, *np.cumsum([len(batch) for batch in batches])[:-1]]
    assert [name for batch in batches for name in batch.ids] == NAMES
    assert [topic for batch in batches for topic in batch.topics] == [f"topic of {name}" for name in NAMES]
    assert [text for batch in batches for text in batch.texts] == TEXTS
    assert tables.read_texts(folder(tmp_path), 3, np.array([0, 4])) == [TEXTS[0], TEXTS[4]]
    hashes, sizes = tables.read_sizes(folder(tmp_path), 3)
    assert sizes.tolist() == [len(text.encode()) for text in TEXTS]
    assert hashes.tobytes() == b"".join(dedup.text_hashes([text.encode() for text in TEXTS]))


def test_sha256_is_over_the_documents_alone(tmp_path: Path) -> None:
    given = [store(tmp_path, NAMES, TEXTS, portion) for portion in (1, 3, 7)]
    assert len(set(given)) == 1
    others = [
        store(tmp_path, NAMES, [*TEXTS[:-1], "Sieben"], 7),  # the normalised texts are the same
        store(tmp_path, [*NAMES[:-1], "other"], TEXTS, 7),
        store(tmp_path, NAMES[:-1], TEXTS[:-1], 7),
        store(tmp_path, NAMES[::-1], TEXTS[::-1], 7),
        # where one name ends and the next begins counts
        store(tmp_path, ["a", "b"], ["", ""], 2, ["bc", ""]),
        store(tmp_path, ["ab", "b"], ["", ""], 2, ["c", ""]),
        store(tmp_path, ["a", "11 0 b"], ["", ""], 2, ["bc", ""]),
        store(tmp_path, ["a", "b"], ["", ""], 2, ["bc1", ""]),
    ]
    assert len({*given, *others}) == 1 + len(others)


def test_no_documents(tmp_path: Path) -> None:
    store(tmp_path, [], [], 1)
    assert list(tables.read_documents(folder(tmp_path), 3)) == []
    hashes, sizes = tables.read_sizes(folder(tmp_path), 3)
    assert hashes.shape == (0, 2) and sizes.tolist() == []


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    store(tmp_path, NAMES, TEXTS, 7)
    path = tmp_path / tables.documents_name(3)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"00003\.arrow cannot be read"):
        list(tables.read_documents(folder(tmp_path), 3))


def test_what_a_writer_holds_of_documents_written_is_a_hash_and_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 bytes a document, a quarter of it again for growing; Python's objects and references would be some 100."""
    monkeypatch.setattr(tables, "BATCH_BYTES", 1)
    portion, portions = 1_000, 40
    names, texts = ["n"] * portion, [b"some text"] * portion
    with tables.document_writer(folder(tmp_path), 0) as writer:
        hashes = [number.to_bytes(dedup.HASH_BYTES, "big") for number in range(portion)]
        writer.extend(names, names, texts, hashes)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(portions):
            hashes = [number.to_bytes(8, "big") + row.to_bytes(8, "big") for row in range(portion)]
            writer.extend(names, names, texts, hashes)
        del hashes
        held = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    assert 24 * portion * portions <= held < 32 * portion * portions
    assert len(tables.read_sizes(folder(tmp_path), 0)[1]) == portion * (portions + 1)


HELD = [("a:0", "t", "Text."), ("a:1", "t", "ü")]


def write_heldout(path: Path, documents: list[tuple[str, str, str]]) -> str:
    with tables.heldout_writer(folder(path), 0) as writer:
        for document in documents:
            writer.add(document)
    return writer.sha256


@pytest.mark.parametrize("documents", [HELD, HELD[:1], []])
def test_heldout_documents_are_counted_and_hashed_from_the_file(
    tmp_path: Path, documents: list[tuple[str, str, str]]
) -> None:
    sha256, name = write_heldout(tmp_path, documents), tables.heldout_name(0)
    assert tables.heldout_count(folder(tmp_path), name) == len(documents)
    assert tables.heldout_sha256(folder(tmp_path), name) == sha256


def test_heldout_documents_of_other_columns_cannot_be_read(tmp_path: Path) -> None:
    write_heldout(tmp_path, HELD)
    pq.write_table(pa.table({"id": ["a:0"], "words": ["Text."]}), tmp_path / tables.heldout_name(0))
    with pytest.raises(DataError, match=r"heldout_documents/00000\.parquet cannot be read .*topic"):
        tables.heldout_sha256(folder(tmp_path), tables.heldout_name(0))


@pytest.mark.parametrize("content", [b"", b"PA", b"PAR1PAR1", b"PAR1" + bytes(100) + b"PAR1"])
def test_a_heldout_file_that_is_none_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    write_heldout(tmp_path, HELD)
    (tmp_path / tables.heldout_name(0)).write_bytes(content)
    for read in (tables.heldout_count, tables.heldout_sha256):
        with pytest.raises(DataError, match=r"00000\.parquet cannot be read"):
            read(folder(tmp_path), tables.heldout_name(0))
