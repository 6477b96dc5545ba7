"""Random access to the rows of a prepared corpus, memory-mapped.

The offset of any row is arithmetic (`data_prep.shards`), so a row costs one copy of its bytes, whatever the number of
shards and in any order: no index, no parsing. The reader trusts the manifest, not the tar: Python's `tarfile` reads
some truncated tars without an error. Local shards are mapped where they lie; shards in an object store are fetched
whole on first use, compared with their SHA-256 on arrival and mapped from the cache. A map holds a file descriptor, so
no more than `OPEN_MAPS` shards are mapped at once. It does not shuffle or prefetch.
"""

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep import storage
from data_prep.errors import DataError
from data_prep.manifest import Manifest, ShardEntry, Split
from data_prep.shards import I64, row_dtype, row_offsets, shard_bytes
from data_prep.storage import Folder, Location

OPEN_MAPS = 256  # of a reader: a process may often have no more than 1,024 descriptors


class RowReader:
    """The rows of one split. Opening checks every shard's name and size, so that missing, extra and cut ones show at
    once; `verify(deep=True)` finds altered ones too. The whole corpus: `data_prep.integrity`. For one thread at a
    time."""

    def __init__(self, corpus: Location, split: Split, manifest: Manifest) -> None:
        self.split = split
        self.seq_len = manifest.seq_len
        self.vocab_size = manifest.vocab_size
        self.dtype = row_dtype(manifest.vocab_size)
        self.shards = manifest.split(split).shards
        self.n_rows = manifest.split(split).rows
        self._folder = storage.folder(corpus)
        self._first: I64 = np.array([shard.first_row for shard in self.shards], dtype=np.int64)
        self._rows: I64 = np.array([shard.rows for shard in self.shards], dtype=np.int64)
        self._maps: dict[int, memoryview] = {}  # where maps have to go, the least recently used come first
        self._paths: dict[int, Path] = {}  # of the shards that were mapped once
        self._manifest = manifest
        self.verify()

    def __len__(self) -> int:
        return self.n_rows

    def rows(self, indices: I64) -> NDArray[Any]:
        """Rows `[n, seq_len]` (uint16 or uint32, a copy) of row numbers `[n]` within the split."""
        indices = np.asarray(indices, dtype=np.int64)
        shard_of, first, _ = self.shard_of(indices)
        row_bytes = self.seq_len * self.dtype.itemsize
        shards, starts = shard_of.tolist(), row_offsets(indices - first, row_bytes).tolist()
        wanted = set(shards)
        if len(wanted) > OPEN_MAPS:
            half = len(indices) // 2
            return np.concatenate([self.rows(indices[:half]), self.rows(indices[half:])])
        self._open(wanted)
        # Joining slices of the maps beats grouping by shard and numpy's indexing, which costs more than a row's copy.
        slices = [self._maps[n][start : start + row_bytes] for n, start in zip(shards, starts, strict=True)]
        return np.frombuffer(bytearray().join(slices), dtype=self.dtype).reshape(len(indices), self.seq_len)

    def shard_of(self, indices: I64) -> tuple[I64, I64, I64]:
        """For row numbers `[n]`: the shard's index, its first row and its number of rows, each `[n]`."""
        indices = np.asarray(indices, dtype=np.int64)
        if indices.size and (indices.min() < 0 or indices.max() >= self.n_rows):
            worst = indices.min() if indices.min() < 0 else indices.max()
            raise IndexError(f"row {worst} of {self.n_rows} in {self._folder}/{self.split}")
        shard_index = np.searchsorted(self._first, indices, side="right") - 1
        return shard_index, self._first[shard_index], self._rows[shard_index]

    def verify(self, deep: bool = False) -> None:
        """Names and sizes of all shards; `deep` also re-hashes them. DataError names every bad shard."""
        if found := problems(self._folder, self.split, self._manifest, deep=deep):
            raise damaged(self._folder, found)

    def _open(self, wanted: set[int]) -> None:
        """Map these shards, at most `OPEN_MAPS`, and let go of others where there would be more. A map is closed once
        nothing refers to it: under nobody who still reads."""
        maps = self._maps
        missing = wanted - maps.keys()
        if len(self.shards) > OPEN_MAPS:
            for shard in wanted - missing:
                maps[shard] = maps.pop(shard)
            for shard in list(maps)[: max(0, len(maps) + len(missing) - OPEN_MAPS)]:
                del maps[shard]
        for shard in missing:
            maps[shard] = self._map(shard)

    def _map(self, number: int) -> memoryview:
        shard = self.shards[number]
        if number not in self._paths:
            self._paths[number] = self._folder.local(shard.name, sha256=shard.sha256)
        with open(self._paths[number], "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != shard.bytes:  # reading beyond the end of a map kills the process
                raise damaged(self._folder, [f"{shard.name} has {size} bytes instead of {shard.bytes}"])
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def problems(corpus: Location, split: Split, manifest: Manifest, *, deep: bool = False) -> list[str]:
    """What is wrong with the shards of a split, one text a shard: missing, extra, cut, and, with `deep`, altered."""
    folder = storage.folder(corpus)
    shards = manifest.split(split).shards
    sizes = {name: size for name, size in folder.sizes(split).items() if name.endswith(".tar")}
    found = [problem for shard in shards if (problem := _problem(folder, shard, sizes.get(shard.name), manifest, deep))]
    return found + [f"{name} is extra" for name in sorted(sizes.keys() - {shard.name for shard in shards})]


def _problem(folder: Folder, shard: ShardEntry, size: int | None, manifest: Manifest, deep: bool) -> str | None:
    if size is None:
        return f"{shard.name} is missing"
    if size != shard.bytes:
        return f"{shard.name} has {size} bytes instead of {shard.bytes}"
    if shard.bytes != shard_bytes(shard.rows, manifest.seq_len, row_dtype(manifest.vocab_size).itemsize):
        return f"{shard.name} cannot hold {shard.rows} rows in {shard.bytes} bytes"
    if deep and folder.sha256(shard.name) != shard.sha256:
        return f"{shard.name} was altered (its sha256 differs)"
    return None


def damaged(corpus: Location, problems: list[str]) -> DataError:
    """The error that names every problem and the way out."""
    return DataError(
        f"{corpus} does not match its manifest: {'; '.join(problems)}; run `electra prepare` again to restore it."
    )
