"""The watchdog, on real processes: who hangs is named and ended, who is slow or paused is not, disks may be full."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from data_prep import storage
from tests.conftest import ROOT
from tests.training.hung_ranks import run_group
from training.heartbeat import read_beats
from training.settings import WatchdogConfig
from training.watchdog import Watchdog

CONFIG = WatchdogConfig(first_step=20.0, step=1.6, heartbeat=0.1)
ALONE = """
import sys, time
from pathlib import Path
from training.settings import WatchdogConfig
from training.watchdog import Watchdog

def wait_here():
    time.sleep(float(sys.argv[2]))

first_step, step = map(float, sys.argv[3:])
with Watchdog(Path(sys.argv[1]), 0, 1, WatchdogConfig(first_step=first_step, step=step, heartbeat=0.1)) as watchdog:
    watchdog.progress("train", 7)
    watchdog.progress("train", 8)
    print("waits", flush=True)
    wait_here()
"""


def events(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def alone(run_dir: Path, sleeps: float, *, step: float, before: str = "") -> subprocess.Popen[str]:
    """A rank by itself that completes a step and then sleeps."""
    process = subprocess.Popen(
        [sys.executable, "-c", before + ALONE, str(run_dir), str(sleeps), "20", str(step)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "waits\n"
    return process


@pytest.mark.multi
def test_a_stopped_rank_is_named_with_its_last_stack_and_killed(tmp_path: Path) -> None:
    """Its clock is a day behind or ahead of that of each other one, and one of them is slow in the same step."""
    began = time.monotonic()
    codes = run_group(["late", "stop", "well"], tmp_path, CONFIG)
    assert codes == [7, -signal.SIGKILL, 7]
    (event,) = events(tmp_path)
    assert event["event"] == "hung" and event["step"] == 3 and event["phase"] == "train"
    assert CONFIG.step <= event["seconds"] < 2 * CONFIG.step and event["left_out"] == 0
    (rank,) = event["ranks"]
    assert rank["rank"] == 1 and rank["host"] == os.uname().nodename and rank["pid"] > 0
    assert rank["why"].startswith("no sign of life for ")
    assert "in go_wrong: time.sleep(0.5)" in rank["stack"][-1]
    assert time.monotonic() - began < 20.0
    told = [(tmp_path / f"stderr-{number}").read_text() for number in range(3)]
    assert sum("the run ends with 7: rank 1 (" in text for text in told) == 1


@pytest.mark.multi
def test_a_rank_that_hangs_in_python_is_named_with_its_line(tmp_path: Path) -> None:
    codes = run_group(["well", "hang"], tmp_path, CONFIG)
    assert codes[0] == 7 and codes[1] in (7, -signal.SIGKILL)  # it notices itself as well
    (event,) = events(tmp_path)
    (rank,) = event["ranks"]
    assert rank["rank"] == 1 and rank["why"] == "does not come to where the others wait"
    assert "in oversleep: time.sleep(3600.0)" in rank["stack"][-1] and "in go_wrong: oversleep()" in rank["stack"][-2]


@pytest.mark.multi
def test_who_learns_of_it_by_a_broken_group_ends_alike(tmp_path: Path) -> None:
    """Not with the error of a collective, and without an event of its own."""
    patient = WatchdogConfig(first_step=60.0, step=60.0, heartbeat=0.1)
    assert run_group(["well", "hang"], tmp_path, patient, CONFIG) == [7, 7]
    (event,) = events(tmp_path)
    assert event["noticed_by"] == 1 and [one["rank"] for one in event["ranks"]] == [1]
    assert (tmp_path / "stderr-0").read_text() == ""


@pytest.mark.multi
def test_slow_ranks_are_waited_for(tmp_path: Path) -> None:
    assert run_group(["late", "well"], tmp_path, CONFIG) == [0, 0]
    assert events(tmp_path) == [] and read_beats(tmp_path) == {}


@pytest.mark.multi
def test_an_error_of_ones_own_stays_that(tmp_path: Path) -> None:
    """Exit codes of ordinary errors are not the watchdog's."""
    assert run_group(["raise", "well"], tmp_path, CONFIG) == [1, 1]
    assert "ValueError: of its own" in (tmp_path / "stderr-0").read_text() and events(tmp_path) == []
    left = read_beats(tmp_path)  # how far it came is still to be read
    assert (left[0].step, left[0].phase) == (3, "ended with ValueError") and left[1].phase == "ended with RuntimeError"


def test_a_rank_alone_ends_with_7_and_says_where_it_stood(tmp_path: Path) -> None:
    process = alone(tmp_path, 30.0, step=0.8)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 7
    (event,) = events(tmp_path)
    assert (event["step"], event["noticed_by"]) == (8, 0) and event["ranks"][0]["pid"] == process.pid
    assert event["ranks"][0]["why"] == "stands still"
    assert f"rank 0 ({os.uname().nodename}, pid {process.pid}): stands still, last seen at" in stderr
    assert "in wait_here" in stderr


def test_a_file_system_that_hangs_does_not_keep_it(tmp_path: Path) -> None:
    """Neither a beat nor the event ever comes to be written."""
    hangs = """
import time
from training import heartbeat, run_folder, watchdog
watchdog.REPORT_SECONDS = 0.2
heartbeat.write = run_folder.append_events = lambda *_: time.sleep(60.0)
"""
    process = alone(tmp_path, 30.0, step=0.8, before=hangs)
    _, stderr = process.communicate(timeout=10)
    assert process.returncode == 7 and "stands still, and nothing tells it from the others" in stderr
    assert events(tmp_path) == []


def test_a_run_that_was_paused_goes_on(tmp_path: Path) -> None:
    """Only the time in which the process ran counts: 0.3 s of the 2 s that it stood."""
    process = alone(tmp_path, 0.3, step=1.0)
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.0)
    process.send_signal(signal.SIGCONT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 0, stderr
    assert events(tmp_path) == []


def test_a_debugger_may_take_its_time(tmp_path: Path) -> None:
    """A person stands at the prompt of pdb for two seconds, of which 0.8 are allowed, and goes on."""
    stops = """
import pdb, time
time.sleep = lambda seconds: pdb.Pdb(skip=["threading", "training.*"]).set_trace()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", stops + ALONE, str(tmp_path), "0", "20", "0.8"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "waits\n"
    time.sleep(2.0)
    _, stderr = process.communicate("c\n", timeout=20)
    assert process.returncode == 0, stderr
    assert events(tmp_path) == []


def test_the_first_step_has_its_own_time_and_so_has_the_first_after_going_back(tmp_path: Path) -> None:
    watchdog = Watchdog(tmp_path, 0, 1, CONFIG)
    warm = []
    for step in (0, 40, 40, 41, 41, 42, 30, 30, 31):
        watchdog.progress("train", step)
        warm.append(watchdog._state.warm)
    assert warm == [False, False, False, True, True, True, False, False, True]


def test_last_words_are_an_object_where_lines_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watchdog = Watchdog(tmp_path / "x", 2, 4, CONFIG)
    watchdog.progress("train", 7)
    said = watchdog._last_words(watchdog._state, 300.0, [])
    monkeypatch.setenv("ELECTRA_LOG_FORMAT", "json")
    record = json.loads(watchdog._last_words(watchdog._state, 300.0, []))
    assert (record["level"], record["run"], record["rank"], record["step"]) == ("error", "x", 2, 7)
    assert said == f"x: {record['message']}"


def test_a_full_disk_is_harmless_and_beats_come_back(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with Watchdog(tmp_path, 0, 1, CONFIG) as watchdog:
        with patch.object(storage, "atomic_writer", side_effect=full) as refused:
            _wait_until(lambda: refused.call_count >= 3)
        before = read_beats(tmp_path).get(0)
        watchdog.progress("train", 5)
        _wait_until(lambda: (found := read_beats(tmp_path).get(0)) is not None and found.step == 5)
    assert before is None or before.step == 0
    assert read_beats(tmp_path) == {} and events(tmp_path) == []


def test_who_cannot_write_accuses_nobody(tmp_path: Path) -> None:
    """The other rank's beat does not come to be seen either: both would take one another for dead."""
    watchdog = Watchdog(tmp_path, 0, 2, WatchdogConfig(first_step=20.0, step=0.5))
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with watchdog:
        _wait_until(lambda: read_beats(tmp_path).get(0) is not None)
        watchdog._heard = {}
        assert [one.rank for one in watchdog._find()] == [1]
        with patch.object(storage, "atomic_writer", side_effect=full):
            time.sleep(2 * watchdog._silence)
            watchdog._heard = {}
            assert watchdog._find() == []


def _wait_until(true: Any) -> None:
    until = time.monotonic() + 10.0
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)
