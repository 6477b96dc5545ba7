"""When a run has left the road: steps that are not finite in a row, or a loss that jumped up and stays there.

Judges from what all ranks know alike (the engine's count of skipped steps, losses summed over ranks), so all judge
alike. Thresholds are `StabilityConfig`'s. The mean and deviation are those of the windows before the spike: one that
lasts does not become the measure of itself. A restart or a rollback forgets nothing: the windows of the surviving
trajectory are read back from its metric lines. Windows that saving or evaluating has cut short are put together.
"""

from collections import deque
from collections.abc import Iterable
from math import isfinite, sqrt
from statistics import fmean
from typing import Any

from training.settings import StabilityConfig

FEWEST = 8  # windows, before a mean says anything
LEAST_RISE = 0.01  # of the mean: a loss that hardly moves has next to no deviation


class OffTheRoadError(Exception):
    """Training must go back to a checkpoint of step `since` or before: raised on all ranks alike."""

    def __init__(self, reason: str, since: int) -> None:
        super().__init__(reason)
        self.since = max(0, since)


class Stability:
    """What one attempt, since its last rollback, has seen. Each method raises OffTheRoadError where it is time to go
    back; `step` is the number of completed steps, `steps` those since it was last told of a loss."""

    def __init__(self, config: StabilityConfig, window: int, skipped: int = 0) -> None:
        """`window`: steps that are judged together; `skipped`: steps that were skipped before."""
        self._config, self._window = config, window
        self._skipped, self._in_a_row = skipped, 0
        self._losses: deque[float] = deque(maxlen=config.history)
        self._part, self._part_steps = 0.0, 0  # of a window that was cut: sum of losses, steps
        self._high = 0  # windows in a row
        self._well_until = 0

    @property
    def well_until(self) -> int:
        """The step up to which all is known to have been well. It is a window behind: a step's loss is from before its
        update, so what the last update of a window did shows in the next one."""
        return self._well_until

    def recall(self, lines: Iterable[dict[str, Any]]) -> None:
        """Take in the metric lines of the trajectory so far, in order, without complaint."""
        before = 0
        for line in lines:
            loss = line["values"].get("train/loss")
            if loss is not None:
                self._take(line["step"], line["step"] - before, loss)
            before = line["step"]

    def after_step(self, step: int, skipped: int) -> None:
        """Given how many steps were skipped in all."""
        self._in_a_row = self._in_a_row + 1 if skipped > self._skipped else 0
        self._skipped = skipped
        if self._in_a_row >= self._config.max_skipped:
            raise OffTheRoadError(
                f"{self._in_a_row} steps in a row had a gradient that was not finite", step - self._in_a_row
            )

    def after_window(self, step: int, steps: int, loss: float | None) -> None:
        """Given the mean loss of the steps; None where all were skipped."""
        if loss is None:
            return
        if not isfinite(loss):
            raise OffTheRoadError("the loss was not finite", step - 2 * steps)
        limit = self._take(step, steps, loss)
        if limit is not None and self._high >= self._config.spike_windows:
            raise OffTheRoadError(
                f"the loss was above {limit:.4g} in {self._high} windows in a row, the last at {loss:.4g}",
                self._well_until,
            )

    def after_evaluation(self, step: int, steps: int, loss: float) -> None:
        """Given the held-out loss."""
        if not isfinite(loss):
            raise OffTheRoadError("the held-out loss was not finite", step - 2 * steps)

    def _take(self, step: int, steps: int, loss: float) -> float | None:
        """Judge the window that is whole with these steps; the limit that it was above, None where it was not."""
        self._part, self._part_steps = self._part + loss * steps, self._part_steps + steps
        if self._part_steps < self._window:
            return None
        loss, steps = self._part / self._part_steps, self._part_steps
        self._part, self._part_steps = 0.0, 0
        limit = self._limit()
        if limit is None or loss <= limit:
            self._high, self._well_until = 0, max(0, step - steps)
            self._losses.append(loss)
            return None
        self._high += 1
        return limit

    def _limit(self) -> float | None:
        if len(self._losses) < FEWEST:
            return None
        mean = fmean(self._losses)
        deviation = sqrt(fmean((loss - mean) ** 2 for loss in self._losses))
        return mean + max(self._config.spike_sigmas * deviation, LEAST_RISE * abs(mean))
