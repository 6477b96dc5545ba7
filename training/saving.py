"""When a run saves, and what comes of it: the policy around `training.checkpoints.Saver`.

A saving that fails (a full disk, a store that does not answer) does not end training: it is an event, what it wrote is
removed, and the next metric line is followed by another try. So many failures in a row as `checkpoints.max_failures`
says, and training ends with PreflightError on every rank: from then on it would only add to what is lost.
"""

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from data_prep.errors import PreflightError
from data_prep.manifest import Manifest
from data_prep.storage import Folder
from training import run_folder
from training.checkpoints import Progress, Saver
from training.control import Control
from training.engine import Engine
from training.ranks import on_rank_zero
from training.settings import RunSpec

IDLE, WRITING = 0, 1  # what a rank says of itself
RETRY_SECONDS = 2.0  # where there is no further step to wait for; doubled every time


class Saving:
    """The savings of one attempt. Every rank must call alike; use as a context manager around the steps."""

    def __init__(
        self,
        spec: RunSpec,
        engine: Engine,
        manifest: Manifest,
        store: Folder,
        run_dir: Path,
        control: Control,
        while_writing: Callable[[int], None],
    ) -> None:
        self._spec, self._config, self._run_dir = spec, spec.placement.checkpoints, run_dir
        self._saver = Saver(
            store,
            engine,
            spec,
            manifest.special,
            manifest.layout == "packed",
            control.group,
            while_writing=while_writing,
        )
        self._failures = 0  # in a row
        self._exchanges, self._ripe_from = 0, 0
        self._again: tuple[Progress, float | None, str] = (Progress(), None, "")

    def due(self, step: int) -> bool:
        """Whether the state after `step` steps is to be saved: by the interval, as asked, at the end, or because the
        last saving failed (the loop asks after every metric line)."""
        every, placement = self._config.every, self._spec.placement
        planned = step == self._spec.steps or step in placement.save_at or (every is not None and step % every == 0)
        return planned or (self._failures > 0 and step % placement.log_every == 0)

    def start(self, progress: Progress, heldout_loss: float | None, next_rows: str) -> None:
        """Copy what this rank holds and write it beside the next steps; one that is under way is settled first."""
        if self._saver.pending:
            self.settle()
        self._again = progress, heldout_loss, next_rows
        self._saver.start(progress, heldout_loss=heldout_loss, next_rows=next_rows)
        self._ripe_from = self._exchanges + 1

    def said(self) -> int:
        """What this rank tells the others now, at every step: whether it still writes."""
        self._exchanges += 1
        return WRITING if self._saver.busy else IDLE

    def written(self, learned: int) -> bool:
        """Whether all ranks have written, given what they said one step before."""
        return self._saver.pending and self._exchanges > self._ripe_from and learned == IDLE

    def settle(self) -> bool:
        """Commit what is under way, if anything is, or clear it away; waits for it. False where it failed.
        PreflightError where too many have."""
        if not self._saver.pending:
            return True
        outcome = self._saver.settle()
        if outcome.saved:
            self._failures = 0
            event = {"event": "saved", "step": outcome.step, "bytes": outcome.bytes, "pruned": outcome.pruned}
            event |= {"copy_seconds": outcome.copy_seconds, "write_seconds": outcome.write_seconds}
            event |= {"reason": outcome.reason} if outcome.reason else {}  # why nothing could be pruned
        else:
            self._failures += 1
            event = {"event": "save_failed", "step": outcome.step, "reason": outcome.reason}
            event |= {"in_a_row": self._failures}
        on_rank_zero(lambda: run_folder.append_events(self._run_dir, [event]))
        if self._failures >= self._config.max_failures:
            raise PreflightError(
                f"{self._spec.name}: saving failed {self._failures} times in a row (the last time: {outcome.reason}); "
                "free the space or correct the store, and the same command resumes from the newest checkpoint"
            )
        return bool(outcome.saved)

    def finish(self) -> None:
        """Have what was started settled, trying again until it is saved."""
        pause = RETRY_SECONDS
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
