"""What is said of runs while they are trained."""

import errno
import io
import threading
from pathlib import Path

import pytest

from pipeline import telling as telling_module
from pipeline.console import Console
from pipeline.telling import Teller, telling
from training.run_folder import append_events


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "x"
    path.mkdir()
    return path


def said(console: Console) -> list[str]:
    assert isinstance(console.stream, io.StringIO)
    return console.stream.getvalue().splitlines()


def plain() -> Console:
    return Console(io.StringIO(), interactive=False)


def test_resumptions_and_what_went_wrong_are_told_once_and_savings_not(run: Path) -> None:
    append_events(run, [{"event": "save_failed", "step": 1, "reason": "told by an earlier command"}])
    console = plain()
    teller = Teller(console, [run, run.parent / "not begun"])
    append_events(
        run,
        [
            {"event": "started", "step": 40, "from": "step-00000040", "passed_over": ["a was cut.", "b is missing."]},
            {"event": "saved", "step": 50},
            {"event": "save_failed", "step": 60, "reason": "full", "in_a_row": 1},
        ],
    )
    teller.look()
    teller.look()
    assert said(console) == [
        "warning: train: x: passed over: a was cut.",
        "warning: train: x: passed over: b is missing.",
        "train: x: resumes at step 40 from step-00000040",
        "warning: train: x: saving step 60 failed: full",
    ]


def test_a_first_beginning_is_no_news_and_a_second_one_is(run: Path) -> None:
    console = plain()
    teller = Teller(console, [run])
    for _ in range(2):
        append_events(run, [{"event": "started", "step": 0, "from": None, "passed_over": []}])
        teller.look()
    assert said(console) == ["train: x: begins again at step 0"]


def test_where_a_branch_leaves_its_trunk_is_told(run: Path) -> None:
    console, trunk = plain(), {"run": "big", "planned": 40, "step": 40, "flops": 1e9}
    append_events(run, [{"event": "started", "step": 40, "from": None, "passed_over": []}])
    teller = Teller(console, [run])
    for step in (40, 0):
        append_events(run, [{"event": "started", "step": step, "from": None, "trunk": {**trunk, "step": step}}])
        teller.look()
    assert said(console) == [
        "train: x: branched off big at step 40",
        "train: x: began at step 0, since big keeps no checkpoint up to step 40",
    ]


def test_a_line_that_is_being_written_is_told_when_it_is_whole(run: Path) -> None:
    console = plain()
    teller = Teller(console, [run])
    with open(run / "events.jsonl", "w", encoding="utf-8") as file:
        file.write('{"event": "failed", "step": 3, ')
        file.flush()
        teller.look()
        assert said(console) == []
        file.write('"reason": "r"}\n{"event": "fau\n')  # and one that a kill has torn
        file.flush()
        teller.look()
    assert said(console) == ["warning: train: x: failed at step 3: r"]


def test_what_happens_last_is_told_before_the_end_and_before_an_error(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling_module, "POLL_SECONDS", 60.0)
    console = plain()
    with pytest.raises(RuntimeError), telling(console, [run]):
        append_events(run, [{"event": "failed", "step": 3, "reason": "r"}])
        raise RuntimeError
    assert said(console) == ["warning: train: x: failed at step 3: r"]


def test_a_closed_pipe_ends_the_telling_not_the_training(run: Path) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    trained = []
    with pytest.raises(BrokenPipeError), telling(Console(Closed(), interactive=False), [run]):
        append_events(run, [{"event": "failed", "step": 3, "reason": "r"}])
        trained.append(1)
    assert trained == [1]


def test_a_file_that_cannot_be_read_for_a_moment_ends_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared file system that refuses two looks: the third tells what happened meanwhile."""
    monkeypatch.setattr(telling_module, "POLL_SECONDS", 0.01)
    refused, third = [], threading.Event()
    look = Teller.look

    def flaky(teller: Teller) -> None:
        if len(refused) < 2:
            refused.append(1)
            raise OSError(errno.ESTALE, "Stale file handle")
        look(teller)
        third.set()

    monkeypatch.setattr(Teller, "look", flaky)
    console = plain()
    with telling(console, [run]):
        append_events(run, [{"event": "failed", "step": 3, "reason": "r"}])
        assert third.wait(30)
    assert said(console) == ["warning: train: x: failed at step 3: r"]
