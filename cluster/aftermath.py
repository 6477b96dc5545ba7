"""What a worker group that has failed leaves behind: a `failed` event, and what the budget of restarts is to judge."""

from pathlib import Path
from typing import Any

from cluster.failures import Cause
from cluster.oversight import last_step, run_that_trains, tell
from cluster.restarts import Failure, Kind
from cluster.worker import Assignment
from training import run_folder
from training.heartbeat import Beat, read_beats
from training.metrics import newest_line, next_attempt


class Before:
    """How the runs stood before a group was started: what is there afterwards and was not then is of that group."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        folders = [assignment.run_dir(spec) for spec in assignment.specs]
        self._said = _own_words(assignment)
        self._segments = {folder: next_attempt(folder) for folder in folders}
        self._processes = {folder: _process(read_beats(folder).get(0)) for folder in folders}

    def failure(self, found: Cause) -> Failure:
        """Leave a `failed` event in the folder of the run that trained, unless rank 0 has, and say what failed."""
        done = sum((self._assignment.run_dir(one) / run_folder.DONE).exists() for one in self._assignment.specs)
        run_dir = run_that_trains(self._assignment)
        hung = _hung(run_dir)
        reason = found.reason if hung is None else hung
        kind: Kind = "hung" if hung is not None else "store" if found.store else "lost"
        step = last_step(run_dir)
        if _own_words(self._assignment) <= self._said:
            tell(run_dir, {"event": "failed", "reason": reason, "step": step, "ranks": list(found.ranks)})
        return Failure(
            run=run_dir.name,
            step=step,
            saved=(done, newest_step(run_dir)),
            reason=reason,
            kind=kind,
            stepped=self._stepped(run_dir),
        )

    def _stepped(self, run_dir: Path) -> bool:
        """Whether the group has completed a step of the run, as its metric lines or its signs of life tell."""
        line, beat = newest_line(run_dir), read_beats(run_dir).get(0)
        if line is not None and line["attempt"] >= self._segments[run_dir]:
            return True
        began = next((one["step"] for one in run_folder.last_events(run_dir) if one["event"] == "started"), None)
        return beat is not None and began is not None and beat.step > began and self._is_new(run_dir, beat)

    def _is_new(self, run_dir: Path, beat: Beat) -> bool:
        return _process(beat) != self._processes[run_dir]


def newest_step(run_dir: Path) -> int:
    """The step that the next attempt begins at: the last saved, or where the last attempt began, or went back to."""
    step, names = 0, {"started": "step", "saved": "step", "rollback": "to_step"}
    for event in run_folder.last_events(run_dir):
        step = event[names[event["event"]]] if event["event"] in names else step
    return step


def _process(beat: Beat | None) -> tuple[Any, ...] | None:
    return None if beat is None else (beat.host, beat.pid, beat.started)


def _own_words(assignment: Assignment) -> int:
    """How often rank 0 has said itself why it failed; what a driver says names ranks."""
    said = [event for spec in assignment.specs for event in run_folder.events(assignment.run_dir(spec))]
    return sum(event["event"] == "failed" and "ranks" not in event for event in said)


def _hung(run_dir: Path) -> str | None:
    """What the watchdog has said, if that is what ended the group: a `failed` event follows what is known already."""
    said = [one for one in run_folder.last_events(run_dir) if one["event"] in ("hung", "failed")]
    if not said or said[-1]["event"] == "failed":
        return None
    step, ranks = said[-1]["step"], said[-1]["ranks"]
    named = ", ".join(str(one["rank"]) for one in ranks)
    return f"hung at step {step}, rank {named}: {ranks[0]['why']}" if ranks else f"hung at step {step}"
