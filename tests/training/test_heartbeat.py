"""Beats, who is heard, and who is suspected, by tables and a clock of the test's own."""

import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from training import heartbeat, suspects
from training.heartbeat import Beat, Heard, Listener, process_started, read_beats, stack_of, write
from training.settings import WatchdogConfig
from training.suspects import Suspect, find_suspects, overdue

REDUCE = "torch/distributed/distributed_c10d.py:3252 in all_reduce: work.wait()"
SLEEP = "training/faults.py:47 in before_step: time.sleep(3600.0)"
LOAD = "training/loader.py:80 in rows: self._reader[row]"


def beat(rank: int = 0, *, beats: int = 0, step: int = 5, at: str = REDUCE, time: float = 0.0) -> Beat:
    """Of a host that is not this one."""
    return Beat(
        rank=rank,
        world_size=3,
        pid=1,
        started=2.5,
        host="elsewhere",
        run="electra-s0",
        phase="train",
        step=step,
        beats=beats,
        stack=["training/loop.py:9 in train: run.steps()", at],
        time=time,
    )


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_beat_is_read_as_it_was_written_and_strangers_are_passed_over(tmp_path: Path) -> None:
    assert read_beats(tmp_path) == {}
    write(tmp_path, beat(2))
    write(tmp_path, beat(100_000))
    folder = tmp_path / "heartbeats"
    (folder / "rank-00003.json").write_text('{"rank": 3}')  # of another version
    (folder / "rank-00004.json").write_text('{"rank"')  # torn
    (folder / "rank-00005.json.tmp-1-00000000").write_text("{}")
    (folder / "hung.json").write_text("[]")
    assert read_beats(tmp_path) == {2: beat(2), 100_000: beat(100_000)}
    (folder / "rank-00002.json.tmp-1-00000000").touch()
    heartbeat.remove(tmp_path, 2)
    assert sorted(read_beats(tmp_path)) == [100_000]
    assert not list(folder.glob("rank-00002*")) and (folder / "rank-00005.json.tmp-1-00000000").exists()


def test_silence_is_counted_from_the_last_change_by_the_readers_clock(tmp_path: Path) -> None:
    clock = Clock()
    write(tmp_path, beat(0, time=9e9))  # clocks of ranks may say what they like
    listener = Listener(tmp_path, clock)
    assert listener.listen() == {0: Heard(beat(0, time=9e9), 0.0, live=False)}
    clock.now += 3.0
    write(tmp_path, beat(1, time=-9e9))
    assert [(one.quiet, one.live) for one in listener.listen().values()] == [(3.0, False), (0.0, True)]
    clock.now += 4.0
    write(tmp_path, beat(0, beats=1, time=9e9))
    assert [(one.quiet, one.live) for one in listener.listen().values()] == [(0.0, True), (4.0, True)]
    heartbeat.remove(tmp_path, 1)
    assert list(listener.listen()) == [0]


def test_the_driver_names_all_when_all_have_fallen_silent_and_not_before(tmp_path: Path) -> None:
    config, clock = WatchdogConfig(first_step=100.0, step=10.0), Clock()
    write(tmp_path, beat(2))  # left by an attempt with more ranks: it never counts
    listener = Listener(tmp_path, clock)
    assert overdue(listener, config) == []
    write(tmp_path, beat(0))
    write(tmp_path, beat(1, at=SLEEP))
    assert overdue(listener, config) == []
    clock.now += 9.0
    write(tmp_path, beat(1, beats=1, at=SLEEP))
    assert overdue(listener, config) == []
    clock.now += 9.0
    assert overdue(listener, config) == []  # one silent for 18 s, the other for 9
    clock.now += 1.0
    found = overdue(listener, config)
    assert [(one.rank, one.why.partition(":")[0]) for one in found] == [
        (0, "no sign of life for 19 s"),
        (1, "no sign of life for 10 s"),
    ]
    assert found[1].stack[-1] == SLEEP
    heartbeat.remove(tmp_path, 0)
    heartbeat.remove(tmp_path, 1)
    assert overdue(listener, config) == []  # they have ended


@pytest.mark.parametrize(
    ("case", "beats", "quiet", "named"),
    [
        ("silent", [beat(0), beat(1), beat(2)], {1: 60.0}, {1: "no sign of life for 60 s"}),
        (
            "ended",
            [beat(0), replace(beat(1), phase="ended with OSError"), beat(2)],
            {1: 60.0},
            {1: "has ended with OSError"},
        ),
        ("silence outweighs steps", [beat(0, step=4), beat(1), beat(2)], {1: 60.0}, {1: "no sign of life for 60 s"}),
        ("never came", [beat(0), beat(2)], {}, {1: "gave no sign of life"}),
        ("behind", [beat(0), beat(1), beat(2, step=4)], {}, {2: "is at step 4 while others are at step 5"}),
        ("does not wait", [beat(0), beat(1, at=SLEEP), beat(2)], {}, {1: "does not come to where the others wait"}),
        (
            "waits elsewhere",
            [beat(0), beat(1), beat(2, at="training/control.py:45 in _finish: work.wait()")],
            {},
            {2: ""},
        ),
        (
            "two of three",
            [beat(0, at=LOAD), beat(1, at=SLEEP), beat(2, at=LOAD)],
            {},
            {1: f"most others stand at {LOAD}"},
        ),
        ("all alike", [beat(0), beat(1), beat(2)], {1: 59.0}, {}),
        ("a stranger", [beat(0), beat(1), beat(2), beat(3, step=1)], {3: 99.0}, {}),
    ],
)
def test_who_is_suspected(case: str, beats: list[Beat], quiet: dict[int, float], named: dict[int, str]) -> None:
    heard = {one.rank: Heard(one, quiet.get(one.rank, 1.0)) for one in beats}
    found = find_suspects(heard, world_size=3, silence=60.0)
    assert [one.rank for one in found] == list(named)
    assert all(one.why.startswith(named[one.rank]) for one in found)


def test_a_rank_alone_is_its_own_suspect() -> None:
    (found,) = find_suspects({0: Heard(beat(0), 0.0)}, world_size=1, silence=60.0)
    assert (found.rank, found.why) == (0, "stands still")


@pytest.mark.parametrize(
    ("line", "waits"),
    [
        (REDUCE, True),
        ("torch/distributed/c10d_logger.py:83 in wrapper: return func(*args, **kwargs)", True),
        ("torch/autograd/graph.py:869 in _engine_run_backward: return Variable._execution_engine.run_backward(", True),
        ("runtime/zero/partition_parameters.py:2031 in wait: handle.wait()", True),
        ("training/engine/base.py:166 in _norm: self.norm = float(norm)", True),
        ("training/meter.py:129 in read: found: list[float] = reduced.tolist()", True),
        (SLEEP, False),
        (LOAD, False),
        ("lib/python3.11/threading.py:327 in wait: waiter.acquire()", False),
    ],
)
def test_what_counts_as_waiting(line: str, waits: bool) -> None:
    other = LOAD if waits else REDUCE
    found = find_suspects({0: Heard(beat(0, at=line), 0.0), 1: Heard(beat(1, at=other), 0.0)}, 2, 60.0)
    assert [one.rank for one in found] == [int(waits)]


def test_only_the_very_process_of_this_machine_is_killed() -> None:
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        one = Suspect(1, "why", socket.gethostname(), process.pid, process_started(process.pid))
        assert one.started is not None
        spared = [
            replace(one, host="elsewhere"),
            replace(one, started=one.started - 1.0),  # an earlier process of the same id
            replace(one, started=None),
            replace(one, pid=None),
            replace(one, pid=os.getpid(), started=process_started(os.getpid())),
        ]
        assert suspects.kill(spared) == [] and process.poll() is None
        process.send_signal(signal.SIGSTOP)
        assert suspects.kill([*spared, one]) == [1]
        assert process.wait(10) == -signal.SIGKILL
        assert process_started(process.pid) is None and suspects.kill([one]) == []


def test_a_process_that_was_not_waited_for_counts_as_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{process.pid}").exists() and process_started(process.pid) is None
    process.wait()


def test_a_stack_says_file_line_function_and_text_innermost_last() -> None:
    ready, over = threading.Event(), threading.Event()

    def stand_here() -> None:
        ready.set()
        over.wait()

    thread = threading.Thread(target=stand_here)
    thread.start()
    ready.wait()
    assert thread.ident is not None
    lines = stack_of(thread.ident)
    over.set()
    thread.join()
    line = next(one for one in lines if "in stand_here" in one)
    assert line.startswith("tests/training/test_heartbeat.py:") and line.endswith("in stand_here: over.wait()")
    assert "threading.py:" in lines[0] and lines.index(line) > 0
    assert stack_of(-1) == []


def test_deep_stacks_are_cut_at_their_outer_end() -> None:
    def deeper(levels: int) -> list[str]:
        return deeper(levels - 1) if levels else stack_of(threading.get_ident())

    lines = deeper(100)
    assert len(lines) == heartbeat.FRAMES and "in stack_of" in lines[-1] and "in deeper" in lines[0]
