"""The intermediate tables of a corpus, as parquet: clean documents, the removal list, held-out texts.

Clean documents carry the hash and size of their text, so that merges read these two columns and never the texts. A
document's place in the corpus order is (unit, row). Texts are written and read a few megabytes at a time, beside which
only the largest document counts; hashes and sizes are held for the whole corpus, some 40 bytes a document.
"""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_prep import dedup, storage
from data_prep.errors import DataError

DOCUMENTS, HELDOUT_DOCUMENTS, REMOVALS = "documents", "heldout_documents", "removals.parquet"
GROUP_BYTES = 4 << 20  # of text written, and therefore read, at a time

_DOCUMENTS = pa.schema(
    [
        ("id", pa.string()),
        ("topic", pa.string()),
        ("text", pa.large_string()),
        ("hash", pa.binary(dedup.HASH_BYTES)),
        ("bytes", pa.int64()),
    ]
)
_HELDOUT = pa.schema([("id", pa.string()), ("topic", pa.string()), ("text", pa.large_string())])
_REMOVALS = pa.schema([("unit", pa.int32()), ("row", pa.int64()), ("reason", pa.string())])

DocumentRow = tuple[str, str, str, bytes, int]  # id, topic, text, hash, bytes


@dataclass(frozen=True, slots=True)
class Columns:
    """What merges need of all documents, in corpus order."""

    hashes: NDArray[np.uint64]  # [n, 2], see dedup.words
    bytes: NDArray[np.int64]  # [n], UTF-8 bytes of the text
    unit: NDArray[np.int64]  # [n]
    row: NDArray[np.int64]  # [n], within the unit


def documents_path(corpus_dir: Path, unit: int) -> Path:
    """Where the clean documents of a unit lie."""
    return corpus_dir / DOCUMENTS / f"{unit:05d}.parquet"


def heldout_path(corpus_dir: Path, unit: int) -> Path:
    """Where the held-out texts of a unit lie."""
    return corpus_dir / HELDOUT_DOCUMENTS / f"{unit:05d}.parquet"


def write_documents(path: Path, documents: Iterable[DocumentRow]) -> None:
    """Stream the clean documents of a unit to disk."""
    with _grouped_writer(path, _DOCUMENTS) as write:
        for document in documents:
            write(document, document[4])


@contextlib.contextmanager
def _grouped_writer(path: Path, schema: pa.Schema) -> Iterator[Callable[[Any, int], None]]:
    """A function that takes a row and the bytes of its text; a row group is written with every `GROUP_BYTES`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    group: list[Any] = []
    pending = 0
    with (
        storage.atomic_writer(path) as file,
        pq.ParquetWriter(file, schema, compression="zstd", compression_level=1) as writer,
    ):

        def write(row: Any, size: int) -> None:
            nonlocal pending
            group.append(row)
            pending += size
            if pending >= GROUP_BYTES:
                writer.write_table(_table(group, schema))
                group.clear()
                pending = 0

        yield write
        if group:
            writer.write_table(_table(group, schema))


def _groups(path: Path, columns: list[str]) -> Iterator[list[list[Any]]]:
    """The columns of a table, one row group at a time. DataError when the file is damaged."""
    try:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=columns)
                yield [table.column(name).to_pylist() for name in columns]
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); run `electra prepare` again to restore it.") from None


def read_documents(corpus_dir: Path, unit: int, removed: dict[int, str]) -> Iterator[list[DocumentRow]]:
    """The documents of a unit that are not removed, in order, some `GROUP_BYTES` of text at a time.

    DataError when the file is damaged.
    """
    row = 0
    for columns in _groups(documents_path(corpus_dir, unit), _DOCUMENTS.names):
        documents = list(zip(*columns, strict=True))
        yield [document for i, document in enumerate(documents, row) if i not in removed]
        row += len(documents)


def read_texts(corpus_dir: Path, unit: int, rows: NDArray[np.int64]) -> list[str]:
    """The texts at the given rows of a unit, in the order they stand there."""
    texts: list[str] = []
    wanted, first = set(rows.tolist()), 0
    for (column,) in _groups(documents_path(corpus_dir, unit), ["text"]):
        texts += [text for row, text in enumerate(column, first) if row in wanted]
        first += len(column)
    return texts


def read_columns(corpus_dir: Path, units: int) -> Columns:
    """Hashes and sizes of all documents."""
    hashes, sizes, counts = [], [], []
    for unit in range(units):
        table = pq.read_table(documents_path(corpus_dir, unit), columns=["hash", "bytes"])
        hashes.append(hash_words(table.column("hash").to_pylist()))
        sizes.append(table.column("bytes").to_numpy())
        counts.append(table.num_rows)
    return Columns(
        hashes=np.concatenate(hashes),
        bytes=np.concatenate(sizes),
        unit=np.repeat(np.arange(units, dtype=np.int64), counts),
        row=np.concatenate([np.arange(count, dtype=np.int64) for count in counts]),
    )


def hash_words(hashes: list[bytes]) -> NDArray[np.uint64]:
    """`[n, 2]` words of 16-byte hashes."""
    return dedup.words(np.frombuffer(b"".join(hashes), dtype=f"V{dedup.HASH_BYTES}"))


def write_removals(corpus_dir: Path, columns: Columns, reasons: NDArray[Any]) -> tuple[str, dict[str, int]]:
    """Write the removal list from `reasons` `[n]` ("": the document stays); returns (its sha256, counts by reason).

    The sha256 is over the list itself, not over its encoding, so that it does not depend on the parquet library.
    """
    removed = np.flatnonzero(reasons != "")
    units, rows, why = columns.unit[removed], columns.row[removed], reasons[removed].tolist()
    with storage.atomic_writer(corpus_dir / REMOVALS) as file:
        pq.write_table(pa.table([units.astype(np.int32), rows, why], schema=_REMOVALS), file)
    digest = hashlib.sha256()
    for unit, row, reason in zip(units, rows, why, strict=True):
        digest.update(f"{unit} {row} {reason}\n".encode())
    return digest.hexdigest(), dict(sorted(Counter(why).items()))


def read_removals(corpus_dir: Path, unit: int) -> dict[int, str]:
    """Row → reason of the removed documents of one unit."""
    table = pq.read_table(corpus_dir / REMOVALS, filters=[("unit", "=", unit)])
    return dict(zip(table.column("row").to_pylist(), table.column("reason").to_pylist(), strict=True))


class HeldoutWriter:
    """Streams held-out documents (id, topic, text) to disk. `sha256` is over them, not over their encoding."""

    def __init__(self, write: Callable[[Any, int], None]) -> None:
        self._write, self._digest = write, hashlib.sha256()

    def add(self, document: tuple[str, str, str], size: int) -> None:
        """Take one document whose text has `size` bytes."""
        self._digest.update(repr(document).encode())
        self._write(document, size)

    @property
    def sha256(self) -> str:
        """Over the documents so far."""
        return self._digest.hexdigest()


@contextlib.contextmanager
def heldout_writer(path: Path) -> Iterator[HeldoutWriter]:
    """The held-out documents of a unit; the file appears when the block ends."""
    with _grouped_writer(path, _HELDOUT) as write:
        yield HeldoutWriter(write)


def heldout_sha256(path: Path) -> str:
    """The sha256 over the held-out documents in a file, as its writer had it. DataError when it cannot be read."""
    digest = hashlib.sha256()
    for columns in _groups(path, _HELDOUT.names):
        for document in zip(*columns, strict=True):
            digest.update(repr(document).encode())
    return digest.hexdigest()


def _table(rows: list[Any], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)
