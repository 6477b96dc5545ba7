"""What is read of a window of steps: the ledgers it adds to, its figures, and the held-out ones where they are due.

All ranks take part in every method and get the same figures.
"""

from dataclasses import replace

import torch
import torch.distributed as dist

from training import record
from training.checkpoints import Progress
from training.devices import device_name, peak_flops
from training.engine import Engine
from training.evaluation import evaluate_heldout
from training.flops import train_flops
from training.loader import Loader
from training.meter import Meter, Window
from training.ranks import on_rank_zero
from training.run_folder import Journal
from training.settings import RunSpec


class Figures:
    """Those of one attempt at a run; `heldout` are the newest held-out ones, None before the first."""

    def __init__(
        self,
        spec: RunSpec,
        engine: Engine,
        loader: Loader,
        heldout_loader: Loader,
        heldout_rows: int,
        journal: Journal,
        device: torch.device,
        group: dist.ProcessGroup | None,
    ) -> None:
        """`group`: of all ranks, on the host."""
        self._spec, self._engine, self._journal, self._device, self._group = spec, engine, journal, device, group
        self._heldout_loader, self._heldout_rows = heldout_loader, heldout_rows
        self._rows_a_step = spec.placement.micro_batch * loader.accumulation * dist.get_world_size()
        self.heldout: dict[str, float] | None = None
        self._heldout_step = -1

    def count(self, progress: Progress, meter: Meter) -> tuple[Progress, Window]:
        """End the meter's window; the ledgers with it."""
        window = meter.read()
        return record.count(progress, self._spec, window, window.steps * self._rows_a_step), window

    def take(
        self, progress: Progress, window: Window, rate: float, *, evaluate: bool
    ) -> tuple[Progress, dict[str, float]]:
        """The values of a metric line: what the steps of the window came to (no losses where all were skipped), the
        held-out figures where asked for, ledgers and speed."""
        values: dict[str, float] = {}
        if window.sums:
            metrics = self._engine.objective.metrics(window.sums)
            values = {f"train/{name}": value for name, value in metrics.items()}
        values["train/gradient_norm"] = self._engine.gradient_norm()  # infinite: skipped, and counted as such
        if evaluate:
            progress, heldout = self.evaluate(progress)
            values |= heldout
        return progress, values | self._clock(progress, window, rate)

    def evaluate(self, progress: Progress) -> tuple[Progress, dict[str, float]]:
        """The held-out figures, and whether they say that something was learned."""
        self.heldout = evaluate_heldout(
            self._engine, self._heldout_loader, self._heldout_rows, self._spec.placement, self._device
        )
        self._heldout_step = progress.step
        return self._judged(progress), self.heldout

    def heldout_loss(self, step: int) -> float | None:
        """That of a step, where it was evaluated."""
        return self.heldout["heldout/loss"] if self.heldout is not None and step == self._heldout_step else None

    def forget(self) -> None:
        """The run has gone back: the held-out figures are of weights that are gone."""
        self.heldout, self._heldout_step = None, -1

    def _judged(self, progress: Progress) -> Progress:
        """Say so where the held-out figures show that nothing was learned, and where they no longer do."""
        assert self.heldout is not None
        plain = {name.removeprefix("heldout/"): value for name, value in self.heldout.items()}
        before, reason = progress.degenerate, self._engine.objective.verdict(plain)
        if (before is None) != (reason is None):  # the sentence holds figures, which change every time
            kind = "recovered" if reason is None else "degenerate"
            event = {"event": kind, "step": progress.step, "reason": reason}
            on_rank_zero(lambda: self._journal.append(event), self._group)
        return replace(progress, degenerate=reason)

    def _clock(self, progress: Progress, window: Window, rate: float) -> dict[str, float]:
        flops = train_flops(self._spec.identity.arm, self._spec.identity.model, window.flop_counts)
        peak = peak_flops(device_name(self._device))
        return {
            "learning_rate": rate,
            "flops": progress.flops_counted,
            "flops_spent": progress.flops_spent,
            "tokens": progress.tokens,
            "seconds": progress.seconds,
            "step_seconds": progress.step_seconds,
            "skipped_steps": progress.skipped,
            **window.speed(flops, peak and peak * dist.get_world_size()),
        }
