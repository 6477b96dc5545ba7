"""Plain lines and the live display: what is written, how often, and what an ETA is made of."""

import io
import os

import pytest

from pipeline.console import Console, duration, quiet_libraries


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def plain(clock: Clock) -> Console:
    return Console(io.StringIO(), interval=5.0, clock=clock)


def lines(console: Console) -> list[str]:
    assert isinstance(console.stream, io.StringIO)
    return console.stream.getvalue().splitlines()


def test_plain_output_has_first_and_last_line_and_one_per_interval(plain: Console, clock: Clock) -> None:
    with plain.stage("prepare", 10, "units") as stage:
        for _ in range(10):
            clock.now += 2.0
            stage.advance(loss=1.23456)
    assert lines(plain) == [
        "prepare: started, 0/10 units",
        # 2 s a unit: after 6 s seven units, 14 s, are left
        "prepare: 3/10 units, 6 s, about 14 s left; loss 1.235",
        "prepare: 6/10 units, 12 s, about 8 s left; loss 1.235",
        "prepare: 9/10 units, 18 s, about 2 s left; loss 1.235",
        "prepare: done, 10/10 units, 20 s; loss 1.235",
    ]


def test_eta_follows_the_last_minute_not_a_resumed_start(plain: Console, clock: Clock) -> None:
    with plain.stage("train", 1000, "steps") as stage:
        stage.update(500)  # resumed: half is there at once
        for step in range(501, 701):
            clock.now += 1.0
            stage.update(step)
        assert stage.remaining == pytest.approx(300.0)


def test_uncounted_work_and_failure(plain: Console, clock: Clock) -> None:
    with pytest.raises(RuntimeError), plain.stage("report"):
        clock.now = 61.0
        raise RuntimeError
    assert lines(plain) == ["report: started", "report: stopped, 1 min 01 s"]


def test_no_eta_without_total_or_progress(plain: Console, clock: Clock) -> None:
    with plain.stage("a", unit="rows") as stage:
        clock.now = 10.0
        stage.advance(3)
        assert stage.remaining is None
    with plain.stage("b", 5) as stage:
        clock.now = 20.0
        assert stage.remaining is None
    assert "a: 3 rows, 10 s" in lines(plain)


def test_plain_table_is_aligned_numbers_to_the_right(plain: Console) -> None:
    plain.table("Scores", ["arm", "mean"], [["electra", "0.61"], ["bert", "–"]])
    assert lines(plain) == ["Scores", "  arm      mean", "  -------  ----", "  electra  0.61", "  bert        –"]


def test_brackets_are_text_not_markup(clock: Clock) -> None:
    for interactive in (False, True):
        console = Console(io.StringIO(), interactive=interactive, clock=clock)
        console.say("[MASK] [red]x[/red]")
        console.warn("[bold]")
        console.table("t", ["c"], [["[CLS]"]])
        text = "\n".join(lines(console))
        assert "[MASK] [red]x[/red]" in text
        assert "warning: [bold]" in text
        assert "[CLS]" in text


def test_live_display_shows_nested_stages_and_restores_the_cursor(clock: Clock) -> None:
    console = Console(io.StringIO(), interactive=True, clock=clock)
    with console.stage("train", 4, "runs") as outer, console.stage("electra", 100, "steps") as inner:
        clock.now = 5.0
        inner.update(50, loss=2.5)
        assert inner.remaining == pytest.approx(5.0)
        outer.advance()
    text = "\n".join(lines(console))
    assert "electra" in text
    assert "50/100 steps  loss 2.5" in text
    assert text.rstrip().endswith("\x1b[?25h")


def test_a_failed_live_stage_is_not_shown_as_finished(clock: Clock) -> None:
    console = Console(io.StringIO(), interactive=True, clock=clock)
    with pytest.raises(RuntimeError), console.stage("train", 4, "runs"):
        raise RuntimeError
    assert "✓" not in "\n".join(lines(console))


def test_a_pipe_is_never_interactive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not Console(io.StringIO()).interactive


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3600, "1 h 00 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_quiet_libraries_keeps_what_the_user_set_except_safety(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"TRANSFORMERS_VERBOSITY": "debug", "WDS_SECURE": "0"})
    quiet_libraries()
    assert os.environ["TRANSFORMERS_VERBOSITY"] == "debug"
    assert os.environ["WDS_SECURE"] == "1"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert "HF_HUB_OFFLINE" not in os.environ
    quiet_libraries(offline=True)
    assert os.environ["HF_HUB_OFFLINE"] == "1"
