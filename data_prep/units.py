"""The work of preparing a corpus up to its tokenizer, one function a stage, each a pure function of its payload and the
files it names.

documents (per unit): read, clean, hash → `documents/UUUUU.arrow`.  tokenizer (once): sample → `tokenizer/`. What does
not enter is decided in `data_prep.removals`; rows, the last stage, are in `data_prep.row_units`. No clock, host or
worker count enters an output. Memory: a unit holds a few megabytes of text and its largest document; choosing a sample
holds some 40 bytes for every document of the corpus, and training a tokenizer its sample. Nothing here knows where or
in which order units run. A result's `files` lists what was written, with size and hash: a record is trusted once they
were compared, so the table of documents need not wait for the disk. Its `cpu_seconds` says what it cost.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep import dedup, keyed, storage, tables, tokenizer
from data_prep.clean import clean_batch, repair
from data_prep.corpus import CorpusConfig
from data_prep.integrity import TOKENIZER
from data_prep.plan import PlannedUnit
from data_prep.settings import Settings
from data_prep.sources import BAD, Document, InputFile, Rejected, read
from data_prep.storage import Folder

READ_BYTES = 1 << 18  # characters read and cleaned at a time


class DocumentsTask(Settings):
    """Payload of `documents_unit`."""

    corpus: str  # the corpus folder's location
    config: CorpusConfig
    unit: PlannedUnit
    files: list[InputFile]
    limit_bytes: int | None = None  # stop after so much text: for an estimate, never for a corpus


class TokenizerTask(Settings):
    """Payload of `tokenizer_unit`."""

    corpus: str
    config: CorpusConfig
    units: int


def documents_unit(task: DocumentsTask) -> dict[str, Any]:
    """Read and clean one unit. `documents_in == documents + sum(rejected)`; `sha256` is over the kept documents;
    `first_bad` says where the first malformed record lies."""
    began = time.process_time()
    corpus = storage.folder(task.corpus)
    intake = Intake(task.limit_bytes)
    with tables.document_writer(corpus, task.unit.unit) as writer:
        for batch in intake.batches(_read(task)):
            texts, reasons = clean_batch([document.text for document in batch], task.config.cleaning)
            kept = [number for number, reason in enumerate(reasons) if reason is None]
            if len(kept) < len(batch):
                intake.rejected.update(reason for reason in reasons if reason is not None)
                texts = [texts[number] for number in kept]
            ids, topics = [batch[number].id for number in kept], [batch[number].topic for number in kept]
            writer.extend(_storable(ids), _storable(topics), texts, dedup.text_hashes(texts))
            batch.clear()  # what has been stored is not held while the next batch is read
    files = [tables.documents_name(task.unit.unit), tables.sizes_name(task.unit.unit)]
    return {
        "documents_in": intake.seen,
        "documents": len(writer.sizes),
        "rejected": dict(sorted(intake.rejected.items())),
        "first_bad": intake.first_bad,
        "text_bytes": sum(writer.sizes),
        "read_bytes": intake.read_bytes,
        "cut_off": intake.cut_off,
        "sha256": writer.sha256,
        "files": corpus.listed(files),
        "cpu_seconds": time.process_time() - began,
    }


class Intake:
    """The records of a unit, counted, and their documents in batches of about `READ_BYTES` of text or of a single one:
    large enough that a pass over a batch costs nothing a document, small enough for the processor's cache."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit = sys.maxsize if limit_bytes is None else limit_bytes
        self.seen = self.read_bytes = 0
        self.cut_off = False
        self.rejected: Counter[str] = Counter()
        self.first_bad: str | None = None

    def batches(self, records: Iterable[Document | Rejected]) -> Iterator[list[Document]]:
        """Batches of documents until the records or the limit end."""
        batch: list[Document] = []
        full = READ_BYTES
        for record in records:
            if self.read_bytes >= self._limit:
                self.cut_off = True
                break
            self.seen += 1
            if isinstance(record, Rejected):
                self._reject(record)
                continue
            batch.append(record)
            self.read_bytes += len(record.text)
            if self.read_bytes >= full:
                yield batch
                batch, full = [], self.read_bytes + READ_BYTES
        if batch:
            yield batch

    def _reject(self, record: Rejected) -> None:
        self.rejected[record.reason] += 1
        if self.first_bad is None and record.reason in BAD:
            self.first_bad = f"{record.where} ({record.reason})"


def _storable(names: list[str]) -> list[str]:
    """Ids or topics that can be stored; nearly all are as they come."""
    if _is_plain("".join(names)):
        return names
    return [name if _is_plain(name) else repair(name) for name in names]


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _read(task: DocumentsTask) -> Iterator[Document | Rejected]:
    source = task.config.sources[task.unit.source]
    return read(source, task.files, task.unit.start, task.unit.stop)


def tokenizer_unit(task: TokenizerTask) -> dict[str, Any]:
    """Train the tokenizer on a sample of the training documents, or copy the existing one, to `tokenizer/`."""
    began = time.process_time()
    corpus, config = storage.folder(task.corpus), task.config.tokenizer
    texts: list[str] = []
    if config.path is not None:
        made = tokenizer.load(Path(config.path).expanduser(), lowercase=config.lowercase)
    else:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"  # alone on the machine; the result does not depend on it
        texts = _sample(corpus, task)
        made = tokenizer.train(texts, config)
    content = made.files()
    for name, data in content.items():
        corpus.write_bytes(f"{TOKENIZER}/{name}", data)
    return {
        "sha256": corpus.sha256(f"{TOKENIZER}/{tokenizer.FILE_NAME}"),
        "vocab_size": made.vocab_size,
        "special": made.special.model_dump(mode="json"),
        "pair_separators": made.pair_separators,
        "sample_documents": len(texts),
        "sample_bytes": sum(len(text.encode()) for text in texts),
        "files": corpus.listed([f"{TOKENIZER}/{name}" for name in sorted(content)]),
        "cpu_seconds": time.process_time() - began,
    }


def _sample(corpus: Folder, task: TokenizerTask) -> list[str]:
    """Training documents in the order of a keyed hash of their text until `sample_bytes` is reached."""
    columns = tables.read_columns(corpus, task.units)
    usable = ~is_heldout(columns.hashes[:, 0], task.config.heldout_fraction)
    for unit in range(task.units):
        removed = np.fromiter(tables.read_removals(corpus, unit), dtype=np.int64)
        usable[columns.of_unit(unit)][removed] = False  # of a view
    candidates = np.flatnonzero(usable)
    rank = keyed.bits(keyed.key("tokenizer sample"), columns.hashes[candidates, 0].view(np.int64), 1)[:, 0]
    candidates = candidates[np.lexsort((candidates, rank))]
    before = np.cumsum(columns.bytes[candidates]) - columns.bytes[candidates]
    chosen = candidates[before < task.config.tokenizer.sample_bytes]
    wanted = np.zeros(len(usable), dtype=np.bool_)
    wanted[chosen] = True
    texts: list[str] = []
    for unit in range(task.units):
        rows = np.flatnonzero(wanted[columns.of_unit(unit)])
        if len(rows):
            texts += tables.read_texts(corpus, unit, rows)
    return texts


def is_heldout(keys: NDArray[np.uint64], fraction: float) -> NDArray[np.bool_]:
    """`[n]`: the held-out share, a function of the text alone: never of the seed, so that seeds share it."""
    return keyed.uniforms(keyed.key("heldout"), keys.view(np.int64), 1)[:, 0] < fraction
