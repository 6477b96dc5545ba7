"""Where documents come from: source settings, the input files behind them, and the readers.

A reader turns one slice of one input (a group of files, a whole file, a byte range) into documents and rejections;
every record of the slice becomes exactly one of the two. Lines end at the byte `\\n` only: U+2028 and its like are
text. A damaged archive is an error, because what follows the damage cannot be counted. Local files only.
"""

import glob
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Literal

from pydantic import Field, PositiveInt

from data_prep import installed_docs
from data_prep.errors import DataError
from data_prep.settings import Settings

COMPRESSION = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}

# `installed_docs` yields about a fifth of what it reads; reading stops at this multiple of max_bytes.
READ_FACTOR = 5


class InstalledDocs(Settings):
    """Docstrings and descriptions of the installed packages; see `data_prep.installed_docs`."""

    kind: Literal["installed_docs"] = "installed_docs"
    packages: tuple[str, ...] | None = None  # import names, "stdlib", "descriptions"; None: the measured default list
    max_bytes: PositiveInt | None = None  # UTF-8 bytes of clean text kept; each package is cut in proportion


class Jsonl(Settings):
    """One JSON object a line; plain, .gz, .zst or .bz2."""

    kind: Literal["jsonl"]
    path: str = Field(description="a file or a glob; relative to the working directory")
    text_field: str = "text"
    topic_field: str | None = None  # where there is none, or null in it, the file's name is the topic
    max_bytes: PositiveInt | None = None


class PlainText(Settings):
    """Plain text, plain or compressed."""

    kind: Literal["text"]
    path: str = Field(description="a file or a glob; relative to the working directory")
    separator: Literal["blank_line", "file"] = "blank_line"  # what ends a document
    max_bytes: PositiveInt | None = None


Source = Annotated[InstalledDocs | Jsonl | PlainText, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class Document:
    """One text as read. `id` is unique within its source and the same on every machine."""

    id: str
    topic: str
    text: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that is no document, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input file. `name` does not depend on where the files lie; `package` is set for installed documentation."""

    name: str
    path: str
    package: str = ""


def input_files(source: Source) -> list[InputFile]:
    """The files behind a source, in the order of the corpus. DataError when there are none."""
    if isinstance(source, InstalledDocs):
        return [
            InputFile(file.name, str(file.path), file.package) for file in installed_docs.list_files(source.packages)
        ]
    pattern = os.path.expanduser(source.path)
    if "://" in pattern:
        raise DataError(
            f"corpus.sources path {source.path} is not a local path; copy the files to a local folder first."
        )
    is_glob = glob.has_magic(pattern) and not os.path.exists(pattern)
    found = sorted(glob.glob(pattern, recursive=True)) if is_glob else [pattern]
    files = [path for path in found if os.path.isfile(path)]
    if not files:
        what = "is a folder; add a pattern such as /*.jsonl" if os.path.isdir(pattern) else "does not exist"
        where = "" if os.path.isabs(pattern) else f" in {os.getcwd()}, where relative paths are looked for"
        raise DataError(f"corpus.sources path {source.path} {'matches no file' if is_glob else what}{where}.")
    for path in files:
        if any("\ud800" <= character <= "\udfff" for character in path):  # bytes that are no UTF-8
            raise DataError(f"corpus.sources: the name of the file {path!a} is not UTF-8; rename it.")
    root = os.path.dirname(pattern.split("*")[0].split("?")[0].split("[")[0]) if is_glob else os.path.dirname(pattern)
    return [InputFile(Path(os.path.relpath(path, root or ".")).as_posix(), os.path.abspath(path)) for path in files]


def is_compressed(name: str) -> bool:
    """Whether a file is one whole stream that cannot be entered in the middle."""
    return Path(name).suffix in COMPRESSION


def read_files(source: Source, files: Iterable[InputFile]) -> Iterator[Document | Rejected]:
    """Everything in whole files, in order."""
    for file in files:
        if isinstance(source, InstalledDocs):
            yield from _read_documentation(file)
        elif isinstance(source, Jsonl):
            with open_input(file.path) as stream:
                yield from _read_jsonl(source, file, _lines(stream, file, 0))
        else:
            with open_input(file.path) as stream:
                yield from _read_text(source, file, stream)


def read_range(source: Jsonl, file: InputFile, start: int, stop: int) -> Iterator[Document | Rejected]:
    """The records of a plain file whose first byte lies in [start, stop)."""
    with open(file.path, "rb") as stream:
        if start:
            stream.seek(start - 1)
            stream.readline()  # the rest of a record that began earlier, or just its line feed
        yield from _read_jsonl(source, file, _lines(stream, file, stop))


def open_input(path: str) -> Any:
    """A binary stream of a plain or compressed file; multi-member and multi-frame archives are read to their end."""
    codec = COMPRESSION.get(Path(path).suffix)
    if codec is None:
        return open(path, "rb")
    import pyarrow as pa

    return pa.input_stream(path, compression=codec)


def _lines(stream: IO[bytes], file: InputFile, stop: int) -> Iterator[tuple[int, bytes]]:
    """(offset of the first byte, line) up to the record that begins at or after `stop` (0: to the end)."""
    offset = 0 if is_compressed(file.name) else stream.tell()
    buffered = _BufferedLines(stream) if is_compressed(file.name) else stream
    try:
        while stop == 0 or offset < stop:
            line = buffered.readline()
            if not line:
                return
            yield offset, line
            offset += len(line)
    except OSError as error:
        raise DataError(
            f"{file.path} is damaged after byte {offset} of its content ({error}); replace the file."
        ) from None


class _BufferedLines:
    """`readline` over a stream that only has `read` (a decompressing one)."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._buffer = b""
        self._at = 0

    def readline(self) -> bytes:
        parts: list[bytes] = []
        while True:
            end = self._buffer.find(b"\n", self._at)
            if end >= 0:
                parts.append(self._buffer[self._at : end + 1])
                self._at = end + 1
                return b"".join(parts)
            parts.append(self._buffer[self._at :])
            self._buffer, self._at = self._stream.read(1 << 20), 0
            if not self._buffer:
                return b"".join(parts)


def _read_documentation(file: InputFile) -> Iterator[Document | Rejected]:
    try:
        found = list(installed_docs.documents(file.package, file.name, Path(file.path).read_bytes()))
    except ValueError:
        yield Rejected("unparsable")
        return
    for identifier, topic, text in found:
        yield Document(identifier, topic, text)


def _read_jsonl(source: Jsonl, file: InputFile, lines: Iterator[tuple[int, bytes]]) -> Iterator[Document | Rejected]:
    default_topic = _stem(file.name)
    for offset, line in lines:
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except UnicodeDecodeError:
            yield Rejected("not_utf8")
            continue
        except (ValueError, RecursionError):
            yield Rejected("bad_json")
            continue
        text = record.get(source.text_field) if isinstance(record, dict) else None
        if not isinstance(text, str):
            yield Rejected("no_text_field")
            continue
        topic = None if source.topic_field is None else record.get(source.topic_field)
        yield Document(f"{file.name}:{offset}", default_topic if topic is None else str(topic), text)


def _read_text(source: PlainText, file: InputFile, stream: Any) -> Iterator[Document | Rejected]:
    topic = _stem(file.name)
    first, parts = 0, list[bytes]()
    for offset, line in _lines(stream, file, 0):
        if source.separator == "blank_line" and not line.strip():
            yield from _text_document(file, topic, first, parts)
            parts = []
            continue
        if not parts:
            first = offset
        parts.append(line)
    yield from _text_document(file, topic, first, parts)


def _text_document(file: InputFile, topic: str, offset: int, parts: list[bytes]) -> Iterator[Document | Rejected]:
    content = b"".join(parts)
    if not content.strip():
        return
    try:
        yield Document(f"{file.name}:{offset}", topic, content.decode("utf-8"))
    except UnicodeDecodeError:
        yield Rejected("not_utf8")


def _stem(name: str) -> str:
    return Path(name).name.split(".")[0]
