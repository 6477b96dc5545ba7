"""Which runs read the same rows in the same order, by arithmetic on their records: batches of 10 rows."""

from pathlib import Path
from typing import Any

from pipeline.gather import Contents, Run
from pipeline.rows_read import agree, alike, sentences


def run(name: str, *, seed: int = 0, part_of: str | None = None, **done: Any) -> Run:
    return Run(
        folder=Path(name), name=name, arm=name, objective="mlm", budget=1.0, seed=seed, steps=1, identity={},
        placement={}, flops_per_step=1.0, inherited=0.0, part_of=part_of, done=done, lines=[],
    )  # fmt: skip


def read(name: str, start: int, end: int, *skipped: tuple[int, int], **others: Any) -> Run:
    return run(name, start_position=start, position=end, skipped=[[*one] for one in skipped], **others)


def contents(*runs: Run) -> Contents:
    return Contents(
        out=Path("out"), name="x", config={}, results=[], manifests={},
        runs=[one for one in runs if one.part_of is None],
        first_stages=[one for one in runs if one.part_of is not None],
    )  # fmt: skip


def groups(*runs: Run) -> list[list[str]]:
    return [one.runs for one in alike(contents(*runs))]


def test_runs_that_go_different_distances_agree_as_far_as_the_shorter_goes() -> None:
    runs = read("a", 0, 100), read("b", 0, 250), read("c", 0, 100, seed=1)
    assert groups(*runs) == [["b", "a"], ["c"]]
    assert sentences(contents(*runs)) == [
        "All runs of a seed read the same rows of one corpus in the same order, as far as each goes."
    ]


def test_a_run_that_skipped_rows_agrees_only_up_to_there() -> None:
    back = read("back", 0, 250, (80, 120), (200, 210))
    assert groups(back, read("a", 0, 250), read("b", 0, 240)) == [["a", "b"], ["back"]]
    assert agree(alike(contents(back))[0].ranges, [(0, 80)])
    assert not agree(alike(contents(back))[0].ranges, [(0, 90)])
    assert sentences(contents(back, read("a", 0, 250), read("b", 0, 240), read("c", 0, 9, seed=1))) == [
        "Not all runs of seed 0 read the same rows in the same order: a and b read positions 0 to 250, as far as each "
        "goes; back read positions 0 to 80, 120 to 200 and 210 to 250.",
        "All runs of seed 1 read the same rows in the same order, as far as each goes.",
    ]


def test_runs_that_agree_with_a_short_one_only_are_apart() -> None:
    """Both have read the 40 rows of the short run, and then each has skipped others."""
    one, other = read("one", 0, 200, (50, 60)), read("other", 0, 200, (50, 70))
    assert groups(read("short", 0, 40), one, other) == [["short", "one"], ["other"]]
    assert sentences(contents(read("short", 0, 40), one, other)) == [
        "Not all runs of seed 0 read the same rows in the same order: short and one read positions 0 to 50 and 60 to "
        "200, as far as each goes; other read positions 0 to 50 and 70 to 200."
    ]


def test_a_second_stage_that_goes_on_where_the_first_one_ended_reads_straight_on() -> None:
    first = read("first", 0, 100, part_of="two")
    assert groups(read("two", 100, 200), first, read("a", 0, 300)) == [["a", "two"]]


def test_a_second_stage_that_begins_elsewhere_reads_other_rows() -> None:
    """The first stage was led past 50 rows and ended at 150; 100 is where it would have ended without."""
    first = read("first", 0, 150, (40, 90), part_of="two")
    found = alike(contents(read("two", 100, 200), first, read("a", 0, 300)))
    assert [(one.runs, one.ranges) for one in found] == [
        (["a"], [(0, 300)]),
        (["two"], [(0, 40), (90, 150), (100, 200)]),
    ]


def test_an_earlier_version_s_record_does_not_say() -> None:
    assert sentences(contents(run("old", step=3), read("a", 0, 300))) == [
        "All runs of a seed read the same rows of one corpus in the same order, as far as each goes.",
        "Which rows old read is not on record.",
    ]
