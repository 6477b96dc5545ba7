"""How large an input is, what tells it from another, and where its format lets it be cut.

Measuring a file costs a look at its size and at a bounded sample of its content, however large it is; only a file that
is too large for a unit is opened to learn its parts. A file that cannot be read is 0 bytes of "unreadable": reading it
is a counted rejection.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from data_prep.errors import PreflightError
from data_prep.objects import input_size, scheme_of
from data_prep.records import UNREADABLE, Damaged, InputFile, transport, version_of
from data_prep.sources import Arrow, HubDataset, Jsonl, Parquet, PlainText, Source, dataset_of, is_compressed

_REQUESTS = 32  # at once, to a store that answers each in some ten milliseconds


class Extent(NamedTuple):
    """Bytes of an input, what tells its content from another's, and how many parts are known (0: not looked for)."""

    bytes: int
    version: str
    parts: int = 0


class Piece(NamedTuple):
    """A range of one input, in bytes, row groups, batches, rows or data files as its format has it."""

    start: int
    stop: int
    bytes: int


def measure(source: Source, files: Sequence[InputFile]) -> list[Extent]:
    """The extent of every file of a source."""
    if isinstance(source, HubDataset):
        from data_prep import readers_datasets

        found = readers_datasets.measure(dataset_of(source, files[0]))
        return [Extent(found.bytes, found.version, found.pieces)]
    if files and scheme_of(files[0].path):
        with ThreadPoolExecutor(_REQUESTS) as pool:
            return list(pool.map(_measure_file, files))
    return [_measure_file(file) for file in files]


def _measure_file(file: InputFile) -> Extent:
    try:
        with transport(file.path):
            size = input_size(file.path)
            if size is not None:
                return Extent(size, version_of(file.path, size))
    except PermissionError:
        pass
    except OSError as error:
        raise _not_read(file, error) from None
    return Extent(0, UNREADABLE)


def pinned(source: Source, file: InputFile) -> InputFile:
    """A dataset of the hub at the commit it has now, so that every worker and every later run reads that one."""
    if not isinstance(source, HubDataset):
        return file
    from data_prep import readers_datasets

    commit = readers_datasets.commit_of(dataset_of(source, file))
    return file._replace(path=f"{file.path}@{commit}") if commit else file


def _not_read(file: InputFile, error: OSError) -> PreflightError:
    return PreflightError(f"{file.path} cannot be read ({error.strerror}); check it, and run again.")


def cut(source: Source, file: InputFile, extent: Extent, unit_bytes: int) -> list[Piece]:
    """The pieces of about `unit_bytes` that a file can be read in; none where it is small or has to be read whole."""
    if isinstance(source, HubDataset):
        wanted = -(-extent.bytes // unit_bytes) if extent.bytes else extent.parts  # of unknown size: a file each
        return _even(extent.parts, min(extent.parts, wanted), extent.bytes)
    wanted = -(-extent.bytes // unit_bytes)
    if wanted <= 1:
        return []
    if isinstance(source, Jsonl) or (isinstance(source, PlainText) and source.separator == "blank_line"):
        return [] if is_compressed(file.name) else _even(extent.bytes, wanted, extent.bytes)
    try:
        if isinstance(source, Parquet):
            from data_prep.readers_tables import parquet_groups

            return _grouped(parquet_groups(file), unit_bytes)
        if isinstance(source, Arrow):
            from data_prep.readers_tables import arrow_batches

            batches = arrow_batches(file)
            return _even(batches, min(batches, wanted), extent.bytes)
    except Damaged:  # found again, and counted, when it is read
        pass
    except OSError as error:
        raise _not_read(file, error) from None
    return []


def _even(parts: int, pieces: int, size: int) -> list[Piece]:
    """`parts` in so many pieces of nearly the same number; none for less than two."""
    if pieces <= 1:
        return []
    edges = [(parts * k // pieces, size * k // pieces) for k in range(pieces + 1)]
    return [Piece(edges[k][0], edges[k + 1][0], edges[k + 1][1] - edges[k][1]) for k in range(pieces)]


def _grouped(sizes: Sequence[int], unit_bytes: int) -> list[Piece]:
    """Neighbouring parts together up to `unit_bytes`; none where that is all of them."""
    pieces: list[Piece] = []
    first = size = 0
    for number, part in enumerate(sizes):
        if size and size + part > unit_bytes:
            pieces.append(Piece(first, number, size))
            first, size = number, 0
        size += part
    pieces.append(Piece(first, len(sizes), size))
    return pieces if len(pieces) > 1 else []
