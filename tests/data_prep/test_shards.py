"""Shards are ordinary WebDataset tars, a pure function of their rows, and damage is found by name."""

import contextlib
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from data_prep import integrity, storage, tables, tokenizer
from data_prep import manifest as manifests
from data_prep.errors import DataError
from data_prep.manifest import HeldoutDocuments, SplitStats
from data_prep.rows import fragment_lengths, structure
from data_prep.shards import (
    ROWS_PER_MEMBER,
    ShardWriter,
    row_dtype,
    row_stats,
    shard_bytes,
)
from data_prep.storage import LocalFolder
from data_prep.tokenizer import TokenizerConfig
from tests.shard_files import SPECIAL, flip_a_bit, make_rows, write_corpus, write_rows


@pytest.mark.parametrize(("seq_len", "vocab_size"), [(128, 8192), (37, 8192), (20, 70_000), (512, 50_265)])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_size_is_arithmetic_and_members_hold_64_rows(tmp_path: Path, seq_len: int, vocab_size: int, count: int) -> None:
    rows = make_rows(count, seq_len, vocab_size)
    (entry,) = write_rows(tmp_path, "train", 3, rows, rows_per_shard=256, vocab_size=vocab_size)
    path = tmp_path / "train/00003-000.tar"
    dtype = row_dtype(vocab_size)
    assert entry.bytes == path.stat().st_size == shard_bytes(count, seq_len, dtype.itemsize)
    assert (entry.rows, entry.members, entry.sha256) == (count, -(-count // 64), storage.sha256_of(path))
    with tarfile.open(path) as tar:
        members = tar.getmembers()
        content = b"".join(tar.extractfile(member).read() for member in members)  # type: ignore[union-attr]
    assert len(members) == -(-count // ROWS_PER_MEMBER)
    assert [member.name for member in members][:1] == [f"00003-000-00000.u{dtype.itemsize * 8}"]
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}
    assert np.array_equal(np.frombuffer(content, dtype).reshape(-1, seq_len), rows)


def test_bytes_are_a_function_of_the_rows_however_they_arrive(tmp_path: Path) -> None:
    rows = make_rows(300, 16, 500)
    once = write_rows(tmp_path / "a", "train", 0, rows, rows_per_shard=128, vocab_size=500)
    with ShardWriter(
        storage.folder(tmp_path / "b"), "train", 0, seq_len=16, rows_per_shard=128, vocab_size=500
    ) as writer:
        for part in np.split(rows, [1, 1, 64, 130, 131, 290]):
            writer.add(part)
    assert writer.entries == once and [(entry.rows, entry.first_row) for entry in once] == [
        (128, 0),
        (128, 128),
        (44, 256),
    ]
    for entry in once:
        assert (tmp_path / "a" / entry.name).read_bytes() == (tmp_path / "b" / entry.name).read_bytes()
    assert sorted(os.listdir(tmp_path / "a/train")) == ["00000-000.tar", "00000-001.tar", "00000-002.tar"]


def test_no_rows_are_no_shard(tmp_path: Path) -> None:
    assert write_rows(tmp_path, "train", 0, make_rows(0, 16, 500), rows_per_shard=64, vocab_size=500) == []
    assert not list(tmp_path.rglob("*"))


def test_a_failed_unit_leaves_finished_shards_and_no_part_of_the_open_one(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError),
        ShardWriter(storage.folder(tmp_path), "train", 0, seq_len=16, rows_per_shard=64, vocab_size=500) as writer,
    ):
        writer.add(make_rows(150, 16, 500))
        raise RuntimeError
    assert sorted(os.listdir(tmp_path / "train")) == ["00000-000.tar", "00000-001.tar"]


def test_a_disk_that_gives_back_something_else_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = LocalFolder.writer

    @contextlib.contextmanager
    def faulty(folder: LocalFolder, name: str) -> Iterator[IO[bytes]]:
        with write(folder, name) as file:
            yield _Faulty(file)

    monkeypatch.setattr(LocalFolder, "writer", faulty)
    with pytest.raises(DataError, match=r"train/00000-000\.tar: the disk did not give back"):
        write_rows(tmp_path, "train", 0, make_rows(10, 16, 500), rows_per_shard=64, vocab_size=500)
    assert not list(tmp_path.rglob("*.tar*"))


class _Faulty:
    """A file whose bytes come back with one bit changed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        data = bytearray(self._file.read(size))
        if data:
            data[600] ^= 1
        return bytes(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_plain_webdataset_reads_every_row(tmp_path: Path) -> None:
    os.environ["WDS_SECURE"] = "1"
    import webdataset

    rows = make_rows(150, 32, 900)
    write_corpus(tmp_path, rows, vocab_size=900, rows_per_shard=64)
    tars = sorted(str(path) for path in (tmp_path / "train").glob("*.tar"))
    samples = list(webdataset.WebDataset(tars, shardshuffle=False))
    assert len({sample["__key__"] for sample in samples}) == len(samples)
    read = np.concatenate([np.frombuffer(sample["u16"], "<u2").reshape(-1, 32) for sample in samples])
    assert np.array_equal(read, rows)


def test_verify_names_every_altered_file_of_a_corpus(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path, make_rows(300, 24, 900), vocab_size=900, rows_per_shard=128)
    made = tokenizer.train(["The quick brown fox jumps over the lazy dog."], TokenizerConfig(vocab_size=128))
    corpus, held = storage.folder(tmp_path), tables.heldout_name(0)
    with tables.heldout_writer(corpus, 0) as writer:
        for i in range(50):
            writer.add((f"a:{i}", "topic", f"Text number {i}."))
    manifest = manifest.model_copy(
        update={
            "tokenizer_sha256": made.save(tmp_path / "tokenizer"),
            "heldout_documents": [
                HeldoutDocuments(name="heldout_documents/00000.parquet", documents=50, sha256=writer.sha256)
            ],
        }
    )
    integrity.verify(tmp_path, manifest)

    altered = ["train/00000-001.tar", "train/00001-000.tar", "tokenizer/vocab.txt", "tokenizer/tokenizer_config.json"]
    for name in altered:
        flip_a_bit(tmp_path / name)
    with tables.heldout_writer(corpus, 0) as writer:  # a sound file of other texts
        writer.add(("a:0", "topic", "Another text."))
    with pytest.raises(DataError, match="run `electra prepare` again") as error:
        integrity.verify(tmp_path, manifest)
    assert all(f"{name} was altered" in str(error.value) for name in [*altered, "heldout_documents/00000.parquet"])
    assert str(error.value).count("was altered") == 5

    flip_a_bit(tmp_path / "tokenizer/tokenizer.json")
    corpus.write_bytes(held, b"PAR1 nothing")
    found = integrity.problems(corpus, manifest)
    assert "tokenizer/tokenizer.json was altered (its sha256 differs)" in found
    assert "heldout_documents/00000.parquet cannot be read" in found


@pytest.mark.parametrize("bad", [500, -1, 65536 + 7])  # the last would wrap into 7 as uint16
def test_an_id_outside_the_vocabulary_is_a_data_error(tmp_path: Path, bad: int) -> None:
    rows = make_rows(10, 8, 500)
    rows[3, 3] = bad
    with pytest.raises(DataError, match="outside the vocabulary"):
        write_rows(tmp_path, "train", 0, rows, rows_per_shard=64, vocab_size=500)
    assert not list(tmp_path.rglob("*.tar*"))


def test_statistics_of_hand_made_rows() -> None:
    rows = np.array(
        [
            [2, 9, 9, 3, 8, 1, 3, 0, 0, 0],  # a pair of 7 tokens, one of them unknown
            [2, 9, 3, 2, 9, 9, 9, 3, 0, 0],  # two fragments, of 3 and 5
            [2, 9, 9, 9, 9, 9, 9, 9, 9, 3],  # one fragment of 10
        ]
    )
    stats = row_stats(rows, SPECIAL)
    assert (stats.rows, stats.tokens, stats.fragments, stats.rows_with_pair, stats.unk) == (3, 25, 4, 1, 1)
    assert (stats.sum_L, stats.sum_L2) == (7 + 3 + 5 + 10, 49 + 9 + 25 + 100)
    assert stats.row_lengths == [0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1]


def test_adding_statistics_renumbers_shards() -> None:
    parts = []
    for unit, rows in enumerate((100, 30)):
        shard = {"name": f"train/{unit:05d}-000.tar", "bytes": 1, "sha256": "x", "members": 2, "rows": rows}
        parts.append(
            manifests.empty_stats(4).model_copy(
                update={"rows": rows, "shards": [manifests.ShardEntry(**shard, first_row=0, unit=unit)]}
            )
        )
    total: SplitStats = manifests.add_stats(parts, 4)
    assert total.rows == 130
    assert [shard.first_row for shard in total.shards] == [0, 100]


def test_statistics_are_those_of_the_rows_structure() -> None:
    """On rows of random fragments, with one and with two separators, some rows full, some empty."""
    generator = np.random.default_rng(5)
    for separators in (1, 2):
        rows = np.zeros((500, 40), dtype=np.uint16)
        for row in rows[:-3]:
            tokens: list[int] = []
            while len(tokens) < 30 and generator.random() < 0.9:
                a, b = generator.integers(1, 6), generator.integers(0, 5)
                second = [9] * b + [3] if b else []
                tokens += [2, *[9] * a, *[3] * (separators if b else 1), *second]
            row[: min(len(tokens), 40)] = tokens[:40]
            if len(tokens) >= 40:
                row[39] = 3
        shape = structure(rows, SPECIAL)
        lengths = fragment_lengths(shape.fragment)
        stats = row_stats(rows, SPECIAL)
        assert (stats.tokens, stats.fragments) == (int(shape.real.sum()), len(lengths))
        assert (stats.sum_L, stats.sum_L2) == (int(lengths.sum()), int((lengths**2).sum()))
        assert stats.rows_with_pair == int((shape.types.max(axis=1) == 1).sum())
        assert stats.row_lengths == np.bincount(shape.lengths, minlength=41).tolist()
