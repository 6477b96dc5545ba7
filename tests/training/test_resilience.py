"""A run that is asked to stop, cannot save, or leaves the road: what it keeps, what it says, and what it counts."""

import errno
import os
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from data_prep.errors import DivergedError, PreflightError, StoppedError, StoreError
from tests.training.runs import CPU, ELECTRA, ROBERTA, assert_equal, cut_back, done, events, spec_for, weights
from training import checkpoints, requests, run_folder, saving
from training.checkpoints import listing, store_of, verify
from training.faults import Faults
from training.loop import train
from training.metrics import read_metrics
from training.requests import Inbox
from training.run_folder import store

pytestmark = pytest.mark.usefixtures("process_group")

KEEP = {"every": 6, "keep_last": 99}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(saving, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(saving, "LAST_SECONDS", 0.01)


def told(run_dir: Path, *kinds: str) -> list[dict[str, Any]]:
    return [event for event in events(run_dir) if event["event"] in kinds]


def fault(kind: str, step: int, times: int = 1) -> list[dict[str, Any]]:
    return [{"kind": kind, "step": step, "times": times}]


def saved_steps(run_dir: Path) -> list[int]:
    return [entry.step for entry in listing(store_of(run_dir)) if entry.state == "valid"]


def call_at(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[], object]) -> None:
    """Do something when so many steps are completed, once."""
    before_step, called = Faults.before_step, []

    def doing(self: Faults, completed: int) -> None:
        if completed == step and not called:
            called.append(completed)
            action()
        before_step(self, completed)

    monkeypatch.setattr(Faults, "before_step", doing)


def test_a_run_that_is_asked_to_stop_saves_and_goes_on_bit_for_bit(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked before the eighth step, it learns so after it, and all ranks agree one step later: after nine."""
    spec = spec_for(ELECTRA, corpus, steps=18, checkpoints=KEEP)
    train(spec, corpus, tmp_path / "whole", CPU)
    runs, inbox = tmp_path / "cut", Inbox(tmp_path / "cut")
    runs.mkdir()
    call_at(monkeypatch, 7, lambda: requests.ask(runs, "stop", "SIGTERM"))
    with pytest.raises(StoppedError, match=r"stopped at step 9 of 18 \(SIGTERM\), saved; the same command") as caught:
        train(spec, corpus, runs / "run", CPU, inbox=inbox)
    assert caught.value.exit_code == 75
    assert saved_steps(runs / "run") == [6, 9]
    (stopped,) = told(runs / "run", "stopped")
    assert (stopped["step"], stopped["reason"]) == (9, "SIGTERM")
    requests.clear(runs)
    train(spec, corpus, runs / "run", CPU, inbox=inbox)
    assert_equal(weights(tmp_path / "whole", 18), weights(runs / "run", 18))
    whole, cut = done(tmp_path / "whole"), done(runs / "run")
    for name in ("flops_counted", "flops_spent", "flops_executed", "flops_paper", "tokens"):
        assert cut[name] == whole[name], name  # nothing was repeated
    assert [event["step"] for event in told(runs / "run", "started")] == [0, 9]
    assert [event["from"] for event in told(runs / "run", "started")] == [None, "step-00000009"]


@pytest.mark.parametrize("moment", ["while_saving", "after_restore"])
def test_a_stop_in_the_middle_of_a_saving_or_of_a_resumption(
    moment: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a signal comes. What was under way is finished, then two steps are made at most, and nothing is lost."""
    spec = spec_for(ELECTRA, corpus, steps=18, checkpoints=KEEP)
    train(spec, corpus, tmp_path / "whole", CPU)
    run, inbox = tmp_path / "cut", Inbox()
    if moment == "after_restore":
        train(spec, corpus, run, CPU)
        cut_back(run, 6)
    monkeypatch.setattr(Faults, moment, lambda self, step: inbox.post("stop", "SIGTERM"))
    with pytest.raises(StoppedError, match="SIGTERM") as caught:
        train(spec, corpus, run, CPU, inbox=inbox)
    step = saved_steps(run)[-1]
    assert f"at step {step} of 18" in str(caught.value) and 7 <= step < 18
    assert 6 in saved_steps(run)
    monkeypatch.undo()
    train(spec, corpus, run, CPU)
    assert_equal(weights(tmp_path / "whole", 18), weights(run, 18))
    assert done(run)["flops_counted"] == done(tmp_path / "whole")["flops_counted"]


def test_a_saving_that_is_asked_for_does_not_stop_it(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = Inbox()
    call_at(monkeypatch, 7, lambda: inbox.post("save", "node a is to be drained"))
    train(spec_for(ROBERTA, corpus, steps=18, checkpoints=KEEP), corpus, tmp_path, CPU, inbox=inbox)
    assert saved_steps(tmp_path) == [6, 9, 12, 18]
    assert done(tmp_path)["step"] == 18


def test_retention_while_it_trains(corpus: Path, tmp_path: Path) -> None:
    """Saved at 4, 8, …, 24 and at the FLOPs of step 10: the last two, that of the grid, and multiples of 12 stay."""
    per_step = spec_for(ROBERTA, corpus, steps=24).flops_per_step
    keep = {"every": 4, "keep_last": 2, "keep_every": 12, "at_flops": [10.2 * per_step], "keep_best": False}
    train(spec_for(ROBERTA, corpus, steps=24, log_every=2, checkpoints=keep), corpus, tmp_path, CPU)
    assert saved_steps(tmp_path) == [10, 12, 20, 24]
    assert {name for event in told(tmp_path, "saved") for name in event["pruned"]} == {
        f"step-{step:08d}" for step in (4, 8, 16)
    }


# --- savings that fail ------------------------------------------------------------------------------------------------


def test_a_full_disk_does_not_end_training(corpus: Path, tmp_path: Path) -> None:
    """The saving at 6 fails, and so does the next try; the third, as soon as may be, goes well."""
    spec = spec_for(ROBERTA, corpus, steps=18, log_every=3, checkpoints=KEEP, faults=fault("full_disk", 6, times=2))
    train(spec, corpus, tmp_path, CPU)
    failed, saved = told(tmp_path, "save_failed"), told(tmp_path, "saved")
    assert [event["in_a_row"] for event in failed] == [1, 2] and failed[0]["step"] == 6
    assert all("No space left on device" in event["reason"] for event in failed)
    assert failed[1]["step"] < saved[0]["step"] <= 18 and saved[-1]["step"] == 18
    kept = {event["step"] for event in saved}
    assert set(saved_steps(tmp_path)) == kept
    assert {path.name for path in (tmp_path / "checkpoints").glob("step-*")} == {f"step-{step:08d}" for step in kept}
    assert done(tmp_path)["step"] == 18


def test_while_savings_fail_rank_zero_waits_before_it_tries_again(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour, so that only the last step's saving is tried; the interval is left out meanwhile."""
    monkeypatch.setattr(saving, "RETRY_SECONDS", 3600.0)
    call_at(monkeypatch, 8, lambda: [one.join() for one in threading.enumerate() if one.name == "saver"])
    spec = spec_for(ROBERTA, corpus, steps=18, log_every=3, checkpoints=KEEP, faults=fault("full_disk", 6))
    train(spec, corpus, tmp_path, CPU)
    assert [(one["event"], one["step"]) for one in told(tmp_path, "saved", "save_failed")] == [
        ("save_failed", 6),
        ("saved", 18),
    ]


def test_lines_and_events_that_cannot_be_written_come_later(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's folder takes nothing from step 5 to step 13: half a line gets through each time, and is taken back."""
    full, write = [False], run_folder.write_whole

    def refusing(file: FileIO, data: bytes, end: int) -> None:
        if not full[0]:
            return write(file, data, end)

        class Full(FileIO):
            def write(self, data: bytes) -> int:  # type: ignore[override]
                if self.tell() > end:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return super().write(data[: len(data) // 2])

        with Full(file.name, "r+") as other:
            other.seek(end)
            write(other, data, end)

    before_step = Faults.before_step

    def step(self: Faults, completed: int) -> None:
        full[0] = 5 <= completed < 13
        before_step(self, completed)

    monkeypatch.setattr(run_folder, "write_whole", refusing)
    monkeypatch.setattr("training.metrics.write_whole", refusing)
    monkeypatch.setattr(Faults, "before_step", step)
    train(spec_for(ROBERTA, corpus, steps=18, log_every=3, checkpoints=KEEP), corpus, tmp_path, CPU)
    assert [line["step"] for line in read_metrics(tmp_path)] == [3, 6, 9, 12, 15, 18]
    assert [event["step"] for event in told(tmp_path, "saved")] == [6, 12, 18]
    times = [event["time"] for event in events(tmp_path)]
    assert times == sorted(times)


def test_too_many_failures_in_a_row_end_it_with_what_to_do(corpus: Path, tmp_path: Path) -> None:
    keep = {"every": 3, "keep_last": 99, "max_failures": 2}
    spec = spec_for(ROBERTA, corpus, steps=18, log_every=3, checkpoints=keep, faults=fault("full_disk", 6, times=9))
    with pytest.raises(PreflightError, match=r"saving failed 2 times in a row .*No space left.*; free the space"):
        train(spec, corpus, tmp_path, CPU)
    assert saved_steps(tmp_path) == [3]


def test_a_store_that_gives_no_answer_is_told_from_a_full_disk(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever started the ranks may start them again: the store's trouble is nobody's mistake."""

    def silent(self: Faults, step: int) -> None:
        raise OSError("AWS Error NETWORK_CONNECTION during PutObject")

    monkeypatch.setattr(Faults, "while_saving", silent)
    spec = spec_for(ROBERTA, corpus, steps=18, checkpoints={"every": 3, "max_failures": 2})
    with pytest.raises(StoreError, match=r"saving failed 2 times in a row .*NETWORK_CONNECTION"):
        train(spec, corpus, tmp_path, CPU)


def test_the_last_saving_is_tried_again(corpus: Path, tmp_path: Path) -> None:
    train(spec_for(ROBERTA, corpus, steps=6, faults=fault("full_disk", 6, times=2)), corpus, tmp_path, CPU)
    assert [event["event"] for event in told(tmp_path, "saved", "save_failed")] == [
        "save_failed",
        "save_failed",
        "saved",
    ]
    assert (
        verify(store(tmp_path, spec_for(ROBERTA, corpus).placement.checkpoints).sub("step-00000006")).progress.step == 6
    )


# --- off the road -----------------------------------------------------------------------------------------------------


def test_a_skipped_step_is_counted_and_leaves_the_figures_alone(corpus: Path, tmp_path: Path) -> None:
    spec = spec_for(ROBERTA, corpus, steps=12, log_every=3, faults=fault("nan", 4, times=2))
    train(spec, corpus, tmp_path, CPU)
    lines = [line["values"] for line in read_metrics(tmp_path)]
    assert [line["skipped_steps"] for line in lines] == [0, 2, 2, 2]
    assert all(3.0 < line["train/loss"] < 5.0 for line in lines)
    assert done(tmp_path)["skipped_steps"] == 2 and done(tmp_path)["rollbacks"] == 0


def test_steps_that_are_not_finite_go_back_and_skip_the_rows(corpus: Path, tmp_path: Path) -> None:
    """Steps 9, 10 and 11 (of 12 rows) are spoiled, and the limit is three: back from 11 to the checkpoint of 6, and on
    with the rows after those of step 11. What the five lost steps cost is spent and not counted."""
    spec = spec_for(
        ROBERTA,
        corpus,
        steps=18,
        log_every=3,
        checkpoints=KEEP,
        stability={"max_skipped": 3},
        faults=fault("nan", 8, times=3),
    )
    train(spec, corpus, tmp_path, CPU)
    (rollback,) = told(tmp_path, "rollback")
    figures = {name: rollback[name] for name in ("step", "to_step", "from_position", "to_position")}
    assert figures == {"step": 11, "to_step": 6, "from_position": 72, "to_position": 132}
    assert rollback["reason"] == "3 steps in a row had a gradient that was not finite"
    made = done(tmp_path)
    assert (made["step"], made["rollbacks"], made["rows_skipped"], made["skipped_steps"]) == (18, 1, 60, 0)
    final = verify(store_of(tmp_path).sub("step-00000018")).progress
    assert final.position == 12 * 18 + 60
    assert made["skipped"] == [[72, 132]] and made["position"] == 12 * 18 + 60
    lost = made["flops_spent"] - made["flops_counted"]
    assert lost == pytest.approx(5 * spec.flops_per_step, rel=0.1)  # rows differ in length
    assert [line["step"] for line in read_metrics(tmp_path)] == [3, 6, 9, 12, 15, 18]


def test_a_run_killed_after_it_went_back_skips_the_same_rows(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Undisturbed after the rollback, or killed before its next checkpoint: the same weights."""
    spec = spec_for(
        ROBERTA, corpus, steps=18, checkpoints=KEEP, stability={"max_skipped": 3}, faults=fault("nan", 8, times=3)
    )
    train(spec, corpus, tmp_path / "whole", CPU)

    def die() -> None:
        raise KeyboardInterrupt

    class Killed(Faults):
        def before_step(self, step: int) -> None:
            if step == 8 and told(tmp_path / "cut", "rollback"):
                die()

    monkeypatch.setattr("training.attempt.Faults", Killed)
    with pytest.raises(KeyboardInterrupt):
        train(spec, corpus, tmp_path / "cut", CPU)
    monkeypatch.undo()
    train(spec, corpus, tmp_path / "cut", CPU)
    assert_equal(weights(tmp_path / "whole", 18), weights(tmp_path / "cut", 18))
    assert done(tmp_path / "cut")["rows_skipped"] == done(tmp_path / "whole")["rows_skipped"] == 60
    assert done(tmp_path / "cut")["rollbacks"] == 1


SPIKE = {"log_every": 2, "stability": {"spike_windows": 2, "history": 8}}


@pytest.mark.parametrize("every", [2, 6])
def test_a_loss_that_jumps_and_stays_goes_back(every: int, corpus: Path, tmp_path: Path) -> None:
    """A thousandfold learning rate in step 22, the last of its window: the loss of step 23 is the first to show it, so
    that the checkpoint of 22 is spoilt though its window looks well. Windows 24 and 26 are high; it goes back to 20,
    or 18, and what it ends with is as good as a run that nothing happened to."""
    keep = {"every": every, "keep_last": 1, "keep_best": False}
    spec = spec_for(ROBERTA, corpus, steps=60, checkpoints=keep, faults=fault("spike", 21), **SPIKE)
    train(spec, corpus, tmp_path, CPU)
    (rollback,) = told(tmp_path, "rollback")
    assert (rollback["step"], rollback["to_step"]) == (26, {2: 20, 6: 18}[every])
    assert "windows in a row" in rollback["reason"]
    made = done(tmp_path)
    assert made["rollbacks"] == 1 and made["rows_skipped"] == 12 * (26 - rollback["to_step"])
    assert made["heldout"]["heldout/loss"] < 4.6


def test_a_spike_is_noticed_across_a_restart(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped when the first window is high and its checkpoint saved: the next attempt sees the second, and goes back
    to before the first."""
    keep = {"every": 2, "keep_last": 99}
    spec = spec_for(ROBERTA, corpus, steps=60, checkpoints=keep, faults=fault("spike", 21), **SPIKE)
    inbox = Inbox()
    call_at(monkeypatch, 22, lambda: inbox.post("stop", "lunch"))
    with pytest.raises(StoppedError, match="at step 24"):
        train(spec, corpus, tmp_path, CPU, inbox=inbox)
    assert 24 in saved_steps(tmp_path)
    train(spec, corpus, tmp_path, CPU)
    (rollback,) = told(tmp_path, "rollback")
    assert (rollback["step"], rollback["to_step"]) == (26, 20)
    assert done(tmp_path)["heldout"]["heldout/loss"] < 4.6


def test_the_same_trouble_goes_back_further_and_not_for_ever(corpus: Path, tmp_path: Path) -> None:
    """Every step from the eighth on is spoiled: back to 6, to 4, to 2, and then it is said. Nothing resumes from what
    lies beyond, and the same command again says so at once."""
    spec = spec_for(
        ROBERTA,
        corpus,
        steps=18,
        checkpoints={"every": 2, "keep_last": 99},
        stability={"max_skipped": 2, "max_rollbacks": 3},
        faults=fault("nan", 7, times=99),
    )
    for _ in range(2):
        with pytest.raises(DivergedError, match="going back 3 times did not help; lower the arm's learning_rate"):
            train(spec, corpus, tmp_path, CPU)
        assert [event["to_step"] for event in told(tmp_path, "rollback")] == [6, 4, 2]
    assert [event["event"] for event in told(tmp_path, "failed")] == ["failed"] * 2
    assert max(saved_steps(tmp_path)) <= 8


def test_nothing_resumes_from_what_a_rollback_left(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the event and the tidying: the checkpoints of 8 and 10 are there, whole, and not taken."""
    keep = {"every": 2, "keep_last": 99}
    spec = spec_for(
        ROBERTA, corpus, steps=18, checkpoints=keep, stability={"max_skipped": 4}, faults=fault("nan", 7, times=4)
    )

    def die(store: object, *, after: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "set_aside", die)
    with pytest.raises(KeyboardInterrupt):
        train(spec, corpus, tmp_path, CPU)
    monkeypatch.undo()
    assert saved_steps(tmp_path)[-2:] == [8, 10]
    train(spec, corpus, tmp_path, CPU)
    assert [event["step"] for event in told(tmp_path, "started")] == [0, 6]
    made = done(tmp_path)
    assert made["skipped"] == [[72, 132]] and made["rollbacks"] == 1


def test_what_short_attempts_have_spent_is_not_forgotten(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at 17 and at 19, a metric line and a checkpoint every 12 steps: 5 steps and 7 steps that no line tells of
    are known from the signs of life, and add up."""
    spec = spec_for(ROBERTA, corpus, steps=24, log_every=12, checkpoints={"every": 12})

    def die() -> None:
        raise KeyboardInterrupt

    for step in (17, 19):
        monkeypatch.undo()
        call_at(monkeypatch, step, die)
        with pytest.raises(KeyboardInterrupt):
            train(spec, corpus, tmp_path, CPU)
    monkeypatch.undo()
    train(spec, corpus, tmp_path, CPU)
    assert [event["unlogged"] for event in told(tmp_path, "started")] == [0, 5, 7]
    made = done(tmp_path)
    assert (made["flops_spent"] - made["flops_counted"]) / spec.flops_per_step == pytest.approx(12, rel=0.02)


def test_a_changed_placement_is_recorded_and_changes_nothing(corpus: Path, tmp_path: Path) -> None:
    train(spec_for(ROBERTA, corpus, steps=12, checkpoints=KEEP), corpus, tmp_path, CPU)
    cut_back(tmp_path, 6)
    train(spec_for(ROBERTA, corpus, steps=12, checkpoints=KEEP, micro_batch=12), corpus, tmp_path, CPU)
    (placement,) = told(tmp_path, "placement")
    assert placement["changed"] == {"micro_batch": [8, 12]}
