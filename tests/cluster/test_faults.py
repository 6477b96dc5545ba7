"""Worker groups that lose a rank, are asked to stop, or lose their Ray: what is trained in the end is what it would
have been, bit for bit."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.config import ClusterConfig
from cluster.oversight import last_step
from cluster.restarts import RestartsExhaustedError
from cluster.trainer import train_runs
from data_prep.errors import StoppedError
from tests.training.runs import ELECTRA, assert_equal, done, events, spec_for, weights
from tests.training.synthetic import write_corpus
from training import requests
from training.settings import Fault, RunSpec, WatchdogConfig

pytestmark = [pytest.mark.multi, pytest.mark.slow]
STEPS = 24
TWO = ClusterConfig(num_workers=2)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


def planned(corpus: Path, *faults: Fault) -> RunSpec:
    keep = {"every": 5, "keep_last": 99}
    watchdog = {"step": 12.0, "heartbeat": 0.5}  # busy cores may keep a beat waiting
    return spec_for(ELECTRA, corpus, STEPS, checkpoints=keep, faults=list(faults), watchdog=watchdog, log_every=1)


def train(spec: RunSpec, corpus: Path, runs: Path, config: ClusterConfig = TWO, seen: Any = None) -> list[Any]:
    """The run's events."""
    requests.clear(runs)
    train_runs([spec], {spec.name: corpus}, runs, config, seen or (lambda spec, line: None))
    return events(runs / spec.name)


def told(events: list[Any], *kinds: str) -> list[Any]:
    return [event for event in events if event["event"] in kinds]


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory, ray_session: None) -> Path:
    runs = tmp_path_factory.mktemp("undisturbed")
    assert not told(train(planned(corpus), corpus, runs), "failed", "fault")
    return runs / planned(corpus).name


@contextlib.contextmanager
def when(condition: Callable[[], bool], act: Callable[[], None]) -> Iterator[None]:
    """Act once the condition holds, from a thread; it must within the block."""
    acted = threading.Event()

    def wait() -> None:
        while not condition():
            time.sleep(0.05)
        act()
        acted.set()

    threading.Thread(target=wait, daemon=True).start()
    yield
    assert acted.is_set()


def kill_own(name: str) -> None:
    """A process of the embedded Ray."""
    import psutil

    (found,) = (child for child in psutil.Process().children() if child.name() == name)
    os.kill(found.pid, signal.SIGKILL)


def check_same(run: Path, undisturbed: Path) -> None:
    assert done(run)["step"] == STEPS
    assert_equal(weights(run, STEPS), weights(undisturbed, STEPS))


def test_killed_and_stopped_ranks_are_started_again(corpus: Path, tmp_path: Path, undisturbed: Path) -> None:
    """SIGKILL of one rank, then SIGSTOP of the other: each costs the steps since the last checkpoint and no more."""
    faults = Fault(kind="kill", step=8, rank=1), Fault(kind="stop", step=17, rank=0)
    spec = planned(corpus, *faults)
    said = train(spec, corpus, tmp_path)
    check_same(tmp_path / spec.name, undisturbed)
    killed, hung = told(said, "failed")
    assert killed["reason"] == "rank 1 was killed from outside, or for want of memory"
    assert (killed["ranks"], killed["step"]) == ([1], 8)
    assert hung["reason"].startswith("hung at step 17, rank 0: ") and hung["step"] == 17
    assert [(one["step"], one["from"]) for one in told(said, "started")] == [
        (0, None),
        (5, "step-00000005"),
        (15, "step-00000015"),
    ]


@pytest.mark.long
def test_a_stop_saves_and_the_same_again_resumes(corpus: Path, tmp_path: Path, undisturbed: Path) -> None:
    """SIGTERM to the driver, twice, while its workers build their engines."""
    spec = planned(corpus)

    def terminate() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with (
        when(lambda: (tmp_path / spec.name / "events.jsonl").exists(), terminate),
        pytest.raises(
            StoppedError, match=r"stopped at step \d of 24 \(SIGTERM\), saved; the same command again resumes"
        ),
    ):
        train(spec, corpus, tmp_path)
    assert signal.getsignal(signal.SIGTERM) == before
    (stopped,) = told(events(tmp_path / spec.name), "stopped")
    assert stopped["reason"] == "SIGTERM"
    said = train(spec, corpus, tmp_path)
    assert told(said, "started")[1]["step"] == stopped["step"]
    check_same(tmp_path / spec.name, undisturbed)


@pytest.mark.long
def test_a_rank_that_always_dies_at_a_step_ends_it_with_the_reason(corpus: Path, tmp_path: Path) -> None:
    spec = planned(corpus, Fault(kind="kill", step=3, rank=0, times=99))
    reason = r"failed 3 times at step 3 \(rank 0 was killed .*resumes from step 0"
    with pytest.raises(RestartsExhaustedError, match=reason):
        train(spec, corpus, tmp_path)
    assert [one["step"] for one in told(events(tmp_path / spec.name), "failed")] == [3, 3, 3]


@pytest.mark.long
@pytest.mark.parametrize("process", ["raylet", "gcs_server"])
def test_an_embedded_ray_that_dies_is_started_anew(
    process: str, corpus: Path, tmp_path: Path, undisturbed: Path
) -> None:
    """While its workers hang at step 8."""
    spec = planned(corpus, Fault(kind="hang", step=8, rank=0))
    spec = spec.model_copy(
        update={"placement": spec.placement.model_copy(update={"watchdog": WatchdogConfig(step=120.0)})}
    )

    with when(lambda: last_step(tmp_path / spec.name) >= 8, lambda: kill_own(process)):
        said = train(spec, corpus, tmp_path)
    check_same(tmp_path / spec.name, undisturbed)
    (failed,) = told(said, "failed")
    assert failed["reason"].startswith("Ray: ") and failed["step"] == 8
    assert [one["step"] for one in told(said, "started")] == [0, 5]
