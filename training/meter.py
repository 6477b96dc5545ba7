"""Counts, statistics and times of a window of steps, summed on the device and read rarely.

Global loss counts are one small all-reduce a step, with no host read. Statistics add up on the device between reads;
`read` reduces them over ranks in three all-reduces, brings them to the host and starts a new window.
"""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from training.communication import CollectiveClock
from training.devices import memory_peak
from training.flops import Counts
from training.loader import StepBatches
from training.objectives import Objective, Outputs, to_device


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Sums over all ranks since the last read, and how many steps that was. Times are of the host."""

    steps: int
    # Numbers and numpy histograms, as the objective's `metrics` takes them; empty where every step was skipped.
    sums: dict[str, Any]
    flop_counts: Counts
    seconds: float
    data_wait: float  # seconds, of the rank that waited longest for its loader
    communication_wait: float | None  # seconds, the mean over ranks; None where it cannot be told
    memory_peak: int  # bytes, of the rank that took most

    def speed(self, flops: float, peak: float | None) -> dict[str, float]:
        """Metrics of the window, in which all ranks together did `flops` model FLOPs on devices that do `peak` a
        second together: what is not known is left out. Waits are shares of the window's time."""
        figures = {
            "tokens_per_second": self.flop_counts.tokens / self.seconds,
            "flops_per_second": flops / self.seconds,
            "data_wait": self.data_wait / self.seconds,
            "memory_peak": float(self.memory_peak),
        }
        if self.communication_wait is not None:
            figures["communication_wait"] = self.communication_wait / self.seconds
        if peak is not None:
            figures["mfu"] = flops / self.seconds / peak
        return figures


class Meter:
    """Sums of one run on one rank; every rank must call every method alike."""

    def __init__(self, objective: Objective, device: torch.device, clock: CollectiveClock | None = None) -> None:
        """`clock`: of this rank's collectives, alike on all ranks."""
        self._objective = objective
        self._device = device
        self._clock = clock
        self._names = sorted({term.count for term in objective.loss_terms()})
        self._reset()

    def _reset(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._step_sums: dict[str, Tensor] = {}
        self._counts = Counts()
        self._steps = 0
        self._data_wait = 0.0
        self.restart_clock()

    def restart_clock(self) -> None:
        """Leave what happened since the last read (evaluation, a checkpoint) out of the next window's seconds."""
        self._started = time.monotonic()
        self._clock_at = self._clock.seconds if self._clock else 0.0

    def waiting(self, batches: Iterator[StepBatches]) -> Iterator[StepBatches]:
        """The same steps; how long each took to come is waiting for data."""
        while True:
            began = time.monotonic()
            step = next(batches, None)
            self._data_wait += time.monotonic() - began
            if step is None:
                return
            yield step

    def global_counts(self, batches: StepBatches) -> dict[str, Tensor]:
        """What the losses of this step are divided by, summed over ranks; stays on the device. Once a step."""
        self._counts = self._counts + batches.flop_counts
        self._steps += 1
        counts = np.array([batches.loss_counts[name] for name in self._names], dtype=np.float64)
        totals = to_device({"counts": counts}, self._device)["counts"]
        with self._clock.running() if self._clock else nullcontext():
            dist.all_reduce(totals)
        return dict(zip(self._names, totals.float().unbind(), strict=True))

    def add(self, outputs: Outputs) -> None:
        """Add a micro-batch's statistics to those of the step."""
        add_statistics(self._step_sums, outputs.statistics)

    def end_step(self, *, skipped: bool) -> None:
        """The step is over; the statistics of one that was skipped are no figures."""
        if not skipped:
            add_statistics(self._sums, self._step_sums)
        self._step_sums = {}

    def read(self) -> Window:
        """The window's sums over all ranks; begins the next window."""
        communicated = self._clock.seconds - self._clock_at if self._clock else 0.0
        counts = [getattr(self._counts, f.name) for f in fields(Counts)]
        *counts, communicated = self._over_ranks([*counts, communicated], dist.ReduceOp.SUM)
        waited, memory = self._over_ranks([self._data_wait, memory_peak(self._device)], dist.ReduceOp.MAX)
        window = Window(
            steps=self._steps,
            sums=reduce_statistics(self._sums),
            flop_counts=Counts(**dict(zip((f.name for f in fields(Counts)), counts, strict=True))),
            seconds=time.monotonic() - self._started,
            data_wait=waited,
            communication_wait=communicated / dist.get_world_size() if self._clock else None,
            memory_peak=int(memory),
        )
        self._reset()
        return window

    def _over_ranks(self, values: list[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        reduced = torch.tensor(values, dtype=torch.float64).to(self._device)
        dist.all_reduce(reduced, operation)
        found: list[float] = reduced.tolist()
        return found


def add_statistics(sums: dict[str, Tensor], more: dict[str, Tensor]) -> None:
    """Add statistics in place, in float64."""
    for name, value in more.items():
        sums[name] = sums[name] + value.double() if name in sums else value.double()


def reduce_statistics(sums: dict[str, Tensor]) -> dict[str, Any]:
    """Sums over ranks on the host: floats for scalars, numpy arrays for histograms. One all-reduce; none where there is
    nothing, which is so on all ranks or on none."""
    names = sorted(sums)
    if not names:
        return {}
    flat = torch.cat([sums[name].flatten() for name in names])
    dist.all_reduce(flat)
    pieces = flat.cpu().split([sums[name].numel() for name in names])
    return {
        name: float(piece) if sums[name].ndim == 0 else piece.view(sums[name].shape).numpy()
        for name, piece in zip(names, pieces, strict=True)
    }
