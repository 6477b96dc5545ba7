"""What a run is asked from outside: by a file, by its own process, once or for good."""

from pathlib import Path

import pytest

from training import requests
from training.requests import NAME, Inbox, ask, clear, read


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "POLL_SECONDS", 0.0)


def test_a_stop_stands_and_a_saving_is_asked_once(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    assert inbox.poll() is None
    ask(tmp_path, "save", "node a drains")
    assert [inbox.poll(), inbox.poll()] == [("save", "node a drains"), None]
    ask(tmp_path, "save", "node b drains")
    assert [inbox.poll(), inbox.poll()] == [("save", "node b drains"), None]
    ask(tmp_path, "stop", "SIGTERM")
    ask(tmp_path, "save", "too late")
    assert [inbox.poll(), inbox.poll()] == [("stop", "SIGTERM")] * 2
    clear(tmp_path)
    clear(tmp_path)
    assert read(tmp_path) is None and inbox.poll() is None


def test_a_process_asks_itself(tmp_path: Path) -> None:
    inbox = Inbox()
    ask(tmp_path, "stop", "of nobody's concern")
    inbox.post("save", "SIGUSR2")
    assert [inbox.poll(), inbox.poll()] == [("save", "SIGUSR2"), None]
    inbox.post("stop", "SIGTERM")
    assert [inbox.poll(), inbox.poll()] == [("stop", "SIGTERM")] * 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"ask": "explode", "time": 1}'])
def test_what_is_no_request_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(content)
    assert read(tmp_path) is None and Inbox(tmp_path).poll() is None
