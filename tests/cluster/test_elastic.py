"""Groups that wait for room, grow, and hear a stop before any worker has begun."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.train import ScalingConfig

from cluster import group, scaling, trainer, waiting
from cluster.config import ClusterConfig
from cluster.drain import NODES
from cluster.growth import SaveFirst
from cluster.scaling import FreeRoom, room
from cluster.waiting import Waiting
from cluster.worker import Assignment
from data_prep.errors import StoppedError
from tests.cluster.namespaces import wait_for
from tests.cluster.signs import beat, refuse
from tests.training.runs import ELECTRA, events, spec_for
from tests.training.synthetic import write_corpus
from training import heartbeat, requests, run_folder
from training.settings import RunSpec


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return spec_for(ELECTRA, folder, 24, watchdog={"step": 0.5})


def test_a_group_that_is_to_grow_saves_first(tmp_path: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not answered: what was there, a saving of before, one that failed, and whatever comes of a stop."""
    run_dir = tmp_path / spec.name
    run_dir.mkdir()

    def say(event: str, step: int) -> None:
        run_folder.append_events(run_dir, [{"event": event, "step": step}])

    say("started", 0)
    say("saved", 7)
    heartbeat.write(run_dir, beat(spec, 1))  # at step 7
    save_first = SaveFirst(Assignment(specs=[spec], runs_dir=tmp_path))
    with monkeypatch.context() as full:
        full.setattr(requests, "ask", refuse)
        assert not save_first.saved("to grow")
    assert not save_first.saved("to grow")
    asked = requests.read(tmp_path)
    assert asked is not None and (asked.what, asked.reason) == ("save", "to grow")
    for event, step in (("saved", 5), ("save_failed", 8)):
        say(event, step)
        assert not save_first.saved("to grow")
    assert requests.read(tmp_path) == asked
    say("saved", 7)
    assert save_first.saved("to grow")
    requests.ask(tmp_path, "stop", "SIGTERM")
    assert not save_first.saved("to grow")


def test_room_is_what_is_free_on_nodes_that_stay() -> None:
    free = {"a": {"CPU": 5.0, "GPU": 1.0}, "b": {"CPU": 1.0, "GPU": 8.0}, "c": {"CPU": 4.0, "GPU": 4.0}, "d": {}}
    assert room(free, set(), {"CPU": 2.0, "GPU": 0}) == 2 + 0 + 2
    assert room(free, {"c": 0}, {"CPU": 2.0}) == 2
    assert room(free, set(), {"CPU": 1.0, "GPU": 1.0}) == 1 + 1 + 4


class Shared(FreeRoom):
    """In a cluster of which others hold a part."""

    def __init__(self, assignment: Assignment, free: int) -> None:
        super().__init__(ScalingConfig(num_workers=(1, 3), elastic_resize_monitor_interval_s=10.0), assignment)
        self.free = free

    def _room(self) -> int:
        return self.free

    def _maybe_send_resource_request(self) -> None:
        pass

    def begin(self) -> int | None:
        return getattr(self.make_decision_for_non_running_worker_group(), "num_workers", None)

    def go_on(self, size: int) -> int | None:
        state = SimpleNamespace(num_workers=size, start_time=-100.0)
        return getattr(self.make_decision_for_running_worker_group(state, None), "num_workers", None)


def test_an_elastic_group_has_the_workers_that_there_is_room_for(
    tmp_path: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now, sleep=lambda seconds: None)
    monkeypatch.setattr(scaling, "time", clock)
    assignment = Assignment(specs=[spec], runs_dir=tmp_path)
    assert Shared(assignment, 5).begin() == 3
    policy = Shared(assignment, 0)
    assert policy.begin() is None
    policy.free = 2
    assert policy.begin() is None  # a third may come free yet
    now = scaling.SETTLE_SECONDS
    assert policy.begin() == 2
    policy.free = 0
    now = 100.0
    assert policy.go_on(2) is None  # neither larger nor smaller
    policy.free = 4
    assert policy.go_on(2) is None and requests.read(tmp_path) is None  # looked a moment ago
    now = 110.0
    assert policy.go_on(2) is None  # asked to save
    run_dir = tmp_path / spec.name
    run_dir.mkdir()
    run_folder.append_events(run_dir, [{"event": "saved", "step": 7}])
    assert policy.go_on(2) == 3
    now = 200.0
    assert policy.go_on(3) is None


def test_a_group_that_waits_for_room_says_so_once_and_hears_a_stop(
    tmp_path: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: now))
    runs, scratch, ended = tmp_path / "runs", tmp_path / "scratch", list[int]()
    (scratch / NODES).mkdir(parents=True)
    runs.mkdir()
    told = Waiting(Assignment(specs=[spec], runs_dir=runs))
    unbegun = told.watch(scratch, lambda: ended.append(1))
    assert not unbegun.look() and not (runs / spec.name).exists()
    now = waiting.LONG_SECONDS
    unbegun.look()
    unbegun.look()
    told.say("Ray has no room for the workers")
    (event,) = events(runs / spec.name)
    assert (event["event"], event["step"]) == ("waiting", 0)
    requests.ask(runs, "stop", "SIGTERM")
    assert not unbegun.look()  # a worker may be about to begin, and hears it then
    now += waiting.STOP_SECONDS
    assert unbegun.look() and ended == [1]
    begun = told.watch(scratch, lambda: ended.append(2))
    begun.look()
    (scratch / NODES / "abc").touch()
    now += waiting.STOP_SECONDS
    assert not begun.look()
    (scratch / NODES / "abc").unlink()
    now += waiting.LONG_SECONDS
    assert not begun.look() and ended == [1]  # it is the workers' to answer


# --- under Ray --------------------------------------------------------------------------------------------------------

ELASTIC = ClusterConfig(num_workers=2, min_workers=1, resize_seconds=600.0)


@contextlib.contextmanager
def held(cpus: int) -> Iterator[None]:
    """By another job."""
    import ray

    class Other:
        def ready(self) -> bool:
            return True

    other = ray.remote(num_cpus=cpus)(Other).remote()
    assert ray.get(other.ready.remote(), timeout=60)
    try:
        yield
    finally:
        ray.kill(other)


@pytest.mark.slow
@pytest.mark.multi
@pytest.mark.usefixtures("ray_session")
def test_a_stop_is_heard_while_there_is_no_room_though_not_in_the_main_thread(tmp_path: Path, spec: RunSpec) -> None:
    found: list[Exception] = []

    def drive() -> None:
        try:
            trainer._train(Assignment(specs=[spec], runs_dir=tmp_path), ELASTIC, print)
        except Exception as error:
            found.append(error)

    with held(2):
        driver = threading.Thread(target=drive, daemon=True)
        driver.start()
        wait_for((tmp_path / group.SCRATCH / NODES).exists, 60, "a group waits")
        requests.ask(tmp_path, "stop", "SIGTERM")
        driver.join(60)
    assert [type(error) for error in found] == [StoppedError] and "(SIGTERM)" in str(found[0])
    assert not (tmp_path / spec.name).exists()  # nothing has failed


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.multi
@pytest.mark.usefixtures("ray_session")
def test_a_group_begins_beside_another_job_and_grows_when_that_is_over(
    tmp_path: Path,
) -> None:
    write_corpus(tmp_path / "corpus")
    spec = spec_for(ELECTRA, tmp_path / "corpus", 100_000, checkpoints={"every": 100_000})
    runs, run_dir = tmp_path / "runs", tmp_path / "runs" / spec.name
    found: list[Exception] = []

    def drive() -> None:
        try:
            assignment = Assignment(specs=[spec], corpora={spec.name: str(tmp_path / "corpus")}, runs_dir=runs)
            trainer._train(assignment, ELASTIC.model_copy(update={"resize_seconds": 5.0}), print)
        except Exception as error:
            found.append(error)

    def sizes() -> list[int]:
        return [event["world_size"] for event in run_folder.events(run_dir) if event["event"] == "started"]

    runs.mkdir()
    driver = threading.Thread(target=drive, daemon=True)
    with held(1):
        driver.start()
        wait_for(lambda: sizes() == [1], 150, "one worker trains")
    wait_for(lambda: sizes() == [1, 2], 150, "two train")
    requests.ask(runs, "stop", "the test is over")
    driver.join(90)
    assert isinstance(found[0], StoppedError)
    saved, begun = ([one for one in events(run_dir) if one["event"] == kind] for kind in ("saved", "started"))
    assert begun[1]["step"] == saved[0]["step"] > 0  # it has saved first
    assert not [one for one in events(run_dir) if one["event"] in ("failed", "waiting")]
