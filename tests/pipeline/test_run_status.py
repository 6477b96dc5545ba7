"""Where a run stands: its state, how far it is, what is left, and why it began again."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.run_status import QUIET, RunStatus, Saved, status_of
from tests.pipeline.stories import Told
from training import heartbeat
from training.checkpoints import entries
from training.checkpoints.entries import Entry
from training.heartbeat import Beat, process_started

LATER = 1e6  # seconds after anything that is told


def look(run: Told, run_dir: Path, *, steps: int | None = 40, after: float = 0.0) -> RunStatus:
    """So many seconds after the last that is told."""
    run.write(run_dir, steps)
    return status_of(run_dir, checkpoints=False, now=run.now + after)


def beat(run_dir: Path, step: int, rank: int = 0, **changes: Any) -> None:
    """A sign of life; as of this very process unless changed."""
    values: dict[str, Any] = {
        "rank": rank, "world_size": 2, "pid": os.getpid(), "started": process_started(os.getpid()),
        "host": socket.gethostname(), "run": run_dir.name, "phase": "step", "step": step, "beats": 1, "stack": [],
        "time": 0.0,
    }  # fmt: skip
    heartbeat.write(run_dir, Beat(**(values | changes)))


@contextmanager
def held(out: Path) -> Iterator[None]:
    with open(out / ".lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_run_that_trains(tmp_path: Path) -> None:
    figures = {"train/loss": 2.5, "heldout/loss": 2.75, "tokens_per_second": 1234.0, "mfu": 0.41, "data_wait": 0.02}
    run = Told(figures=figures).start().train(12)
    found = look(run, tmp_path / "runs" / "x", after=3.0)
    # a step is 2 s and 10 FLOPs, 1.5 s of it useful; the newest line is of step 10, 4 s before the end of step 12
    assert found == RunStatus(
        run="x", state="training", step=10, steps=40, flops=100.0, flops_planned=400.0, tokens_per_second=1234.0,
        mfu=0.41, data_wait=0.02, loss=2.5, heldout_loss=2.75, seconds_left=(40 - 10) * 2.0, checkpoint=None,
        restarts=[], goodput=pytest.approx(15 / 20), quiet=7.0, where=None,
    )  # fmt: skip


def test_signs_of_life_tell_the_step_between_lines_and_who_is_behind(tmp_path: Path) -> None:
    run_dir = Told().start().train(10).write(tmp_path / "runs" / "x", 40)
    beat(run_dir, 12)
    beat(run_dir, 11, rank=1, host="node-b", phase="loading")
    found = status_of(run_dir, checkpoints=False, now=1030.0)
    assert (found.state, found.step, found.seconds_left) == ("training", 12, (40 - 12) * 2.0)
    assert (
        found.where == f"2 ranks on {', '.join(sorted([socket.gethostname(), 'node-b']))}; rank 1 at step 11: loading"
    )


def test_time_left_is_by_the_newest_pace_with_what_comes_between(tmp_path: Path) -> None:
    """Fast at first, a line every 10 s; then evaluation takes 10 s between any two lines."""
    run = Told().start().train(60)
    for _ in range(10):
        run.wait(10.0).train(5)
    assert look(run, tmp_path / "runs" / "x", steps=130).seconds_left == pytest.approx(20 * (20.0 / 5))


def test_a_restart_has_no_pace_before_its_second_line(tmp_path: Path) -> None:
    run = Told().start().train(20).start(10).train(5)
    assert look(run, tmp_path / "runs" / "a").seconds_left is None
    run.train(5)
    assert look(run, tmp_path / "runs" / "b").seconds_left == pytest.approx(20 * 2.0)


HUNG: dict[str, Any] = {"phase": "step", "seconds": 300.0, "ranks": [], "left_out": 0}


@pytest.mark.parametrize(
    ("run", "after", "state"),
    [
        (Told().start().train(10), 0.0, "training"),
        (Told().start().train(10), QUIET - 1, "training"),
        (Told().start().train(10), QUIET + 1, "killed"),
        (Told().start().train(10).event("waiting", step=10, reason="no room"), 0.0, "waits"),
        (Told().start().train(10).event("waiting", step=10, reason="no room").start(10), 0.0, "training"),
        (Told().start().train(10).event("stopped", step=10, reason="SIGTERM"), LATER, "stopped"),
        (Told().start().train(10).event("hung", step=10, **HUNG), LATER, "hung"),
        (Told().start().train(10).event("failed", step=10, reason="a worker died"), LATER, "failed"),
        (Told().start().train(10).event("failed", step=10, reason="a worker died").start(5), 0.0, "training"),
        (Told(), LATER, "killed"),
    ],
)  # fmt: skip
def test_states(run: Told, after: float, state: str, tmp_path: Path) -> None:
    found = look(run, tmp_path / "runs" / "x", after=after)
    assert found.state == state
    assert state in ("training", "waits") or found.seconds_left is None


def test_a_run_with_its_record_is_finished_whatever_else_is_told(tmp_path: Path) -> None:
    run_dir = Told().start().train(40).write(tmp_path / "runs" / "x", 40)
    (run_dir / "done.json").write_text("{}")
    found = status_of(run_dir, checkpoints=False, now=1081.0)
    assert (found.state, found.step, found.seconds_left, found.where) == ("finished", 40, None, None)


def test_whoever_holds_the_folder_is_at_work_however_quiet(tmp_path: Path) -> None:
    run_dir = Told().start().train(10).write(tmp_path / "runs" / "x", 40)
    with held(tmp_path):
        assert status_of(run_dir, checkpoints=False, now=LATER).state == "training"
    assert status_of(run_dir, checkpoints=False, now=LATER).state == "killed"


def test_processes_of_this_machine_that_are_gone_are_not_waited_for(tmp_path: Path) -> None:
    run_dir = Told().start().train(10).write(tmp_path / "runs" / "x", 40)
    for changes, state in (
        ({}, "training"),
        ({"host": "elsewhere", "started": 1.0}, "training"),  # of which nothing is known
        ({"started": 1.0}, "killed"),  # another process has the number by now
    ):
        beat(run_dir, 10, **changes)
        assert status_of(run_dir, checkpoints=False, now=1021.0).state == state


def test_restarts_are_told_with_the_first_word_of_each_ending(tmp_path: Path) -> None:
    run = Told().start().train(10).save().event("hung", step=10, **HUNG).event("failed", step=10, reason="hung, rank 1")
    run.start(10).train(5).wait(60).start(10).train(5).event("stopped", step=15, reason="SIGTERM").start(15).train(5)
    assert look(run, tmp_path / "runs" / "x").restarts == [
        "hung at step 10 (step) after 5 min 00 s: nobody can be named",
        "ended without a word at step 15 or later (killed?)",
        "stopped at step 15 (SIGTERM), saved",
    ]


def test_the_newest_checkpoint_that_is_whole_and_its_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = Told().start().train(10).write(tmp_path / "runs" / "x", 40)
    stored = [
        Entry(name="step-00000005", step=5, state="valid", saved_at=1010.0),
        Entry(name="step-00000010", step=10, state="valid", saved_at=1020.0),
        Entry(name="step-00000012", step=12, state="broken", reason="cut"),
    ]
    monkeypatch.setattr(entries, "entries", lambda *_, **__: stored)
    assert status_of(run_dir, now=1050.0).checkpoint == Saved(name="step-00000010", step=10, age=30.0)
    monkeypatch.setattr(entries, "entries", lambda *_, **__: stored[2:])
    assert status_of(run_dir, now=1050.0).checkpoint is None


def test_what_an_older_version_wrote_is_told_as_far_as_it_goes(tmp_path: Path) -> None:
    found = look(Told().start().train(10), tmp_path / "runs" / "x", steps=None)
    assert (found.step, found.steps, found.flops_planned, found.seconds_left) == (10, None, None, None)
