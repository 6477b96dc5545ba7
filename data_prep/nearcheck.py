"""Near duplicates, second half: candidate pairs are compared exactly, and what is left is a removal list.

sets (per unit): candidates → their exact shingle sets.  check (per unit): pairs whose exact Jaccard similarity reaches
the threshold → edges.  union (once): connected edges → the removal list, which keeps the first document of every group
in corpus order. `data_prep.neardup` says what the whole guarantees. A check holds some 64 MB of sets, whatever the size
of the unit, and reads those of other units in the order in which they lie there; the union holds the edges.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep import document_pairs as dp
from data_prep import sections, shingles, tables
from data_prep.neardup import NEAR, NearDuplicates, NearTask, candidates_name, pairs_name
from data_prep.settings import Settings
from data_prep.storage import Folder, folder

REMOVALS = f"{NEAR}/removals.parquet"
_SET_BYTES = 64 << 20  # of shingle sets held by a check


class UnionTask(Settings):
    """Payload of `union_unit`; the lists have an entry for each unit."""

    corpus: str
    config: NearDuplicates
    sources: list[str]  # the source's name
    documents: list[int]  # from the records of `signatures_unit`


def sets_unit(task: NearTask) -> dict[str, Any]:
    """Write the exact shingle sets of a unit's candidates."""
    corpus = folder(task.corpus)
    parts = [
        sections.read(corpus, candidates_name(part), "<i8", task.units, task.unit, task.unit + 1)
        for part in range(task.parts)
    ]
    rows = dp.row_of(np.unique(np.concatenate(parts)))
    rows_name, sets_name = _sets_names(task.unit)
    corpus.write_bytes(rows_name, rows.astype("<i8").tobytes())
    sections.write(corpus, sets_name, _sets(corpus, task, rows), len(rows))
    return {"candidates": len(rows), "files": corpus.listed([rows_name, sets_name])}


def _sets(corpus: Folder, task: NearTask, rows: NDArray[np.int64]) -> Iterator[shingles.Hashes]:
    if len(rows) == 0:
        return
    for batch in tables.read_documents(corpus, task.unit):
        wanted = rows[np.searchsorted(rows, batch.first) : np.searchsorted(rows, batch.first + len(batch))]
        yield from shingles.shingle_sets(
            [batch.texts[row - batch.first] for row in wanted.tolist()], task.config.shingle
        )


def check_unit(task: NearTask) -> dict[str, Any]:
    """Write the pairs that begin in a unit and whose exact similarity reaches the threshold."""
    corpus = folder(task.corpus)
    parts = [
        sections.read(corpus, pairs_name(part), ("<i8", 2), task.units, task.unit, task.unit + 1)
        for part in range(task.parts)
    ]
    pairs = dp.unique_pairs(np.concatenate(parts))
    found = [np.empty((0, 2), dtype=np.int64), *_similar(corpus, task, pairs)]
    name = _edges_name(task.unit)
    similar = np.concatenate(found)
    corpus.write_bytes(name, similar.astype("<i8").tobytes())
    return {"pairs": len(pairs), "similar": len(similar), "files": corpus.listed([name])}


def _similar(corpus: Folder, task: NearTask, pairs: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The similar ones of pairs sorted by first document, some `_SET_BYTES` of first documents at a time."""
    if len(pairs) == 0:
        return
    with _SetReader(corpus, task.unit) as own:
        firsts = np.unique(pairs[:, 0])
        block = np.cumsum(own.sizes(firsts) * 8) // _SET_BYTES
        for number in np.unique(block).tolist():
            chosen = firsts[block == number]
            known = {first: own.read(first) for first in chosen.tolist()}
            of_block = pairs[np.isin(pairs[:, 0], chosen)]
            by_second = of_block[np.lexsort((of_block[:, 0], of_block[:, 1]))]
            similar = _compare(corpus, task.config.threshold, known, by_second)
            yield by_second[similar]


def _compare(
    corpus: Folder, threshold: float, known: dict[int, shingles.Hashes], pairs: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """`[n]`: which pairs, sorted by second document, are similar; every second document is read once."""
    similar = np.zeros(len(pairs), dtype=np.bool_)
    units = dp.unit_of(pairs[:, 1])
    for unit in np.unique(units).tolist():
        with _SetReader(corpus, unit) as reader:
            loaded, second_set = -1, np.empty(0, dtype=np.uint64)
            for place in np.flatnonzero(units == unit).tolist():
                first, second = pairs[place].tolist()
                if second != loaded:
                    loaded, second_set = second, reader.read(second)
                shorter, longer = sorted((len(known[first]), len(second_set)))
                if shorter >= threshold * longer - 1:  # otherwise the sizes alone exclude it
                    similar[place] = shingles.jaccard(known[first], second_set) >= threshold
    return similar


class _SetReader:
    """The shingle sets of one unit's candidates."""

    def __init__(self, corpus: Folder, unit: int) -> None:
        rows_name, sets_name = _sets_names(unit)
        self._rows = np.frombuffer(corpus.read_bytes(rows_name), dtype="<i8")
        self._file = corpus.open(sets_name)
        self._sections = sections.SectionReader(self._file, f"{corpus}/{sets_name}", "<u8", len(self._rows))

    def __enter__(self) -> "_SetReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def sizes(self, documents: dp.Documents) -> NDArray[np.int64]:
        """How many shingles these candidates have."""
        return self._sections.sizes()[np.searchsorted(self._rows, dp.row_of(documents))]

    def read(self, document: int) -> shingles.Hashes:
        """The set of one candidate."""
        place = int(np.searchsorted(self._rows, document & dp.ROW_MASK))
        return self._sections.read(place, place + 1)


def union_unit(task: UnionTask) -> dict[str, Any]:
    """Write the removal list; `alarms` are sentences about sources that lose more than they should."""
    corpus = folder(task.corpus)
    found = [np.frombuffer(corpus.read_bytes(_edges_name(unit)), dtype="<i8") for unit in range(len(task.sources))]
    documents, kept = dp.components(np.concatenate(found).reshape(-1, 2))
    removed = documents != kept
    sha256 = _write_removals(corpus, documents[removed], kept[removed])
    by_source = _by_source(task, dp.unit_of(documents[removed]))
    groups = np.unique(kept, return_counts=True)[1]
    return {
        "removed": int(removed.sum()),
        "groups": len(groups),
        "largest_group": int(groups.max(initial=0)),
        "by_source": by_source,
        "alarms": _alarms(by_source, task.config.alarm_fraction),
        "sha256": sha256,
        "files": corpus.listed([REMOVALS]),
    }


def read_groups(corpus: Folder) -> tuple[NDArray[np.int64], ...]:
    """Of all near duplicates but the first of each group, in corpus order: unit and row, and unit and row of that
    first one."""
    import pyarrow.parquet as pq

    with corpus.open(REMOVALS) as file:
        table = pq.read_table(file)
    names = ("unit", "row", "kept_unit", "kept_row")
    return tuple(table.column(name).to_numpy().astype(np.int64) for name in names)


def _write_removals(corpus: Folder, removed: NDArray[np.int64], kept: NDArray[np.int64]) -> str:
    """Write which document goes and which stays for it; returns the sha256 of the list itself."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "unit": dp.unit_of(removed).astype(np.int32),
        "row": dp.row_of(removed),
        "kept_unit": dp.unit_of(kept).astype(np.int32),
        "kept_row": dp.row_of(kept),
    }
    with corpus.writer(REMOVALS) as file:
        pq.write_table(pa.table(columns), file)
    return hashlib.sha256(np.stack([removed, kept], axis=1).astype("<i8").tobytes()).hexdigest()


def _by_source(task: UnionTask, units: NDArray[np.int64]) -> dict[str, dict[str, int]]:
    removed = np.bincount(units, minlength=len(task.sources)).tolist()
    totals: dict[str, dict[str, int]] = {}
    for source, documents, lost in zip(task.sources, task.documents, removed, strict=True):
        total = totals.setdefault(source, {"documents": 0, "removed": 0})
        total["documents"] += documents
        total["removed"] += lost
    return totals


def _alarms(by_source: dict[str, dict[str, int]], fraction: float) -> list[str]:
    return [
        f"{source} loses {total['removed']:,} of {total['documents']:,} documents as near duplicates, more than "
        f"{fraction:.0%}: look at {REMOVALS} before you train on what is left."
        for source, total in by_source.items()
        if total["removed"] > fraction * total["documents"]
    ]


def _edges_name(unit: int) -> str:
    return f"{NEAR}/edges/{unit:05d}.bin"


def _sets_names(unit: int) -> tuple[str, str]:
    return f"{NEAR}/sets/{unit:05d}.rows.bin", f"{NEAR}/sets/{unit:05d}.bin"
