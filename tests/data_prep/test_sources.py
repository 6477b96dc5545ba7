"""Readers: every record becomes a document or a counted rejection, whatever the bytes and wherever a range is cut."""

import bz2
import gzip
import itertools
import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from data_prep.errors import DataError
from data_prep.sources import Document, InputFile, Jsonl, PlainText, Rejected, input_files, read_files, read_range

TEXTS = ["one\u2028line", "two\x0b\x0c\x85lines", "três", "4" * 100, "", "six\nsix"]


def jsonl(path: Path) -> Jsonl:
    return Jsonl(kind="jsonl", path=str(path))


def texts(records: list[Document | Rejected]) -> list[str]:
    return [record.text for record in records if isinstance(record, Document)]


def reasons(records: list[Document | Rejected]) -> list[str]:
    return [record.reason for record in records if isinstance(record, Rejected)]


def encoded(items: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n" for text in items)


def test_lines_end_at_the_line_feed_byte_only(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(encoded(TEXTS))
    records = list(read_files(jsonl(path), input_files(jsonl(path))))
    assert texts(records) == TEXTS
    assert [record.id for record in records if isinstance(record, Document)][:2] == ["a.jsonl:0", "a.jsonl:23"]


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 50, 400])
def test_a_record_belongs_to_the_range_its_first_byte_lies_in(tmp_path: Path, pieces: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(encoded(TEXTS * 5))
    size = path.stat().st_size
    edges = [size * k // pieces for k in range(pieces + 1)]
    file = input_files(jsonl(path))[0]
    whole = list(read_files(jsonl(path), [file]))
    parts = [
        record
        for start, stop in itertools.pairwise(edges)
        for record in (read_range(jsonl(path), file, start, stop) if stop > start else ())
    ]
    assert parts == whole


@pytest.mark.parametrize("suffix", ["gz", "zst", "bz2"])
def test_archives_of_several_members_are_read_to_their_end(tmp_path: Path, suffix: str) -> None:
    halves = [encoded(TEXTS[:3]), encoded(TEXTS[3:])]
    codec = pa.Codec("zstd")
    compress = {"gz": gzip.compress, "bz2": bz2.compress, "zst": lambda data: codec.compress(data, asbytes=True)}[
        suffix
    ]
    path = tmp_path / f"a.jsonl.{suffix}"
    path.write_bytes(b"".join(compress(half) for half in halves))
    assert texts(list(read_files(jsonl(path), input_files(jsonl(path))))) == TEXTS


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_cut_archive_is_an_error_that_names_the_file(tmp_path: Path, suffix: str) -> None:
    data = encoded([f"text number {i}" for i in range(5000)])
    whole = gzip.compress(data) if suffix == "gz" else pa.Codec("zstd").compress(data, asbytes=True)
    path = tmp_path / f"a.jsonl.{suffix}"
    path.write_bytes(whole[: len(whole) - 20])
    with pytest.raises(DataError, match=rf"a\.jsonl\.{suffix} is damaged after byte \d+"):
        list(read_files(jsonl(path), input_files(jsonl(path))))


def test_bad_records_are_rejections_with_a_reason(tmp_path: Path) -> None:
    lines = [
        b'{"text": "good"}', b'{"text": "cut', b'{"other": 1}', b'{"text": 5}', b"[1, 2]", b"null", b"", b"   ",
        b'{"text": "\xff\xfe"}', b"[" * 100_000, b'{"text": "\\ud800"}', b'{"text": 1' + b"0" * 5000 + b"}",
    ]  # fmt: skip
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    records = list(read_files(jsonl(path), input_files(jsonl(path))))
    assert texts(records) == ["good", "\ud800"]
    assert sorted(reasons(records)) == sorted(
        [
            "bad_json",
            "no_text_field",
            "no_text_field",
            "no_text_field",
            "no_text_field",
            "not_utf8",
            "bad_json",
            "bad_json",
        ]
    )


def test_topic_comes_from_the_field_or_the_file(tmp_path: Path) -> None:
    path = tmp_path / "news.jsonl"
    path.write_text('{"text": "a", "meta": "sport"}\n')
    for field, topic in ((None, "news"), ("meta", "sport")):
        source = Jsonl(kind="jsonl", path=str(path), topic_field=field)
        assert next(iter(read_files(source, input_files(source)))) == Document("news.jsonl:0", topic, "a")


@pytest.mark.parametrize(
    ("value", "topic"), [("null", "news"), ('"\\u00e9t\\u00e9"', "été"), ("7", "7"), (None, "news")]
)
def test_a_record_without_a_topic_takes_the_files(tmp_path: Path, value: str | None, topic: str) -> None:
    path = tmp_path / "news.jsonl"
    path.write_text('{"text": "a"}' if value is None else f'{{"text": "a", "meta": {value}}}')
    source = Jsonl(kind="jsonl", path=str(path), topic_field="meta")
    assert list(read_files(source, input_files(source))) == [Document("news.jsonl:0", topic, "a")]


def test_a_relative_path_is_looked_for_here_and_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=rf"a\.jsonl does not exist in {tmp_path}, where relative paths"):
        input_files(Jsonl(kind="jsonl", path="a.jsonl"))
    (tmp_path / "a.jsonl").touch()
    assert input_files(Jsonl(kind="jsonl", path="a.jsonl"))[0].path == str(tmp_path / "a.jsonl")


def test_a_file_name_that_is_not_utf8_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.jsonl")).touch()
    with pytest.raises(DataError, match="is not UTF-8; rename it"):
        input_files(jsonl(tmp_path / "*.jsonl"))


def test_plain_text_by_blank_lines_and_by_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n\nfirst\nline\n \nsecond\n\n\nthird \xff\n")
    blank = PlainText(kind="text", path=str(path))
    records = list(read_files(blank, input_files(blank)))
    assert texts(records) == ["first\nline\n", "second\n"]
    assert reasons(records) == ["not_utf8"]
    assert isinstance(records[0], Document) and records[0].id == "a.txt:2"
    path.write_text("one\n\ntwo\n")
    by_file = PlainText(kind="text", path=str(path), separator="file")
    assert texts(list(read_files(by_file, input_files(by_file)))) == ["one\n\ntwo\n"]


def test_globs_are_sorted_and_names_do_not_depend_on_the_place(tmp_path: Path) -> None:
    names = []
    for root in ("x", "y/deep"):
        folder = tmp_path / root
        (folder / "sub").mkdir(parents=True)
        for name in ("b.jsonl", "a.jsonl", "sub/c.jsonl"):
            (folder / name).touch()
        names.append([file.name for file in input_files(jsonl(folder / "**/*.jsonl"))])
    assert names[0] == names[1] == ["a.jsonl", "b.jsonl", "sub/c.jsonl"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("none.jsonl", "does not exist"),
        ("*.none", "matches no file"),
        ("", "is a folder"),
        ("s3://x", "not a local path"),
    ],
)
def test_missing_input_is_one_clear_sentence(tmp_path: Path, pattern: str, message: str) -> None:
    path = pattern if "://" in pattern else str(tmp_path / pattern)
    with pytest.raises(DataError, match=message):
        input_files(Jsonl(kind="jsonl", path=path))


def test_input_file_is_plain_data() -> None:
    assert InputFile("a", "/a").package == ""
