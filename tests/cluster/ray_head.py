"""A Ray head of a test's own, with a dashboard and a token: its ports, its folder, and its end by its own processes.

`ray stop`, which would end every Ray of the machine, is not used.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.namespaces import wait_for
from tests.conftest import ROOT

TOKEN = "6f1d0c8b9a7e4f53b2d1c0a99e8f7d6c5b4a39281706f5e4d3c2b1a0"
START_SECONDS = 120  # of a busy machine


@dataclass(frozen=True, slots=True)
class Head:
    """One that answers."""

    url: str
    process: "subprocess.Popen[bytes]"

    @property
    def environment(self) -> dict[str, str]:
        """Of who may ask it."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_API_SERVER_ADDRESS": self.url}

    def end(self) -> None:
        """The `ray start` and every process under it."""
        import psutil

        parent = psutil.Process(self.process.pid)
        for one in [parent, *parent.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self.process.wait()


@contextlib.contextmanager
def ray_head(cpus: int = 2) -> Iterator[Head]:
    """Started, and ended with the block if it has not been before."""
    folder = Path(tempfile.mkdtemp(prefix="el-", dir="/tmp"))  # Ray's sockets have short names
    port, dashboard, agent, metrics = free_ports(4)
    command = [
        str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}",
        f"--temp-dir={folder}", "--node-ip-address=127.0.0.1", "--include-dashboard=true",
        f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}",
        f"--metrics-export-port={metrics}", f"--num-cpus={cpus}", "--object-store-memory=80000000",
        "--disable-usage-stats",
    ]  # fmt: skip
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with open(folder / "head.log", "ab") as log:
        process = subprocess.Popen(command, env={**inherited, **own}, stdout=log, stderr=log)
    head = Head(f"http://127.0.0.1:{dashboard}", process)
    try:
        wait_for(lambda: answers(head), START_SECONDS, "Ray's dashboard answers")
        yield head
    finally:
        if process.poll() is None:
            head.end()
        shutil.rmtree(folder, ignore_errors=True)


def answers(head: Head) -> bool:
    """Whether its jobs can be listed."""
    assert head.process.poll() is None, "ray start has ended"
    asked = urllib.request.Request(f"{head.url}/api/jobs/", headers={"Authorization": f"Bearer {TOKEN}"})
    try:
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def free_ports(number: int) -> list[int]:
    """Free now, each another."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
