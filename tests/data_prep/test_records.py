"""Bytes to records: block sizes do not show, members are read to the last, what is damaged or too large is told."""

import errno
import itertools
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_prep import records
from data_prep.errors import DataError
from data_prep.records import (
    Damaged,
    Fields,
    InputFile,
    Rejected,
    Stored,
    blocks,
    check_unchanged,
    open_file,
    split,
)
from tests.data_prep.odd_inputs import COMPRESS

SUFFIXES = list(COMPRESS)


def cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def flat(batches: Iterator[tuple[int, list[bytes] | None]], delimiter: bytes) -> list[tuple[int, bytes | None]]:
    """Every record with its offset."""
    found: list[tuple[int, bytes | None]] = []
    for at, pieces in batches:
        offset = at
        for piece in pieces if pieces is not None else [None]:
            found.append((offset, piece))
            offset += 0 if piece is None else len(piece) + len(delimiter)
    return found


@pytest.mark.parametrize("delimiter", [b"\n", b"</page>"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
def test_records_do_not_depend_on_how_the_bytes_arrive(delimiter: bytes, size: int) -> None:
    rng = random.Random(size)
    pieces = [bytes(rng.choices(b"ab</page>", k=rng.randrange(30))).replace(delimiter, b"") for _ in range(200)]
    data = delimiter.join(pieces)
    pieces = data.split(delimiter)
    offsets = [0, *itertools.accumulate(len(piece) + len(delimiter) for piece in pieces)]
    known = list(zip(offsets, pieces, strict=False))
    found = flat(split(cut(data, size), delimiter), delimiter)
    assert found == (known if pieces[-1] else known[:-1])
    assert flat(split(cut(data + delimiter, size), delimiter, 1000), delimiter) == [
        (offset + 1000, piece) for offset, piece in known
    ]


@pytest.mark.parametrize("delimiter", [b"\n", b"</page>"])
@pytest.mark.parametrize("size", [1, 3, 8, 10])
def test_a_record_over_the_bound_is_passed_over_and_the_next_one_found(
    delimiter: bytes, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", 10)
    pieces = [b"one", b"x" * 11, b"two", b"y" * 10, b"z" * 500, b"", b"w" * 12]
    found = flat(split(cut(delimiter.join(pieces), size), delimiter), delimiter)
    assert [piece for _, piece in found] == [b"one", None, b"two", b"y" * 10, None, b"", None]
    width = len(delimiter)
    assert [offset for offset, _ in found][:5] == [0, 3 + width, 14 + 2 * width, 17 + 3 * width, 27 + 4 * width]


def test_a_record_over_the_bound_is_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    import tracemalloc

    monkeypatch.setattr(records, "MAX_RECORD_BYTES", 1 << 20)
    block = b"x" * (1 << 16)
    tracemalloc.start()
    found = list(split(itertools.repeat(block, 3200), b"\n"))  # 200 MB without a line feed
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [(0, None)] and peak < 4 << 20


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("block", [1, 100, 1 << 20])
def test_archives_are_read_to_the_end_of_their_last_member(
    tmp_path: Path, suffix: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_BLOCK", block)
    parts = [b"first " * 50, b"", b"second " * 50]
    stored = b"".join(map(COMPRESS[suffix], parts)) + b"\0" * 20
    assert b"".join(content(tmp_path, suffix, stored)) == b"".join(parts)


def content(folder: Path, suffix: str, stored: bytes) -> Iterator[bytes]:
    path = folder / f"a.{suffix}"
    path.write_bytes(stored)
    file = InputFile(path.name, str(path))
    with open_file(file) as stream:
        yield from blocks(stream, file)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("damage", ["cut", "garbage", "second member", "empty", "nothing but zeros"])
def test_a_damaged_archive_gives_what_stands_before_and_says_so(tmp_path: Path, suffix: str, damage: str) -> None:
    data = random.Random(0).randbytes(300_000)
    whole = COMPRESS[suffix](data)
    stored = {
        "cut": whole[:-5],
        "garbage": whole + b"garbage, and no member",
        "second member": whole + COMPRESS[suffix](data)[:-5],
        "empty": b"",
        "nothing but zeros": bytes(1000),
    }[damage]
    found = bytearray()
    with pytest.raises(Damaged) as caught:
        for block in content(tmp_path, suffix, stored):
            found += block
    assert caught.value.reason == "damaged_archive" and caught.value.place == len(found)
    expected = data + (data if damage == "second member" else b"")
    assert expected.startswith(bytes(found))
    if damage in ("garbage", "second member"):
        assert len(found) >= len(data)


def test_a_bomb_is_opened_in_small_steps(tmp_path: Path) -> None:
    import tracemalloc

    stored = COMPRESS["zst"](bytes(200_000_000))
    tracemalloc.start()
    size = sum(map(len, content(tmp_path, "zst", stored)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == 200_000_000 and peak < 150_000_000


def test_only_what_the_plan_found_unreadable_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    for name in ("folder.jsonl", "none.jsonl"):
        path = str(tmp_path / name)
        with pytest.raises(Damaged, match="unreadable"):
            open_file(InputFile(name, path, version=records.UNREADABLE))
        with pytest.raises(OSError) as caught:
            open_file(InputFile(name, path))
        assert caught.value.filename == path and caught.value.errno in (errno.EISDIR, errno.ENOENT)

    def refuse(path: str) -> Any:
        raise PermissionError("no number and no name")

    monkeypatch.setattr(records, "open_input", refuse)
    with pytest.raises(PermissionError) as refused:
        open_file(InputFile("a", "/data/a"))
    assert (refused.value.errno, refused.value.filename) == (errno.EACCES, "/data/a")


class Failing:
    """A stream of a transport that gives up."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def tell(self) -> int:
        return 0

    def close(self) -> None:
        pass

    def seek(self, offset: int, whence: int = 0) -> int:
        raise self.error

    def read(self, size: int) -> bytes:
        raise self.error


@pytest.mark.parametrize("call", [lambda stream: stream.read(10), lambda stream: stream.seek(5), Stored.size])
@pytest.mark.parametrize(
    ("error", "number", "reason"),
    [
        (OSError(errno.EIO, "Input/output error"), errno.EIO, "Input/output error"),
        (TimeoutError(errno.ETIMEDOUT, "Timed out"), errno.ETIMEDOUT, "Timed out"),
        (OSError("a library's\nown words"), None, "a library's own words"),
        (RuntimeError("503, message='Busy'"), None, "RuntimeError: 503, message='Busy'"),
    ],
)
def test_an_error_of_the_transport_is_an_os_error_that_names_the_file(
    error: Exception, number: int | None, reason: str, call: Any
) -> None:
    stream = Stored(Failing(error), "/data/a.jsonl")
    with pytest.raises(OSError) as caught:
        call(stream)
    found = caught.value
    assert (found.errno, found.strerror, found.filename) == (number, reason, "/data/a.jsonl")
    with pytest.raises(OSError, match="/data/a"):
        stream.raise_failure()  # so that a library cannot hide it
    with pytest.raises(OSError, match="/data/a"), stream:
        pass


def test_a_broken_file_may_name_any_place(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    with open_file(InputFile("a", str(tmp_path / "a"))) as stream:
        assert (stream.seek(-3, 2), stream.read()) == (7, b"789")
        assert (stream.seek(1 << 80), stream.read()) == (10, b"")
        assert (stream.seek(-4, 1), stream.read(1 << 40)) == (6, b"6789")
        with pytest.raises(ValueError, match="before the beginning"):
            stream.seek(-11, 2)


def zstd_frame(window_log: int, content: bytes) -> bytes:
    """A frame of one raw block, by the format's description."""
    descriptor = (window_log - 10) << 3
    return b"\x28\xb5\x2f\xfd\0" + bytes([descriptor]) + (len(content) << 3 | 1).to_bytes(3, "little") + content


def xz_stream(dictionary: int, content: bytes) -> bytes:
    """An archive whose header names a dictionary of the size with this code."""
    stored = bytearray(COMPRESS["xz"](content))
    end = 12 + (stored[12] + 1) * 4
    assert stored[14:16] == b"\x21\1"  # LZMA2, one byte of properties
    stored[16] = dictionary
    stored[end - 4 : end] = zlib.crc32(stored[12 : end - 4]).to_bytes(4, "little")
    return bytes(stored)


@pytest.mark.parametrize(
    ("suffix", "allowed", "refused"),
    [
        ("zst", zstd_frame(27, b"text"), zstd_frame(28, b"text")),
        ("xz", xz_stream(32, b"text"), xz_stream(34, b"text")),  # 256 and 512 MB, beside what the decoder itself takes
    ],
    ids=["zst", "xz"],
)
def test_an_archive_cannot_claim_any_memory(tmp_path: Path, suffix: str, allowed: bytes, refused: bytes) -> None:
    assert b"".join(content(tmp_path, suffix, allowed)) == b"text"
    with pytest.raises(Damaged) as caught:
        list(content(tmp_path, suffix, refused))
    assert caught.value.reason == "window_too_large" and caught.value.reason in records.BAD


def planned(path: Path) -> InputFile:
    return InputFile(path.name, str(path), "", path.stat().st_size, records.version_of(str(path), path.stat().st_size))


@pytest.mark.parametrize("size", [0, 10, 3_000_000])
def test_a_file_is_held_to_its_plan(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * size)
    file = planned(path)
    check_unchanged(file)
    check_unchanged(file._replace(bytes=5, version=""))  # not planned
    path.write_bytes(b"x" * size + b"y")
    for sizes_only in (False, True):
        with pytest.raises(DataError, match=rf"{path} has changed since the plan was made; put back"):
            check_unchanged(file, sizes_only=sizes_only)
    path.write_bytes(b"y" * size)
    check_unchanged(file, sizes_only=True)
    if size:
        with pytest.raises(DataError, match="has changed"):
            check_unchanged(file)
    path.unlink()
    with pytest.raises(FileNotFoundError) as caught:
        check_unchanged(file)
    assert (caught.value.filename, caught.value.errno) == (str(path), errno.ENOENT)


def test_fields_fall_back_to_the_place_and_the_file() -> None:
    fields = Fields("text", "id", "topic")
    assert fields.document({"text": "a"}, "f:0", "f") == ("f:0", "f", "a")
    assert fields.document({"text": "a", "id": 7, "topic": None}, "f:0", "f") == ("7", "f", "a")
    assert fields.document({"text": "a", "id": "x", "topic": "t"}, "f:0", "f") == ("x", "t", "a")
    assert fields.document({"text": 1}, "f:0", "f") == Rejected("no_text_field", "f:0")
    nested: Any = "x"
    for _ in range(100_000):
        nested = [nested]
    assert fields.document({"text": "a", "id": nested, "topic": {"x": nested}}, "f:0", "f") == ("f:0", "f", "a")
    assert InputFile("sub/news.2020.jsonl.gz", "/x").topic == "news"
