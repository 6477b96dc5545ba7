"""A group that is to have more workers is ended and started again: first it saves, so that no step is repeated."""

import time

from cluster.worker import Assignment
from training import requests, run_folder

WAIT_SECONDS = 120.0  # for a checkpoint; after that the group is resized without one
POLL_SECONDS = 0.5


def save_first(assignment: Assignment, reason: str) -> bool:
    """Ask what runs for a checkpoint and wait for it; False where none came in time, as while a run starts."""
    before = _savings(assignment)
    requests.ask(assignment.runs_dir, "save", reason)
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        if _savings(assignment) > before:
            return True
        time.sleep(POLL_SECONDS)
    return False


def _savings(assignment: Assignment) -> int:
    """How often runs have saved, tried to, or come to their end, in this attempt: clocks of machines differ."""
    events = [event for spec in assignment.specs for event in run_folder.last_events(assignment.run_dir(spec))]
    return sum(event["event"] in ("saved", "save_failed", "finished") for event in events)
