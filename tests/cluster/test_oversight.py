"""What the driver looks after, without a Ray: drained nodes and groups that are silent as a whole; and that the private
names of Ray that drivers rest on are there."""

import errno
import inspect
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from ray._private.state import available_resources_per_node
from ray.train import ScalingConfig

from cluster import oversight
from cluster.config import ClusterConfig
from cluster.drain import NODES, Drains, here
from cluster.oversight import Silence, last_step
from cluster.scaling import FreeRoom
from cluster.worker import Assignment
from data_prep import storage
from data_prep.errors import PreflightError, StoppedError
from tests.cluster.signs import beat, refuse
from tests.training.runs import ELECTRA, events, spec_for
from tests.training.synthetic import write_corpus
from training import heartbeat
from training.metrics import MetricWriter
from training.settings import RunSpec, WatchdogConfig


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return spec_for(ELECTRA, folder, 24, watchdog={"step": 0.5})


def test_a_drained_node_of_the_group_is_told_of_once() -> None:
    draining = {"a" * 56: 0, "c" * 56: 0}
    nodes: set[str] = set()
    asked: list[str] = []
    refusing: list[OSError] = []

    def ask(reason: str) -> None:
        if refusing:
            raise refusing.pop()
        asked.append(reason)

    drains = Drains(lambda: nodes, ask, lambda: draining)
    drains.look()  # before the workers have started
    nodes.update({"a" * 56, "b" * 56})
    drains.look()
    drains.look()
    assert asked == [f"node {'a' * 12} is to be drained"]
    draining["b" * 56] = int(time.time() * 1000)
    refusing.append(OSError(errno.ESTALE, "stale"))
    with pytest.raises(OSError, match="stale"):
        drains.look()
    drains.look()  # what could not be asked is asked again
    assert asked[1].startswith(f"node {'b' * 12} is to be drained by ") and len(asked) == 2


def test_nodes_are_those_that_left_a_mark(tmp_path: Path) -> None:
    assert here(tmp_path) == set()
    (tmp_path / NODES).mkdir()
    (tmp_path / NODES / "abc").touch()
    assert here(tmp_path) == {"abc"}


def test_a_group_that_is_silent_as_a_whole_is_named_killed_and_ended(tmp_path: Path, spec: RunSpec) -> None:
    """Its one rank beats once more after the driver began to listen, and then no more."""
    run_dir = tmp_path / spec.name
    run_dir.mkdir()
    ended: list[bool] = []
    silence = Silence(Assignment(specs=[spec], runs_dir=tmp_path), lambda: ended.append(True))
    rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        heartbeat.write(run_dir, beat(spec, rank.pid))
        assert not silence.look()
        heartbeat.write(run_dir, beat(spec, rank.pid, beats=1))
        assert not silence.look() and last_step(run_dir) == 7
        until = time.monotonic() + 30
        while not silence.look():
            assert time.monotonic() < until
            time.sleep(0.1)
        assert rank.wait(10) == -9 and ended == [True]
        time.sleep(0.6)
        assert not silence.look()  # once is enough, also where the group takes its time to end
    finally:
        rank.kill()
        rank.wait()
    (event,) = events(run_dir)
    assert (event["event"], event["step"], event["phase"]) == ("hung", 7, "all silent")
    assert event["ranks"][0]["rank"] == 0 and event["ranks"][0]["stack"] == ["training/attempt.py:7 in train: step()"]


def test_silence_is_none_where_nothing_could_be_heard(
    tmp_path: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes no beats for 40 seconds; later this process is paused for as long, together with the ranks."""
    now, full = 0.0, False
    monkeypatch.setattr(oversight, "_takes_beats", lambda run_dir: not full)
    run_dir = tmp_path / spec.name
    run_dir.mkdir()
    ended: list[float] = []
    placement = spec.placement.model_copy(update={"watchdog": WatchdogConfig(step=10.0)})
    slow = spec.model_copy(update={"placement": placement})
    silence = Silence(Assignment(specs=[slow], runs_dir=tmp_path), lambda: ended.append(now), lambda: now)

    def seconds(count: int, *, beats: bool) -> None:
        nonlocal now
        for _ in range(count):
            now += 1.0
            if beats:
                heartbeat.write(run_dir, beat(spec, 2**22 + 1, beats=int(now)))
            silence.look()

    seconds(20, beats=True)
    full = True
    seconds(40, beats=False)
    full = False
    seconds(9, beats=False)  # the ranks are about to beat again
    seconds(20, beats=True)
    now += 40.0
    seconds(9, beats=False)
    seconds(5, beats=True)
    assert ended == []
    last = now
    seconds(20, beats=False)
    assert ended == [last + 10.0]


def test_a_disk_takes_beats_or_not(tmp_path: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not oversight._takes_beats(tmp_path)  # nobody has left any
    heartbeat.write(tmp_path, beat(spec, 1))
    assert oversight._takes_beats(tmp_path) and list(heartbeat.read_beats(tmp_path)) == [0]
    monkeypatch.setattr(storage, "atomic_writer", refuse)
    assert not oversight._takes_beats(tmp_path)


def test_the_last_step_is_the_beats_or_the_lines(tmp_path: Path, spec: RunSpec) -> None:
    assert last_step(tmp_path) == 0
    with MetricWriter(tmp_path, 0) as writer:
        writer.write(5, {"train/loss": 1.0})
    assert last_step(tmp_path) == 5
    heartbeat.write(tmp_path, beat(spec, 1))
    assert last_step(tmp_path) == 7


def test_a_look_that_fails_is_taken_again() -> None:
    looks: list[int] = []
    over = threading.Event()

    def look() -> None:
        looks.append(1)
        if len(looks) == 2:
            over.set()
        raise RuntimeError("Ray is gone")

    oversight._repeat(look, 0.01, over)
    assert len(looks) == 2


def test_workers_at_least_and_at_most() -> None:
    assert ClusterConfig(num_workers=4).fewest == 4
    assert ClusterConfig(num_workers=4, min_workers=1).fewest == 1
    with pytest.raises(ValidationError, match="min_workers 5 is more than num_workers 4; lower it"):
        ClusterConfig(num_workers=4, min_workers=5)


# --- private names of Ray ---------------------------------------------------------------------------------------------


def test_ray_train_starts_its_controller_where_ours_takes_its_place() -> None:
    from ray.train.v2._internal.execution.controller import TrainController
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    fit = inspect.getsource(DataParallelTrainer.fit)
    given = set(re.findall(r"^ +(\w+)=", fit.partition("self._initialize_and_run_controller(")[2], re.MULTILINE))
    assert "scaling_policy" in given and given <= set(inspect.signature(TrainController).parameters)
    source = inspect.getsource(DataParallelTrainer._initialize_and_run_controller)
    assert "controller.run.remote()" in source and "controller.get_result.remote()" in source


def test_ray_train_asks_policies_as_ours_answers() -> None:
    from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy

    assert not FreeRoom.__abstractmethods__
    for name in ("make_decision_for_non_running_worker_group", "make_decision_for_running_worker_group"):
        theirs, ours = (inspect.signature(getattr(one, name)).parameters for one in (FixedScalingPolicy, FreeRoom))
        assert list(theirs) == list(ours)
    assert ScalingConfig(num_workers=(1, 3))._resources_per_worker_not_none == {"CPU": 1}


@pytest.mark.multi
@pytest.mark.usefixtures("ray_session")
def test_ray_tells_of_draining_nodes_and_of_its_own_processes() -> None:
    import ray

    from cluster import drain, session

    assert drain.draining() == {}
    cpus = ray.cluster_resources()["CPU"]
    assert [node["CPU"] for node in available_resources_per_node().values()] == [cpus]
    node: Any = ray._private.worker._global_node
    assert set(session._VITAL) <= {kind for kind, _ in node.live_processes()}
    assert not session.end_broken()


def test_a_session_that_is_not_ours_is_not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    from cluster import session

    monkeypatch.setattr(session, "_started", None)
    assert not session.renew(1.0, lambda: None) and not session.end_broken()


def test_only_the_death_of_a_vital_process_ends_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from cluster import session

    killed: list[bool] = []
    dead = [("log_monitor", None)]
    node = SimpleNamespace(dead_processes=lambda: dead, kill_all_processes=lambda **_: killed.append(True))
    monkeypatch.setattr(session, "_started", session._Start(None, 2, None))
    monkeypatch.setattr(ray._private.worker, "_global_node", node)
    assert not session.end_broken()
    dead.append(("gcs_server", None))
    assert session.end_broken() and killed == [True]
    monkeypatch.setattr(session, "_started", session._Start("127.0.0.1:6379", None, None))  # of others
    assert not session.end_broken() and killed == [True]


def test_a_cluster_that_stays_away_is_waited_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from cluster import session

    monkeypatch.setattr(session, "_started", session._Start("127.0.0.1:1", None, None))
    monkeypatch.setattr(ray, "shutdown", lambda: None)  # this process may have a Ray of other tests
    began = time.monotonic()
    with pytest.raises(PreflightError, match=r"No Ray cluster answers at cluster\.address 127\.0\.0\.1:1"):
        session.renew(2.0, lambda: None)
    assert 1.0 <= time.monotonic() - began < 10.0
    calls: list[float] = []

    def between() -> None:
        calls.append(time.monotonic())
        if len(calls) == 3:
            raise StoppedError("stopped")

    with pytest.raises(StoppedError):
        session.renew(600.0, between)
    assert calls[2] - calls[0] < 5.0
