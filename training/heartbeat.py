"""Signs of life: every rank leaves what it does, and where its training thread stands, in a small file of its own.

Guarantees: a reader sees a whole beat or none. Whether a rank still beats is judged by the reader's own clock alone,
from when it last saw the beat change; the clocks of two machines are never compared, and a file that an earlier attempt
left is not taken for a living rank. Beats are not durable: nothing is resumed from them. Torch-free, for drivers too.

Limits: a stack is that of the Python frames, innermost last; what a native call waits for is not seen. A process is
told from a later one of the same id only where there is /proc.
"""

import json
import linecache
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from data_prep import storage

FOLDER = "heartbeats"
_DEBUGGERS = ("bdb", "pdb", "ipdb", "debugpy", "pydevd")
FRAMES = 32  # of a stack, the innermost
ENDED = "ended with "  # the phase of a rank's last beat, before the name of the error that has ended it
_NAME = re.compile(r"rank-(\d{5,})\.json")


@dataclass(frozen=True, slots=True)
class Beat:
    """One sign of life of one rank."""

    rank: int
    world_size: int
    pid: int
    started: float | None  # when the process began, in seconds since its machine did; None where that is not told
    host: str
    run: str
    phase: str
    step: int  # completed ones; 0 also before the training thread has said so
    beats: int  # so many came before in this attempt
    stack: list[str]  # of the training thread: `training/loop.py:7 in train: the line`, innermost last
    time: float  # of the rank's own clock, for people to read


@dataclass(frozen=True, slots=True)
class Heard:
    """The newest beat of a rank, and for how many seconds the reader has seen no other."""

    beat: Beat
    quiet: float
    live: bool = True  # seen to come or to change; otherwise it may be what an earlier attempt left


def write(run_dir: Path, beat: Beat) -> None:
    """Take the place of the rank's last beat. OSError where the disk is full or gone."""
    path = _path(run_dir, beat.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage.atomic_writer(path, durable=False) as file:
        file.write(json.dumps(asdict(beat)).encode())


def remove(run_dir: Path, rank: int) -> None:
    """A rank's beat, and what interrupted writers left of others. OSError where it cannot be removed."""
    path = _path(run_dir, rank)
    for left in path.parent.glob(f"{path.name}{storage.TEMPORARY_MARK}*"):
        left.unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def read_beats(run_dir: Path) -> dict[int, Beat]:
    """By rank; one that cannot be read is left out."""
    try:
        names = os.listdir(run_dir / FOLDER)
    except OSError:
        return {}
    found: dict[int, Beat] = {}
    for name in sorted(names):
        if (match := _NAME.fullmatch(name)) is None:
            continue
        try:
            found[int(match[1])] = Beat(**json.loads((run_dir / FOLDER / name).read_bytes()))
        except (OSError, ValueError, TypeError):  # removed just now, or of another version
            continue
    return found


class Listener:
    """Follows the beats of a run. A driver makes a new one for every attempt, before the ranks start."""

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir, self._clock = run_dir, clock
        self._known: dict[int, tuple[Beat, float, bool]] | None = None

    def listen(self) -> dict[int, Heard]:
        """What is to be heard now, by rank. A rank that has ended is not there."""
        now, first = self._clock(), self._known is None
        before = self._known or {}
        self._known = {}
        for rank, beat in read_beats(self._run_dir).items():
            known = before.get(rank)
            same = known is not None and known[0] == beat
            self._known[rank] = known if known is not None and same else (beat, now, not first)
        return {rank: Heard(beat, now - since, live) for rank, (beat, since, live) in self._known.items()}


def process_started(pid: int) -> float | None:
    """When a living process of this machine began, in seconds since the machine did; None where there is none, where it
    has ended and was not waited for yet, or where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name of a program may hold spaces and brackets
    return None if fields[0] in "ZX" else int(fields[19]) / os.sysconf("SC_CLK_TCK")


def stack_of(thread: int) -> list[str]:
    """Where a thread of this process stands now (by `threading.get_ident()`); empty when it has ended."""
    frame, lines = sys._current_frames().get(thread), list[str]()
    while frame is not None and len(lines) < FRAMES:
        code = frame.f_code
        place = "/".join(Path(code.co_filename).parts[-3:])
        text = linecache.getline(code.co_filename, frame.f_lineno, frame.f_globals).strip()
        lines.append(f"{place}:{frame.f_lineno} in {code.co_name}: {text}")
        frame = frame.f_back
    return lines[::-1]


def in_debugger(thread: int) -> bool:
    """Whether a person holds a thread of this process in a debugger."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in _DEBUGGERS:
            return True
        frame = frame.f_back
    return False


def _path(run_dir: Path, rank: int) -> Path:
    return run_dir / FOLDER / f"rank-{rank:05d}.json"
