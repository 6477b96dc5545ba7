"""Rows in WebDataset tars: their layout and the writer.

A shard is a plain USTAR tar without clock or owner, so its bytes are a function of its rows; each member holds
`ROWS_PER_MEMBER` rows as one little-endian array (only a shard's last member may be shorter), so the offset of any row
is arithmetic and the file is at once an ordinary WebDataset and a zero-copy array (read by `data_prep.reader`).
"""

import hashlib
import os
from contextlib import ExitStack
from typing import IO, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_prep.errors import DataError
from data_prep.manifest import ShardEntry, Split, SplitStats
from data_prep.rows import SpecialIds
from data_prep.storage import Folder

ROWS_PER_MEMBER = 64
_BLOCK = 512  # tar block: one header block before each member's data
_RECORD = 10_240  # tar record: the file is padded to a multiple

I64 = NDArray[np.int64]


def row_dtype(vocab_size: int) -> np.dtype[Any]:
    """The narrowest little-endian dtype of a row; 0xFFFF stays free so that it can never be a token."""
    return np.dtype("<u2") if vocab_size < 0xFFFF else np.dtype("<u4")


def shard_bytes(n_rows: int, seq_len: int, itemsize: int) -> int:
    """The size in bytes of a shard of `n_rows`, by arithmetic."""
    full, rest = divmod(n_rows, ROWS_PER_MEMBER)
    row_bytes = seq_len * itemsize
    size = full * _member_stride(row_bytes) + (_BLOCK + _pad(rest * row_bytes, _BLOCK) if rest else 0)
    return _pad(size + 2 * _BLOCK, _RECORD)


def _member_stride(row_bytes: int) -> int:
    return _BLOCK + _pad(ROWS_PER_MEMBER * row_bytes, _BLOCK)


def _pad(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def row_offsets(rows: I64, row_bytes: int) -> I64:
    """Where rows `[n]` of a shard begin in its file, in bytes."""
    member, inside = np.divmod(rows, ROWS_PER_MEMBER)
    return member * _member_stride(row_bytes) + _BLOCK + inside * row_bytes


def row_stats(rows: NDArray[np.integer], special: SpecialIds) -> SplitStats:
    """Counts of rows `[n, seq_len]`, all taken from the stored ids (no shards listed).

    What `data_prep.rows.structure` says of the rows, in one pass; padding stands at the end of a row, as the packers
    leave it.
    """
    from data_prep import row_kernels

    totals, lengths = np.zeros(5, dtype=np.int64), np.zeros(rows.shape[1] + 1, dtype=np.int64)
    unk = -1 if special.unk is None else special.unk
    row_kernels.count_rows(np.ascontiguousarray(rows), special.cls, special.sep, special.pad, unk, totals, lengths)
    fragments, sum_lengths, sum_squares, pairs, unknown = totals.tolist()
    return SplitStats(
        rows=len(rows),
        tokens=int(lengths @ np.arange(len(lengths))),
        fragments=fragments,
        sum_L=sum_lengths,
        sum_L2=sum_squares,
        row_lengths=lengths.tolist(),
        rows_with_pair=pairs,
        unk=unknown,
        shards=[],
    )


class ShardWriter:
    """Writes one unit's rows of one split as shards `UUUUU-SSS` of at most `rows_per_shard` rows.

    Rows go to the file as whole members fill up, so memory holds less than one member whatever the shard's size. Use as
    a context manager: the last shard is finished at its end, and none is begun twice; when the block fails, the shard
    that was open never appears. `entries` lists the finished ones.
    """

    def __init__(
        self, corpus: Folder, split: Split, unit: int, *, seq_len: int, rows_per_shard: int, vocab_size: int
    ) -> None:
        self._corpus, self._split, self._unit = corpus, split, unit
        self._limit, self._vocab_size = rows_per_shard, vocab_size
        self._rest = np.empty((0, seq_len), dtype=row_dtype(vocab_size))
        self._written = 0
        self._shard: _OpenShard | None = None
        self._stack = ExitStack()
        self.entries: list[ShardEntry] = []
        self.files: list[list[Any]] = []  # as `Folder.listed` has them

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self._put(self._rest)
            self._finish()
        else:
            self._stack.__exit__(kind, error, trace)

    def add(self, rows: NDArray[np.integer]) -> None:
        """Take rows `[n, seq_len]` of any integer type. DataError on an id outside the vocabulary, looked for here
        because narrowing would wrap it into a valid one."""
        if rows.size and (int(rows.max()) >= self._vocab_size or int(rows.min()) < 0):
            worst = int(rows.max()) if int(rows.max()) >= self._vocab_size else int(rows.min())
            raise DataError(f"unit {self._unit}: token id {worst} lies outside the vocabulary of {self._vocab_size}.")
        rows = np.concatenate([self._rest, rows.astype(self._rest.dtype)])
        whole = len(rows) - len(rows) % ROWS_PER_MEMBER
        for start in range(0, whole, ROWS_PER_MEMBER):
            self._put(rows[start : start + ROWS_PER_MEMBER])
        self._rest = rows[whole:]

    def _put(self, member: NDArray[Any]) -> None:
        """Write one member; only a shard's last one is shorter than the others."""
        if not len(member):
            return
        if self._shard is None:
            stem = f"{self._unit:05d}-{len(self.entries):03d}"
            file = self._stack.enter_context(self._corpus.writer(f"{self._split}/{stem}.tar"))
            self._shard = _OpenShard(file, f"{self._split}/{stem}.tar", stem)
        self._shard.put(member)
        if self._shard.rows >= self._limit:
            self._finish()

    def _finish(self) -> None:
        shard, self._shard = self._shard, None
        if shard is None:
            return
        size, sha256, xxh3 = shard.close()
        self._stack.close()  # from here on the shard exists
        self.files.append([shard.name, size, xxh3])
        self.entries.append(
            ShardEntry(
                name=shard.name,
                bytes=size,
                sha256=sha256,
                members=shard.members,
                rows=shard.rows,
                first_row=self._written,
                unit=self._unit,
            )
        )
        self._written += shard.rows


class _OpenShard:
    """A tar being written: every byte is hashed on its way, and compared with what the disk gives back."""

    def __init__(self, file: IO[bytes], name: str, stem: str) -> None:
        os.environ["WDS_SECURE"] = "1"  # read when webdataset is imported: no pickles, no `pipe:` addresses
        import webdataset  # here because it imports torch where there is one, which readers need not wait for

        self.name, self._stem, self._file = name, stem, file
        self.members = self.rows = 0
        self._sha256, self._xxh3 = hashlib.sha256(), xxhash.xxh3_128()
        self._tar = webdataset.TarWriter(self, user="", group="", mtime=0, encoder=False, compress=False)

    def write(self, data: bytes) -> int:
        """What `TarWriter` calls."""
        self._sha256.update(data)
        self._xxh3.update(data)
        return self._file.write(data)

    def put(self, member: NDArray[Any]) -> None:
        suffix = f"u{member.dtype.itemsize * 8}"
        self._tar.write({"__key__": f"{self._stem}-{self.members:05d}", suffix: member.tobytes()})
        self.members += 1
        self.rows += len(member)

    def close(self) -> tuple[int, str, str]:
        """(bytes, SHA-256, XXH3-128) of the finished tar. DataError: the disk gives back something else than was
        written."""
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.seek(0)
        found = xxhash.xxh3_128()
        while block := self._file.read(1 << 20):
            found.update(block)
            size += len(block)
        if found.digest() != self._xxh3.digest():
            raise DataError(
                f"{self.name}: the disk did not give back the rows that were written; check the disk and run again."
            )
        return size, self._sha256.hexdigest(), self._xxh3.hexdigest()
