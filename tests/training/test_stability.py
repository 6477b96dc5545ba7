"""When a run has left the road: counted in steps that were skipped, and in standard deviations by hand."""

import pytest

from training.settings import StabilityConfig
from training.stability import FEWEST, OffTheRoadError, Stability


def feed(stability: Stability, losses: list[float], step: int = 0) -> int:
    """Windows of ten steps; returns the step after the last."""
    for loss in losses:
        step += 10
        stability.after_window(step, 10, loss)
    return step


def test_steps_in_a_row_that_were_skipped() -> None:
    """Skips in all after each step: 1 skip, a good step, then three in a row: the last three of 25 steps."""
    stability = Stability(StabilityConfig(max_skipped=3), skipped=7)
    for step, skipped in enumerate((8, 8, 9, 10), start=21):
        stability.after_step(step, skipped)
    with pytest.raises(OffTheRoadError, match=r"^3 steps in a row had a gradient that was not finite$") as caught:
        stability.after_step(25, 11)
    assert caught.value.since == 22


def test_a_loss_that_stays_high() -> None:
    """Losses 4 and 6 in turn: mean 5, deviation 1, so the limit at three sigmas is 8. One window above it is forgiven
    and does not move the mean; two in a row are not, and the trouble began before the first of them."""
    stability = Stability(StabilityConfig(spike_sigmas=3.0, spike_windows=2))
    step = feed(stability, [4.0, 6.0] * 5)
    step = feed(stability, [8.01], step)
    step = feed(stability, [7.99], step)  # below: begins anew, and is one of the eleven from now on
    mean = (50.0 + 7.99) / 11
    deviation = ((5 * (4 - mean) ** 2 + 5 * (6 - mean) ** 2 + (7.99 - mean) ** 2) / 11) ** 0.5
    step = feed(stability, [mean + 3 * deviation + 1e-6], step)  # above by a hair: the first of two
    with pytest.raises(OffTheRoadError, match="in 2 windows in a row, the last at 21") as caught:
        feed(stability, [21.0], step)
    assert step == 130 and caught.value.since == 120


def test_few_windows_and_windows_without_a_loss_judge_nothing() -> None:
    stability = Stability(StabilityConfig(spike_windows=1))
    step = feed(stability, [5.0] * (FEWEST - 1))
    stability.after_window(step + 10, 10, None)
    feed(stability, [500.0, 5.0], step + 10)  # too few to say, and then too wide


@pytest.mark.parametrize(("loss", "high"), [(5.04, False), (5.06, True)])
def test_a_loss_that_hardly_moves_may_rise_by_one_percent(loss: float, high: bool) -> None:
    stability = Stability(StabilityConfig(spike_windows=1))
    step = feed(stability, [5.0] * 20)
    if high:
        with pytest.raises(OffTheRoadError):
            feed(stability, [loss], step)
    else:
        feed(stability, [loss], step)


def test_history_is_a_window() -> None:
    """After eight windows at 1 the twenty at 100 before are forgotten: 2 is high."""
    stability = Stability(StabilityConfig(history=8, spike_windows=1))
    step = feed(stability, [100.0] * 20 + [1.0] * 8)
    with pytest.raises(OffTheRoadError):
        feed(stability, [2.0], step)


def test_what_is_not_finite_is_trouble_at_once() -> None:
    stability = Stability(StabilityConfig())
    with pytest.raises(OffTheRoadError, match=r"^the loss was not finite$") as caught:
        stability.after_window(30, 10, float("nan"))
    assert caught.value.since == 20
    with pytest.raises(OffTheRoadError, match=r"^the held-out loss was not finite$"):
        stability.after_evaluation(30, 10, float("inf"))
