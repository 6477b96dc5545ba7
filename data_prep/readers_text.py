"""Readers of text: JSON objects a line, and plain text by blank lines or by file, whole or one byte range of a file.

A record belongs to the range in which its first byte lies, so that cutting a file at any offsets gives the documents of
the whole. Lines end at the byte `\\n` only: U+2028 and its like are text. Every record is a document or a rejection.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import orjson

from data_prep.records import (
    MAX_RECORD_BYTES,
    Document,
    Fields,
    InputFile,
    Records,
    Rejected,
    Stored,
    blocks,
    open_file,
    split,
)

_LOOK_BACK = 1 << 16


def read_jsonl(file: InputFile, fields: Fields, start: int, stop: int | None) -> Records:
    """The records of a file whose first byte lies in [start, stop)."""
    topic, name, end = file.topic, file.name, sys.maxsize if stop is None else stop
    with open_file(file) as stream:
        first = _next_line(stream, start) if start else 0
        for at, lines in split(blocks(stream, file), b"\n", first):
            offset = at
            if lines is None and offset < end:
                yield Rejected("record_too_large", f"{name}:{offset}")
            for line in lines or ():
                if offset >= end:
                    return
                try:
                    record = orjson.loads(line)
                except ValueError:
                    record = _second_opinion(line)
                if type(record) is dict:
                    yield fields.document(record, f"{name}:{offset}", topic)
                elif line.strip():
                    yield Rejected(record.reason if type(record) is Rejected else "no_text_field", f"{name}:{offset}")
                offset += len(line) + 1
            if offset >= end:
                return


def _second_opinion(line: bytes) -> Any:
    """What a more lenient parser makes of a line: lone surrogates, NaN and a byte-order mark are let pass."""
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return Rejected("not_utf8", "")
    except (ValueError, RecursionError):
        return Rejected("bad_json", "")


def _next_line(stream: Stored, start: int) -> int:
    """Move to the first line that begins at or after `start`; returns where that is."""
    stream.seek(start - 1)
    at = start - 1
    while block := stream.read(_LOOK_BACK):
        end = block.find(b"\n")
        if end >= 0:
            stream.seek(at + end + 1)
            return at + end + 1
        at += len(block)
    return at


def read_whole_text(file: InputFile) -> Records:
    """One document a file."""
    with open_file(file) as stream:
        parts, size = list[bytes](), 0
        for block in blocks(stream, file):
            size += len(block)
            if size > MAX_RECORD_BYTES:
                break
            parts.append(block)
    if size:
        yield _document(file, file.topic, 0, b"".join(parts), size)


def read_blank_lines(file: InputFile, start: int, stop: int | None) -> Records:
    """Documents between blank lines whose first line begins in [start, stop)."""
    topic, end = file.topic, sys.maxsize if stop is None else stop
    with open_file(file) as stream:
        at, inside = _enter(stream, start) if start else (0, False)
        first, parts, size = at, list[bytes](), 0
        for offset, line in _lines(blocks(stream, file), at):
            blank = line is not None and not line.strip()
            if inside or not size:
                if offset >= end:
                    return
                if inside:  # a document that begins before this range
                    inside = not blank
                    continue
                first = offset
            if blank:
                if size:
                    yield _document(file, topic, first, b"\n".join(parts), size)
                parts, size = [], 0
                continue
            size += MAX_RECORD_BYTES + 1 if line is None else len(line) + 1
            if line is None or size > MAX_RECORD_BYTES:
                parts = []
            else:
                parts.append(line)
        if size:
            yield _document(file, topic, first, b"\n".join(parts), size)


def _lines(content: Iterator[bytes], offset: int) -> Iterator[tuple[int, bytes | None]]:
    for at, lines in split(content, b"\n", offset):
        offset = at
        if lines is None:
            yield offset, None
        for line in lines or ():
            yield offset, line
            offset += len(line) + 1


def _enter(stream: Stored, start: int) -> tuple[int, bool]:
    """Move to the first line at or after `start`: (where it begins, whether it continues a document)."""
    at = _next_line(stream, start)
    inside = not _blank_before(stream, at - 1)
    stream.seek(at)
    return at, inside


def _blank_before(stream: Stored, end: int) -> bool:
    """Whether the line that ends at `end` holds nothing but white space."""
    while end > 0:
        begin = max(0, end - _LOOK_BACK)
        stream.seek(begin)
        block = stream.read(end - begin)
        visible = block.rstrip()
        if b"\n" in block[len(visible) :]:
            return True
        if visible:
            return False
        end = begin
    return True


def _document(file: InputFile, topic: str, offset: int, content: bytes, size: int) -> Document | Rejected:
    where = f"{file.name}:{offset}"
    if size > MAX_RECORD_BYTES:
        return Rejected("record_too_large", where)
    try:
        return Document(where, topic, content.decode("utf-8"))
    except UnicodeDecodeError:
        return Rejected("not_utf8", where)
