"""What a run's story says, held to arithmetic: a step is 10 FLOPs and 2 s, of which 1.5 s are useful."""

import pytest

from pipeline.story import Cost, Story, Totals, tell
from tests.pipeline.stories import Told


def story(run: Told, *, alive: bool = False) -> Story:
    return tell(run.events, run.lines, alive=alive)


def totals(run: Told) -> Totals:
    found = story(run).totals
    assert found is not None
    return found


def costs(run: Told) -> list[tuple[str, Cost]]:
    return [(entry.kind, entry.cost) for entry in story(run).entries if entry.cost is not None]


def test_an_undisturbed_run() -> None:
    run = Told().start().train(10).save().train(10).save().event("finished", step=20)
    found = story(run)
    assert [entry.kind for entry in found.entries] == ["started", "saved", "finished"]
    assert [event["step"] for event in found.entries[1].events] == [10, 20]
    assert all(entry.cost is None for entry in found.entries)
    assert found.totals == Totals(
        attempts=1, rollbacks=0, rows_skipped=0, step=20, steps_lost=0, flops_spent=200.0, flops_counted=200.0,
        useful_seconds=30.0, wall_seconds=40.0,
    )  # fmt: skip
    assert found.totals.goodput == 0.75


def test_a_killed_attempt_is_told_with_what_the_next_one_repeats() -> None:
    """Killed at step 17, its last line at 15; resumed 60 s later at step 10, which was reached after 20 s."""
    run = Told().start().train(10).save().train(7).wait(60).start(10).train(10).save().event("finished", step=20)
    # the ledger of what was spent is told by lines: 15 steps, then 10
    run.lines[3:] = [
        {**line, "values": {**line["values"], "flops_spent": line["values"]["flops_spent"] - 20}}
        for line in run.lines[3:]
    ]
    # 10 to the kill at step 17 are 7 steps of 2 s, then 60 s of nobody
    assert costs(run) == [("silent", Cost(steps=5, flops=50.0, seconds=74.0))]
    entries = story(run).entries
    assert [(entry.attempt, entry.kind) for entry in entries] == [
        (1, "started"), (1, "saved"), (1, "silent"), (2, "started"), (2, "saved"), (2, "finished"),
    ]  # fmt: skip
    assert entries[2].event["step"] == 15
    found = totals(run)
    assert (found.attempts, found.steps_lost, found.step) == (2, 5, 20)
    assert (found.flops_spent, found.flops_counted) == (250.0, 200.0)
    assert (found.useful_seconds, found.wall_seconds) == (30.0, 34.0 + 60.0 + 20.0)


def test_steps_beyond_the_last_line_count_where_an_event_or_the_ledger_tells_of_them() -> None:
    run = Told().start().train(10).save().train(8).event("fault", kind="kill", step=18, rank=1).start(10).train(5)
    # the loop counts what heartbeats tell of: 18 steps were spent before the third line, which is 5 later
    assert run.lines[-1]["values"]["flops_spent"] == 230.0
    assert costs(run) == [("silent", Cost(steps=8, flops=80.0, seconds=16.0))]


def test_a_stop_loses_no_step_but_the_wait() -> None:
    run = Told().start().train(15).save().event("stopped", step=15, reason="SIGTERM").wait(600).start(15).train(5)
    run.event("finished", step=20)
    assert costs(run) == [("stopped", Cost(steps=0, flops=0.0, seconds=600.0))]
    assert totals(run).goodput == pytest.approx(30 / 640)


def test_the_last_word_of_an_attempt_is_the_one_that_is_charged() -> None:
    run = Told().start().train(10).save().train(5).wait(300).event("hung", step=15, phase="step", ranks=[])
    run.event("failed", step=15, reason="rank 1 hung").wait(5).start(10).train(5)
    assert costs(run) == [("failed", Cost(steps=5, flops=50.0, seconds=10.0 + 300.0 + 5.0))]


def test_a_rollback_costs_its_steps_and_its_rows_and_no_attempt() -> None:
    run = Told().start().train(10).save().train(10).roll_back(10).train(10).save().event("finished", step=20)
    assert costs(run) == [("rollback", Cost(steps=10, flops=100.0, seconds=20.0))]
    found = totals(run)
    assert (found.attempts, found.rollbacks, found.rows_skipped, found.steps_lost) == (1, 1, 80, 10)
    assert (found.flops_spent, found.flops_counted, found.useful_seconds) == (300.0, 200.0, 30.0)


def test_a_second_rollback_to_the_same_checkpoint_skips_what_the_first_one_did_and_more() -> None:
    run = Told().start().train(10).save().train(10).roll_back(10).train(5)
    # the stream went on at position 160; five steps later it stands at 200, and the checkpoint's own position is 80
    run.event(
        "rollback", step=15, to_step=10, from_position=80, to_position=200, reason="again", flops=50.0, seconds=0.0
    )
    assert totals(run).rows_skipped == 120


def test_what_a_lost_trajectory_skipped_is_not_skipped() -> None:
    run = Told().start().train(5).save().train(5).save().train(10).roll_back(10).train(2)
    run.start(5, passed_over=["step-00000010/manifest.json is missing"]).train(5)
    found = totals(run)
    assert (found.rollbacks, found.rows_skipped) == (1, 0)


def test_a_kill_after_a_rollback_charges_neither_twice() -> None:
    run = Told().start().train(10).save().train(10).roll_back(10).train(5).wait(7).start(10).train(5)
    assert costs(run) == [
        ("rollback", Cost(steps=10, flops=100.0, seconds=20.0)),
        ("silent", Cost(steps=5, flops=50.0, seconds=17.0)),
    ]
    assert totals(run).steps_lost == 15


def test_an_attempt_without_a_line_loses_time_only_and_leaves_its_number_to_the_next() -> None:
    run = Told().start().train(10).save().train(5)
    run.wait(3).start(10, writes=False).wait(4).start(10).train(5)
    assert [event["attempt"] for event in run.events if event["event"] == "started"] == [0, 1, 1]
    assert costs(run) == [
        ("silent", Cost(steps=5, flops=50.0, seconds=13.0)),
        ("silent", Cost(steps=0, flops=None, seconds=4.0)),  # it may have done steps before it ended: nobody knows
    ]


def test_falling_back_to_an_older_checkpoint_is_charged_once() -> None:
    """Killed at 15, resumed at 10, killed at 15 again; 10 is broken by then, so back to 5, reached after 10 s."""
    run = Told().start().train(5).save().train(5).save().train(5).wait(6)  # resumed at second 36
    run.start(10).train(5).wait(4).start(5).train(5)  # resumed at second 50
    found = costs(run)
    assert [cost.steps for _, cost in found] == [5, 10]
    assert [cost.flops for _, cost in found] == [50.0, 100.0]
    assert [cost.seconds for _, cost in found] == [16.0, 50.0 - 10.0 - 16.0]
    assert totals(run).steps_lost == 15


def test_what_is_still_running_has_no_ending_and_what_nobody_holds_has() -> None:
    run = Told().start().train(10)
    assert [entry.kind for entry in story(run, alive=True).entries] == ["started"]
    assert [entry.kind for entry in story(run, alive=False).entries] == ["started", "silent"]


def test_what_the_next_attempt_will_repeat_is_not_known_before_its_first_line() -> None:
    run = Told().start().train(10).save().train(5).start(10)
    assert costs(run) == [("silent", Cost(steps=5, flops=None, seconds=10.0))]
    found = totals(run)
    # the trajectory stands at step 10, whatever was logged beyond it
    assert (found.step, found.flops_counted, found.flops_spent, found.useful_seconds) == (10, 100.0, 150.0, 15.0)


def test_savings_are_condensed_within_an_attempt_and_up_to_the_next_thing_that_happened() -> None:
    run = Told().start().train(5).save().train(5).save().event("save_failed", step=10, reason="full", in_a_row=1)
    run.save().start(10).save()
    entries = story(run, alive=True).entries
    assert [(entry.kind, len(entry.events)) for entry in entries if entry.kind == "saved"] == [
        ("saved", 2), ("saved", 1), ("saved", 1),
    ]  # fmt: skip


def test_nothing_yet() -> None:
    assert tell([], [], alive=False) == Story(entries=[], totals=None)
    assert tell([{"event": "failed", "time": 1.0}], [], alive=False).totals is None


def test_workers_that_did_not_come_up_cost_nothing_and_are_told() -> None:
    run = Told().event("failed", step=0, reason="no room").wait(30).start().train(5).event("finished", step=5)
    found = story(run)
    assert [(entry.attempt, entry.kind, entry.cost) for entry in found.entries] == [
        (1, "failed", None), (1, "started", None), (1, "finished", None),
    ]  # fmt: skip
    assert found.totals is not None
    assert (found.totals.attempts, found.totals.wall_seconds) == (1, 10.0)


def test_clocks_that_disagree_change_no_order() -> None:
    """A driver an hour behind says how the first attempt ended; a rollback's machine is an hour ahead of its lines."""
    run = Told().start().train(15).save().event("failed", step=15, reason="lost").start(15).train(5).roll_back(15)
    run.train(10).save().event("finished", step=25)
    found = [entry.kind for entry in story(run).entries]
    steps = totals(run).step, totals(run).steps_lost, totals(run).rollbacks
    assert found == ["started", "saved", "failed", "started", "rollback", "saved", "finished"]
    assert steps == (25, 5, 1)
    for event in run.events:
        event["time"] += {"failed": -3600.0, "rollback": 3600.0}.get(event["event"], 0.0)
    assert [entry.kind for entry in story(run).entries] == found
    assert (totals(run).step, totals(run).steps_lost, totals(run).rollbacks) == steps
    assert totals(run).useful_seconds == 1.5 * 25
