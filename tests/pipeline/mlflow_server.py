"""A real `mlflow server` on this machine, over a SQLite file that outlives it: started, frozen, killed, started again.

Ended by the ids of its own process group alone.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

START_SECONDS = 120.0


class Server:
    """One server at one port; `folder` keeps its database, its artifacts and its log."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.database = folder, folder / "server.db"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.address = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        command = [
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--workers", "1", "--backend-store-uri", f"sqlite:///{self.database}"),
            *("--artifacts-destination", str(self.folder / "artifacts")),
        ]
        environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        environment.pop("MLFLOW_TRACKING_URI", None)
        with open(self.folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True, cwd=self.folder
            )
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            assert time.monotonic() < until, (self.folder / "server.log").read_text()[-4000:]
            assert self._process.poll() is None, (self.folder / "server.log").read_text()[-4000:]
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def freeze(self) -> None:
        """It takes connections, as the kernel does that for it, and never answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It answers everything that it was asked in the meantime."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Without a word to anybody."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait(timeout=30)
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
