"""Signals to a process that trains: ask once, whatever comes; the second Ctrl-C ends it at once."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cluster import stop
from cluster.stop import stop_on_signals
from tests.cluster import driver
from tests.cluster.namespaces import wait_for
from tests.conftest import ROOT
from tests.training.runs import ELECTRA, spec_for
from tests.training.synthetic import write_corpus
from training import requests

SENT = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT]


@pytest.mark.parametrize(("number", "reason"), zip(SENT, ["SIGTERM", "SIGUSR1", "Ctrl-C"], strict=True))
def test_a_signal_asks_once_and_handlers_come_back(number: signal.Signals, reason: str) -> None:
    asked: list[str] = []
    before = [signal.getsignal(one) for one in SENT]
    with stop_on_signals(asked.append):
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert asked == [reason]
    assert [signal.getsignal(one) for one in SENT] == before


def test_only_a_second_ctrl_c_ends_it_and_with_130() -> None:
    """SIGTERM first: a Ctrl-C after it is still the first."""
    program = (
        "import os, signal, time\n"
        "from cluster.stop import stop_on_signals\n"
        "with stop_on_signals(print):\n"
        "    for number in (15, 2, 15):\n"
        "        os.kill(os.getpid(), number)\n"
        "    print('alive', flush=True)\n"
        "    os.kill(os.getpid(), 2)\n"
        "    time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (130, "SIGTERM\nalive\n")
    assert "interrupted again: ended at once; the same command again resumes" in done.stderr


def test_a_request_that_cannot_be_written_is_no_error_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The disk is full three times; signals meanwhile change nothing, and neither do those afterwards."""
    monkeypatch.setattr(stop, "RETRY_SECONDS", 0.01)
    asked: list[str] = []
    taken = threading.Event()

    def ask(reason: str) -> None:
        asked.append(reason)
        if len(asked) < 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken.set()

    with stop_on_signals(ask):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert taken.wait(30)
        os.kill(os.getpid(), signal.SIGTERM)
    assert asked == ["SIGTERM"] * 4
    assert capfd.readouterr().err.count("cannot be written yet (No space left on device); it is tried again") == 1


def test_elsewhere_than_in_the_main_thread_nothing_is_changed() -> None:
    before = [signal.getsignal(one) for one in SENT]
    seen: list[object] = []

    def enter() -> None:
        with stop_on_signals(lambda reason: None):
            seen.extend(signal.getsignal(one) for one in SENT)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == before


@pytest.mark.slow
@pytest.mark.multi
def test_ctrl_c_at_a_terminal_saves_and_twice_ends_it_at_once(tmp_path: Path) -> None:
    """SIGINT goes to every process of the terminal's group: the driver alone answers."""
    write_corpus(tmp_path / "corpus")
    spec = spec_for(ELECTRA, tmp_path / "corpus", 100_000)
    run = tmp_path / "runs" / spec.name
    codes = []
    for attempt, interrupts in enumerate((1, 2), 1):
        process = driver.start(spec, tmp_path / "corpus", tmp_path / "runs", num_workers=1, num_cpus=1)
        try:
            begun = (lambda count: lambda: len(driver.told(run, "started")) == count)(attempt)
            wait_for(begun, 120, "training has begun")
            os.killpg(process.pid, signal.SIGINT)
            if interrupts == 2:
                wait_for(lambda: requests.read(tmp_path / "runs") is not None, 30, "the first is heard")
                os.killpg(process.pid, signal.SIGINT)
            said, _ = process.communicate(timeout=120)
        finally:
            process.kill()
        codes.append(process.returncode)
        if interrupts == 1:
            assert "interrupted: saves, then stops; Ctrl-C again ends it at once" in said
            assert f"{spec.name}: stopped at step " in said and "(Ctrl-C), saved; the same command again" in said
    assert codes == [75, 130]
    (stopped,) = driver.told(run, "stopped")
    assert driver.told(run, "started")[1]["step"] == stopped["step"] > 0
    assert not driver.told(run, "failed")


@pytest.mark.slow
@pytest.mark.multi
def test_a_rank_that_is_signalled_itself_saves(tmp_path: Path) -> None:
    """Without Ray, as a rank of torchrun or srun: by Slurm's warning, once it trains."""
    write_corpus(tmp_path / "corpus")
    spec = spec_for(ELECTRA, tmp_path / "corpus", 100_000)
    run = tmp_path / "runs" / spec.name
    process = driver.start(spec, tmp_path / "corpus", tmp_path / "runs", num_workers=0)
    try:
        wait_for(lambda: bool(driver.told(run, "started")), 120, "training has begun")
        process.send_signal(signal.SIGUSR1)
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 75, said
    (saved,), (stopped,) = driver.told(run, "saved"), driver.told(run, "stopped")
    assert stopped["reason"] == "SIGUSR1" and saved["step"] == stopped["step"] > 0
