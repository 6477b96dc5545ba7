"""Sources: which files are meant, and JSONL and plain text as documents or rejections wherever a range is cut."""

import bz2
import gzip
import itertools
import json
import lzma
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from data_prep import readers_text, records
from data_prep.errors import ConfigError, DataError
from data_prep.extents import measure
from data_prep.sources import (
    BAD,
    Document,
    Jsonl,
    PlainText,
    Rejected,
    Source,
    input_files,
    read,
)

TEXTS = ["one\u2028line", "two\x0b\x0c\x85lines", "três", "4" * 100, "", "six\nsix"]
ADAPTER: TypeAdapter[Any] = TypeAdapter(Source)


def jsonl(path: Path) -> Jsonl:
    return Jsonl(kind="jsonl", path=str(path))


def read_all(source: Any) -> list[Document | Rejected]:
    return list(read(source, input_files(source)))


def texts(found: list[Document | Rejected]) -> list[str]:
    return [record.text for record in found if isinstance(record, Document)]


def encoded(items: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n" for text in items)


def test_lines_end_at_the_line_feed_byte_only(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(encoded(TEXTS))
    found = read_all(jsonl(path))
    assert texts(found) == TEXTS
    assert [record.id for record in found if isinstance(record, Document)][:2] == ["a.jsonl:0", "a.jsonl:23"]


def in_pieces(source: Any, edges: list[int]) -> list[Document | Rejected]:
    files = input_files(source)
    return [record for start, stop in itertools.pairwise(edges) for record in read(source, files, start, stop)]


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 50, 400])
def test_a_record_belongs_to_the_range_its_first_byte_lies_in(tmp_path: Path, pieces: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(encoded(TEXTS * 5))
    size = path.stat().st_size
    edges = [size * k // pieces for k in range(pieces + 1)]
    assert in_pieces(jsonl(path), edges) == read_all(jsonl(path))


LINES = st.lists(
    st.sampled_from([b"", b" ", b"\t\r", b"a", b"bc", "\u2028é".encode(), b"\x0b", b"\xff", b'{"text":"t"}'])
)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(lines=LINES, ended=st.booleans(), edges=st.lists(st.integers(1, 60)), kind=st.sampled_from(["text", "jsonl"]))
def test_cutting_a_file_anywhere_gives_the_documents_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ended: bool, edges: list[int], kind: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"cut.{kind}"
    data = b"\n".join(lines) + b"\n" * ended
    path.write_bytes(data)
    source = ADAPTER.validate_python({"kind": kind, "path": str(path)})
    inside = sorted({edge for edge in edges if edge < len(data)})
    assert in_pieces(source, [0, *inside, len(data)]) == read_all(source)


@pytest.mark.parametrize("block", [1, 3, 64])
def test_block_sizes_do_not_show(tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(block)
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n".join(rng.choices([b"", b"  ", b"a word", b"x" * 200, b" " * 200], k=100)))
    source = PlainText(kind="text", path=str(path))
    edges = [0, *sorted(rng.sample(range(1, path.stat().st_size), 40)), path.stat().st_size]
    expected = read_all(source)
    monkeypatch.setattr(records, "_BLOCK", block)
    monkeypatch.setattr(readers_text, "_LOOK_BACK", block)
    assert read_all(source) == expected
    assert in_pieces(source, edges) == expected


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, zstandard.ZstdCompressor().compress])
def test_archives_of_several_members_are_read_to_their_end(tmp_path: Path, compress: Any) -> None:
    suffix = {gzip.compress: "gz", bz2.compress: "bz2", lzma.compress: "xz"}.get(compress, "zst")
    path = tmp_path / f"a.jsonl.{suffix}"
    path.write_bytes(compress(encoded(TEXTS[:3])) + compress(encoded(TEXTS[3:])))
    assert texts(read_all(jsonl(path))) == TEXTS


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress)])
def test_a_cut_archive_is_one_rejection_after_what_could_be_read(tmp_path: Path, suffix: str, compress: Any) -> None:
    items = [random.Random(i).randbytes(200).hex() for i in range(5000)]
    whole = compress(encoded(items))
    path = tmp_path / f"a.jsonl.{suffix}"
    path.write_bytes(whole[: len(whole) // 2])
    *documents, last = read_all(jsonl(path))
    assert 1000 < len(documents) < 5000 and texts(documents) == items[: len(documents)]
    assert isinstance(last, Rejected) and last.reason == "damaged_archive"
    name, _, offset = last.where.rpartition(":")
    line = len(encoded(items[:1]))
    assert name == path.name and len(documents) * line <= int(offset) < (len(documents) + 1) * line


def test_bad_records_are_rejections_with_a_reason_and_a_place(tmp_path: Path) -> None:
    lines: list[tuple[bytes, str | None]] = [
        (b'{"text": "good"}', None),
        (b'{"text": "cut', "bad_json"),
        (b'{"other": 1}', "no_text_field"),
        (b'{"text": 5}', "no_text_field"),
        (b"[1, 2]", "no_text_field"),
        (b"null", "no_text_field"),
        (b'{"text": "\xff\xfe"}', "not_utf8"),
        (b'{"text": "a\x00b"}', "bad_json"),
        (b"[" * 100_000, "bad_json"),
        (b'{"text": "\\ud800"}', None),
        (b'{"text": 1' + b"0" * 5000 + b"}", "bad_json"),
    ]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n \n".join(line for line, _ in lines))
    found = read_all(jsonl(path))
    assert texts(found) == ["good", "\ud800"]
    offsets = itertools.accumulate((len(line) + 3 for line, _ in lines), initial=0)
    expected = [Rejected(reason, f"a.jsonl:{at}") for (_, reason), at in zip(lines, offsets, strict=False) if reason]
    assert [record for record in found if isinstance(record, Rejected)] == expected
    assert {record.reason for record in expected} <= BAD


def test_a_file_in_another_encoding_is_rejected_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for encoding in ("utf-16", "utf-16-le", "utf-32", "cp037"):
        path.write_bytes(encoded(["é", "b"]).decode().encode(encoding))
        found = read_all(jsonl(path))
        assert found and all(isinstance(record, Rejected) and record.reason in BAD for record in found)


def test_a_record_too_large_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", 1000)
    monkeypatch.setattr(readers_text, "MAX_RECORD_BYTES", 1000)
    monkeypatch.setattr(records, "_BLOCK", 100)
    path = tmp_path / "a.jsonl"
    path.write_bytes(encoded(["a", "x" * 2000, "b"]))
    large = Rejected("record_too_large", "a.jsonl:14")
    assert read_all(jsonl(path)) == [("a.jsonl:0", "a", "a"), large, ("a.jsonl:2027", "a", "b")]
    assert in_pieces(jsonl(path), [0, 14, 500, path.stat().st_size]) == read_all(jsonl(path))
    text = tmp_path / "a.txt"
    text.write_bytes(b"one\n\n" + b"many lines\n" * 100 + b"\nlong " + b"y" * 5000 + b"\nend\n\ntwo\n")
    source = PlainText(kind="text", path=str(text))
    size = text.stat().st_size
    assert read_all(source) == [
        Document("a.txt:0", "a", "one"),
        Rejected("record_too_large", "a.txt:5"),
        Rejected("record_too_large", "a.txt:1106"),
        Document(f"a.txt:{size - 4}", "a", "two"),
    ]
    assert in_pieces(source, [0, 5, 700, 1106, 3000, size - 4, size]) == read_all(source)
    whole = PlainText(kind="text", path=str(text), separator="file")
    assert read_all(whole) == [Rejected("record_too_large", "a.txt:0")]


@pytest.mark.parametrize(
    ("value", "topic"),
    [('"sport"', "sport"), ("null", "news"), ('"\\u00e9t\\u00e9"', "été"), ("7", "7"), (None, "news")],
)
def test_topic_and_id_come_from_their_fields_or_the_file(tmp_path: Path, value: str | None, topic: str) -> None:
    path = tmp_path / "news.jsonl"
    path.write_text('{"text": "a", "key": "k1"}' if value is None else f'{{"text": "a", "key": "k1", "meta": {value}}}')
    source = Jsonl(kind="jsonl", path=str(path), topic_field="meta")
    assert read_all(source) == [Document("news.jsonl:0", topic, "a")]
    assert read_all(source.model_copy(update={"id_field": "key"})) == [Document("k1", topic, "a")]


def test_an_id_or_a_topic_with_parts_is_none(tmp_path: Path) -> None:
    """As deep as the parser lets through, which is deeper than such a value can be written."""
    path = tmp_path / "a.jsonl"
    nested = "[" * 1000 + "]" * 1000
    path.write_text(
        f'{{"text": "a", "key": {nested}, "about": {nested}}}\n{{"text": "b", "key": 1.5, "about": true}}\n'
    )
    source = Jsonl(kind="jsonl", path=str(path), id_field="key", topic_field="about")
    assert read_all(source) == [Document("a.jsonl:0", "a", "a"), Document("1.5", "True", "b")]


def test_a_folder_named_like_a_file_is_counted_and_a_vanished_file_ends_the_unit(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").mkdir()
    (tmp_path / "b.jsonl").write_bytes(encoded(["b"]))
    (tmp_path / "c.jsonl").write_bytes(encoded(["c"]))
    source = jsonl(tmp_path / "*.jsonl")
    found = input_files(source)
    files = [
        file._replace(bytes=extent.bytes, version=extent.version)
        for file, extent in zip(found, measure(source, found), strict=True)
    ]
    expected = [Rejected("unreadable", "a.jsonl:0"), Document("b.jsonl:0", "b", "b"), Document("c.jsonl:0", "c", "c")]
    assert list(read(source, files)) == expected
    (tmp_path / "c.jsonl").unlink()
    records_ = read(source, files)
    assert [next(records_), next(records_)] == expected[:2]
    with pytest.raises(FileNotFoundError) as caught:
        next(records_)
    assert caught.value.filename == str(tmp_path / "c.jsonl")
    (tmp_path / "sub").mkdir()
    assert [file.name for file in input_files(jsonl(tmp_path / "**"))] == ["b.jsonl"]


def test_plain_text_by_blank_lines_and_by_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n\nfirst\nline\n \nsecond\r\n\r\n\nthird \xff\n")
    blank = PlainText(kind="text", path=str(path))
    assert read_all(blank) == [
        Document("a.txt:2", "a", "first\nline"),
        Document("a.txt:15", "a", "second\r"),
        Rejected("not_utf8", "a.txt:26"),
    ]
    path.write_text("one\n\ntwo\n")
    by_file = PlainText(kind="text", path=str(path), separator="file")
    assert read_all(by_file) == [Document("a.txt:0", "a", "one\n\ntwo\n")]


def test_globs_are_sorted_and_names_do_not_depend_on_the_place(tmp_path: Path) -> None:
    names = []
    for root in ("x", "y/deep"):
        folder = tmp_path / root
        (folder / "sub").mkdir(parents=True)
        for name in ("b.jsonl", "a.jsonl", "sub/c.jsonl"):
            (folder / name).touch()
        names.append([file.name for file in input_files(jsonl(folder / "**/*.jsonl"))])
    assert names[0] == names[1] == ["a.jsonl", "b.jsonl", "sub/c.jsonl"]


def test_a_relative_path_is_looked_for_here_and_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path = tmp_path / "odd [a-z]* name"
    tmp_path.mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        DataError, match=rf"a\.jsonl does not exist in {re.escape(str(tmp_path))}, where relative paths"
    ):
        input_files(Jsonl(kind="jsonl", path="a.jsonl"))
    (tmp_path / "a.jsonl").touch()
    for path in ("a.jsonl", "./a.jsonl", "*.jsonl", "./**/*.jsonl", f"file://{tmp_path}/a.jsonl"):
        (file,) = input_files(Jsonl(kind="jsonl", path=path))
        assert file.name == "a.jsonl" and os.path.isabs(file.path) and os.path.samefile(file.path, tmp_path / "a.jsonl")


def test_a_file_name_that_is_not_utf8_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.jsonl")).touch()
    with pytest.raises(DataError, match="is not UTF-8; rename it"):
        input_files(jsonl(tmp_path / "*.jsonl"))


@pytest.mark.parametrize(
    ("pattern", "error", "message"),
    [
        ("none.jsonl", DataError, "does not exist"),
        ("*.none", DataError, "matches no file"),
        ("", DataError, "is a folder"),
        ("ftp://host/x", ConfigError, "only local paths and s3://, gs:// and https:// addresses"),
    ],
)
def test_missing_input_is_one_clear_sentence(tmp_path: Path, pattern: str, error: Any, message: str) -> None:
    path = pattern if "://" in pattern else str(tmp_path / pattern)
    with pytest.raises(error, match=message):
        input_files(Jsonl(kind="jsonl", path=path))


@pytest.mark.parametrize(
    "source",
    [
        {"kind": "jsonl", "path": "a", "weight": 0},
        {"kind": "jsonl", "path": "a", "weight": 1.5},
        {"kind": "text", "path": "a", "max_bad_fraction": 1.1},
        {"kind": "text", "path": "a", "text_field": "t"},
        {"kind": "parquet"},
        {"kind": "datasets", "path": "a", "trust_remote_code": True},
    ],
)
def test_settings_out_of_range_are_refused(source: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(source)
