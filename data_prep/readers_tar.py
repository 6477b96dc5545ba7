"""Reader of WebDataset tars of text: members that share a key are one sample, and a sample is one record.

A field is the extension of a member (`txt`), or an extension and a key of its JSON object (`json:text`). Members are
read, never extracted. Python's `tarfile` ends quietly where a header is cut or altered; here that is damage, as is a
missing end mark, so a tar that lost its tail is never taken for a whole one.
"""

import os
import tarfile
from collections.abc import Iterator
from typing import Any

from data_prep.records import (
    MAX_RECORD_BYTES,
    Damaged,
    Fields,
    InputFile,
    Records,
    Rejected,
    Stored,
    blocks,
    open_file,
)

# Of a name or of attributes that stand before a member, and of attributes meant for all members: as many as a file on
# Linux can have. Python before 3.11.10 takes time by the square of this for attributes that are made for it.
_MAX_HEADER_BYTES = 1 << 16
_EXTENSIONS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


def read_tar(file: InputFile, fields: Fields) -> Records:
    """The samples of a tar, plain or compressed, in order. A record's place is the offset of its first member."""
    rejected: list[Rejected] = []
    with open_file(file) as stream:
        content = _Readable(blocks(stream, file))
        for sample in _samples(_members(stream, content, file, rejected), file, rejected):
            yield from rejected
            rejected.clear()
            yield _record(sample, fields, file)
        yield from rejected
        if content.damage is not None:
            raise content.damage


class _Readable:
    """Blocks as a file; damage is kept, so that the members before it can be used."""

    def __init__(self, content: Iterator[bytes]) -> None:
        self._content, self._held = content, b""
        self.damage: Damaged | None = None

    def read(self, size: int) -> bytes:
        parts, missing = [self._held[:size]], size - len(self._held)
        self._held = self._held[size:]
        while missing > 0:
            try:
                block = next(self._content, b"")
            except Damaged as damage:
                self.damage = damage
                block = b""
            if not block:
                break
            parts.append(block[:missing])
            self._held = block[missing:]
            missing -= len(block)
        return b"".join(parts)


class _StrictHeader(tarfile.TarInfo):
    """A header that is cut, altered or larger than any writer makes it is an error, not the end.

    Without a bound a few megabytes, compressed, unpack to a header of gigabytes; so does the map of a sparse member.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_StrictHeader":
        header = super().frombuf(buf, encoding, errors)
        if header.type == tarfile.GNUTYPE_SPARSE or (header.type in _EXTENSIONS and header.size > _MAX_HEADER_BYTES):
            raise tarfile.ReadError("a header too large, or a sparse member")
        return header

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise tarfile.ReadError("a sparse member")

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> "_StrictHeader":
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the end mark
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None


def _members(stream: Stored, content: Any, file: InputFile, rejected: list[Rejected]) -> Iterator[dict[str, Any]]:
    """Files of the tar as webdataset's own reader gives them: {fname, data}, and where each stands."""
    offset = 0
    try:
        with tarfile.open(fileobj=content, mode="r|", tarinfo=_StrictHeader) as tar:
            for member in tar:
                offset = member.offset
                tar.members = []  # type: ignore[attr-defined]  # or they pile up
                if sum(len(f"{key}{value}") for key, value in tar.pax_headers.items()) > _MAX_HEADER_BYTES:
                    raise tarfile.ReadError("too many attributes meant for all members")
                if not member.isreg():
                    continue
                if member.size > MAX_RECORD_BYTES:
                    rejected.append(Rejected("record_too_large", f"{file.name}:{offset}"))
                    continue
                data = tar.extractfile(member)
                body = data.read() if data is not None else b""
                if len(body) != member.size:
                    raise tarfile.ReadError("unexpected end of data")
                yield {"fname": member.name, "data": body, "__url__": str(offset)}
                offset = tar.offset
    except Exception:  # tarfile has several errors, and odd numbers in a header raise others
        stream.raise_failure()
        content.damage = content.damage or Damaged("damaged_archive", offset)


def _samples(members: Iterator[dict[str, Any]], file: InputFile, rejected: list[Rejected]) -> Iterator[dict[str, Any]]:
    os.environ["WDS_SECURE"] = "1"  # read when the package is loaded: no commands in addresses, no pickles
    from webdataset.tariterators import base_plus_ext, group_by_keys

    place = ""

    def named() -> Iterator[dict[str, Any]]:
        nonlocal place
        for member in members:
            place = f"{file.name}:{member['__url__']}"
            if base_plus_ext(member["fname"])[0] is None:
                rejected.append(Rejected("no_text_field", place))
            else:
                yield member

    def count(error: Exception) -> bool:
        rejected.append(Rejected("duplicate_member", place))
        return True

    yield from group_by_keys(named(), handler=count)


def _record(sample: dict[str, Any], fields: Fields, file: InputFile) -> Any:
    where = f"{file.name}:{sample['__url__']}"
    record: dict[str, Any] = {}
    for field in fields:
        if field is None:
            continue
        try:
            record[field] = _value(sample, field)
        except UnicodeDecodeError:
            return Rejected("not_utf8", where)
        except ValueError:
            return Rejected("bad_json", where)
    return fields.document(record, where, file.topic)


def _value(sample: dict[str, Any], field: str) -> Any:
    import orjson

    extension, _, key = field.partition(":")
    if extension == "__key__":
        return sample["__key__"]
    data = sample.get(extension)
    if data is None:
        return None
    if not key:
        return data.decode("utf-8")
    data.decode("utf-8")
    value = orjson.loads(data)
    return value.get(key) if isinstance(value, dict) else None
