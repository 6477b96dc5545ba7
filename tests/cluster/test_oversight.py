"""What the driver looks after, without a Ray: drained nodes, groups that are to grow, groups that are silent as a
whole; and that the private names of Ray that this rests on are there."""

import errno
import inspect
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from ray.train import WorkerGroupError

from cluster import growth, oversight, trainer
from cluster.config import ClusterConfig
from cluster.drain import NODES, Drains, here
from cluster.oversight import Silence, last_step
from cluster.worker import Assignment
from data_prep.errors import PreflightError, StoreError
from tests.training.runs import ELECTRA, events, spec_for
from tests.training.synthetic import write_corpus
from training import heartbeat, requests, run_folder
from training.heartbeat import Beat, process_started
from training.metrics import MetricWriter
from training.settings import RunSpec


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


def test_a_group_that_is_to_grow_saves_first(tmp_path: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "POLL_SECONDS", 0.02)
    assignment = Assignment(specs=[spec], runs_dir=tmp_path)
    run_dir = tmp_path / spec.name
    run_dir.mkdir()
    run_folder.append_events(run_dir, [{"event": "started", "step": 0}, {"event": "saved", "step": 5}])
    result: list[bool] = []
    waiting = threading.Thread(target=lambda: result.append(growth.save_first(assignment, "to grow")))
    waiting.start()
    time.sleep(0.3)
    asked = requests.read(tmp_path)
    assert waiting.is_alive() and asked is not None and asked.what == "save"
    run_folder.append_events(run_dir, [{"event": "saved", "step": 7}])
    waiting.join(10)
    assert result == [True]
    monkeypatch.setattr(growth, "WAIT_SECONDS", 0.1)
    assert not growth.save_first(assignment, "nobody answers")


def test_a_store_that_does_not_answer_is_waited_for_and_told_of_once_a_time(
    tmp_path: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First while it trains, as rank 0 says; then before the next attempt begins, which the driver says."""
    run_dir, sentence = tmp_path / spec.name, "s3://b does not answer"
    groups = iter([
        [{"event": "started", "step": 0}, {"event": "saved", "step": 5}, {"event": "failed", "reason": sentence}],
        [],
    ])  # fmt: skip
    pauses: list[float] = []

    def fit(assignment: Assignment, config: ClusterConfig) -> None:
        run_dir.mkdir(exist_ok=True)
        if (said := next(groups, None)) is not None:
            run_folder.append_events(run_dir, said)
            raise WorkerGroupError("", {0: StoreError(sentence)})

    monkeypatch.setattr(trainer, "_fit", fit)
    monkeypatch.setattr(trainer, "_pause", lambda assignment, seconds: pauses.append(seconds))
    trainer._train(Assignment(specs=[spec], runs_dir=tmp_path), ClusterConfig())
    assert pauses == [30, 60]
    assert [("ranks" in one, one["reason"]) for one in events(run_dir) if one["event"] == "failed"] == [
        (False, sentence),
        (True, sentence),
    ]


def beat(spec: RunSpec, pid: int, beats: int = 0) -> Beat:
    return Beat(
        rank=0,
        world_size=1,
        pid=pid,
        started=process_started(pid),
        host=socket.gethostname(),
        run=spec.name,
        phase="step",
        step=7,
        beats=beats,
        stack=["training/attempt.py:7 in train: step()"],
        time=time.time(),
    )


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
    finally:
        rank.kill()
        rank.wait()
    (event,) = events(run_dir)
    assert (event["event"], event["step"], event["phase"]) == ("hung", 7, "all silent")
    assert event["ranks"][0]["rank"] == 0 and event["ranks"][0]["stack"] == ["training/attempt.py:7 in train: step()"]


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


def test_ray_train_registers_its_handler_where_ours_takes_its_place() -> None:
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    source = inspect.getsource(DataParallelTrainer._initialize_and_run_controller)
    assert "self._register_sigint_handler(controller)" in source and "main_thread()" in source
    assert list(inspect.signature(DataParallelTrainer._register_sigint_handler).parameters) == ["self", "controller"]


def test_ray_train_tells_callbacks_of_a_resize_before_it_ends_the_group() -> None:
    from ray.train.v2._internal.execution.callback import ControllerCallback
    from ray.train.v2._internal.execution.controller import TrainController

    source = inspect.getsource(TrainController._execute_resize_decision)
    assert source.index('"before_controller_execute_resize_decision"') < source.index("_shutdown_worker_group()")
    assert hasattr(ControllerCallback, "before_controller_execute_resize_decision")


@pytest.mark.multi
@pytest.mark.usefixtures("ray_session")
def test_ray_tells_of_draining_nodes_and_of_its_own_processes() -> None:
    import ray

    from cluster import drain, session

    assert drain.draining() == {}
    node: Any = ray._private.worker._global_node
    assert set(session._VITAL) <= {kind for kind, _ in node.live_processes()}
    assert not session.end_broken()


def test_a_session_that_is_not_ours_is_not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    from cluster import session

    monkeypatch.setattr(session, "_started", None)
    assert not session.renew(1.0) and not session.end_broken()


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
        session.renew(2.0)
    assert 1.0 <= time.monotonic() - began < 10.0
