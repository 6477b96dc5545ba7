"""A run that is asked to stop, cannot save, or leaves the road: what it keeps, what it says, and what it counts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_prep.errors import DivergedError, PreflightError, StoppedError
from tests.training.runs import CPU, ELECTRA, ROBERTA, assert_equal, cut_back, done, events, spec_for, weights
from training import requests, saving
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
    monkeypatch.setattr(saving, "RETRY_SECONDS", 0.01)


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
    """The saving at 6 fails, and so does the retry after the next metric line; the third, at 12, goes well."""
    spec = spec_for(ROBERTA, corpus, steps=18, log_every=3, checkpoints=KEEP, faults=fault("full_disk", 6, times=2))
    train(spec, corpus, tmp_path, CPU)
    failed = told(tmp_path, "save_failed")
    assert [(event["step"], event["in_a_row"]) for event in failed] == [(6, 1), (9, 2)]
    assert all("No space left on device" in event["reason"] for event in failed)
    assert [event["step"] for event in told(tmp_path, "saved")] == saved_steps(tmp_path) == [12, 18]
    assert {path.name for path in (tmp_path / "checkpoints").glob("step-*")} == {"step-00000012", "step-00000018"}
    assert done(tmp_path)["step"] == 18


def test_too_many_failures_in_a_row_end_it_with_what_to_do(corpus: Path, tmp_path: Path) -> None:
    keep = {"every": 3, "keep_last": 99, "max_failures": 2}
    spec = spec_for(ROBERTA, corpus, steps=18, log_every=3, checkpoints=keep, faults=fault("full_disk", 6, times=9))
    with pytest.raises(PreflightError, match=r"saving failed 2 times in a row .*No space left.*; free the space"):
        train(spec, corpus, tmp_path, CPU)
    assert saved_steps(tmp_path) == [3]


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


def test_a_loss_that_jumps_and_stays_goes_back(corpus: Path, tmp_path: Path) -> None:
    """A thousandfold learning rate at step 21 (of windows of 2): the two windows after it are high, the checkpoint of
    step 24 is tainted, and that of 18 is where it goes back to."""
    spec = spec_for(
        ROBERTA,
        corpus,
        steps=36,
        log_every=2,
        checkpoints=KEEP,
        stability={"spike_windows": 2, "history": 8},
        faults=fault("spike", 21),
    )
    train(spec, corpus, tmp_path, CPU)
    (rollback,) = told(tmp_path, "rollback")
    assert rollback["to_step"] == 18 and rollback["step"] in (24, 26)
    assert "windows in a row" in rollback["reason"]
    made = done(tmp_path)
    assert made["rollbacks"] == 1 and made["rows_skipped"] == 12 * (rollback["step"] - 18)
    assert made["heldout"]["heldout/loss"] < 4.6


def test_one_checkpoint_is_gone_back_to_so_often_and_no_more(corpus: Path, tmp_path: Path) -> None:
    spec = spec_for(
        ROBERTA,
        corpus,
        steps=18,
        checkpoints=KEEP,
        stability={"max_skipped": 2, "max_rollbacks": 2},
        faults=fault("nan", 8, times=99),
    )
    with pytest.raises(DivergedError, match="2 times before it went back to step 6 and on with other rows; lower"):
        train(spec, corpus, tmp_path, CPU)
    assert len(told(tmp_path, "rollback")) == 2


def test_a_changed_placement_is_recorded_and_changes_nothing(corpus: Path, tmp_path: Path) -> None:
    train(spec_for(ROBERTA, corpus, steps=12, checkpoints=KEEP), corpus, tmp_path, CPU)
    cut_back(tmp_path, 6)
    train(spec_for(ROBERTA, corpus, steps=12, checkpoints=KEEP, micro_batch=12), corpus, tmp_path, CPU)
    (placement,) = told(tmp_path, "placement")
    assert placement["changed"] == {"micro_batch": [8, 12]}
