"""Groups none of whose workers has begun: there is nobody yet to hear a stop, or to say that nothing happens."""

import time
from collections.abc import Callable
from pathlib import Path

from cluster.drain import here
from cluster.oversight import run_that_trains, tell
from cluster.worker import Assignment
from training import requests

STOP_SECONDS = 5.0  # a stop stands, and no worker has begun: the group is ended
LONG_SECONDS = 75.0  # Ray gives up on a group that has no room after 60; an elastic one waits on for its fewest


class Waiting:
    """That there is no room is said once, however many groups wait in turn, until workers have begun."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment, self._said = assignment, False

    def say(self, reason: str) -> None:
        """Leave a `waiting` event in the folder of the run that is to train."""
        if not self._said:
            self._said = tell(run_that_trains(self._assignment), {"event": "waiting", "reason": reason})

    def over(self) -> None:
        """Workers have begun."""
        self._said = False

    def watch(self, scratch: Path, end_group: Callable[[], None]) -> "Unbegun":
        """A new group, whose workers leave their nodes in `scratch`."""
        return Unbegun(self, self._assignment.runs_dir, scratch, end_group)


class Unbegun:
    """Looks after one group until a worker of it has begun."""

    def __init__(self, waiting: Waiting, runs_dir: Path, scratch: Path, end_group: Callable[[], None]) -> None:
        self._waiting, self._runs_dir, self._scratch, self._end_group = waiting, runs_dir, scratch, end_group
        self._since, self._asked = time.monotonic(), float("inf")
        self._over = False

    def look(self) -> bool:
        """Whether the group was ended: who waits for it then finds the stop."""
        if self._over:
            return False
        if here(self._scratch):
            self._over = True
            self._waiting.over()
            return False
        now, standing = time.monotonic(), requests.read(self._runs_dir)
        if standing is not None and standing.what == "stop":
            self._asked = min(self._asked, now)
            if now - self._asked < STOP_SECONDS:
                return False
            self._end_group()
            self._over = True
            return True
        if now - self._since >= LONG_SECONDS:
            self._waiting.say("no worker has begun: Ray has no room for them, or is slow to start them")
        return False
