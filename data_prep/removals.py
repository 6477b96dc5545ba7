"""Which clean documents do not enter the corpus, and why: contaminated, duplicates, near duplicates, over a budget.

Decided for the whole corpus at once, on hashes, sizes and what the searches found, never on texts. Only a document that
stays makes others duplicates: sources are gone through in their order, and in each contaminated documents go first,
then copies of documents that were kept, then all but the first of a group of near duplicates, then what exceeds the
source's `max_bytes`. So no text is lost because a copy of it was removed for another reason. Memory: some 60 bytes a
document.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep import decontaminate, dedup, nearcheck, tables
from data_prep.corpus import CorpusConfig
from data_prep.plan import Plan
from data_prep.storage import Folder

Documents = NDArray[np.int64]  # numbers of documents, counted through the corpus
Mask = NDArray[np.bool_]


def find_removals(corpus: Folder, plan: Plan, config: CorpusConfig) -> tuple[str, dict[str, int]]:
    """Write the removal list of the corpus; returns (its sha256, counts by reason)."""
    columns = tables.read_columns(corpus, len(plan.units))
    source_of_unit = np.array([unit.source for unit in plan.units], dtype=np.int64)
    groups = np.full(len(columns.bytes), -1, dtype=np.int64)
    if config.near_duplicates is not None:
        unit, row, kept_unit, kept_row = nearcheck.read_groups(corpus)
        keepers = columns.numbers(kept_unit, kept_row)
        groups[columns.numbers(unit, row)] = keepers
        groups[keepers] = keepers
    reasons = decide(
        columns,
        contaminated(corpus, plan, config, columns),
        groups,
        source_of_unit[columns.unit],
        [source.max_bytes for source in config.sources],
        drop_duplicates=config.drop_duplicates,
    )
    return tables.write_removals(corpus, columns, reasons)


def decide(
    columns: tables.Columns,
    reasons: NDArray[Any],
    near: Documents,
    sources: NDArray[np.int64],
    max_bytes: Sequence[int | None],
    *,
    drop_duplicates: bool,
) -> NDArray[Any]:
    """`[n]` reasons, "" for what stays. `reasons` holds those of contaminated documents already; `near[i]`: the number
    of document i's group of near duplicates, below zero where it has none; `sources[i]`: its source."""
    reasons = reasons.copy()
    copies = dedup.groups(columns.hashes) if drop_duplicates else np.arange(len(reasons), dtype=np.int64)
    near = _of_copies(near, copies)
    taken = np.zeros(len(reasons), dtype=np.bool_)  # by number of a group, which is below that of documents
    near_taken = np.zeros(len(reasons), dtype=np.bool_)
    for number, limit in enumerate(max_bytes):
        documents = np.flatnonzero((sources == number) & (reasons == ""))
        documents = _without(documents, reasons, _repeated(copies[documents], taken), "duplicate")
        documents = _without(documents, reasons, _repeated(near[documents], near_taken), "near_duplicate")
        if limit is not None:
            over = dedup.over_budget(columns.bytes[documents], limit)
            documents = _without(documents, reasons, over, "over_max_bytes")
        taken[copies[documents]] = True
        near_taken[near[documents][near[documents] >= 0]] = True
    return reasons


def contaminated(corpus: Folder, plan: Plan, config: CorpusConfig, columns: tables.Columns) -> NDArray[Any]:
    """`[n]` reasons of the documents that hold text of an evaluation set, "" for all others."""
    reasons: NDArray[Any] = np.full(len(columns.bytes), "", dtype=object)
    if config.decontamination is not None:
        for unit in range(len(plan.units)):
            removed = decontaminate.read_removed(corpus, unit)
            rows = np.fromiter(removed, dtype=np.int64, count=len(removed))
            reasons[columns.numbers(np.full(len(rows), unit), rows)] = list(removed.values())
    return reasons


def uninteresting(columns: tables.Columns, reasons: NDArray[Any], *, drop_duplicates: bool) -> Documents:
    """What need not be searched for near duplicates: contaminated documents, and copies of others."""
    clean = np.flatnonzero(reasons == "")
    found = reasons != ""
    if drop_duplicates:
        found[clean[dedup.duplicates(columns.hashes[clean])]] = True
    return np.flatnonzero(found)


def _of_copies(near: Documents, copies: Documents) -> Documents:
    """Copies belong to the group of the one that was searched."""
    of_copies = np.full(len(near), -1, dtype=np.int64)
    searched = near >= 0
    of_copies[copies[searched]] = near[searched]
    return of_copies[copies]


def _repeated(groups: Documents, taken: Mask) -> Mask:
    """`[k]`: which of some documents are of a group that is taken, or that one before them has; -1 is no group."""
    repeated = np.ones(len(groups), dtype=np.bool_)
    repeated[np.unique(groups, return_index=True)[1]] = False
    repeated |= taken[groups]
    return repeated & (groups >= 0)


def _without(documents: Documents, reasons: NDArray[Any], removed: Mask, reason: str) -> Documents:
    reasons[documents[removed]] = reason
    return documents[~removed]
