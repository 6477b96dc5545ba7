"""What a prepared corpus is, from what it was made, and the hashes that prove it.

The manifest is a deterministic merge of the part records: the same inputs and configuration give the same bytes on any
machine, so it holds no clock, host name or absolute path. It, not the tar files, says how many rows there are.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from data_prep import storage
from data_prep.errors import CheckError, DataError
from data_prep.rows import SpecialIds
from data_prep.settings import Settings
from data_prep.storage import Location

FILE_NAME = "manifest.json"
MOST_TOPICS = 200  # listed

Split = Literal["train", "heldout"]


class ShardEntry(Settings):
    """One shard: `name` is relative to the corpus folder, `first_row` is its first row's number within the split."""

    name: str
    bytes: int
    sha256: str
    members: int
    rows: int
    first_row: int
    unit: int


class SplitStats(Settings):
    """Totals of one split. Lengths are in tokens and count every real token (`cls` and `sep` included)."""

    rows: int
    tokens: int
    fragments: int
    sum_L: int  # Σ of fragment lengths; equals `tokens`
    sum_L2: int  # Σ of squared fragment lengths: what attention costs
    row_lengths: list[int]  # histogram: row_lengths[n] rows hold n real tokens; seq_len + 1 entries
    rows_with_pair: int  # rows with a second segment
    unk: int  # unknown tokens
    shards: list[ShardEntry]


class SourceStats(Settings):
    """One of the corpus's sources: its units follow those of the source before it, and so do its rows in a split."""

    kind: str
    weight: int | None  # its share of the training stream, see `data_prep.order`; None: sources are not mixed by weight
    units: int
    train: SplitStats  # no shards listed, here and in `heldout`: the split has them
    heldout: SplitStats


class Documents(Settings):
    """Where every document went: `documents_in == out + sum(rejected.values())`, `out == train + heldout`."""

    documents_in: int
    out: int
    train: int
    heldout: int
    text_bytes: int  # UTF-8 bytes of the documents kept
    rejected: dict[str, int]
    topics: dict[str, int]  # kept documents of the commonest topics


class HeldoutDocuments(Settings):
    """One file of held-out texts (parquet: id, topic, text); `sha256` is over the texts, not the file's encoding."""

    name: str
    documents: int
    sha256: str


class Manifest(Settings):
    """The whole corpus; see the module's docstring."""

    version: Literal[1] = 1
    config_sha256: str  # of the configuration, paths left out
    inputs_sha256: str  # of the names, sizes and content hashes of the input files
    seed: int
    tokenizer_sha256: str
    vocab_size: int
    special: SpecialIds
    layout: Literal["segments", "packed"]
    pair_separators: int  # between the two segments of a pair: 1 for BERT, 2 for RoBERTa
    seq_len: int
    dtype: Literal["uint16", "uint32"]
    units: int
    documents: Documents
    heldout_documents: list[HeldoutDocuments]
    train: SplitStats
    heldout: SplitStats
    sources: list[SourceStats]  # in the order of their units

    @property
    def sha256(self) -> str:
        """SHA-256 of the canonical JSON: part of the identity of everything trained on this corpus."""
        return self.fingerprint()

    def split(self, name: Split) -> SplitStats:
        """The split called `name`."""
        return self.train if name == "train" else self.heldout


def save(manifest: Manifest, corpus: Location) -> None:
    """Write the manifest; from then on the corpus exists."""
    storage.folder(corpus).write_json(FILE_NAME, manifest.model_dump(mode="json"))


def load(corpus: Location) -> Manifest:
    """Read the manifest of a prepared corpus. DataError when there is none or it does not parse."""
    folder = storage.folder(corpus)
    if folder.size(FILE_NAME) is None:
        raise DataError(
            f"{folder}/{FILE_NAME} does not exist: the corpus was not prepared or not finished; run `electra prepare` "
            "first."
        )
    try:
        return Manifest.model_validate(folder.read_json(FILE_NAME))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DataError(
            f"{folder}/{FILE_NAME} is not a manifest of this version ({where}: {first['msg']}); prepare the "
            "corpus again."
        ) from None


def empty_stats(seq_len: int) -> SplitStats:
    """The neutral element of `add_stats`."""
    return SplitStats(
        rows=0,
        tokens=0,
        fragments=0,
        sum_L=0,
        sum_L2=0,
        row_lengths=[0] * (seq_len + 1),
        rows_with_pair=0,
        unk=0,
        shards=[],
    )


def add_stats(parts: list[SplitStats], seq_len: int) -> SplitStats:
    """Sum the parts in order; shards are numbered anew so that `first_row` counts through the split."""
    shards: list[ShardEntry] = []
    lengths: NDArray[np.int64] = np.zeros(seq_len + 1, dtype=np.int64)
    first_row = 0
    for part in parts:
        lengths += np.asarray(part.row_lengths, dtype=np.int64)
        for shard in part.shards:
            shards.append(shard.model_copy(update={"first_row": first_row}))
            first_row += shard.rows
    totals = {
        field: sum(getattr(part, field) for part in parts)
        for field in ("rows", "tokens", "fragments", "sum_L", "sum_L2", "rows_with_pair", "unk")
    }
    return SplitStats(row_lengths=lengths.tolist(), shards=shards, **totals)


def merge(
    documents: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    tokenizer: Mapping[str, Any],
    *,
    config_sha256: str,
    inputs_sha256: str,
    seed: int,
    layout: Literal["segments", "packed"],
    seq_len: int,
    sources: Sequence[tuple[str, int | None, int]],
) -> Manifest:
    """The manifest of all units' results (see `data_prep.units`), in unit order; a pure function of them. `sources` are
    (kind, weight, number of units) of the sources, in the order of their units.

    CheckError when a document is unaccounted for, DataError when either split has no row.
    """
    train, heldout = (
        add_stats([SplitStats.model_validate(result[split]) for result in rows], seq_len)
        for split in ("train", "heldout")
    )
    if train.rows == 0:
        raise DataError("All documents fell into the held-out split; lower corpus.heldout_fraction or use more text.")
    if heldout.rows == 0:
        raise DataError("No document fell into the held-out split; raise corpus.heldout_fraction or use more text.")
    return Manifest(
        config_sha256=config_sha256,
        inputs_sha256=inputs_sha256,
        seed=seed,
        tokenizer_sha256=tokenizer["sha256"],
        vocab_size=tokenizer["vocab_size"],
        special=SpecialIds.model_validate(tokenizer["special"]),
        layout=layout,
        pair_separators=tokenizer["pair_separators"],
        seq_len=seq_len,
        dtype="uint16" if tokenizer["vocab_size"] < 0xFFFF else "uint32",
        units=len(rows),
        documents=_account(documents, rows),
        heldout_documents=[HeldoutDocuments.model_validate(result["heldout_documents"]) for result in rows],
        train=train,
        heldout=heldout,
        sources=_by_source(rows, sources, seq_len),
    )


def _by_source(
    rows: Sequence[Mapping[str, Any]], sources: Sequence[tuple[str, int | None, int]], seq_len: int
) -> list[SourceStats]:
    if sum(units for _, _, units in sources) != len(rows):
        raise ValueError("the sources' units are not the corpus's")
    remaining = iter(rows)
    found: list[SourceStats] = []
    for kind, weight, units in sources:
        parts = [next(remaining) for _ in range(units)]
        totals = {
            split: add_stats([SplitStats.model_validate({**part[split], "shards": []}) for part in parts], seq_len)
            for split in ("train", "heldout")
        }
        found.append(SourceStats(kind=kind, weight=weight, units=units, **totals))
    return found


def _account(documents: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> Documents:
    rejected: Counter[str] = Counter()
    topics: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    for result in documents:
        rejected.update(result["rejected"])
    for result in rows:
        rejected.update(result["removed"])
        topics.update(result["topics"])
        kept.update(result["documents"])
    seen, out = sum(result["documents_in"] for result in documents), kept["train"] + kept["heldout"]
    if seen != out + rejected.total():
        raise CheckError(
            f"{seen} documents came in, but {out} kept and {rejected.total()} rejected do not add up to them."
        )
    most = sorted(topics.items(), key=lambda entry: (-entry[1], entry[0]))[:MOST_TOPICS]
    return Documents(
        documents_in=seen,
        out=out,
        train=kept["train"],
        heldout=kept["heldout"],
        text_bytes=kept["text_bytes"],
        rejected=dict(sorted(rejected.items())),
        topics=dict(sorted(most)),
    )
