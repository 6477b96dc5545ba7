"""The embedded Ray: reused when nested, small, and gone with its driver however the driver ends."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from cluster.session import remove_abandoned, session
from data_prep.errors import ConfigError, PreflightError

pytestmark = pytest.mark.multi
ROOT = Path(__file__).resolve().parents[2]

DRIVER = """
import sys, time
from pathlib import Path
from cluster.session import session
from cluster.tasks import Unit, run_units
from data_prep import storage

def sleep(payload):
    Path(payload).touch()
    time.sleep(600)
    return {}

with session(num_cpus=1):
    folder = storage.folder(Path(sys.argv[1]).parent)
    run_units(sleep, [Unit(name="sleep", payload=sys.argv[1], folder=folder, record="sleep.json", identity="1")])
"""


@pytest.mark.usefixtures("ray_session")
def test_a_session_inside_a_session_is_the_same_one() -> None:
    import ray

    cpus = ray.cluster_resources()["CPU"]
    with session(num_cpus=int(cpus) + 1) as inner:
        assert (inner.owned, inner.num_cpus, inner.nodes) == (False, cpus, 1)
    assert ray.is_initialized()


def test_address_and_size_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.num_cpus"), session("127.0.0.1:6379", num_cpus=2):
        pass


def descendants(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def is_alive(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_folders_of_killed_sessions_are_removed_and_no_others(tmp_path: Path) -> None:
    for name in ("electra-dead", "electra-alive", "electra-foreign", "other"):
        (tmp_path / name).mkdir()
    for name in ("electra-dead", "electra-alive", "other"):
        (tmp_path / name / "session.lock").touch()
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "session.lock").touch()
    (tmp_path / "electra-link").symlink_to(tmp_path / "target")
    with open(tmp_path / "electra-alive" / "session.lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert remove_abandoned(tmp_path) == 1
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"electra-alive", "electra-foreign", "electra-link", "other", "target"}
    assert (tmp_path / "target" / "session.lock").exists()


@pytest.mark.slow
def test_ray_dies_with_a_killed_driver(tmp_path: Path) -> None:
    mark = tmp_path / "running"
    before = set(Path(tempfile.gettempdir()).glob("electra-*/session.lock"))
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(mark)], cwd=ROOT)
    try:
        deadline = time.monotonic() + 120
        while not mark.exists():
            assert driver.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        family = descendants(driver.pid)
        import psutil

        workers = [pid for pid in family if "ray::_execute" in " ".join(psutil.Process(pid).cmdline())]
        assert workers
        folders = set(Path(tempfile.gettempdir()).glob("electra-*/session.lock")) - before
        assert len(folders) == 1
        remove_abandoned(Path(tempfile.gettempdir()))
        assert all(path.exists() for path in folders)  # its owner lives
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    killed = time.monotonic()
    while any(is_alive(pid) for pid in workers):
        assert time.monotonic() - killed < 30
        time.sleep(0.2)
    while any(is_alive(pid) for pid in family):
        assert time.monotonic() - killed < 120
        time.sleep(1)
    remove_abandoned(Path(tempfile.gettempdir()))
    assert not any(path.parent.exists() for path in folders)


def test_an_address_where_nothing_listens_is_a_preflight_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # this process may have a Ray already
    started = time.monotonic()
    with (
        pytest.raises(PreflightError, match=r"cluster\.address 127\.0\.0\.1:1 \(Connection refused\)"),
        session("127.0.0.1:1"),
    ):
        pass
    assert time.monotonic() - started < 10
