"""What a preparation will need, said before it begins: room on the disk, and, when asked for, rows and time.

The room is a careful guess from the inputs' sizes and formats. Rows, tokens and rates come from doing the work on a
sample of each source, 20 MB in all, in this process and a temporary folder, so the figures are this corpus's on this
machine; a vocabulary that is still to be trained is trained on a small part of the sample, which moves the tokens by a
few percent.
"""

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep import storage
from data_prep.corpus import CorpusConfig
from data_prep.errors import DataError, PreflightError
from data_prep.plan import Plan, PlannedUnit
from data_prep.storage import Folder

SAMPLE_BYTES = 20_000_000  # of input
_BITE = 200_000  # of text
_TRAINING_BYTES = 2_000_000  # of text a stand-in vocabulary is trained on
# Text bytes an input byte turns into, by what the file's name ends with; English as compressors leave it.
_EXPANSION = {".gz": 3.0, ".zst": 3.5, ".bz2": 4.0, ".xz": 4.5, ".parquet": 2.5}
_NEAR = 0.1  # bytes of band keys and sets of candidates for a byte of text
_TABLE = 1.03  # bytes of the documents' table for a byte of text
_ROWS = 0.6  # bytes of rows for a byte of text, at two bytes a token; twice that for large vocabularies
_LARGE_VOCABULARY = 0xFFFF


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the sample says of the whole; rates in MB a second on one core."""

    units: int
    input_bytes: int
    text_bytes: int
    rows: int
    tokens: int
    documents_rate: float  # of input
    rows_rate: float  # of text
    kept: float  # documents kept among those read, before duplicates

    def seconds(self, cores: int) -> float:
        """Wall time of reading, cleaning, searching and tokenizing on so many cores; training a vocabulary and what
        comes after the first stage of the search for near duplicates not included."""
        work = self.input_bytes / 1e6 / self.documents_rate + self.text_bytes / 1e6 / self.rows_rate
        return work / min(cores, self.units)


def space_needed(config: CorpusConfig, plan: Plan) -> int:
    """Bytes that the corpus and what leads to it will take, about."""
    text = sum(file.bytes * _EXPANSION.get(Path(file.name).suffix, 1.0) for file in plan.files)
    wide = config.tokenizer.path is None and config.tokenizer.vocab_size >= _LARGE_VOCABULARY
    near = _NEAR if config.near_duplicates is not None else 0.0
    return int(text * (_TABLE + near + _ROWS * (2 if wide else 1)))


def check_space(config: CorpusConfig, plan: Plan, corpus: Folder) -> None:
    """PreflightError when the folder has no room for what is still to be written."""
    free = corpus.free_bytes()
    if free is None:
        return
    present = sum(corpus.sizes().values())
    needed = space_needed(config, plan) - present
    if needed > free:
        raise PreflightError(
            f"{corpus}: about {needed / 1e9:.1f} GB will be needed and {free / 1e9:.1f} GB are free; make room, or "
            "set corpus.location to a larger disk."
        )


def estimate(config: CorpusConfig, plan: Plan) -> Estimate:
    """Do the work on a sample and scale it up. DataError when the sample holds no document."""
    folder = tempfile.mkdtemp(prefix="electra-estimate-")
    try:
        return _on_sample(config, plan, storage.folder(Path(folder)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _on_sample(config: CorpusConfig, plan: Plan, corpus: Folder) -> Estimate:
    whole = sum(unit.bytes for unit in plan.units)
    if not whole:
        raise DataError("The size of the input is not known before it is read, so nothing can be said of it.")
    units = _sample(plan)
    documents = _documents(config, plan, corpus, units)
    text_bytes = sum(result["text_bytes"] for result in documents)
    if not text_bytes:
        raise DataError("The sample of the corpus holds no document; check corpus.sources and corpus.cleaning.")
    rows = _rows(config, plan, corpus, units, documents)
    searching = _searching(config, corpus, len(units))
    input_bytes = sum(_consumed(plan, unit, result) for unit, result in zip(units, documents, strict=True))
    scale = whole / input_bytes
    stats = [result[split] for result in rows for split in ("train", "heldout")]
    return Estimate(
        units=len(plan.units),
        input_bytes=whole,
        text_bytes=int(text_bytes * scale),
        rows=int(sum(split["rows"] for split in stats) * scale),
        tokens=int(sum(split["tokens"] for split in stats) * scale),
        documents_rate=input_bytes / 1e6 / max(1e-9, searching + sum(result["cpu_seconds"] for result in documents)),
        rows_rate=text_bytes / 1e6 / max(1e-9, sum(result["cpu_seconds"] for result in rows)),
        kept=sum(result["documents"] for result in documents) / sum(result["documents_in"] for result in documents),
    )


def _documents(config: CorpusConfig, plan: Plan, corpus: Folder, units: Sequence[PlannedUnit]) -> list[dict[str, Any]]:
    """The documents stage of the sample, after a bite of it that loads and compiles what it needs."""
    from data_prep.units import DocumentsTask, documents_unit

    def task(unit: PlannedUnit, limit: int) -> DocumentsTask:
        files = plan.inputs(unit)
        return DocumentsTask(corpus=corpus.location, config=config, unit=unit, files=files, limit_bytes=limit)

    documents_unit(task(units[0], _BITE))
    return [documents_unit(task(unit, SAMPLE_BYTES // len(units))) for unit in units]


def _rows(
    config: CorpusConfig,
    plan: Plan,
    corpus: Folder,
    units: Sequence[PlannedUnit],
    documents: Sequence[dict[str, Any]],
) -> list[dict[str, Any]]:
    """The rows stage of the sample, after its smallest unit for the same reason."""
    from data_prep.removals import find_removals
    from data_prep.row_units import EngineTask, RowsTask, engine_unit, rows_unit

    unsearched = config.model_copy(update={"near_duplicates": None, "decontamination": None})
    find_removals(corpus, plan.model_copy(update={"units": units}), unsearched)
    sha256 = _stand_in_tokenizer(config, corpus, len(units))
    verdict = engine_unit(EngineTask(corpus=corpus.location, units=len(units), tokenizer_sha256=sha256))
    tasks = [
        RowsTask(
            corpus=corpus.location,
            config=unsearched,
            unit=unit.unit,
            seed=plan.seed,
            tokenizer_sha256=sha256,
            verdict=verdict,
        )
        for unit in units
    ]
    rows_unit(min(zip(tasks, documents, strict=True), key=lambda pair: pair[1]["text_bytes"])[0])
    return [rows_unit(task) for task in tasks]


def _searching(config: CorpusConfig, corpus: Folder, units: int) -> float:
    """CPU seconds of searching the sample for near duplicates and evaluation sets, where that is asked for."""
    from data_prep import decontaminate, neardup

    began = time.process_time()
    if config.decontamination is not None:
        decontaminate.index_unit(decontaminate.IndexTask(corpus=corpus.location, config=config.decontamination))
        began = time.process_time()  # the index is made once, whatever the size of the corpus
        for unit in range(units):
            decontaminate.decontaminate_unit(
                decontaminate.DecontaminateTask(corpus=corpus.location, config=config.decontamination, unit=unit)
            )
    if config.near_duplicates is not None:
        for unit in range(units):
            neardup.signatures_unit(
                neardup.NearTask(corpus=corpus.location, config=config.near_duplicates, unit=unit, units=units, parts=1)
            )
    return time.process_time() - began


def _sample(plan: Plan) -> list[PlannedUnit]:
    """The first unit of every source, cut to its share of the sample and numbered anew."""
    first = {unit.source: unit for unit in reversed(plan.units)}
    share = SAMPLE_BYTES // len(first)
    return [
        _shortened(plan, first[source], share).model_copy(update={"unit": number})
        for number, source in enumerate(sorted(first))
    ]


def _shortened(plan: Plan, unit: PlannedUnit, share: int) -> PlannedUnit:
    """The unit with no more of its range, or of its files, than makes about `share` bytes."""
    if unit.bytes <= share:
        return unit
    if unit.stop is not None:
        stop = unit.start + max(1, (unit.stop - unit.start) * share // unit.bytes)
        return unit.model_copy(
            update={"stop": stop, "bytes": unit.bytes * (stop - unit.start) // (unit.stop - unit.start)}
        )
    last, size = unit.first, 0
    while last == unit.first or (last < unit.last and size < share):
        size += plan.files[last].bytes
        last += 1
    return unit.model_copy(update={"last": last, "bytes": size})


def _consumed(plan: Plan, unit: PlannedUnit, result: dict[str, Any]) -> float:
    """Input bytes the sample's text stands for: all of a unit that was read to its end, otherwise by a compressor's
    usual yield."""
    if not result["cut_off"]:
        return unit.bytes
    expansion = _EXPANSION.get(Path(plan.files[unit.first].name).suffix, 1.0)
    return min(unit.bytes, result["read_bytes"] / expansion)


def _stand_in_tokenizer(config: CorpusConfig, corpus: Folder, units: int) -> str:
    from data_prep.units import TokenizerTask, tokenizer_unit

    settings = config.tokenizer.model_copy(update={"sample_bytes": _TRAINING_BYTES})
    task = TokenizerTask(corpus=corpus.location, config=config.model_copy(update={"tokenizer": settings}), units=units)
    return str(tokenizer_unit(task)["sha256"])
