"""Rows in WebDataset tars: the writer and the memory-mapped reader.

A shard is a plain USTAR tar without clock or owner, so its bytes are a function of its rows; each member holds
`ROWS_PER_MEMBER` rows as one little-endian array (only a shard's last member may be shorter), so the offset of any row
is arithmetic and the file is at once an ordinary WebDataset and a zero-copy array. The reader trusts the manifest, not
the tar: Python's `tarfile` reads some truncated tars without an error. It does not shuffle, prefetch or fetch.
"""

import os
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from data_prep import storage
from data_prep.errors import DataError
from data_prep.manifest import Manifest, ShardEntry, Split, SplitStats, empty_stats
from data_prep.rows import SpecialIds, fragment_lengths, structure

ROWS_PER_MEMBER = 64
_BLOCK = 512  # tar block: one header block before each member's data
_RECORD = 10_240  # tar record: the file is padded to a multiple

I64 = NDArray[np.int64]


def row_dtype(vocab_size: int) -> np.dtype[Any]:
    """The narrowest little-endian dtype of a row; 0xFFFF stays free so that it can never be a token."""
    return np.dtype("<u2") if vocab_size < 0xFFFF else np.dtype("<u4")


def write_shard(path: Path, rows: NDArray[np.integer], *, vocab_size: int) -> tuple[int, str]:
    """Write `rows` `[n, seq_len]` as one shard: temporary name, fsync, read back, rename. Returns (bytes, sha256).

    The member keys come from the file's own name, so no key occurs twice in a corpus. DataError on an id outside the
    vocabulary or when the disk gives back something else than was written.
    """
    dtype = row_dtype(vocab_size)
    if rows.size == 0:
        raise ValueError("a shard holds at least one row")
    if int(rows.max()) >= vocab_size or int(rows.min()) < 0:
        raise DataError(f"{path.name}: token id {int(rows.max())} lies outside the vocabulary of {vocab_size}.")
    stored = np.ascontiguousarray(rows, dtype=dtype)
    with storage.atomic_writer(path) as file:
        _write_members(file, stored, path.stem)
        file.flush()
        os.fsync(file.fileno())
        temporary = Path(file.name)
        if not np.array_equal(
            _gather(_map(temporary, dtype), np.arange(len(stored)), len(stored), stored.shape[1]), stored
        ):
            raise DataError(
                f"{path}: the disk did not give back the rows that were written; check the disk and run again."
            )
        size, sha256 = temporary.stat().st_size, storage.sha256_of(temporary)
    return size, sha256


def _write_members(file: IO[bytes], stored: NDArray[Any], stem: str) -> None:
    os.environ["WDS_SECURE"] = "1"  # read when webdataset is imported: no pickles, no `pipe:` addresses
    import webdataset  # here because it imports torch where there is one, which readers need not wait for

    suffix = f"u{stored.dtype.itemsize * 8}"
    with webdataset.TarWriter(file, user="", group="", mtime=0, encoder=False, compress=False) as tar:
        for member, start in enumerate(range(0, len(stored), ROWS_PER_MEMBER)):
            payload = stored[start : start + ROWS_PER_MEMBER].tobytes()
            tar.write({"__key__": f"{stem}-{member:05d}", suffix: payload})


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


def _map(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.memmap(path, dtype=dtype, mode="r")


def _gather(flat: NDArray[Any], rows: I64, n_rows: int, seq_len: int) -> NDArray[Any]:
    """Rows `[k, seq_len]` of a mapped shard of `n_rows`, copied; `flat` is the whole file as one array of tokens."""
    itemsize = flat.dtype.itemsize
    row_bytes = seq_len * itemsize
    stride = _member_stride(row_bytes)
    full = n_rows // ROWS_PER_MEMBER
    member, inside = np.divmod(rows, ROWS_PER_MEMBER)
    out = np.empty((len(rows), seq_len), dtype=flat.dtype)
    # The strided view covers full members only, so it never reaches beyond the file's end.
    in_full = member < full
    if full:
        view = as_strided(
            flat[_BLOCK // itemsize :], (full, ROWS_PER_MEMBER, seq_len), (stride, row_bytes, itemsize), writeable=False
        )
        out[in_full] = view[member[in_full], inside[in_full]]
    if not in_full.all():
        start = (full * stride + _BLOCK) // itemsize
        tail = flat[start : start + (n_rows - full * ROWS_PER_MEMBER) * seq_len].reshape(-1, seq_len)
        out[~in_full] = tail[inside[~in_full]]
    return out


def row_stats(rows: NDArray[np.integer], special: SpecialIds) -> SplitStats:
    """Counts of rows `[n, seq_len]`, all taken from the stored ids (no shards listed)."""
    seq_len = rows.shape[1]
    if len(rows) == 0:
        return empty_stats(seq_len)
    shape = structure(rows, special)
    lengths = fragment_lengths(shape.fragment)
    return SplitStats(
        rows=len(rows),
        tokens=int(shape.real.sum()),
        fragments=len(lengths),
        sum_L=int(lengths.sum()),
        sum_L2=int((lengths**2).sum()),
        row_lengths=np.bincount(shape.lengths, minlength=seq_len + 1).tolist(),
        rows_with_pair=int((shape.types.max(axis=1) == 1).sum()),
        unk=0 if special.unk is None else int((rows == special.unk).sum()),
        shards=[],
    )


class ShardWriter:
    """Collects one unit's rows of one split and writes them as shards `UUUUU-SSS` of at most `rows_per_shard` rows."""

    def __init__(
        self, corpus_dir: Path, split: Split, unit: int, *, seq_len: int, rows_per_shard: int, vocab_size: int
    ) -> None:
        self._folder, self._split, self._unit = corpus_dir, split, unit
        self._limit, self._vocab_size = rows_per_shard, vocab_size
        self._buffer = np.empty((0, seq_len), dtype=row_dtype(vocab_size))
        self._written = 0
        self.entries: list[ShardEntry] = []

    def add(self, rows: NDArray[np.integer]) -> None:
        """Take rows `[n, seq_len]` of any integer type; whole shards are written at once. DataError on an id outside
        the vocabulary, looked for here because narrowing would wrap it into a valid one."""
        if rows.size and (int(rows.max()) >= self._vocab_size or int(rows.min()) < 0):
            worst = int(rows.max()) if int(rows.max()) >= self._vocab_size else int(rows.min())
            raise DataError(f"unit {self._unit}: token id {worst} lies outside the vocabulary of {self._vocab_size}.")
        self._buffer = np.concatenate([self._buffer, rows.astype(self._buffer.dtype)])
        while len(self._buffer) >= self._limit:
            self._write(self._buffer[: self._limit])
            self._buffer = self._buffer[self._limit :]

    def close(self) -> list[ShardEntry]:
        """Write what is left; returns all shards (none when there were no rows)."""
        if len(self._buffer):
            self._write(self._buffer)
            self._buffer = self._buffer[:0]
        return self.entries

    def _write(self, rows: NDArray[np.integer]) -> None:
        name = f"{self._split}/{self._unit:05d}-{len(self.entries):03d}.tar"
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        size, sha256 = write_shard(path, rows, vocab_size=self._vocab_size)
        members = -(-len(rows) // ROWS_PER_MEMBER)
        self.entries.append(
            ShardEntry(
                name=name,
                bytes=size,
                sha256=sha256,
                members=members,
                rows=len(rows),
                first_row=self._written,
                unit=self._unit,
            )
        )
        self._written += len(rows)


def problems(corpus_dir: Path, split: Split, manifest: Manifest, *, deep: bool = False) -> list[str]:
    """What is wrong with the shards of a split, one text a shard: missing, extra, cut, and, with `deep`, altered."""
    shards = manifest.split(split).shards
    found = [problem for shard in shards if (problem := _problem(corpus_dir, shard, manifest, deep))]
    present = {f"{split}/{path.name}" for path in (corpus_dir / split).glob("*.tar")}
    return found + [f"{name} is extra" for name in sorted(present - {shard.name for shard in shards})]


def _problem(corpus_dir: Path, shard: ShardEntry, manifest: Manifest, deep: bool) -> str | None:
    path = corpus_dir / shard.name
    if not path.is_file():
        return f"{shard.name} is missing"
    size = path.stat().st_size
    if size != shard.bytes:
        return f"{shard.name} has {size} bytes instead of {shard.bytes}"
    if shard.bytes != shard_bytes(shard.rows, manifest.seq_len, row_dtype(manifest.vocab_size).itemsize):
        return f"{shard.name} cannot hold {shard.rows} rows in {shard.bytes} bytes"
    if deep and storage.sha256_of(path) != shard.sha256:
        return f"{shard.name} was altered (its sha256 differs)"
    return None


def damaged(corpus_dir: Path, problems: list[str]) -> DataError:
    """The error that names every problem and the way out."""
    return DataError(
        f"{corpus_dir} does not match its manifest: {'; '.join(problems)}; run `electra prepare` again to restore it."
    )


class RowReader:
    """Random access to the rows of one split. Opening checks every shard's name and size, so that missing, extra and
    cut ones show at once; `verify(deep=True)` finds altered ones too. The whole corpus: `data_prep.integrity`."""

    def __init__(self, corpus_dir: Path, split: Split, manifest: Manifest) -> None:
        self.corpus_dir = Path(corpus_dir)
        self.split = split
        self.seq_len = manifest.seq_len
        self.vocab_size = manifest.vocab_size
        self.dtype = row_dtype(manifest.vocab_size)
        self.shards = manifest.split(split).shards
        self.n_rows = manifest.split(split).rows
        self._first: I64 = np.array([shard.first_row for shard in self.shards], dtype=np.int64)
        self._rows: I64 = np.array([shard.rows for shard in self.shards], dtype=np.int64)
        self._maps: dict[int, NDArray[Any]] = {}
        self._manifest = manifest
        self.verify()

    def __len__(self) -> int:
        return self.n_rows

    def rows(self, indices: I64) -> NDArray[Any]:
        """Rows `[n, seq_len]` (uint16 or uint32, a copy) of row numbers `[n]` within the split."""
        indices = np.asarray(indices, dtype=np.int64)
        shard_index, first_row, _ = self.shard_of(indices)
        out = np.empty((len(indices), self.seq_len), dtype=self.dtype)
        by_shard = np.argsort(shard_index, kind="stable")
        starts = np.flatnonzero(np.diff(shard_index[by_shard], prepend=-1))
        for chosen in np.split(by_shard, starts[1:]):
            if not chosen.size:
                continue
            shard = int(shard_index[chosen[0]])
            inside = indices[chosen] - first_row[chosen]
            out[chosen] = _gather(self._open(shard), inside, self.shards[shard].rows, self.seq_len)
        return out

    def shard_of(self, indices: I64) -> tuple[I64, I64, I64]:
        """For row numbers `[n]`: the shard's index, its first row and its number of rows, each `[n]`."""
        indices = np.asarray(indices, dtype=np.int64)
        if indices.size and (indices.min() < 0 or indices.max() >= self.n_rows):
            raise IndexError(f"row {indices.max()} of {self.n_rows} in {self.corpus_dir / self.split}")
        shard_index = np.searchsorted(self._first, indices, side="right") - 1
        return shard_index, self._first[shard_index], self._rows[shard_index]

    def verify(self, deep: bool = False) -> None:
        """Names and sizes of all shards; `deep` also re-hashes them. DataError names every bad shard."""
        if found := problems(self.corpus_dir, self.split, self._manifest, deep=deep):
            raise damaged(self.corpus_dir, found)

    def _open(self, shard: int) -> NDArray[Any]:
        if shard not in self._maps:
            self._maps[shard] = _map(self.corpus_dir / self.shards[shard].name, self.dtype)
        return self._maps[shard]
