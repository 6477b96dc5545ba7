"""Plain lines and the live display: what is written, how often, and what an ETA is made of."""

import io
import json
import os
import re
from pathlib import Path

import pytest

from pipeline.console import Console, duration, quiet_libraries
from pipeline.telling import Teller
from tests.pipeline.test_cli import electra, refused
from training.run_folder import append_events


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


# --- lines as objects -------------------------------------------------------------------------------------------------


def objects(console: Console) -> list[dict[str, object]]:
    """Without their times."""
    found = [json.loads(line) for line in lines(console)]
    for one in found:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", one.pop("time"))
    return found


@pytest.fixture
def machine(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Console:
    """For programs, even on a terminal."""
    monkeypatch.setenv("ELECTRA_LOG_FORMAT", "json")
    monkeypatch.delenv("RANK", raising=False)
    return Console(io.StringIO(), interactive=True, interval=5.0, clock=clock)


def test_every_line_is_an_object(machine: Console, clock: Clock) -> None:
    token = "hf_" + "abcDEF0123456789" * 2
    machine.say("two\nlines")
    machine.warn(f"token {token}", run="x", step=7)
    machine.table("Scores", ["arm", "mean"], [["electra", 0.61], ["bert", token]])
    with machine.stage("train", 9, "GFLOPs") as stage:
        clock.now = 6.0
        stage.update(3, run="x", step="12/40", loss=2.5)
    common = {"level": "info", "run": None, "rank": None, "step": None}
    of_x = {**common, "run": "x", "step": 12}
    assert objects(machine) == [
        {**common, "message": "two\nlines"},
        {**common, "level": "warning", "run": "x", "step": 7, "message": "token [redacted]"},
        {**common, "message": "Scores", "table": [{"arm": "electra", "mean": "0.61"},
                                                  {"arm": "bert", "mean": "[redacted]"}]},
        {**common, "message": "train: started, 0/9 GFLOPs"},
        {**of_x, "message": "train: 3/9 GFLOPs, 6 s, about 12 s left; run x, step 12/40, loss 2.5"},
        {**of_x, "message": "train: done, 3/9 GFLOPs, 6 s; run x, step 12/40, loss 2.5"},
    ]  # fmt: skip


def test_the_rank_is_that_of_a_launcher(machine: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    machine.say("here")
    assert objects(machine)[0]["rank"] == 3


def test_a_line_of_a_job_that_is_followed_stays_the_object_it_is(machine: Console) -> None:
    machine.say("of the job", run="x")
    (line,) = lines(machine)
    machine.say(line)
    assert lines(machine)[1] == line
    machine.say('{"time": "cut')
    assert objects(machine)[2]["message"] == '{"time": "cut'


def test_what_a_run_is_told_of_has_its_run_and_step(machine: Console, tmp_path: Path) -> None:
    run = tmp_path / "x"
    run.mkdir()
    teller = Teller(machine, [run])
    append_events(
        run,
        [
            {"event": "started", "step": 40, "from": "step-00000040", "passed_over": ["a was cut."]},
            {"event": "save_failed", "step": 60, "reason": "full", "in_a_row": 1},
        ],
    )
    teller.look()
    told = [(one["level"], one["run"], one["step"]) for one in objects(machine)]
    assert told == [("warning", "x", 40), ("info", "x", 40), ("warning", "x", 60)]


def test_the_end_of_a_command_is_an_object_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELECTRA_LOG_FORMAT", "json")
    done = electra("train", tmp_path / "none.yaml", "--json")
    line = json.loads(done.stderr)
    assert (line["level"], line["message"]) == ("error", f"{tmp_path}/none.yaml: no such configuration file")
    assert json.loads(done.stdout) == {"exit_code": 2, "error": line["message"]}  # the result, as ever


def test_what_was_asked_for_itself_is_no_line_of_a_log(machine: Console, plain: Console) -> None:
    for console in (machine, plain):
        console.result("#!/bin/bash\nexport HF_TOKEN=hf_" + "abcDEF0123456789" * 2)
        assert lines(console) == ["#!/bin/bash", "export HF_TOKEN=[redacted]"]


def test_a_format_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELECTRA_LOG_FORMAT", "jsn")
    assert refused(2, "status") == "ELECTRA_LOG_FORMAT=jsn: no such format; there are text, json"


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
