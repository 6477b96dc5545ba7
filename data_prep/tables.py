"""The intermediate tables of a corpus, as parquet: clean documents, the removal list, held-out texts.

Clean documents carry the hash and size of their text, so that merges read these two columns and never the texts. A
document's place in the corpus order is (unit, row). Texts are written and read a few at a time.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
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
READ_DOCUMENTS = 256  # at a time
WRITE_BYTES = 4 << 20  # of text, at a time

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
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        storage.atomic_writer(path) as file,
        pq.ParquetWriter(file, _DOCUMENTS, compression="zstd", compression_level=1) as writer,
    ):
        batch: list[DocumentRow] = []
        pending = 0
        for document in documents:
            batch.append(document)
            pending += document[4]
            if pending >= WRITE_BYTES:
                writer.write_table(_table(batch, _DOCUMENTS))
                batch, pending = [], 0
        writer.write_table(_table(batch, _DOCUMENTS))


def read_documents(corpus_dir: Path, unit: int, removed: dict[int, str]) -> Iterator[list[DocumentRow]]:
    """The documents of a unit that are not removed, in order, a few at a time. DataError when the file is damaged."""
    path = documents_path(corpus_dir, unit)
    row = 0
    try:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=READ_DOCUMENTS):
            columns = [batch.column(field.name).to_pylist() for field in _DOCUMENTS]
            documents = zip(*columns, strict=True)
            yield [document for i, document in enumerate(documents, row) if i not in removed]
            row += batch.num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}); delete it and prepare again.") from None


def read_texts(corpus_dir: Path, unit: int, rows: NDArray[np.int64]) -> list[str]:
    """The texts at the given rows of a unit."""
    table = pq.read_table(documents_path(corpus_dir, unit), columns=["text"])
    return list(table.column("text").take(pa.array(rows)).to_pylist())


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


def write_heldout(path: Path, documents: list[tuple[str, str, str]]) -> str:
    """Write held-out documents (id, topic, text); returns the sha256 over them, not over their encoding."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage.atomic_writer(path) as file:
        pq.write_table(_table(documents, _HELDOUT), file, compression="zstd")
    digest = hashlib.sha256()
    for document in documents:
        digest.update(repr(document).encode())
    return digest.hexdigest()


def _table(rows: list[Any], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)
