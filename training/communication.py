"""How long a rank waits in collectives, by the wall clock around them.

What can be had without stopping the device: on the CPU a collective blocks, so the clock around it is what it costs,
the waiting for slower ranks included. Counted are our own all-reduce of the loss counts and every collective that
DeepSpeed's stages 0 to 2 make for a step. Not counted, and then there is no figure at all rather than half of one: a
GPU (collectives run beside the computation; a trace shows them), stage 3 (it gathers ahead), and plain DDP (it reduces
inside its C++).
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from training.settings import Placement

_COLLECTIVES = {"all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor"}


class CollectiveClock:
    """Seconds spent in blocking collectives so far."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the block."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - began

    def around(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, counted."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.running():
                return collective(*args, **kwargs)

        return counted


class _TimedBackend:
    """DeepSpeed's backend with its collectives counted."""

    def __init__(self, backend: Any, clock: CollectiveClock) -> None:
        self.backend, self._clock = backend, clock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.backend, name)
        return self._clock.around(found) if name in _COLLECTIVES else found


@contextmanager
def collective_clock(placement: Placement, device: torch.device) -> Iterator[CollectiveClock | None]:
    """A clock of the collectives made while the block runs, None where they cannot be timed. The engine must have been
    built before."""
    if device.type != "cpu" or placement.engine != "deepspeed" or placement.zero_stage == 3:
        yield None
        return
    from deepspeed.comm import comm

    clock, backend = CollectiveClock(), comm.cdb
    comm.cdb = _TimedBackend(backend, clock)  # every collective of DeepSpeed goes through this one object
    try:
        yield clock
    finally:
        comm.cdb = backend
