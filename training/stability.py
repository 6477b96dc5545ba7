"""When a run has left the road: steps that are not finite in a row, or a loss that jumped up and stays there.

Judges from what all ranks know alike (the engine's count of skipped steps, losses summed over ranks), so all judge
alike. Thresholds are `StabilityConfig`'s. The mean and deviation are those of the windows before the spike: one that
lasts does not become the measure of itself.
"""

from collections import deque
from math import isfinite, sqrt
from statistics import fmean

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
    back; `step` is the number of completed steps, `steps` those of the window that ended there."""

    def __init__(self, config: StabilityConfig, skipped: int = 0) -> None:
        """`skipped`: steps that were skipped before."""
        self._config = config
        self._skipped, self._in_a_row = skipped, 0
        self._losses: deque[float] = deque(maxlen=config.history)
        self._high = 0  # windows in a row
        self._rose_at = 0  # the step before the first of them

    def after_step(self, step: int, skipped: int) -> None:
        """Given how many steps were skipped in all."""
        self._in_a_row = self._in_a_row + 1 if skipped > self._skipped else 0
        self._skipped = skipped
        if self._in_a_row >= self._config.max_skipped:
            raise OffTheRoadError(
                f"{self._in_a_row} steps in a row had a gradient that was not finite", step - self._in_a_row
            )

    def after_window(self, step: int, steps: int, loss: float | None) -> None:
        """Given a window's mean loss; None where all its steps were skipped."""
        if loss is None:
            return
        if not isfinite(loss):
            raise OffTheRoadError("the loss was not finite", step - steps)
        limit = self._limit()
        if limit is None or loss <= limit:
            self._high = 0
            self._losses.append(loss)
            return
        if self._high == 0:
            self._rose_at = step - steps
        self._high += 1
        if self._high >= self._config.spike_windows:
            raise OffTheRoadError(
                f"the loss was above {limit:.4g} in {self._high} windows in a row, the last at {loss:.4g}",
                self._rose_at,
            )

    def after_evaluation(self, step: int, steps: int, loss: float) -> None:
        """Given the held-out loss."""
        if not isfinite(loss):
            raise OffTheRoadError("the held-out loss was not finite", step - steps)

    def _limit(self) -> float | None:
        if len(self._losses) < FEWEST:
            return None
        mean = fmean(self._losses)
        deviation = sqrt(fmean((loss - mean) ** 2 for loss in self._losses))
        return mean + max(self._config.spike_sigmas * deviation, LEAST_RISE * abs(mean))
