"""What a run is asked from outside while it trains: to save, or to save and stop.

A request comes by either of two ways, whatever launched the ranks: a small file beside the runs, which any machine that
shares the file system can write (`electra stop`, the driver's signal handler, a node's drain notice), and `post` within
a process that was sent a signal itself. One rank that knows is enough: the loop has ranks agree. A request is for what
runs now: the command that takes an experiment's folder clears it first. Torch-free.

Guarantees: a stop and a saving are files of their own, each replaced whole, so that neither is lost to the other
whoever writes when; requests are told apart by random ids, never by clocks. A file system that does not answer now is
one on which nothing is asked now: it is looked at again.
"""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from uuid import uuid4

from data_prep import storage

POLL_SECONDS = 0.5  # at most so often are the files looked for

Asked = Literal["save", "stop"]
_NAMES: dict[Asked, str] = {"stop": "request-stop.json", "save": "request-save.json"}  # the first counts more


@dataclass(frozen=True, slots=True)
class Request:
    """One that stands."""

    what: Asked
    reason: str
    id: str


def ask(runs_dir: Path, what: Asked, reason: str) -> None:
    """Leave a request for the runs in a folder; a later one of the kind takes its place. OSError where it cannot be
    written."""
    storage.write_json(runs_dir / _NAMES[what], {"reason": reason, "id": uuid4().hex})


def read(runs_dir: Path) -> Request | None:
    """The request that stands, a stop before a saving; None where there is none, or it cannot be read."""
    for what, name in _NAMES.items():
        try:
            found = json.loads((runs_dir / name).read_bytes())
            return Request(what, str(found["reason"]), str(found["id"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def clear(runs_dir: Path) -> None:
    """Take back what was asked of earlier runs."""
    for name in _NAMES.values():
        (runs_dir / name).unlink(missing_ok=True)


@dataclass(slots=True)
class Inbox:
    """What one rank is asked: by the files, where it watches them, and by its own process."""

    runs_dir: Path | None = None  # None: some other rank watches them
    _posted: dict[Asked, str] = field(default_factory=dict)  # and why
    _answered: str = ""  # the id of the last saving request that was answered
    _next: float = field(default=0.0)

    def post(self, what: Asked, reason: str) -> None:
        """Ask from within this process; safe in a signal handler."""
        self._posted[what] = reason

    def poll(self) -> tuple[Asked, str] | None:
        """The request that stands, and why: a stop for good, a saving once."""
        if "stop" in self._posted:
            return "stop", self._posted["stop"]
        if "save" in self._posted:
            return "save", self._posted.pop("save")
        now = time.monotonic()
        if self.runs_dir is None or now < self._next:
            return None
        self._next = now + POLL_SECONDS
        found = read(self.runs_dir)
        if found is None or (found.what == "save" and found.id == self._answered):
            return None
        self._answered = found.id
        return found.what, found.reason
