"""What a run is asked from outside while it trains: to save, or to save and stop.

A request comes by either of two ways, whatever launched the ranks: a small file beside the runs, which any machine that
shares the file system can write (`electra stop`, the driver's signal handler, a node's drain notice), and `post` within
a process that was sent a signal itself. One rank that knows is enough: the loop has ranks agree. A request is for what
runs now: whoever starts runs clears it first. Torch-free.
"""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from data_prep import storage

NAME = "request.json"
POLL_SECONDS = 0.5  # at most so often is the file looked for

Asked = Literal["save", "stop"]


def ask(runs_dir: Path, what: Asked, reason: str) -> None:
    """Leave a request for the runs in a folder; a later one takes its place, but never a `save` that of a `stop`."""
    found = read(runs_dir)
    if found is not None and found["ask"] == "stop":
        return
    storage.write_json(runs_dir / NAME, {"ask": what, "reason": reason, "time": time.time()})


def read(runs_dir: Path) -> dict[str, Any] | None:
    """The request that stands; None where there is none."""
    try:
        found = json.loads((runs_dir / NAME).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("ask") in ("save", "stop") else None


def clear(runs_dir: Path) -> None:
    """Take back what was asked of earlier runs."""
    (runs_dir / NAME).unlink(missing_ok=True)


@dataclass(slots=True)
class Inbox:
    """What one rank is asked: by the file, where it watches it, and by its own process."""

    runs_dir: Path | None = None  # None: some other rank watches the file
    _posted: tuple[Asked, str] | None = None
    _answered: float = 0.0  # the time of the newest saving request that was answered
    _next: float = field(default=0.0)

    def post(self, what: Asked, reason: str) -> None:
        """Ask from within this process; safe in a signal handler."""
        self._posted = what, reason

    def poll(self) -> tuple[Asked, str] | None:
        """The request that stands, and why: a stop for good, a saving once."""
        if self._posted is not None:
            posted = self._posted
            if posted[0] == "save":
                self._posted = None
            return posted
        now = time.monotonic()
        if self.runs_dir is None or now < self._next:
            return None
        self._next = now + POLL_SECONDS
        found = read(self.runs_dir)
        if found is None or (found["ask"] == "save" and found["time"] <= self._answered):
            return None
        self._answered = found["time"]
        return found["ask"], str(found.get("reason", "asked"))
