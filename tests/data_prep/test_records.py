"""Bytes to records: block sizes do not show, members are read to the last, what is damaged or too large is told."""

import errno
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_prep import records
from data_prep.errors import PreflightError
from data_prep.records import Damaged, Fields, InputFile, Rejected, Stored, blocks, open_file, split
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


def test_what_is_no_readable_file_is_damage_and_a_failing_disk_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    for name in ("folder.jsonl", "none.jsonl", "none.jsonl/below"):
        with pytest.raises(Damaged, match="unreadable"):
            open_file(InputFile(name, str(tmp_path / name)))

    def refuse(path: str) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(records, "open_input", refuse)
    with pytest.raises(Damaged, match="unreadable"):
        open_file(InputFile("a", "a"))

    class Failing:
        def read(self, size: int) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(PreflightError, match=r"/data/a\.jsonl cannot be read .*Input/output error.*; run again"):
        next(blocks(Stored(Failing(), "/data/a.jsonl"), InputFile("a.jsonl", "/data/a.jsonl")))


def test_fields_fall_back_to_the_place_and_the_file() -> None:
    fields = Fields("text", "id", "topic")
    assert fields.document({"text": "a"}, "f:0", "f") == ("f:0", "f", "a")
    assert fields.document({"text": "a", "id": 7, "topic": None}, "f:0", "f") == ("7", "f", "a")
    assert fields.document({"text": "a", "id": "x", "topic": "t"}, "f:0", "f") == ("x", "t", "a")
    assert fields.document({"text": 1}, "f:0", "f") == Rejected("no_text_field", "f:0")
    assert InputFile("sub/news.2020.jsonl.gz", "/x").topic == "news"
