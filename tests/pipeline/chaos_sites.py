"""Where the driver of a chaos run finds its Ray, and which of its processes can be killed.

`Embedded`: the Ray that the driver starts itself. `TwoNodes`: a cluster of two nodes on this host, each with an address
of its own, which is mended after a node or the head was killed. Only processes that are descendants of one we started
are ever touched; those that outlive their parent are remembered, so that `leftovers` can tell whether they went.
"""

import os
import random
import secrets
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import psutil

_RUNNING_UNIT = "ray::_execute"  # the title of a worker process while it runs a unit
_PROGRAMS = {"raylet": "raylet", "gcs": "gcs_server", "node": "raylet"}
HEAD = ("raylet", "gcs")  # kinds of death that Ray as a whole does not survive
_START_SECONDS = 90.0


class Site(ABC):
    """A place to run on."""

    kinds: Sequence[str]

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}  # what the command needs to reach Ray
        self._seen: set[psutil.Process] = set()

    @abstractmethod
    def overrides(self) -> list[str]:
        """What the command is told about Ray."""

    @abstractmethod
    def victims(self, kind: str, driver: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """The processes whose death is one of `kind`; empty at moments when there are none."""

    @abstractmethod
    def mend(self, kind: str) -> None:
        """Put back what a death of `kind` took away, other than the driver."""

    @abstractmethod
    def close(self) -> None:
        """End what was started here."""

    def leftovers(self, seconds: float) -> list[str]:
        """End the processes seen here that live on for so many `seconds`; returns what they were."""
        _, alive = psutil.wait_procs(list(self._seen), timeout=seconds)
        names = [_title(process) for process in alive]
        for process in alive:
            process.kill()
        return names

    def family(self, pid: int) -> list[psutil.Process]:
        """The living descendants of a process of ours, remembered."""
        try:
            found = psutil.Process(pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self._seen.update(found)
        return found


class Embedded(Site):
    """The driver's own Ray, with two CPUs; `raylet` and `gcs` are its two parts."""

    kinds = ("driver", "worker", "raylet", "gcs")

    def overrides(self) -> list[str]:
        return ["cluster.num_cpus=2"]

    def victims(self, kind: str, driver: subprocess.Popen[bytes]) -> list[psutil.Process]:
        family = self.family(driver.pid)
        if kind == "driver":
            return [psutil.Process(driver.pid)]
        return _workers(family) if kind == "worker" else _named(family, _PROGRAMS[kind])

    def mend(self, kind: str) -> None:
        """The next driver starts its own."""

    def close(self) -> None:
        """Nothing runs without a driver."""


class TwoNodes(Site):
    """Two nodes with one CPU each, at 127.0.0.1 and 127.0.0.2; their files lie in `folder`. `node` is the second one,
    `raylet` and `gcs` are parts of the head."""

    kinds = ("driver", "worker", "node", "raylet", "gcs")

    def __init__(self, folder: Path, root: Path) -> None:
        super().__init__()
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._folder, self._root, self._started = folder, root, 0
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._start_cluster()

    def overrides(self) -> list[str]:
        return [f"cluster.address=127.0.0.1:{self._port}"]

    def victims(self, kind: str, driver: subprocess.Popen[bytes]) -> list[psutil.Process]:
        families = {name: self.family(node.pid) for name, node in self._nodes.items()}
        if kind == "driver":
            self.family(driver.pid)
            return [psutil.Process(driver.pid)]
        if kind == "worker":
            return _workers([process for family in families.values() for process in family])
        return _named(families["second" if kind == "node" else "head"], _PROGRAMS[kind])

    def mend(self, kind: str) -> None:
        if kind == "node":
            self._end("second")
            self._start("second")
        elif kind in HEAD:
            self.close()
            self._start_cluster()

    def close(self) -> None:
        for name in list(self._nodes):
            self._end(name)

    def _start_cluster(self) -> None:
        self._port = _free_port()
        self._start("head")
        self._start("second")

    def _start(self, name: str) -> None:
        """Start a node and wait until it takes work."""
        self._started += 1
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1",
                   f"--object-store-memory={128 * 1024**2}", "--disable-usage-stats"]  # fmt: skip
        if name == "head":
            temp_dir = f"{self._folder}/ray{self._started}"
            command += ["--head", "--node-ip-address=127.0.0.1", f"--port={self._port}", "--include-dashboard=false",
                        f"--temp-dir={temp_dir}"]  # fmt: skip
        else:
            command += [f"--address=127.0.0.1:{self._port}", "--node-ip-address=127.0.0.2"]
        environment = {**os.environ, **self.environment, "PYTHONPATH": str(self._root)}
        log = self._folder / f"node{self._started}.log"
        with open(log, "wb") as output:
            node = subprocess.Popen(
                command,
                cwd=self._folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._nodes[name] = node
        deadline = time.monotonic() + _START_SECONDS
        while "--block" not in log.read_text(errors="replace"):  # the last thing it says when all is up
            if node.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the {name} node did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.2)
        self.family(node.pid)

    def _end(self, name: str) -> None:
        """End a node and all that it started, as a machine does that is switched off."""
        node = self._nodes.pop(name)
        for process in self.family(node.pid):
            _kill(process)
        node.kill()
        node.wait()


def kill_one(candidates: Sequence[psutil.Process], rng: random.Random) -> str | None:
    """SIGKILL one of the processes; returns what it was, or None when it was gone already."""
    chosen = rng.choice(candidates)
    title = _title(chosen)
    return f"{title} (pid {chosen.pid})" if _kill(chosen) else None


def _kill(process: psutil.Process) -> bool:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


def _workers(family: Sequence[psutil.Process]) -> list[psutil.Process]:
    return [process for process in family if _title(process).startswith(_RUNNING_UNIT)]


def _named(family: Sequence[psutil.Process], program: str) -> list[psutil.Process]:
    return [process for process in family if _name(process) == program]


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _title(process: psutil.Process) -> str:
    """What `ps` shows, shortened: the title of a Ray worker, else the program."""
    try:
        words = process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""
    first = words[0] if words else ""
    return first if first.startswith("ray::") else _name(process)


def _free_port() -> int:
    """A free port outside the range Ray gives its workers."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if not 10002 <= port <= 19999:
            return port
