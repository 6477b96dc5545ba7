"""Going back to a checkpoint and past the rows that led off the road, on record.

A rollback is an event before it is anything else, so that a run which is killed straight after it does the same: the
checkpoint it came back to says the position from before, the event says the one to go on from. What the lost steps cost
stays in what was spent; it is not in what counts.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from data_prep.errors import DivergedError
from data_prep.storage import Folder
from training import checkpoints, run_folder
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
            seconds=lost.seconds - found.seconds,
        )

    def record(self, run_dir: Path, store: Folder, limit: int) -> None:
        """Rank 0: put it on record, and the checkpoints that it leaves behind aside. DivergedError where so many have
        come back to this one checkpoint before."""
        before = sum(one.to_step == self.to_step for one in _recorded(run_folder.events(run_dir)))
        if before >= limit:
            raise DivergedError(
                f"{run_dir.name}: at step {self.step} {self.reason}, and {before} times before it went back to step "
                f"{self.to_step} and on with other rows; lower the arm's learning_rate"
            )
        checkpoints.set_aside(store, after=self.to_step)
        run_folder.append_events(run_dir, [{"event": "rollback", **asdict(self)}])


def past_rollbacks(run_dir: Path, progress: Progress) -> Progress:
    """Rank 0: a checkpoint's progress, past the rows that rollbacks to it have skipped, if there were any."""
    came_back = [
        one
        for one in _recorded(run_folder.events(run_dir))
        if (one.to_step, one.from_position) == (progress.step, progress.position)
    ]
    if not came_back:
        return progress
    return replace(
        progress,
        position=came_back[-1].to_position,
        rollbacks=progress.rollbacks + len(came_back),
        rows_skipped=progress.rows_skipped + came_back[-1].to_position - progress.position,
    )


def _recorded(events: Iterable[dict[str, Any]]) -> list[Rollback]:
    names = [field.name for field in fields(Rollback)]
    return [Rollback(**{name: event[name] for name in names}) for event in events if event["event"] == "rollback"]
