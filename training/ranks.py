"""What one rank does for all: rank 0 acts, everybody learns the outcome, also when it is an error.

A rank that raises alone leaves the others waiting in a collective; file work of rank 0 goes through here, so that its
errors are raised on every rank. Errors of one rank elsewhere (its own disk, its own memory) still end the group by
whatever started the processes.
"""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from data_prep.errors import ElectraError, PreflightError, StoreError

T = TypeVar("T")


def on_rank_zero(action: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Run `action` on rank 0 and return its (picklable) result, or raise its error, on every rank; told over `group`,
    by default that of all training."""
    outcome: list[tuple[T | None, ElectraError | None]] = [(None, None)]
    if dist.get_rank() == 0:
        try:
            outcome = [(action(), None)]
        except ElectraError as error:
            outcome = [(None, error)]
        except OSError as error:
            outcome = [(None, _refusal(error))]
    dist.broadcast_object_list(outcome, group=group)
    found, failure = outcome[0]
    if failure is not None:
        raise failure
    return found  # type: ignore[return-value]


def _refusal(error: OSError) -> PreflightError:
    """What the system refused, which has a number; a store's errors have none."""
    if error.errno is None:
        return StoreError(" ".join(str(error).split()))
    place = f"{error.filename}: " if error.filename else ""
    return PreflightError(f"{place}{error.strerror or error}; free the space or correct the permissions")
