"""What a driver looks after while a worker group trains: a group that has gone silent as a whole, an embedded Ray whose
parts have died and what else it is given, in threads of its own, and, by an actor, nodes that are to be taken away.

A hung rank is found by the others (`training.watchdog`); only where all are silent is there nobody left to say so.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cluster import drain, session
from cluster.worker import Assignment
from data_prep import storage
from training import run_folder
from training.heartbeat import FOLDER, Listener, read_beats
from training.metrics import newest_line
from training.settings import RunSpec
from training.suspects import Suspect, kill, overdue
from training.watchdog import NAMED

BROKEN_SECONDS = 1.0
LISTEN_SECONDS = 2.0
DEAF_SECONDS = 4 * LISTEN_SECONDS  # between two looks: this process was paused
BEAT_BYTES = 8192

Look = Callable[[], object]


@contextlib.contextmanager
def overseeing(
    assignment: Assignment, end_group: Callable[[], None], scratch: Path, *others: tuple[Look, float]
) -> Iterator[None]:
    """Until the block ends. `end_group` ends the group from another thread; workers leave their nodes in `scratch`;
    `others`: what else is to be looked at, and seconds between."""
    looks = [(Silence(assignment, end_group).look, LISTEN_SECONDS), *others]
    drains = None
    if session.embedded():  # its node is this one, which nobody drains
        looks.append((session.end_broken, BROKEN_SECONDS))
    else:
        drains = drain.watch(scratch, assignment.runs_dir)
    over = threading.Event()
    for look, seconds in looks:
        threading.Thread(target=_repeat, args=(look, seconds, over), name="oversight", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        del drains


def _repeat(look: Look, seconds: float, over: threading.Event) -> None:
    while not over.wait(seconds):
        with contextlib.suppress(Exception):  # of a Ray or a file system that fails just now: the next look tells
            look()


class Silence:
    """Names and ends a group all of whose ranks have fallen silent, as when their machines are paused, once.

    Silence is none where nothing could be heard: on a disk that takes no beats, or while this process did not listen.
    """

    def __init__(
        self, assignment: Assignment, end_group: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._assignment, self._end_group, self._clock = assignment, end_group, clock
        self._run: str | None = None
        self._listener: Listener | None = None
        self._looked = self._heard_since = clock()
        self._acted = False

    def look(self) -> bool:
        """Whether the group was ended."""
        spec = current(self._assignment)
        if spec is None or self._acted:
            return False
        run_dir, watchdog = self._assignment.run_dir(spec), spec.placement.watchdog
        if self._listener is None or self._run != spec.name:
            self._run, self._listener = spec.name, Listener(run_dir, self._clock)
        hearing = self._hearing(run_dir)
        silent = overdue(self._listener, watchdog)
        if not silent or hearing < watchdog.step:
            return False
        self._acted = True
        tell(run_dir, _hung(silent, last_step(run_dir), watchdog.step))
        kill(silent)
        self._end_group()
        return True

    def _hearing(self, run_dir: Path) -> float:
        """For so many seconds beats could be written here, and were listened for."""
        now = self._clock()
        if now - self._looked > DEAF_SECONDS or not _takes_beats(run_dir):
            self._heard_since = now
        self._looked = now
        return now - self._heard_since


def _takes_beats(run_dir: Path) -> bool:
    """Whether a file of a beat's size can be written beside the beats; also False before there are any."""
    try:
        with storage.atomic_writer(run_dir / FOLDER / "driver", durable=False) as file:
            file.write(bytes(BEAT_BYTES))
    except OSError:
        return False
    return True


def _hung(silent: Sequence[Suspect], step: int, seconds: float) -> dict[str, Any]:
    """As `training.watchdog` says it, but that no rank has noticed."""
    return {
        "event": "hung",
        "step": step,
        "phase": "all silent",
        "seconds": seconds,
        "noticed_by": None,
        "ranks": [one.record() for one in silent[:NAMED]],
        "left_out": len(silent[NAMED:]),
    }


def current(assignment: Assignment) -> RunSpec | None:
    """The run that trains now: the first that is not done."""
    return next((one for one in assignment.specs if not (assignment.run_dir(one) / run_folder.DONE).exists()), None)


def last_step(run_dir: Path) -> int:
    """The last completed step that was seen of a run: in rank 0's newest beat, or its newest metric line."""
    beat, line = read_beats(run_dir).get(0), newest_line(run_dir)
    return max(0 if beat is None else beat.step, 0 if line is None else int(line["step"]))


def run_that_trains(assignment: Assignment) -> Path:
    """The folder of the run that trains now, or trained last."""
    return assignment.run_dir(current(assignment) or assignment.specs[-1])


def tell(run_dir: Path, event: dict[str, Any]) -> bool:
    """Leave an event in a run's folder, unless a full disk refuses it, which is no reason to end anything; whether it
    is there. It says at which step the run stands."""
    with contextlib.suppress(OSError):
        run_dir.mkdir(parents=True, exist_ok=True)
        run_folder.append_events(run_dir, [{"step": last_step(run_dir), **event}])
        return True
    return False
