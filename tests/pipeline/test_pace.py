"""Rates are what arithmetic says, and what was there already counts for nothing."""

import pytest

from pipeline.pace import CALIBRATION_BYTES, Pace


class Clock:
    """Time that stands until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_pace_is_by_the_wall_and_the_core_and_the_calibration_by_cpu() -> None:
    clock = Clock()
    pace = Pace(2, clock)
    assert (pace.per_core, pace.calibrated, pace.figures()) == (None, None, {})
    clock.now += 4.0
    pace.add(8_000_000, 2_000_000, cpu_seconds=0.5)
    assert pace.per_core == pytest.approx(8 / 4 / 2)
    assert pace.calibrated == pytest.approx(8 / 0.5)
    assert pace.figures() == {"MB/s": 2.0, "MB/s a core": "1.0 of 16.0", "tokens/s a core": 250_000}


def test_the_calibration_is_of_the_first_units() -> None:
    pace = Pace(1, Clock())
    pace.add(CALIBRATION_BYTES, 0, cpu_seconds=1.0)
    pace.add(CALIBRATION_BYTES, 0, cpu_seconds=9.0)  # a slow disk later on does not lower the mark
    assert pace.calibrated == pytest.approx(CALIBRATION_BYTES / 1e6)
