"""What a reader yields, and the bytes it is made from: input files as streams of records between delimiters.

Content is read in blocks, compressed or not, to the end of its last member or frame. An archive that ends early or
breaks off yields what stands before the damage and then raises `Damaged`, which a reader turns into one rejection. A
record over MAX_RECORD_BYTES is passed over without being held. Damage is only what the bytes that arrived say: a file
that was there when the plan was made and cannot be opened or read now is an `OSError`, which ends the unit, and one
that is another file by now a `DataError`. Nothing here knows what a record means.
"""

import errno
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from data_prep.errors import DataError, ElectraError
from data_prep.objects import WEB, input_size, input_version, is_absent, open_input, scheme_of

MAX_RECORD_BYTES = 256 << 20
UNREADABLE = "unreadable"  # the version of an input that could not be read when the plan was made
VERSION_CHARS = 32
_MAX_WINDOW = 1 << 27  # of a zstd frame, in bytes: what the format recommends that every decoder supports
_MAX_XZ_BYTES = 512 << 20  # of memory for an xz decoder; the largest preset takes 65 MB
COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
_BLOCK = 1 << 20
_ZSTD_INPUT = 1 << 11  # a zstd decoder gives all its input holds, and four bytes may hold 128 KiB

# The reasons that mean a malformed input, whose share `max_bad_fraction` limits. What a reader leaves out by design (a
# redirect, a stub) is not among them.
BAD = frozenset(
    {
        "bad_json",
        "bad_page",
        "damaged_archive",
        "duplicate_member",
        "no_text_field",
        "not_utf8",
        "record_too_large",
        "unreadable",
        "window_too_large",
    }
)


class Document(NamedTuple):
    """One text as read. `id` is the same on every machine, and unique within its source unless it came from a field."""

    id: str
    topic: str
    text: str


class Rejected(NamedTuple):
    """A record that is no document, why, and where it stands: FILE:OFFSET, or FILE:ROW in files of rows."""

    reason: str
    where: str


Records = Iterator[Document | Rejected]


class InputFile(NamedTuple):
    """One input file. `name` does not depend on where the files lie; `package` is set for installed documentation.

    `bytes` and `version` are those of the plan, and nothing else is read under this name; with no version the file is
    read as it is.
    """

    name: str
    path: str
    package: str = ""
    bytes: int = 0
    version: str = ""

    @property
    def topic(self) -> str:
        """The topic of documents that name none: the file's name up to its first dot."""
        return PurePosixPath(self.name).name.split(".")[0]


class Fields(NamedTuple):
    """Where a record that has fields keeps its text, its id and its topic."""

    text: str
    id: str | None = None
    topic: str | None = None

    def document(self, record: Mapping[str, Any], where: str, topic: str) -> Document | Rejected:
        """The document of one record; `where` stands in for an id that is missing or has parts, `topic` for a topic."""
        text = record.get(self.text)
        if type(text) is not str:
            return Rejected("no_text_field", where)
        if self.id is not None and _names(given := record.get(self.id)):
            where = str(given)
        if self.topic is not None and _names(given := record.get(self.topic)):
            topic = str(given)
        return Document(where, topic, text)


def _names(given: Any) -> bool:
    """Whether a value can be an id or a topic. One with parts cannot: it may be nested deeper than can be written."""
    return given is not None and not isinstance(given, (dict, list))


class Damaged(Exception):
    """The content of a file ends here although the file says that more follows."""

    def __init__(self, reason: str, place: int) -> None:
        super().__init__(reason)
        self.reason, self.place = reason, place


def is_compressed(name: str) -> bool:
    """Whether a file is one whole stream that cannot be entered in the middle."""
    return PurePosixPath(name).suffix in COMPRESSED


@contextmanager
def transport(path: str) -> Iterator[None]:
    """Whatever a disk, a store or a server refuses, as an OSError that names the file."""
    try:
        yield
    except ElectraError:
        raise
    except OSError as error:
        number = error.errno  # which some libraries leave out
        if number is None and (is_absent(error) or isinstance(error, PermissionError)):
            number = errno.ENOENT if is_absent(error) else errno.EACCES
        reason = error.strerror or _one_line(error if number else error.__cause__ or error)
        raise OSError(number, reason, path) from None
    except Exception as error:  # libraries of the network have errors of their own
        if isinstance(error, ValueError) and scheme_of(path) in WEB:
            raise DataError(
                f"{path}: the server does not send parts of a file ({_one_line(error)}); download it first."
            ) from None
        raise OSError(None, f"{type(error).__name__}: {_one_line(error)}", path) from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


class Stored:
    """A file as stored, for reading. An error of the disk or the network ends the unit, never just the file.

    What stands on a disk that fails may be whole, so it must not be counted as damaged: the same input would give other
    documents tomorrow. Libraries that read through this may turn such an error into one of theirs; `raise_failure`
    tells the two apart.
    """

    closed = False

    def __init__(self, stream: Any, path: str) -> None:
        self._stream, self._path = stream, path
        self._size: int | None = None
        self._failure: Exception | None = None

    def __enter__(self) -> "Stored":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close()
        if kind is None:
            self.raise_failure()

    def raise_failure(self) -> None:
        """Raise the error with which reading failed, where it did: nothing that follows is damage."""
        if self._failure is not None:
            raise self._failure

    def read(self, size: int = -1) -> bytes:
        if size > _BLOCK:  # a broken file may claim any length, and a buffer is made for it before it is read
            size = min(size, max(0, self.size() - self.tell()))
        with self._noted():
            return bytes(self._stream.read(size))

    def seek(self, offset: int, whence: int = 0) -> int:
        target = offset + (self.size() if whence == 2 else self.tell() if whence == 1 else 0)
        if target < 0:
            raise ValueError("a place before the beginning")  # that a broken file names
        target = min(target, self.size())
        with self._noted():
            self._stream.seek(target)
        return target

    def tell(self) -> int:
        return int(self._stream.tell())

    def size(self) -> int:
        """Bytes of the whole file; the place in it stays."""
        if self._size is None:
            with self._noted():
                place = self._stream.tell()
                self._stream.seek(0, 2)
                self._size = int(self._stream.tell())
                self._stream.seek(place)
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
        self._stream.close()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            with transport(self._path):
                yield
        except Exception as error:
            self._failure = error
            raise


def open_file(file: InputFile) -> Stored:
    """The file as stored. Damaged when it was none that can be read as the plan was made."""
    if file.version == UNREADABLE:
        raise Damaged("unreadable", 0)
    with transport(file.path):
        return Stored(open_input(file.path), file.path)


def version_of(path: str, size: int) -> str:
    """What tells an input of this size from another one."""
    return input_version(path, size)[:VERSION_CHARS]


def check_unchanged(file: InputFile, *, sizes_only: bool = False) -> None:
    """DataError when the file is not the one that was planned; OSError when it is not there."""
    if file.version in ("", UNREADABLE):
        return
    with transport(file.path):
        size = input_size(file.path)
        if size is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", file.path)
        if size != file.bytes or not (sizes_only or version_of(file.path, size) == file.version):
            raise changed(file)


def changed(file: InputFile) -> DataError:
    """The sentence for a file that is another one by now."""
    return DataError(
        f"{file.path} has changed since the plan was made; put back what it was, or prepare the corpus anew in another "
        "folder."
    )


def blocks(stream: Stored, file: InputFile) -> Iterator[bytes]:
    """The content of a file from where its stream stands, decompressed by the file's name."""
    stored = iter(lambda: stream.read(_BLOCK), b"")
    suffix = PurePosixPath(file.name).suffix
    return _members(stored, _decoder(suffix)) if suffix in COMPRESSED else stored


class _Zstd:
    """One zstd frame, with the interface of `bz2.BZ2Decompressor`."""

    def __init__(self) -> None:
        import zstandard

        self._decoder = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj()
        self._waiting = b""
        self.eof, self.needs_input = False, True

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data + self._waiting

    def decompress(self, data: bytes, max_length: int) -> bytes:
        data = self._waiting + data if self._waiting else data
        parts: list[bytes] = []
        size = at = 0
        while at < len(data) and size < max_length and not self._decoder.eof:
            parts.append(self._decoder.decompress(data[at : at + _ZSTD_INPUT]))
            size += len(parts[-1])
            at += _ZSTD_INPUT
        self._waiting = data[at:]
        self.eof = self._decoder.eof
        self.needs_input = not self._waiting
        return b"".join(parts)


def _decoder(suffix: str) -> Callable[[], Any]:
    if suffix == ".zst":
        return _Zstd
    if suffix == ".gz":
        from isal import igzip_lib

        return lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    if suffix == ".bz2":
        import bz2

        return bz2.BZ2Decompressor
    import lzma

    return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _MAX_XZ_BYTES)


def _members(stored: Iterator[bytes], new_decoder: Callable[[], Any]) -> Iterator[bytes]:
    """The content of all members of an archive. Zero bytes after the last are padding; anything else is damage."""
    decoder, members, offset = new_decoder(), 0, 0
    waiting, at_start = b"", True
    while True:
        if not waiting and (at_start or decoder.needs_input):
            waiting = next(stored, b"")
            if not waiting:
                break
        if at_start and members and not (waiting := waiting.lstrip(b"\0")):
            continue
        try:
            content = decoder.decompress(waiting, _BLOCK)
        except MemoryError:
            raise
        except Exception as error:  # every library has errors of its own; all but one mean the same
            too_large = re.search("too much memory|memory usage limit", str(error), re.IGNORECASE)
            raise Damaged("window_too_large" if too_large else "damaged_archive", offset) from None
        waiting, at_start = b"", False
        if content:
            offset += len(content)
            yield content
        if decoder.eof:
            waiting, decoder, members, at_start = decoder.unused_data, new_decoder(), members + 1, True
    if not at_start or not members:
        raise Damaged("damaged_archive", offset)


def split(content: Iterator[bytes], delimiter: bytes, offset: int = 0) -> Iterator[tuple[int, list[bytes] | None]]:
    """Batches of records without their delimiter, with the offset of the first; None is a record that is too large.

    What follows the last delimiter is a record where it is not empty. Blocks are smaller than the largest record.
    """
    held: list[bytes] = []  # the record that has begun, and how much of it has been seen
    held_bytes = 0
    overlap = len(delimiter) - 1
    for block in content:
        if overlap and held:  # the delimiter may lie across the two
            held_bytes -= len(held[-1])
            block = held.pop() + block
        records = block.split(delimiter)
        rest = records.pop()
        if records:
            size = held_bytes + len(records[0])
            if size > MAX_RECORD_BYTES:
                yield offset, None
                offset += size + len(delimiter)
                del records[0]
            elif held:
                records[0] = b"".join((*held, records[0]))
            if records:
                yield offset, records
                offset += sum(map(len, records)) + len(records) * len(delimiter)
            held, held_bytes = [], 0
        held_bytes += len(rest)
        if held_bytes <= MAX_RECORD_BYTES + overlap:  # of which the delimiter's beginning may be a part
            held.append(rest)
        else:
            held = [rest[-overlap:]] if overlap else []
    if held_bytes > MAX_RECORD_BYTES:
        yield offset, None
    elif held_bytes:
        yield offset, [b"".join(held)]
