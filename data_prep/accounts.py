"""What came in, what went out, and what should worry somebody.

Pure functions of unit results and the manifest: the bound on malformed records, alarms for a source that loses much or
a vocabulary that fits badly, and the table that ends a preparation. Decides nothing about single documents.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data_prep.corpus import CorpusConfig
from data_prep.errors import DataError
from data_prep.manifest import Manifest
from data_prep.plan import Plan, PlannedUnit
from data_prep.sources import BAD

MOST_UNKNOWN = 0.001  # share of unknown tokens above which a vocabulary does not fit its text


def check_bad(config: CorpusConfig, plan: Plan, documents: Sequence[Mapping[str, Any]]) -> None:
    """DataError when more of a source's records are malformed than its `max_bad_fraction` bears; names the first."""
    for number, source in enumerate(config.sources):
        results = [documents[unit.unit] for unit in plan.units if unit.source == number]
        seen = sum(result["documents_in"] for result in results)
        counts: Counter[str] = Counter()
        for result in results:
            counts.update({reason: count for reason, count in result["rejected"].items() if reason in BAD})
        bad = counts.total()
        if bad and bad / seen > source.max_bad_fraction:  # a product would round 29 % of 100 to less than 29
            first = next(result["first_bad"] for result in results if result["first_bad"] is not None)
            raise DataError(
                f"corpus.sources[{number}]: {bad} of {seen} records are malformed ({listed(counts)}), the first at "
                f"{first}; mend the input, or raise max_bad_fraction above {source.max_bad_fraction:g}."
            )


class BadWatch:
    """Ends a preparation early whose input is malformed beyond hope: when a source has twice as many bad records
    already as it may have in all, were every record that is still to come a good one."""

    def __init__(self, config: CorpusConfig, plan: Plan) -> None:
        self._config = config
        self._bytes = Counter[int]()
        for unit in plan.units:
            self._bytes[unit.source] += unit.bytes
        self._done, self._seen, self._bad = Counter[int](), Counter[int](), Counter[int]()

    def add(self, unit: PlannedUnit, result: Mapping[str, Any]) -> None:
        """A unit is done. DataError names the first bad record of it."""
        number = unit.source
        self._done[number] += unit.bytes
        self._seen[number] += result["documents_in"]
        self._bad[number] += sum(count for reason, count in result["rejected"].items() if reason in BAD)
        if self._done[number] >= self._bytes[number]:
            return  # all of it is known: `check_bad` judges that
        expected = self._seen[number] * self._bytes[number] / max(1, self._done[number])
        if result["first_bad"] and self._bad[number] > 2 * self._config.sources[number].max_bad_fraction * expected:
            raise DataError(
                f"corpus.sources[{number}]: {self._bad[number]} of the {self._seen[number]} records read so far are "
                f"malformed, one of them at {result['first_bad']}; mend the input, or raise max_bad_fraction above "
                f"{self._config.sources[number].max_bad_fraction:g}."
            )


def nothing_left(documents: Sequence[Mapping[str, Any]]) -> str:
    """Why no document is left after cleaning, as a sentence."""
    seen = sum(result["documents_in"] for result in documents)
    if seen == 0:
        return "The corpus is empty: no record was found in any of corpus.sources; check their paths."
    rejected: Counter[str] = Counter()
    for result in documents:
        rejected.update(result["rejected"])
    return (
        f"The corpus is empty: all {seen} documents were rejected ({listed(rejected)}); "
        "check corpus.sources and corpus.cleaning."
    )


def source_losses(plan: Plan, rows: Sequence[Mapping[str, Any]], documents: Sequence[Mapping[str, Any]]) -> list[float]:
    """For every source, the share of its clean documents that went as duplicates, exact or near."""
    losses = []
    for number in range(len(plan.config["sources"])):
        units = [unit.unit for unit in plan.units if unit.source == number]
        clean = sum(documents[unit]["documents"] for unit in units)
        lost = sum(
            count
            for unit in units
            for reason, count in rows[unit]["removed"].items()
            if reason in ("duplicate", "near_duplicate")
        )
        losses.append(lost / clean if clean else 0.0)
    return losses


def alarms(
    config: CorpusConfig, plan: Plan, documents: Sequence[Any], rows: Sequence[Any], made: Manifest
) -> list[str]:
    """What a person should look at before weeks of training, one sentence each."""
    found = []
    limit = config.near_duplicates.alarm_fraction if config.near_duplicates is not None else 0.30
    for number, loss in enumerate(source_losses(plan, rows, documents)):
        if loss > limit:
            found.append(
                f"corpus.sources[{number}] loses {loss:.0%} of its documents as duplicates, more than {limit:.0%}: "
                "look whether they are (a template that all documents share makes them look so)"
            )
    unknown = unknown_rate(made)
    if unknown > MOST_UNKNOWN:
        found.append(
            f"{unknown:.2%} of the tokens are unknown to the tokenizer, more than {MOST_UNKNOWN:.1%}: it was made for "
            "other text"
        )
    for reason in sorted({row["engine"]["mismatch"] for row in rows if row["engine"]["mismatch"]}):
        found.append(f"the fast tokenizer was set aside for a unit: {reason}")
    damaged = sum(result["rejected"].get("damaged_archive", 0) for result in documents)
    if damaged:
        first = next(result["first_bad"] for result in documents if result["rejected"].get("damaged_archive"))
        found.append(f"{damaged} input files are damaged and were read up to the damage, the first bad record: {first}")
    return found


def unknown_rate(manifest: Manifest) -> float:
    """Unknown tokens among all tokens of text of both splits."""
    splits = (manifest.train, manifest.heldout)
    text = sum(split.tokens - 2 * split.fragments for split in splits)
    return sum(split.unk for split in splits) / max(1, text)


def statistics(manifest: Manifest, rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(name, value) of what the corpus holds: the table that ends a preparation."""
    train, documents = manifest.train, manifest.documents
    places = train.rows * manifest.seq_len
    mean = train.sum_L / max(1, train.fragments)
    deviation = (train.sum_L2 / max(1, train.fragments) - mean**2) ** 0.5
    median, low = (_quantile(train.row_lengths, share) for share in (0.5, 0.1))
    table = [
        ("documents read", f"{documents.documents_in:,}"),
        ("documents kept", f"{documents.out:,} ({documents.text_bytes / 1e6:,.1f} MB of text)"),
        *((f"  rejected: {reason}", f"{count:,}") for reason, count in documents.rejected.items()),
        ("training rows", f"{train.rows:,} of {manifest.seq_len} in {len(train.shards)} shards"),
        ("held-out rows", f"{manifest.heldout.rows:,} of {documents.heldout:,} documents"),
        ("training tokens", f"{train.tokens:,}"),
        ("padding", f"{1 - train.tokens / places:.2%} of the places"),
        ("fragments", f"{train.fragments:,}, length {mean:.1f} ± {deviation:.1f}"),
        ("row length", f"median {median:.0f}, 10 % below {low:.0f}"),
        ("unknown tokens", f"{unknown_rate(manifest):.4%}"),
        ("vocabulary", f"{manifest.vocab_size:,}"),
    ]
    discarded = sum(row["discarded_tokens"] for row in rows)
    return [*table, ("tokens discarded", f"{discarded:,}")] if discarded else table


def _quantile(counts: Sequence[int], share: float) -> float:
    """What numpy's `quantile` says of as many numbers 0, 1, … as `counts` has, without making them."""
    ends = np.cumsum(counts)
    place = share * (int(ends[-1]) - 1)
    below = int(place)
    neighbours = np.searchsorted(ends, [below, min(below + 1, int(ends[-1]) - 1)], side="right")
    return float(np.quantile(neighbours, place - below))


def listed(counts: Mapping[str, int]) -> str:
    """`too_short 12, bad_json 1`."""
    return ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
