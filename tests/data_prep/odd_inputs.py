"""Odd inputs made from a seed, with what a reader has to make of them where that is known by construction."""

import bz2
import gzip
import io
import json
import lzma
import random
import tarfile
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda data: gzip.compress(data, 1, mtime=0),
    "zst": zstandard.ZstdCompressor(level=1, write_checksum=True).compress,
    "bz2": lambda data: bz2.compress(data, 1),
    "xz": lambda data: lzma.compress(data, preset=0),
}
ALPHABET = "abc def.\u2028\u2029\x0b\x0c\x85\x1c\x1e\u200b\ufeffé漢😀\\\"'\t\r{}[]:,01\x7f\xa0"

# A line of a JSONL file, and what becomes of it: a text, a reason, or None where it is no record.
ODD_LINES: list[tuple[bytes, tuple[str, str] | None]] = [
    (b"", None),
    (b" \t\r", None),
    (b'{"text": "cut', ("reason", "bad_json")),
    (b'{"text": "a"} trailing', ("reason", "bad_json")),
    (b'{"text": "raw\x00nul"}', ("reason", "bad_json")),
    (b'{"text": "escaped\\u0000nul"}', ("text", "escaped\0nul")),
    (b'{"text": "\\ud800 alone"}', ("text", "\ud800 alone")),
    (b'{"text": "\\ud83d\\ude00 pair"}', ("text", "\U0001f600 pair")),
    (b'{"text": "nan beside", "score": NaN}', ("text", "nan beside")),
    (b'{"text": "huge number", "n": 123456789012345678901234567890}', ("text", "huge number")),
    (b'{"text": "twice", "text": "last counts"}', ("text", "last counts")),
    (b'\xef\xbb\xbf{"text": "byte-order mark"}', ("text", "byte-order mark")),
    (b'{"text": "dos"}\r', ("text", "dos")),
    (b'{"text": ""}', ("text", "")),
    (b'{"text": 5}', ("reason", "no_text_field")),
    (b'{"text": null}', ("reason", "no_text_field")),
    (b'{"text": ["a"]}', ("reason", "no_text_field")),
    (b'{"body": "a"}', ("reason", "no_text_field")),
    (b"{}", ("reason", "no_text_field")),
    (b'[{"text": "in an array"}]', ("reason", "no_text_field")),
    (b'"text"', ("reason", "no_text_field")),
    (b"null", ("reason", "no_text_field")),
    (b"17", ("reason", "no_text_field")),
    (b'{"text": "latin \xe9"}', ("reason", "not_utf8")),
    (b'\xff\xfe{\x00"\x00t\x00', ("reason", "not_utf8")),
    (b"{'text': 'python'}", ("reason", "bad_json")),
    (b"[" * 5000, ("reason", "bad_json")),
    (b'{"text": 1' + b"0" * 5000 + b"}", ("reason", "bad_json")),
]


def text(rng: random.Random, longest: int = 60) -> str:
    return "".join(rng.choices(ALPHABET, k=rng.randrange(longest)))


def jsonl(rng: random.Random) -> tuple[bytes, list[tuple[str, str]]]:
    """The bytes of a file, and the outcome of every record in it."""
    lines, outcomes = list[bytes](), list[tuple[str, str]]()
    for _ in range(rng.randrange(12)):
        if rng.random() < 0.5:
            line, outcome = rng.choice(ODD_LINES)
        else:
            body = text(rng)
            line = json.dumps({"n": rng.randrange(9), "text": body}, ensure_ascii=rng.random() < 0.3).encode()
            outcome = ("text", body)
        lines.append(line)
        outcomes += [outcome] if outcome is not None else []
    return b"\n".join(lines) + b"\n" * rng.randrange(2), outcomes


def blank_line_text(rng: random.Random) -> tuple[bytes, list[tuple[str, str]]]:
    """A text file and the outcome of every document in it. Breaks are the ASCII white space that lines can hold."""
    chunks, outcomes = list[bytes](), list[tuple[str, str]]()
    for _ in range(rng.randrange(8)):
        lines = [b"w" + text(rng, 20).encode().replace(b"\n", b"") for _ in range(rng.randrange(1, 4))]
        bad = rng.random() < 0.2
        if bad:
            lines[rng.randrange(len(lines))] += rng.choice([b"\xff", b"\xe9t\xe9", b"\xed\xa0\x80"])
        chunk = b"\n".join(lines)
        chunks.append(chunk)
        outcomes.append(("reason", "not_utf8") if bad else ("text", chunk.decode()))
    breaks = [b"\n\n", b"\n\n\n", b"\n \n", b"\n\t \r\n\n", b"\n" + b" " * 300 + b"\n"]
    pieces = [piece for chunk in chunks for piece in (chunk, rng.choice(breaks))]
    return rng.choice([b"", b"\n", b" \n\n"]) + b"".join(pieces[:-1] if rng.random() < 0.5 else pieces), outcomes


def members(rng: random.Random, suffix: str, data: bytes) -> bytes:
    """`data` as an archive of one to four members or frames."""
    edges = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(4)))
    parts = [data[a:b] for a, b in zip([0, *edges], [*edges, len(data)], strict=True)]
    return b"".join(COMPRESS[suffix](part) for part in parts)


def broken(rng: random.Random, data: bytes) -> bytes:
    """The bytes cut, altered, repeated, overwritten or followed by others."""
    if not data:
        return b"\0"
    at = rng.randrange(len(data))
    way = rng.randrange(6)
    if way == 0:
        return data[:at]
    if way == 1:
        flipped = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    if way == 2:
        return data[:at] + rng.randbytes(rng.randrange(1, 40)) + data[at:]
    if way == 3:
        return data[:at] + data[at + rng.randrange(1, 40) :]
    if way == 4:
        return data + rng.choice([b"garbage", b"\1" * 600, data[: at + 1]])
    return data[:at] + b"\0" * rng.randrange(1, 600) + data[at + 1 :]


STRING_TYPES = (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()))


def table(rng: random.Random, parquet: bool) -> tuple[pa.Table, list[tuple[str, str]]]:
    """A table, and the outcome of every row."""
    rows = rng.randrange(30)
    values = [None if rng.random() < 0.2 else text(rng) for _ in range(rows)]
    outcomes = [("reason", "no_text_field") if value is None else ("text", value) for value in values]
    way = rng.randrange(8)
    if way == 0:
        return pa.table({"body": values}), [("reason", "no_text_field")] * rows
    if way == 1:
        column: Any = pa.array(range(rows), pa.int64())
        return pa.table({"text": column}), [("reason", "no_text_field")] * rows
    if way == 2:
        column = pa.array([[value] for value in values], pa.list_(pa.string()))
        return pa.table({"text": column}), [("reason", "no_text_field")] * rows
    if way == 3:  # bytes that are no UTF-8, in a column that says it is text
        raw = [b"\xff" if value is not None and rng.random() < 0.5 else value and value.encode() for value in values]
        column = pa.array(raw, pa.binary()).view(pa.string())
        outcomes = [
            ("reason", "not_utf8") if item == b"\xff" else known for item, known in zip(raw, outcomes, strict=True)
        ]
        return pa.table({"text": column}), outcomes
    kind = rng.choice(STRING_TYPES[:2] if parquet else STRING_TYPES)
    strings = pa.array(values, pa.string())
    column = strings.dictionary_encode() if pa.types.is_dictionary(kind) else strings.cast(kind)
    return pa.table({"n": pa.array(range(rows)), "text": column}), outcomes


def parquet_file(rng: random.Random, content: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(
        content,
        sink,
        row_group_size=rng.choice([1, 3, 100]),
        compression=rng.choice(["none", "snappy", "zstd", "gzip"]),
        write_page_checksum=rng.random() < 0.5,
    )
    return sink.getvalue()


def arrow_file(rng: random.Random, content: pa.Table) -> bytes:
    sink = io.BytesIO()
    new = rng.choice([pa.ipc.new_file, pa.ipc.new_stream])
    options = pa.ipc.IpcWriteOptions(compression=rng.choice([None, "lz4", "zstd"]))
    with new(sink, content.schema, options=options) as writer:
        writer.write_table(content, max_chunksize=rng.choice([1, 4, 100]))
    return sink.getvalue()


def tar_file(rng: random.Random) -> tuple[bytes, list[tuple[str, str]]]:
    """A tar of samples, and the outcome of each: `txt` members, samples without one, and members of no sample."""
    sink, outcomes = io.BytesIO(), list[tuple[str, str]]()
    with tarfile.open(fileobj=sink, mode="w", format=rng.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])) as tar:

        def add(name: str, data: bytes) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

        for number in range(rng.randrange(6)):
            body, key = text(rng), f"{'long/' * rng.randrange(3)}{number:06d}"
            way = rng.randrange(5)
            if way == 0:
                add(f"{key}.json", b"{}")
                outcomes.append(("reason", "no_text_field"))
            elif way == 1:
                add(f"{key}.txt", b"\xff")
                outcomes.append(("reason", "not_utf8"))
            elif way == 2:
                add("noextension", b"x")
                outcomes.append(("reason", "no_text_field"))
            else:
                add(f"{key}.txt", body.encode())
                if rng.random() < 0.5:
                    add(f"{key}.cls", b"7")
                outcomes.append(("text", body))
    return sink.getvalue(), outcomes


def wikipedia(rng: random.Random) -> tuple[bytes, list[tuple[str, str]]]:
    """A dump, and the outcome of every page."""
    parts = ['<mediawiki xml:lang="en"><siteinfo></siteinfo>']
    outcomes: list[tuple[str, str]] = []
    for number in range(rng.randrange(6)):
        way = rng.randrange(5)
        body = "Plain words stand here. " * (20 if way != 1 else 2)
        ns, extra, text_ = 0, "", body
        if way == 0:
            extra = '<redirect title="Other" />'
        elif way == 2:
            ns = 14
        elif way == 3:
            extra = "<unclosed>"
        reason = {0: "redirect", 1: "stub", 2: "not_article", 3: "bad_page"}.get(way)
        parts.append(
            f"<page><title>T{number}</title><ns>{ns}</ns><id>{number}</id>{extra}<revision><id>1</id>"
            f"<text>{text_}</text></revision></page>\n"
        )
        outcomes.append(("reason", reason) if reason is not None else ("text", body.strip()))
    return ("".join(parts) + "</mediawiki>").encode(), outcomes
