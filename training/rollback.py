"""Going back to a checkpoint and past the rows that led off the road, on record.

A rollback is an event, on the disk, before it is anything else, so that a run which is killed straight after it does
the same: the checkpoint it came back to says the position from before, the event says the one to go on from, and
checkpoints of the trajectory that was left are known by having seen fewer rollbacks. What the lost steps cost stays in
what was spent; it is not in what counts.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from training import run_folder
from training.checkpoints import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """From `step` to the checkpoint of `to_step`, whose stream stood at `from_position`, to go on at `to_position`."""

    step: int
    to_step: int
    from_position: int
    to_position: int
    reason: str
    flops: float  # spent and not counted
    flops_spent: float  # in all, by then
    seconds: float

    @staticmethod
    def between(lost: Progress, found: Progress, reason: str) -> "Rollback":
        return Rollback(
            step=lost.step,
            to_step=found.step,
            from_position=found.position,
            to_position=lost.position,
            reason=reason,
            flops=lost.flops_counted - found.flops_counted,
            flops_spent=lost.flops_spent,
            seconds=lost.seconds - found.seconds,
        )

    def record(self, run_dir: Path) -> None:
        """Rank 0: an event, and on the disk when this returns."""
        run_folder.append_events(run_dir, [{"event": "rollback", **asdict(self)}], durable=True)


def recorded(events: Iterable[dict[str, Any]]) -> list[Rollback]:
    """Those among a run's events, in order."""
    names = [field.name for field in fields(Rollback)]
    return [Rollback(**{name: event[name] for name in names}) for event in events if event["event"] == "rollback"]


def in_a_row(events: Iterable[dict[str, Any]]) -> list[Rollback]:
    """The last ones, since a checkpoint was saved further on than any of them had come: until then it is the same
    trouble."""
    found: list[Rollback] = []
    for event in events:
        if event["event"] == "rollback":
            found += recorded([event])
        elif event["event"] == "saved" and all(event["step"] > one.step for one in found):
            found = []
    return found


def is_left_behind(progress: Progress, rollbacks: list[Rollback]) -> bool:
    """Whether a checkpoint with this progress is of a trajectory that a later rollback has left."""
    return any(progress.step > one.to_step for one in rollbacks[progress.rollbacks :])


def past_rollbacks(progress: Progress, rollbacks: list[Rollback]) -> Progress:
    """A checkpoint's progress, past the rows that rollbacks to it have skipped, if there were any."""
    came_back = [one for one in rollbacks if (one.to_step, one.from_position) == (progress.step, progress.position)]
    if came_back:
        skipped = (*progress.skipped_rows, (progress.position, came_back[-1].to_position))
        progress = replace(progress, position=came_back[-1].to_position, skipped_rows=skipped)
    return replace(progress, rollbacks=len(rollbacks))
