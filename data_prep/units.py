"""The work of preparing a corpus, one function a stage, each a pure function of its payload and the files it names.

documents (per unit): read, clean, hash → `documents/UUUUU.parquet`.  removals (once): hashes → `removals.parquet`.
tokenizer (once): sample → `tokenizer/`.  rows (per unit): tokenize, split, pack → shards and held-out texts.
Outputs are durable when a function returns; no clock, host or worker count enters them. Memory: a unit holds a few
megabytes of text, its largest document and a shard of each split; merging holds some 40 bytes for every document of the
corpus, and training a tokenizer its sample. Nothing here knows where or in which order units run. A result's `files`
lists what was written, with size and sha256, so that a record can be checked against the disk.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep import dedup, keyed, packing, storage, tables, tokenizer
from data_prep.clean import clean, repair
from data_prep.corpus import CorpusConfig
from data_prep.integrity import TOKENIZER
from data_prep.manifest import Split, SplitStats, add_stats, empty_stats
from data_prep.plan import Plan, PlannedUnit
from data_prep.settings import Settings
from data_prep.shards import ShardWriter, row_dtype, row_stats
from data_prep.sources import Document, InputFile, Jsonl, Rejected, read_files, read_range


class DocumentsTask(Settings):
    """Payload of `documents_unit`."""

    corpus_dir: Path
    config: CorpusConfig
    unit: PlannedUnit
    files: list[tuple[str, str, str]]  # name, path, package


class TokenizerTask(Settings):
    """Payload of `tokenizer_unit`."""

    corpus_dir: Path
    config: CorpusConfig
    units: int


class RowsTask(Settings):
    """Payload of `rows_unit`."""

    corpus_dir: Path
    config: CorpusConfig
    unit: int
    seed: int


def documents_unit(task: DocumentsTask) -> dict[str, Any]:
    """Read and clean one unit. `documents_in == documents + sum(rejected)`; `sha256` is over the kept documents."""
    counts: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    digest = hashlib.sha256()

    def kept() -> Iterator[tables.DocumentRow]:
        for record in _read(task):
            counts["in"] += 1
            if isinstance(record, Rejected):
                rejected[record.reason] += 1
                continue
            identifier, topic = repair(record.id), repair(record.topic)
            text, reason = clean(record.text, task.config.cleaning)
            if reason is not None:
                rejected[reason] += 1
                continue
            content = dedup.text_hash(text)
            size = len(text.encode())
            digest.update(repr((identifier, topic)).encode() + hashlib.sha256(text.encode()).digest())
            counts.update(documents=1, bytes=size)
            yield identifier, topic, text, content, size

    path = tables.documents_path(task.corpus_dir, task.unit.unit)
    tables.write_documents(path, kept())
    return {
        "documents_in": counts["in"],
        "documents": counts["documents"],
        "rejected": dict(sorted(rejected.items())),
        "text_bytes": counts["bytes"],
        "sha256": digest.hexdigest(),
        "files": _listed(task.corpus_dir, [path]),
    }


def _read(task: DocumentsTask) -> Iterator[Document | Rejected]:
    source = task.config.sources[task.unit.source]
    files = [InputFile(name, path, package) for name, path, package in task.files]
    if task.unit.stop is not None and isinstance(source, Jsonl):
        return read_range(source, files[0], task.unit.start, task.unit.stop)
    return read_files(source, files)


def find_removals(corpus_dir: Path, plan: Plan, config: CorpusConfig) -> tuple[str, dict[str, int]]:
    """Write the removal list: duplicates, and what exceeds a source's `max_bytes`; returns (its sha256, counts).

    Works on hashes and sizes alone. The first of a group of duplicates in corpus order stays.
    """
    columns = tables.read_columns(corpus_dir, len(plan.units))
    reasons: NDArray[Any] = np.full(len(columns.bytes), "", dtype=object)
    if config.drop_duplicates:
        reasons[dedup.duplicates(columns.hashes)] = "duplicate"
    for number, source in enumerate(config.sources):
        if source.max_bytes is not None:
            units = [unit.unit for unit in plan.units if unit.source == number]
            candidates = np.flatnonzero(np.isin(columns.unit, units) & (reasons == ""))
            over = dedup.over_budget(columns.bytes[candidates], source.max_bytes)
            reasons[candidates[over]] = "over_max_bytes"
    return tables.write_removals(corpus_dir, columns, reasons)


def tokenizer_unit(task: TokenizerTask) -> dict[str, Any]:
    """Train the tokenizer on a sample of the training documents, or copy the existing one, to `tokenizer/`."""
    config = task.config.tokenizer
    texts: list[str] = []
    if config.path is not None:
        made = tokenizer.load(Path(config.path).expanduser(), lowercase=config.lowercase)
    else:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"  # alone on the machine; the result does not depend on it
        texts = _sample(task)
        made = tokenizer.train(texts, config)
    folder = task.corpus_dir / TOKENIZER
    sha256 = made.save(folder)
    files = [folder / name for name in sorted(made.files())]
    return {
        "sha256": sha256,
        "vocab_size": made.vocab_size,
        "special": made.special.model_dump(mode="json"),
        "pair_separators": made.pair_separators,
        "sample_documents": len(texts),
        "sample_bytes": sum(len(text.encode()) for text in texts),
        "files": _listed(task.corpus_dir, files),
    }


def _sample(task: TokenizerTask) -> list[str]:
    """Training documents in the order of a keyed hash of their text until `sample_bytes` is reached."""
    columns = tables.read_columns(task.corpus_dir, task.units)
    usable = ~is_heldout(columns.hashes[:, 0], task.config.heldout_fraction)
    for unit in range(task.units):
        removed = np.fromiter(tables.read_removals(task.corpus_dir, unit), dtype=np.int64)
        usable[np.flatnonzero(columns.unit == unit)[removed]] = False
    candidates = np.flatnonzero(usable)
    rank = keyed.bits(keyed.key("tokenizer sample"), columns.hashes[candidates, 0].view(np.int64), 1)[:, 0]
    candidates = candidates[np.lexsort((candidates, rank))]
    before = np.cumsum(columns.bytes[candidates]) - columns.bytes[candidates]
    chosen = np.sort(candidates[before < task.config.tokenizer.sample_bytes])
    texts: list[str] = []
    for unit in range(task.units):
        rows = columns.row[chosen[columns.unit[chosen] == unit]]
        if len(rows):
            texts += tables.read_texts(task.corpus_dir, unit, rows)
    return texts


def is_heldout(keys: NDArray[np.uint64], fraction: float) -> NDArray[np.bool_]:
    """`[n]`: the held-out share, a function of the text alone: never of the seed, so that seeds share it."""
    return keyed.uniforms(keyed.key("heldout"), keys.view(np.int64), 1)[:, 0] < fraction


def rows_unit(task: RowsTask) -> dict[str, Any]:
    """Tokenize, split and pack one unit's documents; write its shards and its held-out texts."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one unit, one core
    made = tokenizer.load(task.corpus_dir / TOKENIZER)
    train, heldout = _Sink(task, "train", made), _Sink(task, "heldout", made)
    removed = tables.read_removals(task.corpus_dir, task.unit)
    topics: Counter[str] = Counter()
    text_bytes = 0
    path = tables.heldout_path(task.corpus_dir, task.unit)
    with tables.heldout_writer(path) as heldout_documents:
        for documents in tables.read_documents(task.corpus_dir, task.unit, removed):
            keys = tables.hash_words([document[3] for document in documents])[:, 0]
            chosen = is_heldout(keys, task.config.heldout_fraction)
            texts = [document[2] for document in documents]
            train.add([texts[i] for i in np.flatnonzero(~chosen)], keys[~chosen])
            heldout.add([texts[i] for i in np.flatnonzero(chosen)], keys[chosen])
            for i in np.flatnonzero(chosen):
                heldout_documents.add(documents[i][:3], documents[i][4])
            topics.update(document[1] for document in documents)
            text_bytes += sum(document[4] for document in documents)
    stats = {"train": train.close(), "heldout": heldout.close()}
    shards = [[shard.name, shard.bytes, shard.sha256] for split in stats.values() for shard in split.shards]
    return {
        **{split: totals.model_dump(mode="json") for split, totals in stats.items()},
        "documents": {"train": train.documents, "heldout": heldout.documents, "text_bytes": text_bytes},
        "topics": dict(sorted(topics.items())),
        "removed": dict(sorted(Counter(removed.values()).items())),
        "heldout_documents": {
            "name": path.relative_to(task.corpus_dir).as_posix(),
            "documents": heldout.documents,
            "sha256": heldout_documents.sha256,
        },
        "files": [*shards, *_listed(task.corpus_dir, [path])],
    }


class _Sink:
    """Texts of one split → shards and counts."""

    def __init__(self, task: RowsTask, split: Split, made: tokenizer.Tokenizer) -> None:
        config = task.config
        self.documents = 0
        self._tokenizer, self._seq_len = made, config.seq_len
        self._dtype = row_dtype(made.vocab_size)
        self._packer = packing.make_packer(
            config.layout,
            seq_len=config.seq_len,
            special=made.special,
            pair_separators=made.pair_separators,
            seed=task.seed,
        )
        self._writer = ShardWriter(
            task.corpus_dir,
            split,
            task.unit,
            seq_len=config.seq_len,
            rows_per_shard=config.rows_per_shard,
            vocab_size=made.vocab_size,
        )
        self._stats = empty_stats(config.seq_len)

    def add(self, texts: list[str], keys: NDArray[np.uint64]) -> None:
        """Tokenize sentence by sentence, which gives the ids of the whole text, and pack."""
        sentences = [packing.split_sentences(text) for text in texts]
        encoded = iter(self._tokenizer.encode([sentence for document in sentences for sentence in document]))
        rows: list[packing.Tokens] = []
        for document, key in zip(sentences, keys.tolist(), strict=True):
            rows += self._packer.add([next(encoded) for _ in document], key)
        self._store(rows)
        self.documents += len(texts)

    def close(self) -> SplitStats:
        """The totals, with all shards written."""
        self._store(self._packer.flush())
        shards = self._writer.close()
        return self._stats.model_copy(update={"shards": shards})

    def _store(self, rows: list[packing.Tokens]) -> None:
        if rows:
            array = packing.pad_rows(rows, self._seq_len, self._tokenizer.special.pad, self._dtype)
            self._writer.add(array)
            self._stats = add_stats([self._stats, row_stats(array, self._tokenizer.special)], self._seq_len)


def _listed(corpus_dir: Path, paths: list[Path]) -> list[list[Any]]:
    return [[path.relative_to(corpus_dir).as_posix(), path.stat().st_size, storage.sha256_of(path)] for path in paths]
