"""The last stage of preparing a corpus: clean documents → tokens → rows → shards, one unit at a time.

A pure function of the unit's documents, the removal list, the tokenizer and the settings; neither the engine that
encodes nor the size of a batch enters. Documents are taken a few megabytes at a time, split in sentences, encoded and
packed on flat arrays; rows leave for the disk as members fill up. So memory holds a batch, the largest document and the
packer's open rows. The fast engine is used where `data_prep.engines` accepted it; when the check that runs along finds
a difference, the unit is done again with the reference, and the result says so.
"""

import itertools
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep import decontaminate, engines, packing, storage, tables, tokenizer
from data_prep.alignment import Aligner
from data_prep.corpus import CorpusConfig
from data_prep.engines import CheckedEncoder
from data_prep.integrity import TOKENIZER
from data_prep.manifest import MOST_TOPICS, Split, SplitStats, add_stats, empty_stats
from data_prep.settings import Settings
from data_prep.shards import ShardWriter, row_dtype, row_stats
from data_prep.storage import Folder
from data_prep.tokenizer import Tokenizer
from data_prep.units import is_heldout

GATE_DOCUMENTS = 2_000  # shown to a fast engine before it is trusted
_REFERENCE = {"accepted": False}


class EngineTask(Settings):
    """Payload of `engine_unit`."""

    corpus: str
    units: int
    tokenizer_sha256: str


class RowsTask(Settings):
    """Payload of `rows_unit`."""

    corpus: str  # the corpus folder's location
    config: CorpusConfig
    unit: int
    seed: int
    tokenizer_sha256: str
    verdict: dict[str, Any]  # of `engine_unit`


def engine_unit(task: EngineTask) -> dict[str, Any]:
    """Whether a fast engine gives the reference's ids for documents of this corpus; see `engines.gate`."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    began = time.process_time()
    corpus = storage.folder(task.corpus)
    texts: list[str] = []
    # the same number from each unit, as far as units go round, so that every source is shown
    step = max(1, task.units // GATE_DOCUMENTS)
    share = -(-GATE_DOCUMENTS // len(range(0, task.units, step)))
    for unit in range(0, task.units, step):
        documents = (text for batch in tables.read_documents(corpus, unit) for text in batch.texts)
        texts += itertools.islice(documents, share)
    path = corpus.local(f"{TOKENIZER}/{tokenizer.FILE_NAME}", sha256=task.tokenizer_sha256)
    return {**engines.gate(path.parent, texts), "cpu_seconds": time.process_time() - began}


def rows_unit(task: RowsTask) -> dict[str, Any]:
    """Tokenize, split and pack one unit's documents; write its shards and its held-out texts."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one unit, one core
    began = time.process_time()
    corpus = storage.folder(task.corpus)
    tools = _tools(corpus, task.tokenizer_sha256, task.verdict)
    mismatch = None
    try:
        result = _rows(task, corpus, tools)
    except engines.EngineMismatch as difference:
        mismatch = str(difference)
        tools = _tools(corpus, task.tokenizer_sha256, _REFERENCE)
        result = _rows(task, corpus, tools)
    return {
        **result,
        "engine": {"name": tools.encoder.engine, "mismatch": mismatch},
        "cpu_seconds": time.process_time() - began,
    }


class _Tools(NamedTuple):
    """What turns texts into tokens."""

    tokenizer: Tokenizer
    encoder: CheckedEncoder
    aligner: Aligner


# By tokenizer and engine: a worker runs many units, and building costs as much as encoding some megabytes.
_TOOLS: dict[tuple[Any, ...], _Tools] = {}
_MOST_TOOLS = 2


def _tools(corpus: Folder, tokenizer_sha256: str, verdict: dict[str, Any]) -> _Tools:
    key = tokenizer_sha256, *(verdict.get(name) for name in ("accepted", "engine", "version"))
    if key not in _TOOLS:
        path = corpus.local(f"{TOKENIZER}/{tokenizer.FILE_NAME}", sha256=tokenizer_sha256)
        made = tokenizer.load(path.parent)
        if len(_TOOLS) == _MOST_TOOLS:
            _TOOLS.clear()
        _TOOLS[key] = _Tools(made, engines.checked_encoder(made, tokenizer_sha256, verdict), Aligner(made))
    return _TOOLS[key]


def _rows(task: RowsTask, corpus: Folder, tools: _Tools) -> dict[str, Any]:
    hashes, sizes = tables.read_sizes(corpus, task.unit)
    removed = tables.read_removals(corpus, task.unit)
    keep = np.ones(len(sizes), dtype=np.bool_)
    keep[np.fromiter(removed, dtype=np.int64)] = False
    held = is_heldout(hashes[:, 0], task.config.heldout_fraction)
    passages = _passages(task, corpus)
    topics: Counter[str] = Counter()
    shortened = 0
    with ExitStack() as stack:
        train, heldout = (stack.enter_context(_Sink(task, corpus, split, tools)) for split in _SPLITS)
        held_documents = stack.enter_context(tables.heldout_writer(corpus, task.unit))
        for batch in tables.read_documents(corpus, task.unit):
            rows = np.arange(batch.first, batch.first + len(batch))
            shortened += _cut(batch, passages)
            train.add(batch, rows[keep[rows] & ~held[rows]], hashes)
            chosen = rows[keep[rows] & held[rows]]
            heldout.add(batch, chosen, hashes)
            for i in (chosen - batch.first).tolist():
                held_documents.add((batch.ids[i], batch.topics[i], batch.texts[i]))
            topics.update(batch.topics[i] for i in (rows[keep[rows]] - batch.first).tolist())
    return {
        "train": train.stats.model_dump(mode="json"),
        "heldout": heldout.stats.model_dump(mode="json"),
        "documents": {
            "train": train.documents,
            "heldout": heldout.documents,
            "text_bytes": int(sizes[keep].sum()) - shortened,
        },
        "discarded_tokens": train.discarded_tokens + heldout.discarded_tokens,
        "topics": dict(sorted(_commonest(topics))),
        "removed": dict(sorted(Counter(removed.values()).items())),
        "heldout_documents": {
            "name": tables.heldout_name(task.unit),
            "documents": heldout.documents,
            "sha256": held_documents.sha256,
        },
        "files": [*train.files, *heldout.files, *corpus.listed([tables.heldout_name(task.unit)])],
    }


def _passages(task: RowsTask, corpus: Folder) -> dict[int, list[decontaminate.Span]]:
    """Row → passages of evaluation sets to cut from its text, where the settings say to cut."""
    config = task.config.decontamination
    return decontaminate.read_cuts(corpus, task.unit) if config is not None and config.policy == "cut" else {}


def _cut(batch: tables.DocumentBatch, passages: Mapping[int, Sequence[decontaminate.Span]]) -> int:
    """Cut passages from the texts of a batch; returns the bytes that went."""
    before = after = 0
    for i in range(len(batch)) if passages else ():
        if (spans := passages.get(batch.first + i)) is not None:
            before += len(batch.texts[i].encode())
            batch.texts[i] = decontaminate.cut(batch.texts[i], spans)
            after += len(batch.texts[i].encode())
    return before - after


def _commonest(topics: Counter[str]) -> list[tuple[str, int]]:
    """What a record can carry of the topics: they may be as many as documents."""
    return sorted(topics.items(), key=lambda entry: (-entry[1], entry[0]))[:MOST_TOPICS]


_SPLITS: tuple[Split, Split] = ("train", "heldout")


class _Sink:
    """Texts of one split → shards and counts; a context manager, whose end writes what is left."""

    def __init__(self, task: RowsTask, corpus: Folder, split: Split, tools: _Tools) -> None:
        config = task.config
        self.documents = 0
        self._tools, made = tools, tools.tokenizer
        self._packer = packing.make_packer(
            config.layout,
            seq_len=config.seq_len,
            special=made.special,
            pair_separators=made.pair_separators,
            seed=task.seed,
            continues=made.continues,
            dtype=row_dtype(made.vocab_size),
            discard_overflow=config.discard_overflow,
        )
        self._writer = ShardWriter(
            corpus,
            split,
            task.unit,
            seq_len=config.seq_len,
            rows_per_shard=config.rows_per_shard,
            vocab_size=made.vocab_size,
        )
        self.stats: SplitStats = empty_stats(config.seq_len)

    def __enter__(self) -> "_Sink":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self._store(self._packer.flush())
        self._writer.__exit__(kind, error, trace)
        self.stats = self.stats.model_copy(update={"shards": self._writer.entries})

    @property
    def files(self) -> list[list[Any]]:
        """The shards as `Folder.listed` has them."""
        return self._writer.files

    @property
    def discarded_tokens(self) -> int:
        """Tokens the layout had no room for, where it is told to discard them."""
        return self._packer.discarded_tokens

    def add(self, batch: tables.DocumentBatch, rows: NDArray[np.int64], hashes: NDArray[np.uint64]) -> None:
        """Encode and pack the documents of a batch at `rows`."""
        if not len(rows):
            return
        texts = [batch.texts[i] for i in (rows - batch.first).tolist()]
        tokens = self._tools.aligner.batch(texts, hashes[rows, 0], self._tools.encoder)
        self._store(self._packer.add(tokens))
        self.documents += len(texts)

    def _store(self, rows: NDArray[Any]) -> None:
        if len(rows):
            self._writer.add(rows)
            self.stats = add_stats([self.stats, row_stats(rows, self._tools.tokenizer.special)], rows.shape[1])
