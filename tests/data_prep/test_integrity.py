"""What a look at sizes and counts alone finds of damaged held-out documents; everything else is in test_shards.py."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep import integrity, storage, tables, tokenizer
from data_prep.manifest import HeldoutDocuments, Manifest
from data_prep.tokenizer import TokenizerConfig
from tests.shard_files import make_rows, write_corpus

NAME = tables.heldout_name(0)


@pytest.fixture
def corpus(tmp_path: Path) -> tuple[storage.Folder, Manifest]:
    """A sound corpus with 50 held-out documents."""
    folder = storage.folder(tmp_path)
    manifest = write_corpus(tmp_path, make_rows(100, 24, 900), vocab_size=900, rows_per_shard=128)
    made = tokenizer.train(["The quick brown fox jumps over the lazy dog."], TokenizerConfig(vocab_size=128))
    with tables.heldout_writer(folder, 0) as writer:
        for number in range(50):
            writer.add((f"a:{number}", "topic", f"Text number {number}."))
    held = HeldoutDocuments(name=NAME, documents=50, sha256=writer.sha256)
    identity = {"tokenizer_sha256": made.save(tmp_path / "tokenizer"), "heldout_documents": [held]}
    return folder, manifest.model_copy(update=identity)


@pytest.mark.parametrize("deep", [True, False])
def test_a_sound_corpus(corpus: tuple[storage.Folder, Manifest], deep: bool) -> None:
    assert integrity.problems(*corpus, deep=deep) == []


@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize("left", [0, 2, 300, -1])
def test_cut_heldout_documents_cannot_be_read(corpus: tuple[storage.Folder, Manifest], left: int, deep: bool) -> None:
    folder, manifest = corpus
    folder.write_bytes(NAME, folder.read_bytes(NAME)[:left])
    assert integrity.problems(folder, manifest, deep=deep) == [f"{NAME} cannot be read"]


def test_heldout_documents_of_another_number_are_found_without_reading_them(
    corpus: tuple[storage.Folder, Manifest],
) -> None:
    folder, manifest = corpus
    with tables.heldout_writer(folder, 0) as writer:
        for number in range(49):
            writer.add((f"a:{number}", "topic", f"Text number {number}."))
    assert integrity.problems(folder, manifest, deep=False) == [f"{NAME} has 49 documents instead of 50"]
    assert integrity.problems(folder, manifest) == [f"{NAME} was altered (its sha256 differs)"]
    folder.delete(NAME)
    for deep in (True, False):
        assert integrity.problems(folder, manifest, deep=deep) == [f"{NAME} is missing"]


def test_heldout_documents_of_other_columns_cannot_be_read(
    corpus: tuple[storage.Folder, Manifest], tmp_path: Path
) -> None:
    folder, manifest = corpus
    pq.write_table(pa.table({"id": ["a"] * 50, "words": ["b"] * 50}), tmp_path / NAME)
    assert integrity.problems(folder, manifest) == [f"{NAME} cannot be read"]
