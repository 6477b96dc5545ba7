"""Which ranks a run waits for, judged from their beats.

A run of several ranks stands still as a whole: all but one wait in a collective for the one that does not come. In this
order, the first that finds somebody decides: ranks that give no sign of life; those at an earlier step than others;
those that do not wait while others do; the few that stand elsewhere than most. Where none of it tells them apart, as
when the network or a device fails, nobody is named. Torch-free, and used by drivers for the case that all are silent.

Limits: that a rank waits is read off its innermost Python frame (torch.distributed, `.wait()`, a read of a device).
"""

import contextlib
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from training.heartbeat import ENDED, Heard, Listener, process_started
from training.settings import WatchdogConfig

# Reading a device waits for what was sent to it, collectives included; `backward` does in the hooks of DDP.
_WAITS = re.compile(r"torch/distributed/|in _engine_run_backward:|\.(wait|item|tolist|cpu|to|synchronize)\(|\bfloat\(")


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank that keeps the others waiting, and what speaks against it."""

    rank: int
    why: str
    host: str | None = None  # this and the rest: of its last beat
    pid: int | None = None
    started: float | None = None
    stack: list[str] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """As events hold it."""
        return {name: value for name, value in asdict(self).items() if name != "started"}

    def __str__(self) -> str:
        where = f" ({self.host}, pid {self.pid})" if self.host is not None else ""
        last = f", last seen at {self.stack[-1]}" if self.stack else ""
        return f"rank {self.rank}{where}: {self.why}{last}"


def find_suspects(heard: Mapping[int, Heard], world_size: int, silence: float) -> list[Suspect]:
    """Of the ranks of a run that stands still; none where nothing tells them apart. `silence`: so many seconds without
    a beat are none of chance."""
    absent = [Suspect(rank, "gave no sign of life") for rank in range(world_size) if rank not in heard]
    present = {rank: one for rank, one in sorted(heard.items()) if rank < world_size}
    silent = [suspect(one, _silent(one)) for one in present.values() if one.quiet >= silence]
    if absent or silent:
        return sorted([*absent, *silent], key=lambda one: one.rank)
    if world_size == 1:
        return [suspect(one, "stands still") for one in present.values()]
    return _behind(present) or _not_waiting(present) or _elsewhere(present)


def overdue(listener: Listener, config: WatchdogConfig) -> list[Suspect]:
    """For a driver, which listens every few seconds while ranks train: all of them, when all have been silent for
    `config.step` seconds, so that none is left to name another. None before the first beats and after a run's end."""
    heard = {rank: one for rank, one in listener.listen().items() if one.live}
    if any(one.quiet < config.step for one in heard.values()):
        return []
    return [suspect(one, _silent(one)) for _, one in sorted(heard.items())]


def suspect(heard: Heard, why: str) -> Suspect:
    """A rank by its last beat."""
    beat = heard.beat
    return Suspect(beat.rank, why, beat.host, beat.pid, beat.started, beat.stack)


def kill(suspects: Iterable[Suspect]) -> list[int]:
    """SIGKILL those whose process is one of this machine, still lives and is the very one; returns their ranks."""
    killed = []
    for one in suspects:
        if one.pid is not None and one.pid != os.getpid() and is_here(one.host, one.pid, one.started):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one.pid, signal.SIGKILL)
                killed.append(one.rank)
    return killed


def is_here(host: str | None, pid: int, started: float | None) -> bool:
    """Whether the very process that left a beat lives on this machine."""
    return host == socket.gethostname() and started is not None and process_started(pid) == started


def _silent(heard: Heard) -> str:
    beat = heard.beat
    if beat.host == socket.gethostname() and beat.started is not None and process_started(beat.pid) != beat.started:
        return "its process is gone"
    if beat.phase.startswith(ENDED):
        return f"has {beat.phase}"
    return f"no sign of life for {heard.quiet:.0f} s: stopped, or in a call that lets no other thread run"


def _behind(heard: Mapping[int, Heard]) -> list[Suspect]:
    steps = [one.beat.step for one in heard.values()]
    least, most = min(steps), max(steps)
    if least == most:
        return []
    why = f"is at step {least} while others are at step {most}"
    return [suspect(one, why) for one in heard.values() if one.beat.step == least]


def _not_waiting(heard: Mapping[int, Heard]) -> list[Suspect]:
    busy = [one for one in heard.values() if not (one.beat.stack and _WAITS.search(one.beat.stack[-1]))]
    if len(busy) == len(heard):
        return []
    return [suspect(one, "does not come to where the others wait") for one in busy]


def _elsewhere(heard: Mapping[int, Heard]) -> list[Suspect]:
    places = {rank: one.beat.stack[-1] if one.beat.stack else "" for rank, one in heard.items()}
    most, count = Counter(places.values()).most_common(1)[0]
    if 2 * count <= len(heard):
        return []
    return [suspect(one, f"most others stand at {most}") for rank, one in heard.items() if places[rank] != most]
