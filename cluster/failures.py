"""What ended a worker group: a user's mistake, no room for its workers, a store that gave no answer, Ray itself, or
something else that a restart gets over.

Ray hands on what its workers raised inside errors of its own; a worker that died raises nothing, and Ray says of it
that a health check failed. When one rank dies, the others fail in their collectives: those errors are consequences.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from data_prep.errors import ElectraError, HungError, StoppedError, StoreError


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a group ended, and what follows: `raise` the error, `wait` for room, or start again, with a new connection to
    Ray where that is what failed."""

    then: Literal["raise", "wait", "restart", "reconnect"]
    reason: str
    ranks: tuple[int, ...] = ()  # that died
    error: BaseException | None = None  # to raise
    store: bool = False  # a store gave no answer


def cause(error: BaseException) -> Cause:
    """What follows from what Ray Train raised."""
    found, dead = list(causes(error)), _dead(error)
    stopped = [one for one in found if isinstance(one, StoppedError)]
    mistakes = [] if dead else [one for one in found if _is_mistake(one)]
    if stopped or mistakes:
        own = [*stopped, *mistakes][0]
        return Cause("raise", str(own), error=own)
    if dead:
        ranks = ", ".join(str(rank) for rank in dead)
        who = f"rank {ranks}" if len(dead) == 1 else f"ranks {ranks}"
        return Cause("restart", f"{who} {next(iter(dead.values()))}", tuple(dead))
    if unanswered := [one for one in found if isinstance(one, StoreError)]:
        return Cause("restart", str(unanswered[0]), store=True)
    return _of_ray(error)


def causes(error: BaseException, above: tuple[BaseException, ...] = ()) -> Iterator[BaseException]:
    """What led to `error`, innermost first, then `error`."""
    nested = [
        *getattr(error, "worker_failures", {}).values(),
        getattr(error, "controller_failure", None),
        error.__cause__,
        getattr(error, "cause", None),
        getattr(error, "_base_exc", None),
    ]
    for one in nested:
        if isinstance(one, BaseException) and one is not error and one not in above:
            yield from causes(one, (*above, error))
    yield error


def _is_mistake(error: BaseException) -> bool:
    return isinstance(error, ElectraError) and not isinstance(error, HungError | StoreError)


def _dead(error: BaseException) -> dict[int, str]:
    """The ranks that are gone, or do not answer, and how, as far as Ray tells."""
    from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError, WorkerHealthCheckTimeoutError

    failures = getattr(error, "worker_failures", {})
    gone = WorkerHealthCheckFailedError | WorkerHealthCheckTimeoutError
    return {rank: _how(one) for rank, one in sorted(failures.items()) if isinstance(one, gone)}


def _how(failure: Exception) -> str:
    death = getattr(failure, "health_check_failure", None)
    text = str(failure)
    if getattr(death, "preempted", False):
        return "was lost with its node, which was preempted"
    if re.search(r"OOM|out of memory|memory monitor", text.partition("common causes")[0], re.IGNORECASE):
        return "was killed for want of memory"
    if re.search(r"node.{0,80}(died|dead|terminated|failed|unreachable)", text.partition("common causes")[0]):
        return "was lost with its node"
    if code := re.search(r"exit code[^0-9]{0,3}(\d+)", text):
        return f"ended with exit code {code[1]}"
    if "Timeout" in type(failure).__name__:
        return "did not answer"
    return "was killed from outside, or for want of memory"


def _of_ray(error: BaseException) -> Cause:
    from ray.exceptions import RayError
    from ray.train import TrainingFailedError
    from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError

    found = list(causes(error))
    if any(isinstance(one, WorkerGroupStartupTimeoutError) for one in found):
        return Cause("wait", "Ray has no room for the workers")
    failures = getattr(error, "worker_failures", {})
    if failures:
        rank, first = next(iter(sorted(failures.items())))
        return Cause("restart", f"rank {rank}: {_said(first)}")
    if isinstance(error, TrainingFailedError | RayError):
        return Cause("reconnect", f"Ray: {_said(found[0])}")
    return Cause("raise", str(error), error=error)


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
