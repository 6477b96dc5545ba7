"""Counts and statistics of a window of steps, summed on the device and read rarely.

Global loss counts are one small all-reduce a step, with no host read. Statistics add up on the device between reads;
`read` sums them over ranks in one all-reduce, brings them to the host and starts a new window.
"""

import time
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from training.flops import Counts
from training.loader import StepBatches
from training.objectives import Objective, Outputs, to_device


@dataclass(frozen=True, slots=True)
class Window:
    """Sums over all ranks since the last read."""

    sums: dict[str, Any]  # numbers and numpy histograms, as the objective's `metrics` takes them
    flop_counts: Counts
    seconds: float


class Meter:
    """Sums of one run on one rank; every rank must call every method alike."""

    def __init__(self, objective: Objective, device: torch.device) -> None:
        self._objective = objective
        self._device = device
        self._names = sorted({term.count for term in objective.loss_terms()})
        self._reset()

    def _reset(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts = Counts()
        self._started = time.monotonic()

    def global_counts(self, batches: StepBatches) -> dict[str, Tensor]:
        """What the losses of this step are divided by, summed over ranks; stays on the device."""
        self._counts = self._counts + batches.flop_counts
        counts = np.array([batches.loss_counts[name] for name in self._names], dtype=np.float64)
        totals = to_device({"counts": counts}, self._device)["counts"]
        dist.all_reduce(totals)
        return dict(zip(self._names, totals.float().unbind(), strict=True))

    def restart_clock(self) -> None:
        """Leave what happened since the last read (evaluation, a checkpoint) out of the next window's seconds."""
        self._started = time.monotonic()

    def add(self, outputs: Outputs) -> None:
        """Add a micro-batch's statistics."""
        add_statistics(self._sums, outputs.statistics)

    def read(self) -> Window:
        """The window's sums over all ranks; begins the next window."""
        counts = torch.tensor([getattr(self._counts, f.name) for f in fields(Counts)], dtype=torch.float64).to(
            self._device
        )
        dist.all_reduce(counts)
        total = Counts(**dict(zip((f.name for f in fields(Counts)), counts.tolist(), strict=True)))
        window = Window(reduce_statistics(self._sums), total, time.monotonic() - self._started)
        self._reset()
        return window


def add_statistics(sums: dict[str, Tensor], more: dict[str, Tensor]) -> None:
    """Add statistics in place, in float64."""
    for name, value in more.items():
        sums[name] = sums[name] + value.double() if name in sums else value.double()


def reduce_statistics(sums: dict[str, Tensor]) -> dict[str, Any]:
    """Sums over ranks on the host: floats for scalars, numpy arrays for histograms. One all-reduce."""
    names = sorted(sums)
    flat = torch.cat([sums[name].flatten() for name in names])
    dist.all_reduce(flat)
    pieces = flat.cpu().split([sums[name].numel() for name in names])
    return {
        name: float(piece) if sums[name].ndim == 0 else piece.view(sums[name].shape).numpy()
        for name, piece in zip(names, pieces, strict=True)
    }
