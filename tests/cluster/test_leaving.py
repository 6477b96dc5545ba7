"""The hook of a pod that is taken away: drivers are asked to save, and waited for."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster import leaving

SAVES = """
import signal, sys, time
def save(*_):
    time.sleep(0.3)
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("runs", flush=True)
while True:
    time.sleep(0.05)
"""
STUBBORN = SAVES.replace("signal.signal(signal.SIGTERM, save)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)")


def driver(folder: Path, body: str) -> "subprocess.Popen[str]":
    """A process whose command line is a driver's."""
    (folder / "pipeline").mkdir(exist_ok=True)
    (folder / "pipeline" / "cli.py").write_text(body)
    words = [sys.executable, "-m", "pipeline.cli", "train"]
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "runs\n"
    return process


def only(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    """Other tests' drivers, which may run beside this one, are left alone; those that have ended are gone."""
    found = leaving.drivers
    monkeypatch.setattr(leaving, "drivers", lambda: found() & set(numbers))


def test_a_driver_is_known_by_its_command_and_saves_before_the_hook_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = driver(tmp_path, SAVES)
    try:
        assert process.pid in leaving.drivers()
        only(monkeypatch, process.pid)
        began = time.monotonic()
        assert leaving.leave(30)
        assert 0.3 <= time.monotonic() - began < 20
        assert process.communicate(timeout=10)[0] == "saved\n"
        assert process.returncode == 75
    finally:
        process.kill()


def test_the_hook_waits_no_longer_than_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = driver(tmp_path, STUBBORN)
    try:
        only(monkeypatch, process.pid)
        began = time.monotonic()
        assert not leaving.leave(0.5)
        assert 0.5 <= time.monotonic() - began < 10
    finally:
        process.kill()
        process.wait()


def test_where_nothing_runs_it_ends_at_once_and_a_shell_that_speaks_of_it_is_no_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = subprocess.Popen(["bash", "-c", "sleep 30 # python -m pipeline.cli"], cwd=tmp_path)
    try:
        assert shell.pid not in leaving.drivers()
        only(monkeypatch)
        assert leaving.leave(30)
    finally:
        shell.kill()
        shell.wait()
