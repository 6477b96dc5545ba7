"""A group that is to have more workers is ended and started again: first it saves, so that no step is repeated.

Asked without waiting, so that who asks goes on to hear of stops and failures meanwhile. Torch- and Ray-free.
"""

import contextlib
import time
from dataclasses import dataclass

from cluster.oversight import current, last_step
from cluster.worker import Assignment
from training import requests, run_folder

ASK_AGAIN_SECONDS = 600.0  # where no checkpoint has come: a saving fails, or takes long


@dataclass(frozen=True, slots=True)
class _Asked:
    """What had come of the run when it was asked to save."""

    run: str
    step: int  # of its last sign of life
    events: int
    time: float


class SaveFirst:
    """Asks what runs for a checkpoint, and tells when it is there."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._asked: _Asked | None = None

    def saved(self, reason: str) -> bool:
        """Whether the checkpoint that the first call has asked for is there; never while a stop stands, which the ranks
        are to hear. A saving that failed, or that was under way before, is none."""
        spec, standing = current(self._assignment), requests.read(self._assignment.runs_dir)
        if spec is None or (standing is not None and standing.what == "stop"):
            return False
        asked = self._asked
        if asked is None or time.monotonic() - asked.time > ASK_AGAIN_SECONDS:
            self._ask(spec.name, reason)
            return False
        if asked.run != spec.name:  # the run has ended instead, and the next has just begun
            return True
        since = run_folder.events(self._assignment.run_dir(spec))[asked.events :]
        return any(event["event"] == "saved" and event["step"] >= asked.step for event in since)

    def _ask(self, run: str, reason: str) -> None:
        run_dir = self._assignment.runs_dir / run
        asked = _Asked(run, last_step(run_dir), len(run_folder.events(run_dir)), time.monotonic())
        with contextlib.suppress(OSError):  # a full disk: asked at the next call
            requests.ask(self._assignment.runs_dir, "save", reason)
            self._asked = asked

    def forget(self) -> None:
        """The next call asks anew."""
        self._asked = None
