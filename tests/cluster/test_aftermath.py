"""Groups that fail one after another, without a Ray: what is told of them, what is waited, and when it ends."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError

from cluster import trainer
from cluster.aftermath import Before
from cluster.config import ClusterConfig
from cluster.failures import Cause
from cluster.waiting import Waiting
from cluster.worker import Assignment
from data_prep.errors import StoppedError, StoreError
from tests.cluster.signs import beat, refuse
from tests.training.runs import ELECTRA, events, spec_for
from tests.training.synthetic import write_corpus
from training import heartbeat, requests, run_folder
from training.metrics import MetricWriter
from training.settings import RunSpec

BROKEN = RuntimeError("[gloo] Connection closed by peer")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return spec_for(ELECTRA, folder, 24, watchdog={"step": 0.5})


def test_a_stop_comes_before_the_budget_and_leaves_no_failure(
    tmp_path: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(assignment: Assignment, config: ClusterConfig, waiting: Waiting) -> None:
        requests.ask(tmp_path, "stop", "SIGTERM")
        raise ActorDiedError()

    monkeypatch.setattr(trainer, "_fit", fit)
    with pytest.raises(StoppedError, match=r"\(SIGTERM\); the same command again resumes at step 0 of 24$"):
        trainer._train(Assignment(specs=[spec], runs_dir=tmp_path), ClusterConfig(max_failures=1), print)
    assert not (tmp_path / spec.name).exists()


def test_a_full_disk_is_no_reason_to_end_training(
    tmp_path: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a failure nor the wait for room can be told; both are got over."""
    groups = iter([ControllerError(WorkerGroupStartupTimeoutError(num_workers=2)), WorkerGroupError("", {0: BROKEN})])
    monkeypatch.setattr(run_folder, "append_events", refuse)
    monkeypatch.setattr(trainer, "_pause", lambda assignment, seconds: None)
    fits: list[int] = []

    def fit(assignment: Assignment, config: ClusterConfig, waiting: Waiting) -> None:
        fits.append(1)
        if (error := next(groups, None)) is not None:
            raise error

    monkeypatch.setattr(trainer, "_fit", fit)
    trainer._train(Assignment(specs=[spec], runs_dir=tmp_path), ClusterConfig(), print)
    assert len(fits) == 3


def test_what_a_failed_group_has_done_is_told_from_what_others_had(tmp_path: Path, spec: RunSpec) -> None:
    assignment, cause = Assignment(specs=[spec], runs_dir=tmp_path), Cause("restart", "rank 1 was killed")
    run_dir = tmp_path / spec.name
    run_dir.mkdir()

    def failed(*said: dict[str, Any], lines: int | None = None, pid: int | None = None) -> tuple[bool, int, int]:
        before = Before(assignment)
        run_folder.append_events(run_dir, said)
        if lines is not None:
            with MetricWriter(run_dir) as writer:
                writer.write(lines, {"train/loss": 1.0})
        if pid is not None:
            heartbeat.write(run_dir, beat(spec, pid))  # at step 7
        found = before.failure(cause)
        return found.stepped, found.step, found.saved[1]

    started = {"event": "started", "step": 0}
    assert failed() == (False, 0, 0)
    assert failed(started, lines=3) == (True, 3, 0)
    assert failed(started) == (False, 3, 0)  # the line is an earlier group's
    assert failed(started, pid=1) == (True, 7, 0)
    assert failed(started) == (False, 7, 0)
    assert failed({**started, "step": 7}, pid=2) == (False, 7, 7)
    back = {"event": "rollback", "step": 110, "to_step": 50}
    assert failed(started, {"event": "saved", "step": 100}, back) == (False, 7, 50)
    assert failed({"event": "saved", "step": 60})[2] == 60


def test_a_store_that_does_not_answer_is_waited_for_and_told_of_once_a_time(
    tmp_path: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First while it trains, as rank 0 says; then before the next attempt begins, which the driver says."""
    run_dir, sentence = tmp_path / spec.name, "s3://b does not answer"
    groups: Iterator[list[dict[str, Any]]] = iter([
        [{"event": "started", "step": 0}, {"event": "saved", "step": 5}, {"event": "failed", "reason": sentence}],
        [],
    ])  # fmt: skip
    pauses: list[float] = []

    def fit(assignment: Assignment, config: ClusterConfig, waiting: Waiting) -> None:
        run_dir.mkdir(exist_ok=True)
        if (said := next(groups, None)) is not None:
            run_folder.append_events(run_dir, said)
            raise WorkerGroupError("", {0: StoreError(sentence)})

    monkeypatch.setattr(trainer, "_fit", fit)
    monkeypatch.setattr(trainer, "_pause", lambda assignment, seconds: pauses.append(seconds))
    trainer._train(Assignment(specs=[spec], runs_dir=tmp_path), ClusterConfig(), print)
    assert [seconds for seconds in pauses if seconds] == [30, 60]
    assert [("ranks" in one, one["reason"]) for one in events(run_dir) if one["event"] == "failed"] == [
        (False, sentence),
        (True, sentence),
    ]
