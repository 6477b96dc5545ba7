"""The budget of restarts, by table; and what of Ray Train's errors is whose."""

import errno
import os
from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import (
    UserExceptionWithTraceback,
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
)

from cluster import worker
from cluster.failures import cause
from cluster.restarts import Budget, Failure, Kind, RestartsExhaustedError
from data_prep.errors import ConfigError, HungError, PreflightError, StoppedError, StoreError


def failure(step: int, saved: int, *, done: int = 0, kind: Kind = "lost", stepped: bool = True) -> Failure:
    reason = "rank 1 was killed"
    return Failure(run="electra-s0", step=step, saved=(done, saved), reason=reason, kind=kind, stepped=stepped)


def test_pauses_double_and_progress_starts_them_anew() -> None:
    budget = Budget(max_failures=99)
    steps = [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0), (57, 50), (58, 50), (3, 0)]
    pauses = [budget.pause(failure(step, saved)) for step, saved in steps]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 1, 2, 4]


def test_failures_without_progress_end_it() -> None:
    budget = Budget(max_failures=3)
    for step, saved in [(10, 0), (11, 0), (60, 50), (61, 50), (110, 100), (107, 100)]:  # never three without one
        budget.pause(failure(step, saved))
    with pytest.raises(
        RestartsExhaustedError,
        match=r"^electra-s0: failed 3 times without a new checkpoint, last at step 109 \(rank 1 was killed\); put this "
        r"right, and the same command again resumes from step 100$",
    ) as error:
        budget.pause(failure(109, 100))
    assert error.value.exit_code == 1


def test_a_finished_run_is_progress_though_the_next_one_is_at_its_beginning() -> None:
    budget = Budget(max_failures=2)
    for done in range(5):
        assert budget.pause(failure(7, 0, done=done)) == 1


def test_three_times_at_the_same_step_end_it_whatever_the_budget() -> None:
    budget = Budget(max_failures=99)
    for step in (57, 58, 57, 57):
        budget.pause(failure(step, 50))
    with pytest.raises(RestartsExhaustedError, match=r"failed 3 times at step 57 ") as error:
        budget.pause(failure(57, 50, kind="hung"))
    assert error.value.exit_code == 7


def test_nodes_that_are_lost_before_a_step_is_done_say_nothing_about_the_step() -> None:
    budget = Budget(max_failures=6)
    for stepped in (True, False, True, False, False):
        budget.pause(failure(57, 50, stepped=stepped))
    with pytest.raises(RestartsExhaustedError, match=r"failed 6 times without a new checkpoint, last at step 57 "):
        budget.pause(failure(57, 50, stepped=True))


def test_a_checkpoint_after_a_rollback_is_progress_though_an_earlier_one_was_further() -> None:
    budget = Budget(max_failures=3)
    for step, saved in [(105, 100), (61, 60), (72, 70), (80, 70)]:  # went back to 50 and on from there
        budget.pause(failure(step, saved))
    with pytest.raises(RestartsExhaustedError, match=r"failed 3 times without a new checkpoint, last at step 79 "):
        budget.pause(failure(79, 70))


def test_a_store_is_given_longer_and_ends_it_with_3() -> None:
    budget = Budget(max_failures=8)
    assert [budget.pause(failure(n, 50, kind="store")) for n in range(1, 8)] == [30, 60, 120, 240, 480, 600, 600]
    with pytest.raises(RestartsExhaustedError, match=r"failed 8 times without a new checkpoint") as error:
        budget.pause(failure(8, 50, kind="store"))
    assert error.value.exit_code == 3


def test_a_budget_of_one_is_no_restart() -> None:
    with pytest.raises(RestartsExhaustedError, match=r"failed once without a new checkpoint, last at step 4 "):
        Budget(max_failures=1).pause(failure(4, 0))


# --- what Ray Train raises --------------------------------------------------------------------------------------------

DEATH = WorkerHealthCheckFailedError(
    "A worker health check failed.",
    ActorDiedError(),
)
BROKEN = RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:4711\nmore")


def group_error(**failures: Exception) -> WorkerGroupError:
    return WorkerGroupError("", {int(name.removeprefix("r")): error for name, error in failures.items()})


def test_a_death_is_restarted_and_what_follows_from_it_is_not_its_reason() -> None:
    found = cause(group_error(r0=BROKEN, r1=DEATH))
    assert (found.then, found.ranks) == ("restart", (1,))
    assert found.reason == "rank 1 was killed from outside, or for want of memory"


def test_a_users_mistake_is_raised_as_itself() -> None:
    mistake = ConfigError("the corpus is not the one this run was planned for")
    for error in (mistake, UserExceptionWithTraceback(mistake, "trace")):
        found = cause(group_error(r0=error, r1=BROKEN))
        assert (found.then, found.error) == ("raise", mistake)


def test_a_store_without_an_answer_is_restarted_and_a_full_disk_is_not() -> None:
    silent = StoreError("s3://b/runs/x cannot be read (SLOW_DOWN); try again when the store answers")
    for error in (silent, UserExceptionWithTraceback(silent, "trace")):
        found = cause(group_error(r0=error, r1=BROKEN))
        assert (found.then, found.store, found.reason, found.error) == ("restart", True, str(silent), None)
    full = PreflightError("/runs: No space left on device; free the space or correct the permissions")
    assert cause(group_error(r0=full, r1=silent)).error is full
    assert not cause(group_error(r0=silent, r1=DEATH)).store


def test_what_an_object_store_refuses_names_no_number(tmp_path: Path) -> None:
    """As pyarrow raises it; what a disk refuses has one."""
    refused = worker._refused(OSError("When reading\n'x': AWS Error SLOW_DOWN"), tmp_path / "electra-s0")
    assert isinstance(refused, StoreError)
    assert str(refused) == "electra-s0: When reading 'x': AWS Error SLOW_DOWN; run again when the store answers"
    full = worker._refused(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), tmp_path)
    assert not isinstance(full, StoreError) and str(full).startswith(f"{tmp_path}: No space left on device; free")


def test_a_mistake_beside_a_death_may_be_its_consequence() -> None:
    assert cause(group_error(r0=ConfigError("another rank is gone"), r1=DEATH)).then == "restart"


def test_a_stop_is_a_stop_even_where_a_rank_was_killed_after_it() -> None:
    stopped = StoppedError("stopped at step 7 of 9 (SIGTERM), saved")
    found = cause(group_error(r0=DEATH, r1=stopped))
    assert (found.then, found.error) == ("raise", stopped)


def test_hangs_and_errors_of_a_worker_are_restarted() -> None:
    assert cause(group_error(r0=HungError("rank 1 hung"))).then == "restart"
    found = cause(group_error(r0=BROKEN))
    assert (found.then, found.reason) == (
        "restart",
        "rank 0: RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:4711",
    )


def test_no_room_is_waited_for_and_a_dead_ray_connected_to_again() -> None:
    assert cause(ControllerError(WorkerGroupStartupTimeoutError(num_workers=2))).then == "wait"
    found = cause(ActorDiedError())  # of the controller
    assert (found.then, found.reason) == (
        "reconnect",
        "Ray: ActorDiedError: The actor died unexpectedly before finishing this task.",
    )


def test_an_error_of_the_driver_itself_is_raised() -> None:
    error = ValueError("defect")
    assert cause(error).error is error
