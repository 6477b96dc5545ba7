"""Shards are ordinary WebDataset tars, a pure function of their rows, and damage is found by name."""

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from data_prep import integrity, storage, tables, tokenizer
from data_prep import manifest as manifests
from data_prep.errors import DataError
from data_prep.manifest import Documents, HeldoutDocuments, Manifest, SplitStats
from data_prep.rows import SpecialIds
from data_prep.shards import (
    ROWS_PER_MEMBER,
    RowReader,
    problems,
    row_dtype,
    row_stats,
    shard_bytes,
    write_shard,
)
from data_prep.tokenizer import TokenizerConfig
from tests.shard_files import write_rows

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)


def make_rows(count: int, seq_len: int, vocab_size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocab_size, (count, seq_len))


def write_corpus(folder: Path, rows: np.ndarray, *, vocab_size: int, rows_per_shard: int) -> Manifest:
    """A corpus whose train split holds `rows`, in two units, and whose held-out split is empty."""
    half = len(rows) // 2
    parts = []
    for unit, part in enumerate((rows[:half], rows[half:])):
        shards = write_rows(folder, "train", unit, part, rows_per_shard=rows_per_shard, vocab_size=vocab_size)
        parts.append(row_stats(part, SPECIAL).model_copy(update={"shards": shards}))
    manifest = Manifest(
        config_sha256="c", inputs_sha256="i", seed=0, tokenizer_sha256="t", vocab_size=vocab_size, special=SPECIAL,
        layout="segments", pair_separators=1, seq_len=rows.shape[1],
        dtype="uint16" if vocab_size < 0xFFFF else "uint32", units=2,
        documents=Documents(documents_in=0, out=0, train=0, heldout=0, text_bytes=0, rejected={}, topics={}),
        heldout_documents=[], train=manifests.add_stats(parts, rows.shape[1]),
        heldout=manifests.empty_stats(rows.shape[1]),
    )  # fmt: skip
    manifests.save(manifest, folder)
    return manifest


@pytest.mark.parametrize(("seq_len", "vocab_size"), [(128, 8192), (37, 8192), (20, 70_000), (512, 50_265)])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_size_is_arithmetic_and_members_hold_64_rows(tmp_path: Path, seq_len: int, vocab_size: int, count: int) -> None:
    rows = make_rows(count, seq_len, vocab_size)
    path = tmp_path / "00003-001.tar"
    size, _ = write_shard(path, rows, vocab_size=vocab_size)
    dtype = row_dtype(vocab_size)
    assert size == path.stat().st_size == shard_bytes(count, seq_len, dtype.itemsize)
    with tarfile.open(path) as tar:
        members = tar.getmembers()
        content = b"".join(tar.extractfile(member).read() for member in members)  # type: ignore[union-attr]
    assert len(members) == -(-count // ROWS_PER_MEMBER)
    assert [member.name for member in members][:1] == [f"00003-001-00000.u{dtype.itemsize * 8}"]
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}
    assert np.array_equal(np.frombuffer(content, dtype).reshape(-1, seq_len), rows)


def test_bytes_are_a_function_of_the_rows(tmp_path: Path) -> None:
    rows = make_rows(100, 16, 500)
    written = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        written.append(write_shard(tmp_path / name / "00000-000.tar", rows, vocab_size=500))
    assert written[0] == written[1]
    assert (tmp_path / "a/00000-000.tar").read_bytes() == (tmp_path / "b/00000-000.tar").read_bytes()
    assert sorted(os.listdir(tmp_path / "a")) == ["00000-000.tar"]  # no temporary left


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


@pytest.mark.parametrize("vocab_size", [900, 70_000])
def test_reader_gathers_any_rows_in_any_order(tmp_path: Path, vocab_size: int) -> None:
    rows = make_rows(333, 24, vocab_size)
    manifest = write_corpus(tmp_path, rows, vocab_size=vocab_size, rows_per_shard=128)
    reader = RowReader(tmp_path, "train", manifests.load(tmp_path))
    assert len(reader) == 333
    assert [shard.rows for shard in manifest.train.shards] == [128, 38, 128, 39]
    for indices in (
        np.arange(333),
        np.random.default_rng(1).integers(0, 333, 1000),
        np.array([332]),
        np.array([], int),
    ):
        read = reader.rows(indices)
        assert read.dtype == row_dtype(vocab_size) and read.shape == (len(indices), 24)
        assert np.array_equal(read, rows[indices])


def test_shard_of_names_the_shard_and_its_range(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path, make_rows(333, 24, 900), vocab_size=900, rows_per_shard=128)
    reader = RowReader(tmp_path, "train", manifest)
    shard, first, count = reader.shard_of(np.array([0, 127, 128, 165, 166, 332]))
    assert shard.tolist() == [0, 0, 1, 1, 2, 3]
    assert first.tolist() == [0, 0, 128, 128, 166, 294]
    assert count.tolist() == [128, 128, 38, 38, 128, 39]
    with pytest.raises(IndexError):
        reader.shard_of(np.array([333]))


def test_missing_extra_and_cut_shards_are_found_on_opening_and_altered_ones_deep(tmp_path: Path) -> None:
    rows = make_rows(300, 24, 900)
    manifest = write_corpus(tmp_path, rows, vocab_size=900, rows_per_shard=128)
    victim = tmp_path / "train/00001-000.tar"
    original = victim.read_bytes()

    with open(victim, "r+b") as file:
        file.truncate(len(original) - 10_240)
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


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def test_verify_names_every_altered_file_of_a_corpus(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path, make_rows(300, 24, 900), vocab_size=900, rows_per_shard=128)
    made = tokenizer.train(["The quick brown fox jumps over the lazy dog."], TokenizerConfig(vocab_size=128))
    texts = tables.heldout_path(tmp_path, 0)
    with tables.heldout_writer(texts) as writer:
        for i in range(50):
            writer.add((f"a:{i}", "topic", f"Text number {i}."), 100)
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
    with tables.heldout_writer(texts) as writer:  # a sound file of other texts
        writer.add(("a:0", "topic", "Another text."), 100)
    with pytest.raises(DataError, match="run `electra prepare` again") as error:
        integrity.verify(tmp_path, manifest)
    assert all(f"{name} was altered" in str(error.value) for name in [*altered, "heldout_documents/00000.parquet"])
    assert str(error.value).count("was altered") == 5

    flip_a_bit(tmp_path / "tokenizer/tokenizer.json")
    storage.write_bytes(texts, b"PAR1 nothing")
    found = integrity.problems(tmp_path, manifest)
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
