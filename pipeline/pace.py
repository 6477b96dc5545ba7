"""How fast a stage of data preparation runs, beside how fast it could.

The calibrated rate is what one core does on this corpus: the bytes of the first finished units, 20 MB of them, over the
CPU seconds they took in their workers. Beside it stands the pace, by the wall clock and per core, so that waiting for
disk, network or scheduler shows as the distance between the two. Units that were there already count for neither.
"""

import time
from collections.abc import Callable

CALIBRATION_BYTES = 20_000_000


class Pace:
    """Rates of one stage that runs on `slots` cores."""

    def __init__(self, slots: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._slots, self._clock = max(1.0, slots), clock
        self._began = clock()
        self._bytes = self._tokens = 0
        self._calibration = (0, 0.0)  # bytes, CPU seconds

    def add(self, size: int, tokens: int, cpu_seconds: float) -> None:
        """A unit of `size` bytes was finished."""
        self._bytes += size
        self._tokens += tokens
        if self._calibration[0] < CALIBRATION_BYTES:
            self._calibration = (self._calibration[0] + size, self._calibration[1] + cpu_seconds)

    @property
    def calibrated(self) -> float | None:
        """MB a second of CPU; None before the first unit."""
        size, seconds = self._calibration
        return size / 1e6 / seconds if seconds > 0 else None

    @property
    def per_core(self) -> float | None:
        """MB a second and core by the wall clock; None before the first unit."""
        elapsed = self._clock() - self._began
        return self._bytes / 1e6 / elapsed / self._slots if self._bytes and elapsed > 0 else None

    def figures(self) -> dict[str, float | str]:
        """What is worth showing beside a bar."""
        pace, calibrated = self.per_core, self.calibrated
        if pace is None or calibrated is None:
            return {}
        figures: dict[str, float | str] = {
            "MB/s": round(pace * self._slots, 1),
            "MB/s a core": f"{pace:.1f} of {calibrated:.1f}",
        }
        if self._tokens:
            figures["tokens/s a core"] = round(self._tokens / (self._clock() - self._began) / self._slots)
        return figures
