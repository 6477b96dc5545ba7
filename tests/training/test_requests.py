"""What a run is asked from outside: by files, by its own process, once or for good."""

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from training import requests
from training.requests import Inbox, ask, clear, read


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


def test_both_kinds_at_once_are_kept_and_the_stop_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop by a signal, in the middle of a drain thread's request to save; in memory as on the disk."""
    write = requests.storage.write_json

    def interrupted(path: Path, value: Any) -> None:
        monkeypatch.setattr(requests.storage, "write_json", write)
        ask(tmp_path, "stop", "SIGTERM")
        write(path, value)

    monkeypatch.setattr(requests.storage, "write_json", interrupted)
    ask(tmp_path, "save", "node a drains")
    inbox, own = Inbox(tmp_path), Inbox()
    assert [inbox.poll(), inbox.poll()] == [("stop", "SIGTERM")] * 2
    own.post("stop", "SIGTERM")
    own.post("save", "node a drains")
    assert [own.poll(), own.poll()] == [("stop", "SIGTERM")] * 2


def test_a_saving_that_a_machine_with_a_late_clock_asks_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = Inbox(tmp_path)
    ask(tmp_path, "save", "node a drains")
    assert inbox.poll() == ("save", "node a drains")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    ask(tmp_path, "save", "node b drains")
    assert [inbox.poll(), inbox.poll()] == [("save", "node b drains"), None]


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES])
def test_a_file_system_that_does_not_answer_is_looked_at_again(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(tmp_path, "stop", "SIGTERM")
    inbox = Inbox(tmp_path)

    def refuse(path: Path) -> bytes:
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse)
        assert inbox.poll() is None
    assert inbox.poll() == ("stop", "SIGTERM")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"reason": "no id"}'])
def test_what_is_no_request_is_none(content: str, tmp_path: Path) -> None:
    ask(tmp_path, "stop", "whole")
    (path,) = tmp_path.iterdir()
    path.write_text(content)
    assert read(tmp_path) is None and Inbox(tmp_path).poll() is None
