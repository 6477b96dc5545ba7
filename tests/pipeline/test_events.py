"""`electra events` and `electra stop`: what they print, what they leave, and what they refuse."""

import fcntl
import json
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline import story_words
from pipeline.run_folders import is_held, runs_at
from pipeline.story import SILENT
from tests.pipeline.stories import Told
from tests.pipeline.test_cli import electra, refused
from training import requests


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def killed() -> Told:
    """Killed at step 15, resumed at 10 from the older of two checkpoints."""
    run = Told().start().train(10).save().train(5).save().wait(60)
    run.start(10, passed_over=["/x/part-00001.safetensors was cut or altered."]).train(10).save(
        pruned=["step-00000010"]
    )
    return run.event("finished", step=20)


def test_the_story_of_a_run(tmp_path: Path) -> None:
    run_dir = killed().write(tmp_path / "out" / "runs" / "electra-s0")
    done = electra("events", run_dir)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "electra-s0",
        "  1970-01-01 00:16:40  attempt 1 began at step 0 on 2 × CPU (x86_64)",
        "  1970-01-01 00:17:00  saved 2 times, steps 10 to 15, 2.0 MB each, training waited 0.2 s, writing took 2 s",
        "  1970-01-01 00:17:10  ended without a word at step 15 or later (killed?)",
        "                       cost: 5 steps, 5.00e+01 FLOPs, 1 min 10 s",
        "  1970-01-01 00:18:10  attempt 2 resumed at step 10 from step-00000010 on 2 × CPU (x86_64); passed over: "
        "/x/part-00001.safetensors was cut or altered",
        "  1970-01-01 00:18:30  saved step 20, 2.0 MB, training waited 0.1 s, writing took 1 s, 1 older removed by "
        "the rules of retention",
        "  1970-01-01 00:18:30  finished at step 20",
        # 30 s of steps that count; 30 s, 60 s of nobody, 20 s
        "  in all: 2 attempts; 5 steps lost; 2.500e+02 FLOPs spent, of which 2.000e+02 count; goodput 27.3% "
        "(30 s of useful steps in 1 min 50 s)",
    ]


def test_an_experiment_is_told_run_by_run_in_the_order_they_began(tmp_path: Path) -> None:
    Told(now=2000.0).start().train(5).event("finished", step=5).write(tmp_path / "runs" / "a")
    Told(now=1000.0).start().train(5).event("finished", step=5).write(tmp_path / "runs" / "b")
    Told().write(tmp_path / "runs" / "c")
    for target in (tmp_path, tmp_path / "runs"):
        told = electra("events", target).stdout.splitlines()
        assert [line for line in told if not line.startswith(" ")] == ["b", "a", "c: nothing has happened yet"]


def test_rollbacks_of_all_attempts_and_the_rows_that_the_surviving_trajectory_leaves_out(tmp_path: Path) -> None:
    """The second one is of a trajectory that a restart from step 5 has left."""
    run = Told().start().train(5).save().train(5).roll_back(5).train(5).save().train(5).roll_back(10).train(5).start(5)
    run.train(5).write(tmp_path / "runs" / "x")
    last = electra("events", tmp_path).stdout.splitlines()[-1]
    assert "; 2 rollbacks in all attempts, 40 rows left out of the trajectory that counts; " in last


def test_as_json(tmp_path: Path) -> None:
    killed().write(tmp_path / "runs" / "x")
    done = electra("events", tmp_path, "--json")
    record = json.loads(done.stdout)
    assert (record["verb"], record["exit_code"]) == ("events", 0)
    (run,) = record["runs"]
    assert run["totals"] == {
        "attempts": 2, "rollbacks": 0, "rows_skipped": 0, "step": 20, "steps_lost": 5, "flops_spent": 250.0,
        "flops_counted": 200.0, "useful_seconds": 30.0, "wall_seconds": 110.0, "goodput": 30 / 110,
    }  # fmt: skip
    silent = next(entry for entry in run["entries"] if entry["event"] == SILENT)
    assert silent["cost"] == {"steps": 5, "flops": 50.0, "seconds": 70.0}
    assert "ended without a word" in silent["text"]


def test_a_torn_event_is_passed_over(tmp_path: Path) -> None:
    run_dir = Told().start().train(5).write(tmp_path / "runs" / "x")
    with open(run_dir / "events.jsonl", "a", encoding="utf-8") as file:
        file.write('{"event": "sav')
    assert "killed?" in electra("events", run_dir).stdout


@pytest.mark.parametrize("verb", ["events", "checkpoints", "stop"])
def test_what_holds_no_run_is_exit_4(verb: str, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    sentence = refused(4, verb, tmp_path)
    assert sentence.startswith(f"{tmp_path}: holds no run that has begun; name an experiment's folder")
    assert requests.read(tmp_path / "runs") is None


def test_while_a_command_holds_the_folder_the_last_attempt_is_not_over(tmp_path: Path) -> None:
    run_dir = Told().start().train(5).write(tmp_path / "runs" / "x")
    assert not is_held(run_dir)
    with open(tmp_path / ".lock", "wb") as lock:
        assert not is_held(run_dir)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_held(run_dir)
        assert "killed?" not in electra("events", run_dir).stdout
    assert "killed?" in electra("events", run_dir).stdout


def test_runs_are_named_by_any_of_three_folders(tmp_path: Path) -> None:
    runs = [Told().write(tmp_path / "runs" / name) for name in ("a", "b")]
    assert runs_at(tmp_path) == runs_at(tmp_path / "runs") == runs
    assert runs_at(runs[1]) == [runs[1]]


HUNG_RANK: dict[str, Any] = {
    "rank": 1, "host": "node-b", "pid": 77, "why": "stands still",
    "stack": ["training/loop.py:9 in train: run()", "training/attempt.py:4 in _steps: sleep(3600)"],
}  # fmt: skip
ABSENT: dict[str, Any] = {"rank": 0, "host": None, "pid": None, "why": "gave no sign of life", "stack": []}


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            {"event": "hung", "step": 1200, "phase": "step", "seconds": 300.0, "ranks": [HUNG_RANK], "left_out": 0},
            "hung at step 1,200 (step) after 5 min 00 s: rank 1 (node-b, pid 77): stands still, last seen at "
            "training/attempt.py:4 in _steps: sleep(3600)",
        ),
        (
            {"event": "hung", "step": 3, "phase": "all silent", "seconds": 0.0, "ranks": [ABSENT], "left_out": 2},
            "hung at step 3 (all silent): rank 0: gave no sign of life; and 2 ranks more",
        ),
        ({"event": "hung", "step": 3, "ranks": []}, "hung at step 3: nobody can be named"),
        ({"event": "waiting", "step": 3, "reason": "no room"}, "waits at step 3: no room"),
        (
            {
                "event": "rollback", "step": 340, "to_step": 300, "from_position": 9600, "to_position": 10880,
                "reason": "r",
            },
            "rolled back from step 340 to step 300 (r); the 1,280 rows at positions 9,600 to 10,880 are skipped",
        ),
        (
            {"event": "save_failed", "step": 50, "reason": "no space left on device", "in_a_row": 2},
            "saving step 50 failed, 2 in a row: no space left on device",
        ),
        ({"event": "stopped", "step": 50, "reason": "SIGTERM"}, "stopped at step 50 (SIGTERM), saved"),
        ({"event": "failed", "step": 7, "reason": "a worker died"}, "failed at step 7: a worker died"),
        ({"event": "fault", "kind": "nan", "step": 7, "rank": 1}, "fault injected at step 7, rank 1: nan"),
        (
            {"event": "placement", "changed": {"zero_stage": [1, 3], "world_size": [2, 3]}},
            "placement changed: zero_stage 1 → 3, world_size 2 → 3",
        ),
        ({"event": "degenerate", "step": 5, "reason": "nothing was learned"}, "at step 5 nothing was learned"),
        ({"event": "new_kind", "time": 1.0, "step": 3, "why": "x"}, "new_kind: step 3, why x"),
        (
            {
                "event": "started", "step": 0, "from": None, "world_size": 2, "device": "CPU",
                "preflight": {"mb_per_second": 812.4, "free_bytes": 41_000_000_000, "need_bytes": 3_000_000_000},
            },
            "began at step 0 on 2 × CPU; checkpoints are written at 812 MB/s, 41.0 GB are free and 3.0 GB will be "
            "needed",
        ),
        (
            {"event": "started", "step": 0, "preflight": {"mb_per_second": 90.0, "free_bytes": None, "need_bytes": 1}},
            "began at step 0; checkpoints are written at 90 MB/s",
        ),
    ],
)  # fmt: skip
def test_every_event_in_words(event: dict[str, Any], words: str) -> None:
    assert story_words.told(event) == words


# --- stop -------------------------------------------------------------------------------------------------------------


def test_stop_leaves_a_request_and_says_what_comes_of_it(tmp_path: Path) -> None:
    run_dir = Told().start().write(tmp_path / "runs" / "x")
    with open(tmp_path / ".lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = electra("stop", run_dir, "--reason", "maintenance")
    assert done.exit_code == 0
    assert "exit code 75; the same command again resumes" in done.stdout
    assert "warning" not in done.stdout
    assert requests.Inbox(tmp_path / "runs").poll() == ("stop", "maintenance")


def test_stop_with_save_asks_for_a_saving_only(tmp_path: Path) -> None:
    Told().start().write(tmp_path / "runs" / "x")
    record = json.loads(electra("stop", tmp_path, "--save", "--json").stdout)
    assert record == {
        "verb": "stop", "exit_code": 0, "asked": "save", "reason": "electra stop", "runs": str(tmp_path / "runs"),
        "held": False,
    }  # fmt: skip
    assert requests.Inbox(tmp_path / "runs").poll() == ("save", "electra stop")


def test_stop_says_where_nobody_is_seen_to_train(tmp_path: Path) -> None:
    Told().start().write(tmp_path / "runs" / "x")
    assert f"warning: no command on this machine works in {tmp_path}" in electra("stop", tmp_path).stdout
