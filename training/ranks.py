"""What one rank does for all: rank 0 acts, everybody learns the outcome, also when it is an error.

A rank that raises alone leaves the others waiting in a collective; file work of rank 0 goes through here, so that its
errors are raised on every rank. Errors of one rank elsewhere (its own disk, its own memory) still end the group by
whatever started the processes.
"""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from data_prep.errors import ElectraError, PreflightError

T = TypeVar("T")


def on_rank_zero(action: Callable[[], T]) -> T:
    """Run `action` on rank 0 and return its (picklable) result, or raise its error, on every rank."""
    outcome: list[T | ElectraError | None] = [None]
    if dist.get_rank() == 0:
        try:
            outcome = [action()]
        except ElectraError as error:
            outcome = [error]
        except OSError as error:
            outcome = [PreflightError(f"{error.filename}: {error.strerror}; free the space or correct the permissions")]
    dist.broadcast_object_list(outcome)
    found = outcome[0]
    if isinstance(found, ElectraError):
        raise found
    return found  # type: ignore[return-value]
