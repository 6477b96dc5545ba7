"""Near duplicates: documents whose sets of word 5-grams overlap, at a Jaccard similarity of `threshold` or more.

Five stages from file to file. signatures (per unit): MinHash signatures → the keys of their bands.  pairs (per part of
the key space): documents that share a key → candidate pairs.  sets, check (per unit) and union (once) compare the
candidates exactly and write the removal list; they are in `data_prep.nearcheck`. Every stage is a pure function of its
payload and of the files it reads, and none holds more texts than a batch.

The list depends on the documents and their order alone: not on the number of parts, nor on what ran where or when. The
first document of every group in corpus order is kept. A group may hold two documents below the threshold that a third
one links. A pair is missed with the chance that no band agrees: 8 % at 0.8, 0.04 % at 0.9. Documents without a word are
never near duplicates; with fewer words than `shingle`, only of one with the same words. Exact duplicates should be
excluded before (`write_excluded`). A unit's keys (168 bytes a document) and a part's records and pairs are in memory.
"""

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from data_prep import document_pairs as dp
from data_prep import sections, shingles
from data_prep.minhash import band_keys, signatures
from data_prep.settings import Settings
from data_prep.storage import Folder, folder

NEAR = "near_duplicates"
REASON = "near_duplicate"

_SLOTS = 4096  # sections of a unit's band file, by the upper bits of the key; a part is a run of them
_SLOT_SHIFT = np.uint64(52)
_RECORD = np.dtype([("key", "<u8"), ("row", "<u4")])
_PART_RECORDS = 2_000_000


class NearDuplicates(Settings):
    """Which documents count as near duplicates, and how they are looked for."""

    threshold: Annotated[float, Field(gt=0.0, le=1.0)] = 0.8  # exact Jaccard similarity from which one is removed
    shingle: PositiveInt = 5  # words
    bands: Annotated[int, Field(ge=1, le=1000)] = 14  # a pair is found when all rows of one band agree
    rows: Annotated[int, Field(ge=1, le=1000)] = 8
    alarm_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.30  # a source that loses more is reported


class NearTask(Settings):
    """Payload of the stages per unit (`signatures_unit`, `sets_unit`, `check_unit`)."""

    corpus: str  # address of the corpus folder
    config: NearDuplicates
    unit: int
    units: int
    parts: int  # see `pair_parts`
    excluded: str | None = None  # file of `write_excluded`: documents that are removed already


class PairsTask(Settings):
    """Payload of `pairs_unit`."""

    corpus: str
    part: int
    parts: int
    units: int


def pair_parts(documents: int, config: NearDuplicates) -> int:
    """Into how many parts the key space of a corpus is cut. The result of the search does not depend on it."""
    return min(_SLOTS, max(1, -(-documents * config.bands // _PART_RECORDS)))


def write_excluded(corpus: Folder, name: str, unit: NDArray[np.int64], row: NDArray[np.int64], units: int) -> None:
    """Write the documents, in corpus order, that later stages shall not look at."""
    sections.write_sorted(corpus, name, row.astype("<i8"), unit, units)


def read_excluded(corpus: Folder, name: str | None, unit: int, units: int) -> NDArray[np.int64]:
    """The excluded rows of one unit, ascending."""
    if name is None:
        return np.empty(0, dtype=np.int64)
    return sections.read(corpus, name, "<i8", units, unit, unit + 1)


def signatures_unit(task: NearTask) -> dict[str, Any]:
    """Write the band keys of a unit's documents, sorted; `documents` counts those that were looked at."""
    from data_prep import tables  # brings pyarrow, which the settings above do without

    corpus, config = folder(task.corpus), task.config
    excluded = read_excluded(corpus, task.excluded, task.unit, task.units)
    keys, rows = [np.empty((0, config.bands), dtype=np.uint64)], [np.empty(0, dtype=np.int64)]
    documents = 0
    for batch in tables.read_documents(corpus, task.unit):
        kept = np.setdiff1d(np.arange(batch.first, batch.first + len(batch)), excluded, assume_unique=True)
        words = shingles.words([batch.texts[row - batch.first] for row in kept.tolist()])
        minima = signatures(shingles.shingles(words, config.shingle), words.ends, config.bands * config.rows)
        worded = words.ends > words.starts
        keys.append(band_keys(minima[worded], config.bands))
        rows.append(kept[worded])
        documents += len(kept)
    name = _bands_name(task.unit)
    _write_bands(corpus, name, np.concatenate(keys), np.concatenate(rows))
    return {"documents": documents, "files": corpus.listed([name])}


def _write_bands(corpus: Folder, name: str, keys: shingles.Hashes, rows: NDArray[np.int64]) -> None:
    records = np.empty(keys.size, dtype=_RECORD)
    order = np.argsort(keys.ravel(), kind="stable")  # rows ascend within a key
    records["key"] = keys.ravel()[order]
    records["row"] = np.repeat(rows, keys.shape[1])[order]
    sections.write_sorted(corpus, name, records, (records["key"] >> _SLOT_SHIFT).astype(np.int64), _SLOTS)


def pairs_unit(task: PairsTask) -> dict[str, Any]:
    """Write the candidate pairs of one part of the key space, and the documents that are in them."""
    corpus = folder(task.corpus)
    start, stop = (_SLOTS * part // task.parts for part in (task.part, task.part + 1))
    keys, documents = [], []
    for unit in range(task.units):
        records = sections.read(corpus, _bands_name(unit), _RECORD, _SLOTS, start, stop)
        keys.append(records["key"])
        documents.append(dp.pack(unit, records["row"]))
    pairs, left_out = dp.bucket_pairs(np.concatenate(keys), np.concatenate(documents))
    candidates = np.unique(pairs)
    names = [pairs_name(task.part), candidates_name(task.part)]
    sections.write_sorted(corpus, names[0], pairs, dp.unit_of(pairs[:, 0]), task.units)
    sections.write_sorted(corpus, names[1], candidates, dp.unit_of(candidates), task.units)
    return {
        "pairs": len(pairs),
        "pairs_left_out": left_out,  # in buckets too large for all their pairs
        "files": corpus.listed(names),
    }


def pairs_name(part: int) -> str:
    """Where the candidate pairs of a part lie, by the unit of the first document."""
    return f"{NEAR}/pairs/{part:05d}.bin"


def candidates_name(part: int) -> str:
    """Where the documents in these pairs lie, by unit."""
    return f"{NEAR}/candidates/{part:05d}.bin"


def _bands_name(unit: int) -> str:
    return f"{NEAR}/bands/{unit:05d}.bin"
