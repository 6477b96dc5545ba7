"""Two Ray nodes on one machine that can lose sight of each other: each in a network namespace, a cable between them.

The second node has a temporary folder of its own under the first one's name, as another machine has: of two nodes that
share one, the second removes the working directory of a job that runs on the first, to make it anew.

Needs root and iproute2. A `ray start` of each node is a process of this test's; they and what they have started are
ended one by one, and `ray stop`, which would end every Ray of the machine, is not used.
"""

import ast
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PORT, DASHBOARD = 6399, 8299
HEAD, OTHER = "10.99.7.1", "10.99.7.2"
PREEMPTION = 2  # of Ray's DrainNodeReason
CABLE = "cable0"  # alike in both namespaces, so that gloo finds it by one name
# A head that takes two seconds, not a minute, to believe that a node is gone
_ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": CABLE,
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "4",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # nobody else is in there
}


def lacking() -> str | None:
    """Why this machine cannot do it; None where it can."""
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"electra-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"no network namespace can be made: {made.stderr.strip()}"
    cable = ["link", "add", "probe0", "type", "veth", "peer", "name", "probe1"]
    laid = subprocess.run(["ip", "-n", name, *cable], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return None if laid.returncode == 0 else f"no cable can be laid: {laid.stderr.strip()}"


@dataclass(slots=True)
class Nodes:
    """Two namespaces, the first with Ray's head; `address` is the cluster's."""

    folder: Path
    first: str = field(default_factory=lambda: f"electra-a-{os.getpid()}")
    second: str = field(default_factory=lambda: f"electra-b-{os.getpid()}")
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"{HEAD}:{PORT}"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **_ENVIRONMENT}

    def lay(self) -> None:
        for name in (self.first, self.second):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", self.first, "link", "add", CABLE, "type", "veth", "peer", "name", CABLE, "netns", self.second)
        for name, address in ((self.first, HEAD), (self.second, OTHER)):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", CABLE)
            _ip("-n", name, "link", "set", CABLE, "up")

    @property
    def dashboard(self) -> str:
        """Of a head that was started with one; seen from within."""
        return f"http://{HEAD}:{DASHBOARD}"

    def start_head(self, dashboard: bool = False) -> None:
        place = [f"--port={PORT}", f"--node-ip-address={HEAD}", f"--include-dashboard={str(dashboard).lower()}"]
        self._ray(self.first, "--head", *place, f"--dashboard-host={HEAD}", f"--dashboard-port={DASHBOARD}")

    def start_other(self) -> None:
        self._ray(self.second, f"--address={self.address}", f"--node-ip-address={OTHER}")

    def cut(self) -> None:
        _ip("-n", self.second, "link", "set", CABLE, "down")

    def mend(self) -> None:
        _ip("-n", self.second, "link", "set", CABLE, "up")

    def kill(self, which: int) -> None:
        """A `ray start`, and every process under it, by the order in which they were started."""
        import psutil

        parent = psutil.Process(self.processes[which].pid)
        for one in [parent, *parent.children(recursive=True)]:
            one.kill()
        self.processes[which].wait()

    def drain(self) -> None:
        """Announce that the second node is preempted in a minute."""
        (answer,) = self._ask(
            f"client.drain_node(one.node_id.hex(), {PREEMPTION}, 'test', int((time.time() + 60) * 1000))[0] "
            f"for one in nodes if one.node_manager_address == {OTHER!r} and one.state == 0"
        )
        assert answer is True

    def alive(self) -> int:
        """How many nodes Ray counts."""
        return len(self._ask("1 for one in nodes if one.state == 0"))

    def _ask(self, what: str) -> list[Any]:
        """A comprehension over Ray's `nodes`, by a process inside; empty while there is no head."""
        program = (
            "import time\n"
            "from ray._raylet import GcsClient\n"
            f"client = GcsClient(address={self.address!r})\n"
            "nodes = client.get_all_node_info(timeout=5).values()\n"
            f"print([{what}])\n"
        )
        inside = ["ip", "netns", "exec", self.first, sys.executable, "-c", program]
        done = subprocess.run(inside, env=self.environment, capture_output=True, text=True, check=False)
        found: list[Any] = ast.literal_eval(done.stdout.strip() or "[]")
        return found

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        """A program beside the head."""
        inside = ["ip", "netns", "exec", self.first, *command]
        self.processes.append(subprocess.Popen(inside, env={**self.environment, **environment}))
        return self.processes[-1]

    def _ray(self, namespace: str, *options: str) -> None:
        ray = str(Path(sys.executable).with_name("ray"))
        place = [f"--temp-dir={self.folder}"] if "--head" in options else []
        within = ["ip", "netns", "exec", namespace]  # which makes a mount namespace, too
        if namespace == self.second:
            (self.folder / "other").mkdir(exist_ok=True)
            mount = 'mount --bind "$0/other" "$0" && exec "$@"'
            within += ["sh", "-c", mount, str(self.folder)]
        size = ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats", "--block"]
        command = [*within, ray, "start", *options, *place, *size]
        log = open(self.folder / f"{namespace}.log", "ab")  # noqa: SIM115 (the process writes to it)
        environment = {**self.environment, "PYTHONPATH": os.getcwd()}
        self.processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        log.close()

    def end(self) -> None:
        import psutil

        family: list[psutil.Process] = []
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = psutil.Process(process.pid)
                family += [parent, *parent.children(recursive=True)]
        # what has lost its parent is still in its namespace
        for name in (self.first, self.second):
            inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
            family += [psutil.Process(int(pid)) for pid in inside.stdout.split() if psutil.pid_exists(int(pid))]
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()
        for name in (self.first, self.second):
            subprocess.run(["ip", "netns", "delete", name], check=False)


@contextlib.contextmanager
def two_nodes() -> Iterator[Nodes]:
    """With a cable, and no Ray yet."""
    folder = Path(tempfile.mkdtemp(prefix="el-", dir="/tmp"))  # Ray's sockets have short names
    nodes = Nodes(folder)
    try:
        nodes.lay()
        yield nodes
    finally:
        nodes.end()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Until the condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.2)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
