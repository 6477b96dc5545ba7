"""What came in and what should worry somebody, from results made by hand, with the figures of paper and pencil."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from data_prep import accounts
from data_prep import manifest as manifests
from data_prep.corpus import CorpusConfig
from data_prep.errors import DataError
from data_prep.manifest import Documents, Manifest, ShardEntry, SplitStats
from data_prep.neardup import NearDuplicates
from data_prep.plan import Plan, PlannedUnit
from tests.shard_files import SPECIAL

SEQ_LEN = 8


def config_of(*limits: float, **settings: Any) -> CorpusConfig:
    """One source for each bound on malformed records."""
    sources = [{"kind": "jsonl", "path": f"{number}.jsonl", "max_bad_fraction": x} for number, x in enumerate(limits)]
    return CorpusConfig.model_validate({"sources": sources, **settings})


def plan_of(config: CorpusConfig, sources: Sequence[int]) -> Plan:
    """Units of these sources, in turn."""
    units = [PlannedUnit(unit=unit, source=source, first=0, last=1, bytes=1) for unit, source in enumerate(sources)]
    known: dict[str, Any] = {"recipe": 1, "seed": 0, "tokenizer_sha256": None, "evaluation_sets": None, "files": []}
    return Plan(config=config.identity(), units=units, **known)


def read_unit(seen: int, rejected: Mapping[str, int] | None = None, first_bad: str | None = None) -> dict[str, Any]:
    """What the documents stage says of a unit."""
    rejected = dict(rejected or {})
    return {
        "documents_in": seen,
        "documents": seen - sum(rejected.values()),
        "rejected": rejected,
        "first_bad": first_bad,
    }


def made_unit(removed: Mapping[str, int] | None = None, mismatch: str = "", discarded: int = 0) -> dict[str, Any]:
    """What the rows stage says of a unit."""
    return {"removed": dict(removed or {}), "engine": {"mismatch": mismatch}, "discarded_tokens": discarded}


def split_of(row_lengths: Sequence[int], fragments: Sequence[int], unk: int) -> SplitStats:
    """Rows of these lengths, fragments of these."""
    return SplitStats(
        rows=len(row_lengths),
        tokens=sum(row_lengths),
        fragments=len(fragments),
        sum_L=sum(fragments),
        sum_L2=sum(length**2 for length in fragments),
        row_lengths=np.bincount(row_lengths, minlength=SEQ_LEN + 1).tolist(),
        rows_with_pair=0,
        unk=unk,
        shards=[ShardEntry(name="s", bytes=1, sha256="s", members=1, rows=len(row_lengths), first_row=0, unit=0)],
    )


def manifest_of(train: SplitStats, heldout: SplitStats) -> Manifest:
    documents = Documents(
        documents_in=1_234, out=1_200, train=1_188, heldout=12, text_bytes=2_500_000,
        rejected={"bad_json": 4, "duplicate": 30}, topics={},
    )  # fmt: skip
    return Manifest(
        config_sha256="c", inputs_sha256="i", seed=0, tokenizer_sha256="t", vocab_size=30_522, special=SPECIAL,
        layout="packed", pair_separators=1, seq_len=SEQ_LEN, dtype="uint16", units=1, documents=documents,
        heldout_documents=[], train=train, heldout=heldout, sources=[],
    )  # fmt: skip


def sound() -> Manifest:
    """1,000 training rows of 8 tokens in fragments of 4; of 6,000 tokens of text 6 are unknown: one in a thousand."""
    train = split_of([8] * 1_000, [4] * 2_000, 4)  # 8,000 tokens, two of each fragment special: 4,000 of text
    return manifest_of(train, split_of([8] * 500, [4] * 1_000, 2))  # 2,000 of text


@pytest.mark.parametrize("limit", [0.01, 0.07, 0.29, 0.57, 0.58])
def test_a_source_may_lose_just_as_much_as_its_bound(limit: float) -> None:
    """0.29 × 100 is less than 29 in floating point, 0.07 × 100 more than 7: neither may show."""
    config = config_of(limit)
    plan, bad = plan_of(config, [0]), round(limit * 100)
    accounts.check_bad(config, plan, [read_unit(100, {"bad_json": bad}, "f:0")])
    accounts.check_bad(config, plan, [read_unit(1_000_000, {"bad_json": bad * 10_000}, "f:0")])
    with pytest.raises(DataError, match=rf"sources\[0\]: {bad + 1} of 100 records .* above {limit:g}\.$"):
        accounts.check_bad(config, plan, [read_unit(100, {"bad_json": bad + 1}, "f:0")])
    with pytest.raises(DataError):
        accounts.check_bad(config, plan, [read_unit(1_000_000, {"bad_json": bad * 10_000 + 1}, "f:0")])


def test_a_bound_of_zero_and_one_and_no_record_at_all() -> None:
    none, all_ = config_of(0.0), config_of(1.0)
    accounts.check_bad(none, plan_of(none, [0, 0]), [read_unit(0), read_unit(5)])
    accounts.check_bad(all_, plan_of(all_, [0]), [read_unit(5, {"bad_json": 5}, "f:0")])
    with pytest.raises(DataError, match="1 of 5 records"):
        accounts.check_bad(none, plan_of(none, [0]), [read_unit(5, {"bad_json": 1}, "f:0")])


def test_malformed_records_are_counted_over_all_units_of_a_source_and_the_first_is_named() -> None:
    config = config_of(0.1, 0.1)
    plan = plan_of(config, [0, 1, 1, 1])
    documents = [
        read_unit(10, {"bad_json": 1}, "zero:7 (bad_json)"),
        read_unit(50, {"too_short": 40}),  # what cleaning rejects is not malformed
        read_unit(40, {"not_utf8": 6, "too_short": 3}, "one:123 (not_utf8)"),
        read_unit(10, {"bad_json": 4}, "one:456 (bad_json)"),
    ]
    accounts.check_bad(config, plan, documents)  # 10 of 100, though two of its units are worse
    documents[3] = read_unit(10, {"bad_json": 5}, "one:456 (bad_json)")
    expected = (
        "corpus.sources[1]: 11 of 100 records are malformed (bad_json 5, not_utf8 6), the first at one:123 (not_utf8); "
        "mend the input, or raise max_bad_fraction above 0.1."
    )
    with pytest.raises(DataError, match=f"^{re.escape(expected)}$"):
        accounts.check_bad(config, plan, documents)


def test_why_nothing_is_left() -> None:
    assert "no record was found" in accounts.nothing_left([read_unit(0), read_unit(0)])
    assert "no record was found" in accounts.nothing_left([])
    text = accounts.nothing_left([read_unit(3, {"too_short": 3}), read_unit(4, {"too_short": 1, "bad_json": 3}, "f")])
    assert "all 7 documents were rejected (bad_json 3, too_short 4)" in text


def test_what_each_source_loses_as_duplicates() -> None:
    """10 of 40; nothing of nothing; 3 of 6, where what goes for other reasons does not count."""
    plan = plan_of(config_of(0.1, 0.1, 0.1), [0, 0, 1, 2])
    documents = [read_unit(30), read_unit(15, {"too_short": 5}), read_unit(2, {"too_short": 2}), read_unit(6)]
    rows = [
        made_unit({"duplicate": 4, "near_duplicate": 5}),
        made_unit({"duplicate": 1, "over_max_bytes": 2}),
        made_unit(),
        made_unit({"near_duplicate": 3, "contaminated": 2}),
    ]
    assert accounts.source_losses(plan, rows, documents) == [0.25, 0.0, 0.5]


def test_a_sound_corpus_raises_no_alarm() -> None:
    """Each figure is at its bound: 30 % of the documents, one token of a thousand."""
    config = config_of(0.01)
    documents = [read_unit(10, {"bad_json": 0})]
    assert accounts.alarms(config, plan_of(config, [0]), documents, [made_unit({"duplicate": 3})], sound()) == []


def test_an_alarm_for_a_source_of_duplicates() -> None:
    config = config_of(0.01, 0.01)
    plan, documents = plan_of(config, [0, 1]), [read_unit(100), read_unit(100)]
    rows = [made_unit({"duplicate": 30}), made_unit({"duplicate": 20, "near_duplicate": 20})]
    (alarm,) = accounts.alarms(config, plan, documents, rows, sound())
    assert alarm.startswith("corpus.sources[1] loses 40% of its documents as duplicates, more than 30%")
    config = config_of(0.01, 0.01, near_duplicates=NearDuplicates(alarm_fraction=0.29))
    first, second = accounts.alarms(config, plan, documents, rows, sound())
    assert first.startswith("corpus.sources[0] loses 30%") and "more than 29%" in second


def test_an_alarm_for_a_vocabulary_that_does_not_fit() -> None:
    made = sound()
    made = made.model_copy(update={"heldout": made.heldout.model_copy(update={"unk": 56})})  # 60 of 6,000
    assert accounts.unknown_rate(made) == 0.01
    config = config_of(0.01)
    (alarm,) = accounts.alarms(config, plan_of(config, [0]), [read_unit(1)], [made_unit()], made)
    assert alarm.startswith("1.00% of the tokens are unknown to the tokenizer, more than 0.1%")


def test_an_alarm_for_a_fast_tokenizer_that_was_set_aside() -> None:
    """One for each reason, however many units give it."""
    config = config_of(0.01)
    plan, documents = plan_of(config, [0] * 4), [read_unit(1)] * 4
    rows = [made_unit(mismatch=reason) for reason in ("other ids", "", "it failed", "other ids")]
    assert accounts.alarms(config, plan, documents, rows, sound()) == [
        "the fast tokenizer was set aside for a unit: it failed",
        "the fast tokenizer was set aside for a unit: other ids",
    ]


def test_an_alarm_for_damaged_input_files() -> None:
    config = config_of(0.5)
    documents = [
        read_unit(9, {"bad_json": 1}, "a:1 (bad_json)"),
        read_unit(9, {"damaged_archive": 1}, "b:77 (damaged_archive)"),
        read_unit(9, {"damaged_archive": 2}, "c:5 (damaged_archive)"),
    ]
    (alarm,) = accounts.alarms(config, plan_of(config, [0] * 3), documents, [made_unit()] * 3, sound())
    assert alarm.startswith("3 input files are damaged") and alarm.endswith("b:77 (damaged_archive)")


def test_the_share_of_unknown_tokens_is_of_text_in_both_splits() -> None:
    assert accounts.unknown_rate(sound()) == 0.001
    assert accounts.unknown_rate(manifest_of(manifests.empty_stats(SEQ_LEN), manifests.empty_stats(SEQ_LEN))) == 0.0


def test_statistics_of_a_small_corpus() -> None:
    """Rows of 8, 8, 8, 7 and 3 tokens: 34 of 40 places. Of fragments of 3, 5, 7, 7, 12 the mean is 6.8, the mean square
    55.2, so the deviation √(55.2 - 46.24) = 2.99. The tenth part of the rows ends 0.4 of the way from 3 to 7."""
    made = manifest_of(split_of([8, 3, 8, 7, 8], [3, 5, 7, 7, 12], 3), split_of([8], [8], 0))
    found = dict(accounts.statistics(made, [made_unit(), made_unit()]))
    assert found == {
        "documents read": "1,234",
        "documents kept": "1,200 (2.5 MB of text)",
        "  rejected: bad_json": "4",
        "  rejected: duplicate": "30",
        "training rows": "5 of 8 in 1 shards",
        "held-out rows": "1 of 12 documents",
        "training tokens": "34",
        "padding": "15.00% of the places",
        "fragments": "5, length 6.8 ± 3.0",
        "row length": "median 8, 10 % below 5",  # 4.6
        "unknown tokens": "10.0000%",  # 3 of 24 and 6
        "vocabulary": "30,522",
    }
    rows = [made_unit(discarded=1_200), made_unit(discarded=34)]
    assert accounts.statistics(made, rows)[-1] == ("tokens discarded", "1,234")


@pytest.mark.parametrize("seed", range(200))
def test_quantiles_of_a_histogram_are_numpys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, rng.choice([2, 4, 100]), rng.integers(1, 40)) * (rng.random() < rng.random(1))
    counts[rng.integers(len(counts))] += 1  # there is a row
    lengths = np.repeat(np.arange(len(counts)), counts)
    train = split_of([8], [8], 0).model_copy(update={"row_lengths": counts.tolist()})
    value = dict(accounts.statistics(manifest_of(train, train), []))["row length"]
    assert value == f"median {np.median(lengths):.0f}, 10 % below {np.quantile(lengths, 0.1):.0f}"


def test_statistics_of_billions_of_rows() -> None:
    """As many numbers as rows would be 80 GB: ten thousand million rows, a tenth of them of 2 tokens and one more."""
    counts = [0, 0, 1_000_000_001, 0, 0, 3_999_999_998, 0, 0, 5_000_000_001]
    train = split_of([8], [8], 0).model_copy(update={"row_lengths": counts})
    assert dict(accounts.statistics(manifest_of(train, train), []))["row length"] == "median 8, 10 % below 2"


def test_a_source_beyond_hope_ends_the_run_before_its_end() -> None:
    """Of ten units of a hundred records, 1 % may be bad: 10 of 1,000. Up to twice that may still be luck."""
    config = config_of(0.01, 0.5)
    plan = plan_of(config, [0] * 10 + [1])
    watch = accounts.BadWatch(config, plan)
    watch.add(plan.units[0], read_unit(100, {"bad_json": 20, "too_short": 70}, "0.jsonl:7 (bad_json)"))
    watch.add(plan.units[10], read_unit(10, {"bad_json": 9}, "1.jsonl:0 (bad_json)"))  # known whole: for check_bad
    watch.add(plan.units[1], read_unit(100))
    with pytest.raises(DataError, match=r"sources\[0\]: 21 of the 300 records .* one of them at 0\.jsonl:99 "):
        watch.add(plan.units[2], read_unit(100, {"not_utf8": 1}, "0.jsonl:99 (not_utf8)"))


def test_a_source_whose_last_unit_is_read_is_judged_as_a_whole() -> None:
    config = config_of(0.0)
    plan = plan_of(config, [0, 0])
    watch = accounts.BadWatch(config, plan)
    watch.add(plan.units[0], read_unit(5))
    watch.add(plan.units[1], read_unit(5, {"bad_json": 5}, "0.jsonl:0 (bad_json)"))
    with pytest.raises(DataError, match="5 of 10 records are malformed"):
        accounts.check_bad(config, plan, [read_unit(5), read_unit(5, {"bad_json": 5}, "0.jsonl:0 (bad_json)")])
