"""Nodes that are to be taken away: training saves as soon as one that it runs on is drained, and goes on until it goes.

Ray marks a node as draining when a cloud announces its preemption, an autoscaler removes it, or SIGTERM reaches its
`ray start`. Workers leave their node's id in a folder, because Ray does not tell a driver where they are.

Ray is asked by an actor: the process that asks is aborted (Ray 2.60) when the head is replaced just then.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from training import requests

NODES = "nodes"
POLL_SECONDS = 3.0


def here(scratch: Path) -> set[str]:
    """The nodes whose workers have left their mark."""
    try:
        return {path.name for path in (scratch / NODES).iterdir()}
    except FileNotFoundError:
        return set()


def draining() -> dict[str, int]:
    """Ray's draining nodes and, in milliseconds of the epoch, when they are taken away (0: not told). Ray has no public
    way to ask; its own watcher asks so too."""
    import ray

    found: dict[str, int] = ray._private.state.state.get_draining_nodes()
    return found


class Drains:
    """Looks for drained nodes of the group and asks for a checkpoint, once for each."""

    def __init__(
        self,
        nodes: Callable[[], set[str]],
        ask: Callable[[str], None],
        draining: Callable[[], Mapping[str, int]] = draining,
    ) -> None:
        self._nodes, self._ask, self._draining = nodes, ask, draining
        self._known: set[str] = set()

    def look(self) -> None:
        deadlines = self._draining()
        for node in sorted((self._nodes() & deadlines.keys()) - self._known):
            self._ask(f"node {node[:12]} is to be drained{_by(deadlines[node])}")
            self._known.add(node)


def _by(deadline: int) -> str:
    """Of the driver's clock, for people to read."""
    return f" by {time.strftime('%H:%M:%S', time.localtime(deadline / 1000))}" if deadline else ""


class Watch:
    """Looks as long as it lives: in an actor, which ends when nobody holds its handle any more."""

    def __init__(self, scratch: str, runs_dir: str) -> None:
        self._drains = Drains(lambda: here(Path(scratch)), lambda reason: requests.ask(Path(runs_dir), "save", reason))
        threading.Thread(target=self._repeat, name="drain-watch", daemon=True).start()

    def _repeat(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # of a Ray or a file system that fails just now: the next look tells
                self._drains.look()
            time.sleep(POLL_SECONDS)


def watch(scratch: Path, runs_dir: Path) -> Any:
    """Start looking after a group; hold what this returns while it trains."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(num_cpus=0, scheduling_strategy=this_node)(Watch)
    return actor.remote(str(scratch), str(runs_dir))
