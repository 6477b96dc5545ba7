"""The whole of data preparation: what comes out, resuming, and the same bytes whatever happens on the way."""

import gzip
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from data_prep import integrity, storage, tables
from data_prep import manifest as manifests
from data_prep import tokenizer as tokenizers
from data_prep.corpus import CorpusConfig
from data_prep.errors import ConfigError, DataError, PreflightError
from data_prep.reader import RowReader
from data_prep.rows import structure
from pipeline.prepare import prepare
from tests.pipeline.made_sources import Said, hashes, make_text, write_sources

pytestmark = pytest.mark.multi
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> CorpusConfig:
    return write_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def corpus(config: CorpusConfig, ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "corpus"
    prepare(config, out, 0)
    return out


def rows_of(corpus: Path, split: manifests.Split) -> np.ndarray:
    reader = RowReader(corpus, split, manifests.load(corpus))
    return np.asarray(reader.rows(np.arange(len(reader))))


def test_every_document_is_accounted_for(corpus: Path) -> None:
    documents = manifests.load(corpus).documents
    assert documents.documents_in == 605
    assert documents.rejected == {"bad_json": 1, "duplicate": 2, "no_text_field": 1, "too_short": 1}
    assert documents.out == documents.train + documents.heldout == 600
    assert sum(documents.topics.values()) == 600
    # binomial(600, 0.1): mean 60, standard deviation 7.3
    assert 30 < documents.heldout < 90


def test_the_corpus_has_the_units_shards_and_dtype_that_were_asked_for(corpus: Path) -> None:
    manifest = manifests.load(corpus)
    assert manifest.units >= 8
    assert (manifest.seq_len, manifest.dtype, manifest.layout) == (64, "uint16", "segments")
    assert manifest.vocab_size == len((corpus / "tokenizer" / "vocab.txt").read_text().splitlines()) <= 600
    assert manifest.train.rows == sum(shard.rows for shard in manifest.train.shards)
    assert max(shard.rows for shard in manifest.train.shards) <= 192
    assert len({shard.unit for shard in manifest.train.shards}) == manifest.units
    integrity.verify(corpus, manifest)


def test_counts_in_the_manifest_are_those_of_the_rows(corpus: Path) -> None:
    manifest = manifests.load(corpus)
    rows = rows_of(corpus, "train")
    shape = structure(rows, manifest.special)
    lengths = shape.real.sum(axis=1)
    assert manifest.train.rows == len(rows)
    assert manifest.train.tokens == manifest.train.sum_L == lengths.sum()
    assert manifest.train.sum_L2 == (lengths**2).sum()  # one fragment a row
    assert manifest.train.fragments == len(rows)
    assert manifest.train.row_lengths == np.bincount(lengths, minlength=65).tolist()
    assert manifest.train.rows_with_pair == (shape.types.max(axis=1) == 1).sum() > 0.5 * len(rows)
    assert manifest.train.unk == 0


def test_rows_decode_to_the_texts_and_the_splits_share_none(corpus: Path, config: CorpusConfig) -> None:
    manifest = manifests.load(corpus)
    made = tokenizers.load(corpus / "tokenizer")
    heldout = [text for path in sorted((corpus / "heldout_documents").glob("*.parquet")) for text in
               pq.read_table(path).column("text").to_pylist()]  # fmt: skip
    assert len(heldout) == manifest.documents.heldout == sum(file.documents for file in manifest.heldout_documents)

    def words(split: manifests.Split) -> list[int]:
        rows = rows_of(corpus, split).astype(int)
        return rows[~np.isin(rows, manifest.special.all())].tolist()

    assert words("heldout") == [token for ids in made.encode(heldout) for token in ids]
    rng = random.Random(0)
    everything = [make_text(rng) for _ in range(600)]
    train = [text for text in everything if text not in set(heldout)]
    assert len(train) == manifest.documents.train
    assert len(words("train")) == sum(map(len, made.encode(train)))


def test_running_again_changes_nothing_and_needs_no_ray(
    corpus: Path, config: CorpusConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.stat().st_mtime_ns for path in corpus.rglob("*") if path.is_file()}

    def refuse() -> None:
        raise AssertionError("Ray was started for a finished corpus")

    said: list[str] = []
    manifest = prepare(config, corpus, 0, console=Listener(said), start_ray=refuse)
    assert manifest == manifests.load(corpus)
    assert {path: path.stat().st_mtime_ns for path in corpus.rglob("*") if path.is_file()} == before
    assert len(said) == 1 and "is complete" in said[0]


class Listener:
    """Keeps what is said; a finished corpus shows no stage."""

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def say(self, text: str) -> None:
        self.said.append(text)

    def stage(self, name: str, total: float | None = None, unit: str = "") -> Any:
        raise AssertionError(f"stage {name} ran")


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def exchange_heldout_documents(corpus: Path) -> None:
    """A readable file of other texts in the place of the first unit's."""
    with tables.heldout_writer(storage.folder(corpus), 0) as writer:
        writer.add(("plain.jsonl:0", "k0", "Another text."))


@pytest.mark.parametrize(
    "damage",
    [
        lambda corpus, shard: (corpus / shard).unlink(),
        lambda corpus, shard: os.truncate(corpus / shard, 10_240),
        lambda corpus, shard: (corpus / "train" / "99999-000.tar").write_bytes(b"x"),
        lambda corpus, shard: (corpus / "manifest.json").write_text("{"),
        lambda corpus, shard: (corpus / "tokenizer" / "tokenizer.json").unlink(),
        lambda corpus, shard: [(corpus / name).unlink() for name in ("documents/00001.arrow", "manifest.json")],
        lambda corpus, shard: flip_a_bit(corpus / shard),
        lambda corpus, shard: exchange_heldout_documents(corpus),
        lambda corpus, shard: flip_a_bit(corpus / "tokenizer" / "tokenizer.json"),
        lambda corpus, shard: flip_a_bit(corpus / "tokenizer" / "vocab.txt"),
        lambda corpus, shard: [flip_a_bit(corpus / name) for name in ("documents/00001.arrow", shard)],
    ],
    ids=[
        "shard missing",
        "shard cut",
        "shard extra",
        "manifest torn",
        "tokenizer missing",
        "documents missing",
        "shard altered",
        "held-out documents altered",
        "tokenizer altered",
        "vocabulary altered",
        "documents and shard altered",
    ],
)
def test_damage_is_repaired_to_the_same_bytes(
    corpus: Path, config: CorpusConfig, damage: Callable[[Path, str], Any]
) -> None:
    expected = manifests.load(corpus)
    damage(corpus, max(expected.train.shards, key=lambda shard: shard.bytes).name)
    (corpus / "train" / "00000-000.tar.tmp-1-0123abcd").write_bytes(b"left by a killed worker")
    assert prepare(config, corpus, 0) == expected
    integrity.verify(corpus, manifests.load(corpus))
    assert not list(corpus.rglob("*.tmp-*"))


def test_surrogates_in_topics_and_texts_are_repaired(config: CorpusConfig, ray_session: None, tmp_path: Path) -> None:
    text = " ".join(make_text(random.Random(7)) for _ in range(20))
    lines = [json.dumps({"text": f"{text} Number {i} \ud800.", "kind": "x\ud83d\ude00\ud800"}) for i in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, json.dumps({"text": text, "kind": None})]))
    source = config.sources[0].model_copy(update={"path": str(tmp_path / "a.jsonl")})
    manifest = prepare(config.model_copy(update={"sources": (source,)}), tmp_path / "out", 0)
    assert manifest.documents.topics == {"x\U0001f600\ufffd": 40, "a": 1}


def test_another_place_gives_the_same_manifest_bytes(corpus: Path, ray_session: None, tmp_path: Path) -> None:
    elsewhere = write_sources(tmp_path / "other" / "place")
    prepare(elsewhere, tmp_path / "corpus", 0)
    assert (tmp_path / "corpus/manifest.json").read_bytes() == (corpus / "manifest.json").read_bytes()


@pytest.mark.usefixtures("ray_session")
def test_packed_rows_of_byte_level_bpe(config: CorpusConfig, tmp_path: Path) -> None:
    roberta = config.model_copy(
        update={
            "layout": "packed",
            "tokenizer": config.tokenizer.model_copy(update={"kind": "bpe", "lowercase": False}),
        }
    )
    manifest = prepare(roberta, tmp_path, 0)
    assert manifest.pair_separators == 2 and manifest.train.rows_with_pair == 0
    assert manifest.train.fragments > manifest.train.rows
    assert manifest.train.tokens > 0.75 * manifest.train.rows * 64
    made = tokenizers.load(tmp_path / "tokenizer")
    assert made.decode(rows_of(tmp_path, "train")[0].tolist()).replace("<s> ", "<s>").startswith("<s>The ")


@pytest.mark.usefixtures("ray_session")
def test_an_existing_vocabulary_is_used_as_it_is(
    config: CorpusConfig, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus.parent)  # a relative path is meant from here, wherever a worker is
    vocabulary = corpus / "tokenizer" / "vocab.txt"
    path = str(vocabulary.relative_to(corpus.parent))
    existing = config.model_copy(update={"tokenizer": config.tokenizer.model_copy(update={"path": path})})
    manifest = prepare(existing, tmp_path, 0)
    assert (tmp_path / "tokenizer" / "vocab.txt").read_bytes() == vocabulary.read_bytes()
    assert hashes(manifest) == hashes(manifests.load(corpus))


@pytest.mark.usefixtures("ray_session")
def test_max_bytes_caps_the_text_in_corpus_order(config: CorpusConfig, tmp_path: Path) -> None:
    source = config.sources[0].model_copy(update={"max_bytes": 200_000})
    documents = prepare(config.model_copy(update={"sources": (source,)}), tmp_path, 0).documents
    assert 197_000 < documents.text_bytes <= 200_000  # the longest text is 3,000 bytes
    assert documents.documents_in == 605 == documents.out + sum(documents.rejected.values())
    assert documents.rejected["over_max_bytes"] > 300


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty: no record was found"),
        (
            '{"body": "x"}\n' * 3,
            r"sources\[0\]: 3 of 3 records are malformed \(no_text_field 3\), the first at a\.jsonl:0",
        ),
    ],
)
def test_an_empty_corpus_is_a_data_error(config: CorpusConfig, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    source = config.sources[0].model_copy(update={"path": str(tmp_path / "a.jsonl")})
    with pytest.raises(DataError, match=message):
        prepare(config.model_copy(update={"sources": (source,)}), tmp_path / "out", 0)


@pytest.mark.usefixtures("ray_session")
def test_a_damaged_archive_is_read_up_to_the_damage_and_said(config: CorpusConfig, tmp_path: Path) -> None:
    rng = random.Random(1)
    lines = [json.dumps({"text": make_text(rng)}) for _ in range(400)]
    whole = gzip.compress("\n".join(lines).encode(), mtime=0)
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    source = config.sources[0].model_copy(update={"path": str(tmp_path / "a.jsonl.gz")})
    damaged = config.model_copy(update={"sources": (source,)})
    said = Said()
    manifest = prepare(damaged, tmp_path / "out", 0, console=said)
    assert manifest.documents.rejected["damaged_archive"] == 1
    assert 100 < manifest.documents.documents_in < 300
    assert any("1 input files are damaged" in line and "a.jsonl.gz:" in line for line in said.lines)

    strict = damaged.model_copy(update={"sources": (source.model_copy(update={"max_bad_fraction": 0.0}),)})
    (tmp_path / "out" / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"1 of \d+ records are malformed \(damaged_archive 1\), the first at a\.jsonl"):
        prepare(strict, tmp_path / "out", 0)


def test_what_is_wrong_before_any_work_is_one_sentence(config: CorpusConfig, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PreflightError, match="Cannot write to"):
        prepare(config, tmp_path / "file" / "corpus", 0)
    with pytest.raises(ConfigError, match=r"corpus\.seq_len = 64, now it is 32"):
        prepare(config.model_copy(update={"seq_len": 32}), corpus, 0)
    missing = config.sources[0].model_copy(update={"path": str(tmp_path / "none.jsonl")})
    with pytest.raises(DataError, match=r"none\.jsonl does not exist"):
        prepare(config.model_copy(update={"sources": (missing,)}), tmp_path / "new", 0)
