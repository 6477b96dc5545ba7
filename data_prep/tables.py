"""The intermediate tables of a corpus: clean documents, the removal list, held-out texts.

Clean documents are an Arrow stream in batches of a few megabytes, not compressed: LZ4 would save a third of their room
and take as long as all of reading and cleaning. Their hashes and sizes lie in a small file beside it, so that merges
never read texts. A document's place in the corpus order is (unit, row). Hashes and sizes are held for the whole corpus
at once, some 40 bytes a document; of texts no more than a batch, beside which only the largest document counts.
"""

import contextlib
import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from data_prep import dedup
from data_prep.errors import DataError
from data_prep.storage import Folder

DOCUMENTS, HELDOUT_DOCUMENTS, REMOVALS = "documents", "heldout_documents", "removals.parquet"
BATCH_BYTES = 4 << 20  # of text written, and therefore read, at a time

_DOCUMENTS = pa.schema([("id", pa.string()), ("topic", pa.string()), ("text", pa.large_string())])
_SIZES = pa.schema([("hash", pa.binary(dedup.HASH_BYTES)), ("bytes", pa.int64())])
_HELDOUT = pa.schema([("id", pa.string()), ("topic", pa.string()), ("text", pa.large_string())])
_REMOVALS = pa.schema([("unit", pa.int32()), ("row", pa.int64()), ("reason", pa.string())])


@dataclass(slots=True)
class DocumentBatch:
    """Consecutive clean documents of a unit; `first` is the row of the first one."""

    first: int = 0
    ids: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, slots=True)
class Columns:
    """What merges need of all documents, in corpus order."""

    hashes: NDArray[np.uint64]  # [n, 2], see dedup.words
    bytes: NDArray[np.int64]  # [n], UTF-8 bytes of the text
    unit: NDArray[np.int64]  # [n]
    row: NDArray[np.int64]  # [n], within the unit

    def numbers(self, unit: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.int64]:
        """`[k]` numbers of the documents at rows of units."""
        return np.searchsorted(self.unit, unit) + row

    def of_unit(self, unit: int) -> slice:
        """The documents of a unit."""
        first, last = np.searchsorted(self.unit, [unit, unit + 1]).tolist()
        return slice(first, last)


def documents_name(unit: int) -> str:
    """Where the clean documents of a unit lie."""
    return f"{DOCUMENTS}/{unit:05d}.arrow"


def sizes_name(unit: int) -> str:
    """Where their hashes and sizes lie."""
    return f"{DOCUMENTS}/{unit:05d}.sizes.arrow"


def heldout_name(unit: int) -> str:
    """Where the held-out texts of a unit lie."""
    return f"{HELDOUT_DOCUMENTS}/{unit:05d}.parquet"


class DocumentWriter:
    """Streams the clean documents of a unit to a file. `sha256` is over them, not over their encoding."""

    def __init__(self, file: IO[bytes]) -> None:
        self._writer = pa.ipc.new_stream(file, _DOCUMENTS)
        self._names, self._contents = hashlib.sha256(), hashlib.sha256()
        self._ids: list[str] = []
        self._topics: list[str] = []
        self._texts: list[bytes] = []
        self._pending = 0
        self.hashes = bytearray()  # one after the other; these two are all that is held of documents written
        self.sizes = array("q")

    def extend(
        self, ids: Sequence[str], topics: Sequence[str], texts: Sequence[bytes], hashes: Sequence[bytes]
    ) -> None:
        """Take documents: ids and topics, texts in UTF-8, hashes of the normalised texts."""
        names = [f"{len(name)} {len(topic)} {name}{topic}" for name, topic in zip(ids, topics, strict=True)]
        self._names.update("".join(names).encode())
        self._contents.update(b"".join(map(xxhash.xxh3_128_digest, texts)))
        self._ids += ids
        self._topics += topics
        self._texts += texts
        sizes = list(map(len, texts))
        self.hashes += b"".join(hashes)
        self.sizes.extend(sizes)
        self._pending += sum(sizes)
        if self._pending >= BATCH_BYTES:
            self._write()

    @property
    def sha256(self) -> str:
        """Over the documents so far, in whatever portions they came."""
        return hashlib.sha256(self._names.digest() + self._contents.digest()).hexdigest()

    def close(self) -> None:
        self._write()
        self._writer.close()

    def _write(self) -> None:
        """The texts are bytes already: Arrow takes them as they are, with the running ends of each."""
        if self._texts:
            ends = np.zeros(len(self._texts) + 1, dtype=np.int64)
            np.cumsum(np.fromiter(map(len, self._texts), np.int64), out=ends[1:])
            buffers = pa.py_buffer(ends), pa.py_buffer(b"".join(self._texts))
            texts = pa.LargeStringArray.from_buffers(len(self._texts), *buffers)
            arrays = [pa.array(self._ids, pa.string()), pa.array(self._topics, pa.string()), texts]
            self._writer.write_batch(pa.record_batch(arrays, schema=_DOCUMENTS))
        self._ids, self._topics, self._texts, self._pending = [], [], [], 0


@contextlib.contextmanager
def document_writer(corpus: Folder, unit: int) -> Iterator[DocumentWriter]:
    """The clean documents of a unit, with their hashes and sizes; the files appear when the block ends."""
    with corpus.writer(documents_name(unit), durable=False) as file:
        writer = DocumentWriter(file)
        yield writer
        writer.close()
    columns = [
        pa.Array.from_buffers(field.type, len(writer.sizes), [None, pa.py_buffer(data)])
        for field, data in zip(_SIZES, (writer.hashes, writer.sizes), strict=True)
    ]
    with corpus.writer(sizes_name(unit)) as file, pa.ipc.new_stream(file, _SIZES) as stream:
        stream.write_table(pa.table(columns, schema=_SIZES))


def read_documents(corpus: Folder, unit: int) -> Iterator[DocumentBatch]:
    """All clean documents of a unit, in order, some `BATCH_BYTES` of text at a time. DataError: the file is damaged."""
    first = 0
    with _reading(corpus, documents_name(unit)) as file, pa.ipc.open_stream(file) as stream:
        for table in stream:
            yield DocumentBatch(first, *(table.column(name).to_pylist() for name in _DOCUMENTS.names))
            first += table.num_rows


def read_texts(corpus: Folder, unit: int, rows: NDArray[np.int64]) -> list[str]:
    """The texts at the given rows of a unit, in the order they stand there."""
    wanted = set(rows.tolist())
    return [
        text
        for batch in read_documents(corpus, unit)
        for row, text in enumerate(batch.texts, batch.first)
        if row in wanted
    ]


def read_sizes(corpus: Folder, unit: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hash words `[n, 2]` and sizes `[n]` of the documents of a unit."""
    with _reading(corpus, sizes_name(unit)) as file, pa.ipc.open_stream(file) as stream:
        table = stream.read_all()
    chunks = [chunk for chunk in table.column("hash").chunks if len(chunk)]
    data = b"".join(chunk.buffers()[1][: len(chunk) * dedup.HASH_BYTES] for chunk in chunks)
    return dedup.words(np.frombuffer(data, dtype=f"V{dedup.HASH_BYTES}")), table.column("bytes").to_numpy()


def read_columns(corpus: Folder, units: int) -> Columns:
    """Hashes and sizes of all documents."""
    parts = [read_sizes(corpus, unit) for unit in range(units)]
    counts = [len(sizes) for _, sizes in parts]
    return Columns(
        hashes=np.concatenate([hashes for hashes, _ in parts]),
        bytes=np.concatenate([sizes for _, sizes in parts]),
        unit=np.repeat(np.arange(units, dtype=np.int64), counts),
        row=np.concatenate([np.arange(count, dtype=np.int64) for count in counts]),
    )


def write_removals(corpus: Folder, columns: Columns, reasons: NDArray[Any]) -> tuple[str, dict[str, int]]:
    """Write the removal list from `reasons` `[n]` ("": the document stays); returns (its sha256, counts by reason).

    The sha256 is over the list itself, not over its encoding, so that it does not depend on the parquet library.
    """
    removed = np.flatnonzero(reasons != "")
    units, rows, why = columns.unit[removed], columns.row[removed], reasons[removed].tolist()
    with corpus.writer(REMOVALS) as file:
        pq.write_table(pa.table([units.astype(np.int32), rows, why], schema=_REMOVALS), file)
    digest = hashlib.sha256()
    for unit, row, reason in zip(units, rows, why, strict=True):
        digest.update(f"{unit} {row} {reason}\n".encode())
    return digest.hexdigest(), dict(sorted(Counter(why).items()))


def read_removals(corpus: Folder, unit: int) -> dict[int, str]:
    """Row → reason of the removed documents of one unit."""
    with _reading(corpus, REMOVALS) as file:
        table = pq.read_table(file, filters=[("unit", "=", unit)])
    return dict(zip(table.column("row").to_pylist(), table.column("reason").to_pylist(), strict=True))


class HeldoutWriter:
    """Streams held-out documents (id, topic, text) to disk. `sha256` is over them, not over their encoding."""

    def __init__(self, writer: pq.ParquetWriter) -> None:
        self._writer, self._digest = writer, hashlib.sha256()
        self._group: list[tuple[str, str, str]] = []
        self._pending = 0

    def add(self, document: tuple[str, str, str]) -> None:
        """Take one document."""
        self._digest.update(repr(document).encode())
        self._group.append(document)
        self._pending += len(document[2])
        if self._pending >= BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits as one row group."""
        if self._group:
            self._writer.write_table(_table(self._group, _HELDOUT))
        self._group, self._pending = [], 0

    @property
    def sha256(self) -> str:
        """Over the documents so far."""
        return self._digest.hexdigest()


@contextlib.contextmanager
def heldout_writer(corpus: Folder, unit: int) -> Iterator[HeldoutWriter]:
    """The held-out documents of a unit; the file appears when the block ends."""
    with (
        corpus.writer(heldout_name(unit)) as file,
        pq.ParquetWriter(file, _HELDOUT, compression="zstd", compression_level=1) as writer,
    ):
        held = HeldoutWriter(writer)
        yield held
        held.flush()


def heldout_sha256(corpus: Folder, name: str) -> str:
    """The sha256 over the held-out documents in a file, as its writer had it. DataError when it cannot be read."""
    digest = hashlib.sha256()
    with _reading(corpus, name) as file, pq.ParquetFile(file) as table:
        for group in range(table.num_row_groups):
            columns = table.read_row_group(group, columns=_HELDOUT.names)
            for document in zip(*(columns.column(column).to_pylist() for column in _HELDOUT.names), strict=True):
                digest.update(repr(document).encode())
    return digest.hexdigest()


def heldout_count(corpus: Folder, name: str) -> int:
    """How many held-out documents a file holds by its own account. DataError when it cannot be read."""
    with _reading(corpus, name) as file, pq.ParquetFile(file) as table:
        return int(table.metadata.num_rows)


@contextlib.contextmanager
def _reading(corpus: Folder, name: str) -> Iterator[Any]:
    """The file, with what pyarrow says of a damaged one, or one with other columns, as a DataError."""
    try:
        with corpus.open(name) as file:
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{corpus}/{name} cannot be read ({reason}); run `electra prepare` again to restore it."
        ) from None


def _table(rows: Sequence[Any], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
