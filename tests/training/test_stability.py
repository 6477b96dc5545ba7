"""When a run has left the road: counted in steps that were skipped, and in standard deviations by hand."""

import pytest

from training.settings import StabilityConfig
from training.stability import FEWEST, OffTheRoadError, Stability


def stability(skipped: int = 0, **settings: object) -> Stability:
    """Windows of ten steps."""
    return Stability(StabilityConfig.model_validate(settings), 10, skipped)


def feed(subject: Stability, losses: list[float], step: int = 0) -> int:
    """Whole windows; returns the step after the last."""
    for loss in losses:
        step += 10
        subject.after_window(step, 10, loss)
    return step


def test_steps_in_a_row_that_were_skipped() -> None:
    """Skips in all after each step: 1 skip, a good step, then three in a row: the last three of 25 steps."""
    subject = stability(skipped=7, max_skipped=3)
    for step, skipped in enumerate((8, 8, 9, 10), start=21):
        subject.after_step(step, skipped)
    with pytest.raises(OffTheRoadError, match=r"^3 steps in a row had a gradient that was not finite$") as caught:
        subject.after_step(25, 11)
    assert caught.value.since == 22


def test_a_loss_that_stays_high() -> None:
    """Losses 4 and 6 in turn: mean 5, deviation 1, so the limit at three sigmas is 8. One window above it is forgiven
    and does not move the mean; two in a row are not, and all was well a whole window before the first of them."""
    subject = stability(spike_sigmas=3.0, spike_windows=2)
    step = feed(subject, [4.0, 6.0] * 5)
    step = feed(subject, [8.01], step)
    assert subject.well_until == 90
    step = feed(subject, [7.99], step)  # below: begins anew, and is one of the eleven from now on
    assert subject.well_until == 110
    mean = (50.0 + 7.99) / 11
    deviation = ((5 * (4 - mean) ** 2 + 5 * (6 - mean) ** 2 + (7.99 - mean) ** 2) / 11) ** 0.5
    step = feed(subject, [mean + 3 * deviation + 1e-6], step)  # above by a hair: the first of two
    with pytest.raises(OffTheRoadError, match="in 2 windows in a row, the last at 21") as caught:
        feed(subject, [21.0], step)
    assert step == 130 and caught.value.since == 110


def test_windows_that_were_cut_are_put_together() -> None:
    """3 steps at 9 and 7 at 4 are a window at 5.5, as high as one of ten steps; the deviation is that of windows."""
    subject = stability(spike_windows=1, spike_sigmas=2.0)
    step = feed(subject, [4.0, 6.0] * 5)  # limit 7
    subject.after_window(step + 3, 3, 9.0)
    subject.after_window(step + 10, 7, 4.0)
    subject.after_window(step + 15, 5, 9.0)
    with pytest.raises(OffTheRoadError, match="the last at 9"):
        subject.after_window(step + 20, 5, 9.0)


def test_a_restart_forgets_nothing() -> None:
    """The same windows from metric lines: the ninth is high and said to nobody, the tenth is the second in a row."""
    subject = stability(spike_windows=2)
    lines = [{"step": 10 * n, "values": {"train/loss": 5.0 + 0.01 * (n % 2)}} for n in range(1, 10)]
    lines.append({"step": 100, "values": {}})  # all its steps were skipped
    lines.append({"step": 110, "values": {"train/loss": 9.0}})
    subject.recall(lines)
    assert subject.well_until == 80  # the ninth window is the last that was well
    with pytest.raises(OffTheRoadError, match="in 2 windows in a row") as caught:
        subject.after_window(120, 10, 9.0)
    assert caught.value.since == 80


def test_few_windows_and_windows_without_a_loss_judge_nothing() -> None:
    subject = stability(spike_windows=1)
    step = feed(subject, [5.0] * (FEWEST - 1))
    subject.after_window(step + 10, 10, None)
    feed(subject, [500.0, 5.0], step + 10)  # too few to say, and then too wide


@pytest.mark.parametrize(("loss", "high"), [(5.04, False), (5.06, True)])
def test_a_loss_that_hardly_moves_may_rise_by_one_percent(loss: float, high: bool) -> None:
    subject = stability(spike_windows=1)
    step = feed(subject, [5.0] * 20)
    if high:
        with pytest.raises(OffTheRoadError):
            feed(subject, [loss], step)
    else:
        feed(subject, [loss], step)


def test_history_is_a_window() -> None:
    """After eight windows at 1 the twenty at 100 before are forgotten: 2 is high."""
    subject = stability(history=8, spike_windows=1)
    step = feed(subject, [100.0] * 20 + [1.0] * 8)
    with pytest.raises(OffTheRoadError):
        feed(subject, [2.0], step)


def test_what_is_not_finite_is_trouble_at_once() -> None:
    subject = stability()
    with pytest.raises(OffTheRoadError, match=r"^the loss was not finite$") as caught:
        subject.after_window(30, 10, float("nan"))
    assert caught.value.since == 10
    with pytest.raises(OffTheRoadError, match=r"^the held-out loss was not finite$"):
        subject.after_evaluation(30, 10, float("inf"))
