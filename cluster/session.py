"""A Ray session: an embedded one that lives and dies with this process, or an existing cluster.

The embedded Ray has no dashboard, a small object store (documents and rows never travel through it), its own temporary
folder and no usage statistics. Only what was started here is ended here: `ray stop`, which ends every Ray of the host,
is never used. Entering a session inside another one reuses it. When the driver is killed, its Ray follows without help:
scheduler and workers within about four seconds, two small agent processes within about a minute; the temporary folder
it leaves is removed by the next session of the same user.

Ray itself can die. `renew` starts the embedded one anew, or waits for the cluster. A process whose connection to a
head stays broken is ended by Ray, with 1, after RAY_gcs_rpc_server_reconnect_timeout_s (60, with a cluster here 600):
`end_broken`, called every second or so, is quicker with an embedded one. A thread that asks Ray something just then
waits for that end, and nothing can wake it: no thread of a driver should ask regularly.
Starting nodes on other machines is not done here.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import ConfigError, PreflightError

# Only small records travel as objects, so this is plenty, and it fits a container's small /dev/shm.
OBJECT_STORE_BYTES = 128 * 1024**2
# Unix socket paths may have 107 characters; Ray appends about 65 to its temporary folder.
_LONGEST_TEMP_DIR = 40
_PREFIX = "electra-"
# In each temporary folder, locked while its session lives: the lock goes with the process, however that ends.
_LOCK = "session.lock"
_REACH_SECONDS = 10.0
_RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"  # read when Ray is imported
_RECONNECT_SECONDS = "600"
_LONGEST_PAUSE = 15.0
_HEED_SECONDS = 1.0
_VITAL = ("gcs_server", "raylet")  # processes, by Ray's names


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """What there is to run on. `owned`: started by this session (and ended with it)."""

    address: str | None
    num_cpus: float
    num_gpus: float
    nodes: int
    owned: bool


@dataclass(frozen=True, slots=True)
class _Start:
    """How this process came to its Ray, to do it again."""

    address: str | None
    num_cpus: int | None
    temp_dir: str | None


_started: _Start | None = None


@contextlib.contextmanager
def session(address: str | None = None, num_cpus: int | None = None) -> Iterator[SessionInfo]:
    """Connect to the Ray at `address`, or start an embedded one with `num_cpus` logical CPUs (None: all cores).

    Raises ConfigError when both are given, PreflightError when the cluster cannot be reached or Ray does not start.
    """
    if address is not None and num_cpus is not None:
        raise ConfigError("cluster.num_cpus sets the size of a local Ray and cannot be combined with cluster.address.")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is not None:
        os.environ.setdefault(_RECONNECT, _RECONNECT_SECONDS)
    import ray

    if ray.is_initialized():
        yield _describe(address, owned=False)
        return
    if address is not None:
        _check_reachable(address)
    with _temp_dir() if address is None else contextlib.nullcontext() as temp_dir:
        global _started
        _started = _Start(address, num_cpus, temp_dir)
        try:
            with _signals_kept():
                _connect(_started)
            yield _describe(address, owned=address is None)
        finally:
            _started = None
            ray.shutdown()


def renew(seconds: float, between: Callable[[], None]) -> bool:
    """After Ray has failed: an embedded one is ended and started anew, a cluster is tried for so many seconds, ever
    more slowly; `between` is called every second meanwhile, and ends it by raising. False for a Ray that this process
    did not come to by `session`, which is left alone.

    PreflightError where there is none to be had. Actor handles and references from before are void.
    """
    import ray

    if _started is None:
        return False
    ray.shutdown()  # takes up to a quarter of a minute where the head is gone
    until, pause = time.monotonic() + seconds, 1.0
    while True:
        try:
            with _signals_kept():
                if _started.address is not None:
                    _check_reachable(_started.address)
                _connect(_started)
            return True
        except PreflightError:
            ray.shutdown()  # what has started of it
            if _started.address is None or time.monotonic() + pause > until:
                raise
        again = time.monotonic() + pause
        while (left := again - time.monotonic()) > 0:
            between()
            time.sleep(min(left, _HEED_SECONDS))
        pause = min(2 * pause, _LONGEST_PAUSE)


def embedded() -> bool:
    """Whether this process started its Ray."""
    return _started is not None and _started.address is None


def end_broken() -> bool:
    """Kill the rest of an embedded Ray one of whose processes has died, so that who waits for it sees so; whether that
    was done. Ray tells a driver of its raylet's death at once, but of its head's only after a minute, and ends it."""
    import ray

    node = ray._private.worker._global_node  # there is no public way to ask
    if not embedded() or node is None:
        return False
    if not any(kind in _VITAL for kind, _ in node.dead_processes()):
        return False
    node.kill_all_processes(check_alive=False, allow_graceful=False)
    return True


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself whenever it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _connect(start: _Start) -> None:
    import ray

    address = start.address
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
    try:
        if address is not None:
            ray.init(address=address, **quiet)
        else:
            ray.init(
                address="local",  # never a Ray that happens to run on this host
                num_cpus=start.num_cpus,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _temp_dir=start.temp_dir,
                **quiet,
            )
    except Exception as error:  # a bare one where a part of Ray died while it started
        reason = " ".join(str(error).split())
        if address is not None:
            raise PreflightError(
                f"No Ray cluster answers at cluster.address {address} ({reason}); "
                "where the cluster asks for a token, set RAY_AUTH_MODE=token."
            ) from error
        raise PreflightError(f"The embedded Ray did not start ({reason}).") from error


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes; a closed port is found at once. Host names of schemes and "auto" are Ray's."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_SECONDS).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise PreflightError(
            f"No Ray cluster answers at cluster.address {address} ({reason}); start it or correct the address."
        ) from None


@contextlib.contextmanager
def _temp_dir() -> Iterator[str | None]:
    """A private folder for Ray's files; None (Ray's own default) where the system's folder has too long a name."""
    parent = Path(tempfile.gettempdir())
    if len(f"{parent}/{_PREFIX}12345678") > _LONGEST_TEMP_DIR:
        yield None
        return
    remove_abandoned(parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        with open(folder / f"{_LOCK}.new", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.rename(lock.name, folder / _LOCK)  # never there unlocked while its session lives
            yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(parent: Path) -> int:
    """Remove the temporary folders of this user's sessions that were killed; returns how many."""
    removed = 0
    for path in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # gone meanwhile, or held by a living session
            if path.parent.is_symlink() or path.parent.stat().st_uid != os.getuid():
                continue
            with open(path, "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
                removed += 1
    return removed


def _describe(address: str | None, *, owned: bool) -> SessionInfo:
    import ray

    resources = ray.cluster_resources()
    return SessionInfo(
        address=address,
        num_cpus=float(resources.get("CPU", 0.0)),
        num_gpus=float(resources.get("GPU", 0.0)),
        nodes=sum(1 for node in ray.nodes() if node["Alive"]),
        owned=owned,
    )
