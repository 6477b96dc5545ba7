"""The mirror while something trains: new metric lines to MLflow every half minute, off the training's own path.

It runs where progress is shown, never in a process's training step. A store that fails is told of once, and asked again
after twice as long each time, at most every ten minutes; what it missed goes when it answers. One call takes bounded
time, so that training's end does not wait for a slow server: the tracking stage that follows sends the rest.
"""

import time
from pathlib import Path

from cluster.progress import passing_refusals
from data_prep.errors import ElectraError
from pipeline.console import Console

MIRROR_SECONDS = 30.0
LONGEST_PAUSE = 600.0
BUDGET_SECONDS = 20.0  # for one call


class Mirror:
    """Sends what is new of the experiment in `out`, which the caller holds and trains."""

    def __init__(self, out: Path, console: Console) -> None:
        self._out, self._console = out, console
        self._pause = MIRROR_SECONDS
        self._next = time.monotonic() + self._pause
        self._sent = self._failed = False

    def warn(self, text: str) -> None:
        """Say what is wrong with the store, once until it answers."""
        if not self._failed:
            self._console.warn(text)

    def now_and_then(self) -> None:
        """In the time between, nothing."""
        if time.monotonic() >= self._next:
            self._sync(training=True)
            self._next = time.monotonic() + self._pause

    def close(self) -> None:
        """Training ends early and will be resumed: what was sent is no longer said to be running."""
        if self._sent and not self._failed:
            self._sync(training=False)

    def _sync(self, *, training: bool) -> None:
        from pipeline.tracking import sync

        try:
            with passing_refusals():  # a file that cannot be read now; half a minute later it may be
                summary = sync(self._out, console=self, training=training, seconds=BUDGET_SECONDS)
                self._heard(reachable=summary.reachable)
        except ElectraError as error:
            self.warn(str(error))
            self._heard(reachable=False)

    def _heard(self, *, reachable: bool) -> None:
        if reachable and self._failed:
            self._console.say("MLflow answers again; what it missed is being sent")
        self._sent |= reachable
        self._failed = not reachable
        self._pause = MIRROR_SECONDS if reachable else min(2 * self._pause, LONGEST_PAUSE)
