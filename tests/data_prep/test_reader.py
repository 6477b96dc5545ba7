"""Any row of any shard, and damage found by name: on opening what a listing shows, on request what hashes show."""

import os
from pathlib import Path

import numpy as np
import pytest

from data_prep import manifest as manifests
from data_prep import reader as readers
from data_prep.errors import DataError
from data_prep.reader import RowReader, problems
from data_prep.shards import row_dtype
from data_prep.storage import LocalFolder
from tests.shard_files import flip_a_bit, make_rows, write_corpus


@pytest.mark.parametrize(("seq_len", "vocab_size"), [(24, 900), (37, 900), (20, 70_000), (512, 50_265)])
def test_reader_gathers_any_rows_in_any_order(tmp_path: Path, seq_len: int, vocab_size: int) -> None:
    rows = make_rows(333, seq_len, vocab_size)
    manifest = write_corpus(tmp_path, rows, vocab_size=vocab_size, rows_per_shard=128)
    reader = RowReader(str(tmp_path), "train", manifests.load(tmp_path))
    assert len(reader) == 333
    assert [shard.rows for shard in manifest.train.shards] == [128, 38, 128, 39]
    for indices in (
        np.arange(333),
        np.random.default_rng(1).integers(0, 333, 1000),
        np.array([332]),
        np.array([], int),
    ):
        read = reader.rows(indices)
        assert read.dtype == row_dtype(vocab_size) and read.shape == (len(indices), seq_len)
        assert np.array_equal(read, rows[indices])
        read += 1  # a copy: the file is not touched
    assert np.array_equal(reader.rows(np.arange(333)), rows)


def test_shard_of_names_the_shard_and_its_range(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path, make_rows(333, 24, 900), vocab_size=900, rows_per_shard=128)
    reader = RowReader(tmp_path, "train", manifest)
    shard, first, count = reader.shard_of(np.array([0, 127, 128, 165, 166, 332]))
    assert shard.tolist() == [0, 0, 1, 1, 2, 3]
    assert first.tolist() == [0, 0, 128, 128, 166, 294]
    assert count.tolist() == [128, 128, 38, 38, 128, 39]
    for outside in (333, -1):
        with pytest.raises(IndexError, match=f"row {outside} of 333"):
            reader.rows(np.array([5, outside]))


def test_missing_extra_and_cut_shards_are_found_on_opening_and_altered_ones_deep(tmp_path: Path) -> None:
    rows = make_rows(300, 24, 900)
    manifest = write_corpus(tmp_path, rows, vocab_size=900, rows_per_shard=128)
    victim = tmp_path / "train/00001-000.tar"
    original = victim.read_bytes()

    victim.write_bytes(original[:-10_240])
    with pytest.raises(DataError, match=r"train/00001-000\.tar has \d+ bytes instead of"):
        RowReader(tmp_path, "train", manifest)

    victim.unlink()
    with pytest.raises(DataError, match=r"train/00001-000\.tar is missing"):
        RowReader(tmp_path, "train", manifest)

    victim.write_bytes(original)
    extra = tmp_path / "train/00009-000.tar"
    extra.write_bytes(b"")
    with pytest.raises(DataError, match=r"train/00009-000\.tar is extra"):
        RowReader(tmp_path, "train", manifest)
    extra.unlink()

    assert problems(tmp_path, "train", manifest, deep=True) == []
    flip_a_bit(victim)
    reader = RowReader(tmp_path, "train", manifest)
    with pytest.raises(DataError, match=r"train/00001-000\.tar was altered"):
        reader.verify(deep=True)
    assert problems(tmp_path, "train", manifest, deep=True) == ["train/00001-000.tar was altered (its sha256 differs)"]


def test_a_manifest_that_promises_more_rows_than_a_shard_can_hold_is_refused(tmp_path: Path) -> None:
    """Reading them would run into the next member's header, or beyond the file."""
    manifest = write_corpus(tmp_path, make_rows(300, 24, 900), vocab_size=900, rows_per_shard=128)
    shards = [shard.model_copy(update={"rows": shard.rows + 64}) for shard in manifest.train.shards]
    promised = manifest.model_copy(update={"train": manifest.train.model_copy(update={"shards": shards})})
    with pytest.raises(DataError, match=r"train/00000-000\.tar cannot hold 192 rows"):
        RowReader(tmp_path, "train", promised)


def test_a_shard_cut_after_opening_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path, make_rows(300, 24, 900), vocab_size=900, rows_per_shard=128)
    reader = RowReader(tmp_path, "train", manifest)
    victim = tmp_path / "train/00001-000.tar"
    victim.write_bytes(victim.read_bytes()[:-10_240])
    with pytest.raises(DataError, match=r"train/00001-000\.tar has \d+ bytes instead of"):
        reader.rows(np.array([299, 151]))


class Remote(LocalFolder):
    """A folder whose files have to be fetched."""

    def __init__(self, path: Path, cache: Path) -> None:
        super().__init__(path)
        self.cache, self.fetched = cache, list[tuple[str, str | None]]()

    def local(self, name: str, *, sha256: str | None = None) -> Path:
        self.fetched.append((name, sha256))
        copy = self.cache / name.replace("/", "-")
        copy.write_bytes(self.read_bytes(name))
        return copy


def test_shards_elsewhere_are_fetched_whole_once_and_when_first_used(tmp_path: Path) -> None:
    rows = make_rows(300, 24, 900)
    manifest = write_corpus(tmp_path / "there", rows, vocab_size=900, rows_per_shard=128)
    (tmp_path / "here").mkdir()
    folder = Remote(tmp_path / "there", tmp_path / "here")
    reader = RowReader(folder, "train", manifest)
    assert folder.fetched == []
    last = manifest.train.shards[-1]
    assert np.array_equal(reader.rows(np.array([299, 290])), rows[[299, 290]])
    assert folder.fetched == [(last.name, last.sha256)]
    assert np.array_equal(reader.rows(np.arange(300)), rows)
    assert np.array_equal(reader.rows(np.arange(300)), rows)
    assert sorted(folder.fetched) == [(shard.name, shard.sha256) for shard in manifest.train.shards]


def descriptors(folder: Path) -> int:
    """Open files of this process under a folder."""
    links = [os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link).startswith(str(folder)) for link in links if os.path.islink(link))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="this system does not list open files")
def test_no_more_than_so_many_shards_are_open_and_rows_stay_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "OPEN_MAPS", 3)
    rows = make_rows(20 * 64, 24, 900)
    manifest = write_corpus(tmp_path / "there", rows, vocab_size=900, rows_per_shard=64)
    (tmp_path / "here").mkdir()
    folder = Remote(tmp_path / "there", tmp_path / "here")
    reader = RowReader(folder, "train", manifest)
    assert len(reader.shards) == 20
    rng = np.random.default_rng(0)
    for indices in (np.arange(64 * 2), np.arange(len(rows)), *(rng.integers(0, len(rows), 50) for _ in range(10))):
        assert np.array_equal(reader.rows(indices), rows[indices])
        assert descriptors(tmp_path) <= 3
    assert descriptors(tmp_path) == 3
    assert len(folder.fetched) == 20  # a shard that is mapped anew is not fetched anew


def test_the_least_recently_used_map_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "OPEN_MAPS", 3)
    manifest = write_corpus(tmp_path, make_rows(10 * 64, 24, 900), vocab_size=900, rows_per_shard=64)
    reader = RowReader(tmp_path, "train", manifest)
    mapped = Mapped(reader)
    monkeypatch.setattr(reader, "_map", mapped)

    def read(*shards: int) -> list[int]:
        """Read a row of each shard; returns which had to be mapped."""
        mapped.shards.clear()
        reader.rows(64 * np.array(shards))
        return sorted(mapped.shards)

    assert read(0) + read(1) + read(2) == [0, 1, 2]
    assert read(0, 2) == []
    assert read(3) == [3]  # instead of 1
    assert read(0, 2, 3) == []
    assert read(1, 4) == [1, 4]  # two of these three stood there as long; the batch has room for one of them
    assert len(reader._maps) == 3
    assert read(1, 4) == []


class Mapped:
    """Maps, and notes what."""

    def __init__(self, reader: RowReader) -> None:
        self.shards, self._map = list[int](), reader._map

    def __call__(self, shard: int) -> memoryview:
        self.shards.append(shard)
        return self._map(shard)


def test_a_map_that_goes_stays_readable_for_whoever_holds_a_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "OPEN_MAPS", 1)
    manifest = write_corpus(tmp_path, make_rows(4 * 64, 24, 900), vocab_size=900, rows_per_shard=64)
    reader = RowReader(tmp_path, "train", manifest)
    reader.rows(np.array([0]))
    part = reader._maps[0][512:1024]
    reader.rows(np.array([64, 128]))
    assert 0 not in reader._maps
    assert bytes(part) == (tmp_path / manifest.train.shards[0].name).read_bytes()[512:1024]
