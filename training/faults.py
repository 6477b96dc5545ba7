"""Faults that a run injects into itself, for drills and tests: `training.faults` in the experiment file.

Each happens `times` times over all attempts: what happened is marked in the run's folder before it happens, so that a
restarted run gets past it. Every one is an event. What a fault does is real: the process is killed by the kernel, the
disk error is raised where the write would have failed. A spike is one of all ranks, with one mark: later attempts may
have other ranks.
"""

import contextlib
import errno
import math
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from training import run_folder
from training.settings import Fault

FOLDER = "faults"
SPIKE = 1000.0


class Faults:
    """Those of one rank."""

    def __init__(self, faults: Iterable[Fault], run_dir: Path, rank: int) -> None:
        self._run_dir, self._rank = run_dir, rank
        self._own = [(n, one) for n, one in enumerate(faults) if one.kind == "spike" or one.rank in (rank, "all")]
        self._known = {path.name for path in (run_dir / FOLDER).glob("*")}  # marks of what is over

    def before_step(self, step: int) -> None:
        """After so many completed steps: kill, stop or hang this process where that is due."""
        if self._take(step, "kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._take(step, "stop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self._take(step, "hang"):
            while True:
                time.sleep(3600.0)

    def loss_factor(self, step: int) -> float:
        """What the loss of the step is multiplied by: 1, or not a number."""
        return math.nan if self._take(step, "nan", or_later=True) else 1.0

    def rate_factor(self, step: int) -> float:
        """What the learning rate of the step is multiplied by, alike on all ranks: each must ask, and only when all are
        there."""
        return SPIKE if self._take(step, "spike", or_later=True) else 1.0

    def while_saving(self, step: int) -> None:
        """In the middle of writing this rank's part of the checkpoint of a step."""
        if self._take(step, "kill_in_save", or_later=True):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._take(step, "full_disk", or_later=True):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._run_dir))

    def after_restore(self, step: int) -> None:
        """When the state of a step is back in the engine."""
        if self._take(step, "kill_in_resume", or_later=True):
            os.kill(os.getpid(), signal.SIGKILL)

    def _take(self, step: int, kind: str, *, or_later: bool = False) -> bool:
        """Whether a fault of this kind is due, which is then marked."""
        for number, fault in self._own:
            due = step == fault.step or (or_later and step > fault.step)
            if fault.kind == kind and due and self._mark(number, fault, step):
                return True
        return False

    def _mark(self, number: int, fault: Fault, step: int) -> bool:
        """Count one more time, and tell of it; False where all have been."""
        who = "all" if fault.kind == "spike" else self._rank
        left = [f"{number}-{who}-{which}" for which in range(fault.times)]
        left = [name for name in left if name not in self._known]
        if not left:
            return False
        self._known.add(left[0])
        folder = self._run_dir / FOLDER
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another rank has marked and told of what is happening to all
            (folder / left[0]).touch(exist_ok=False)
            event = {"event": "fault", "kind": fault.kind, "step": step, "rank": who}
            run_folder.append_events(self._run_dir, [event])
        return True
