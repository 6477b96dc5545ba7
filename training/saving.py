"""When a run saves, and what comes of it: the policy around `training.checkpoints.Saver`.

A saving that fails (a full disk, a store that does not answer) does not end training: it is an event, what it wrote is
removed, and another try follows, after half a minute, then a minute, two, and so on up to ten. So many failures in a
row as `checkpoints.max_failures` says, and training ends with PreflightError on every rank: from then on it would only
add to what is lost. Rank 0's clock decides for all.
"""

import time
from collections.abc import Callable
from types import TracebackType

from data_prep.errors import PreflightError, StoreError
from data_prep.manifest import Manifest
from data_prep.storage import Folder
from training.checkpoints import Progress, Saver
from training.control import Control
from training.engine import Engine
from training.ranks import on_rank_zero
from training.run_folder import Journal
from training.settings import RunSpec

IDLE, WRITING = 0, 1  # what a rank says of itself
RETRY_SECONDS, LONGEST_RETRY = 30.0, 600.0  # while training goes on
LAST_SECONDS = 2.0  # where there is no further step to wait for; doubled every time


class Saving:
    """The savings of one attempt. Every rank must call alike; use as a context manager around the steps."""

    def __init__(
        self,
        spec: RunSpec,
        engine: Engine,
        manifest: Manifest,
        store: Folder,
        journal: Journal,
        control: Control,
        *,
        while_writing: Callable[[int], None],
        waiting: Callable[[], None],
    ) -> None:
        """`while_writing` is called in the middle of a part, `waiting` before what may take its time."""
        self._spec, self._config, self._journal, self._group = spec, spec.placement.checkpoints, journal, control.group
        self._waiting = waiting
        self._saver = Saver(
            store,
            engine,
            spec,
            manifest.special,
            manifest.layout == "packed",
            control.group,
            while_writing=while_writing,
        )
        self._failures, self._retry_at, self._retry = 0, 0.0, False  # failures in a row
        self._exchanges, self._ripe_from = 0, 0
        self._again: tuple[Progress, float | None, str] = (Progress(), None, "")
        self._known: set[int] = set()  # steps that were saved
        self._well_until = 0

    def resumed_from(self, step: int) -> None:
        """The checkpoint of this step is there."""
        self._known = {one for one in self._known if one < step} | {step}

    def due(self, step: int) -> bool:
        """Whether the state after `step` steps is to be saved: by the interval, as asked, or at the end; while savings
        fail, when it is time to try again."""
        if step == self._spec.steps or self._retry:
            return True
        every, save_at = self._config.every, self._spec.placement.save_at
        return self._failures == 0 and (step in save_at or (every is not None and step % every == 0))

    def start(self, progress: Progress, heldout_loss: float | None, next_rows: str) -> None:
        """Copy what this rank holds and write it beside the next steps; one that is under way is settled first."""
        self.settle()
        self._again, self._retry = (progress, heldout_loss, next_rows), False
        self._saver.start(progress, heldout_loss=heldout_loss, next_rows=next_rows)
        self._ripe_from = self._exchanges + 1

    def said(self) -> tuple[int, int]:
        """What this rank tells the others now, at every step: whether it still writes, and whether it is time to try
        again, which rank 0 alone knows."""
        self._exchanges += 1
        late = self._failures > 0 and not self._saver.pending and time.monotonic() >= self._retry_at
        return (WRITING if self._saver.busy else IDLE), int(late)

    def learned(self, writing: int, retry: int, well_until: int) -> None:
        """What all ranks have said one step before: settles what all have written. Up to the step `well_until` all is
        known to be well: the newest checkpoint from before it stays, whatever the rules."""
        self._well_until = well_until
        self._retry = bool(retry) and self._failures > 0 and not self._saver.pending
        if self._saver.pending and self._exchanges > self._ripe_from and writing == IDLE:
            self.settle()

    def settle(self) -> bool:
        """Commit what is under way, if anything is, or clear it away; waits for it. False where it failed.
        PreflightError where too many have, StoreError where the last has because a store gave no answer."""
        if not self._saver.pending:
            return True
        self._waiting()
        outcome = self._saver.settle(spare=self._spared())
        if outcome.saved:
            self._failures = 0
            self._known.add(outcome.step)
            event = {"event": "saved", "step": outcome.step, "bytes": outcome.bytes, "pruned": outcome.pruned}
            event |= {"copy_seconds": outcome.copy_seconds, "write_seconds": outcome.write_seconds}
            event |= {"reason": outcome.reason} if outcome.reason else {}  # why nothing could be pruned
        else:
            self._failures += 1
            pause = min(RETRY_SECONDS * 2 ** (self._failures - 1), LONGEST_RETRY)
            self._retry_at = time.monotonic() + pause
            event = {"event": "save_failed", "step": outcome.step, "reason": outcome.reason}
            event |= {"in_a_row": self._failures}
        on_rank_zero(lambda: self._journal.append(event), self._group)
        if self._failures >= self._config.max_failures:
            refused = StoreError if outcome.silent else PreflightError
            raise refused(
                f"{self._spec.name}: saving failed {self._failures} times in a row (the last time: {outcome.reason}); "
                "free the space or correct the store, and the same command resumes from the newest checkpoint"
            )
        return bool(outcome.saved)

    def _spared(self) -> set[int]:
        """What there is to go back to; a run that is at its end goes back no more."""
        if self._again[0].step == self._spec.steps:
            return set()
        well = [step for step in self._known if step <= self._well_until]
        return {max(well)} if well else set()

    def finish(self) -> None:
        """Have what was started settled, trying again until it is saved."""
        pause = LAST_SECONDS
        while not self.settle():
            time.sleep(pause)
            pause *= 2
            progress, heldout_loss, next_rows = self._again
            self._saver.start(progress, heldout_loss=heldout_loss, next_rows=next_rows)

    def __enter__(self) -> "Saving":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
