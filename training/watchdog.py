"""The watchdog of a rank: it ends a run that stands still, and says which rank the others waited for.

A thread of its own counts the seconds since the training thread last said `progress`. When they exceed what is allowed,
the rank that notices first looks for suspects in the beats of all (`training.suspects`) and writes one `hung` event;
every rank kills the suspects that are on its machine and ends with 7. Whoever started the ranks then starts them again
from the newest checkpoint. A rank alone is held to the same.

Guarantees: only time in which this process ran is counted, so that one which was paused and goes on (Ctrl-Z, a sleeping
laptop) is not taken for hung. Nothing here relies on files: where the disk is full, beats are skipped and tried again,
and where the file system itself hangs the process ends all the same, though without a name for the culprit. A rank
whose beats cannot be written accuses nobody. Torch-free.

Limits: a call that never lets other threads run stops this one too; the other ranks name such a rank, and where all are
like that, the driver does (`suspects.overdue`).
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from data_prep import log_lines, storage
from data_prep.errors import HungError
from training import heartbeat, run_folder, suspects
from training.heartbeat import Beat, Heard, Listener
from training.settings import WatchdogConfig
from training.suspects import Suspect

CLAIM = "hung.json"  # beside the beats: empty while one rank writes the event for all, then the suspects
REPORT_SECONDS = 10.0  # so long a file system may take for the event
NAMED = 16  # ranks of an event at most


class _State(NamedTuple):
    phase: str
    step: int | None
    warm: bool  # a step was completed since the start, or since the run went back


class Watchdog:
    """Use as a context manager in the training thread, from before the engine is built to the run's end."""

    def __init__(self, run_dir: Path, rank: int, world_size: int, config: WatchdogConfig) -> None:
        self._run_dir, self._rank, self._world_size, self._config = run_dir, rank, world_size, config
        shortest = min(config.step, config.first_step)
        self._interval = min(config.heartbeat, shortest / 10)
        # A minute by default: a network file system may show a file so much later on another machine
        self._silence = min(12 * self._interval, shortest / 2)
        self._state = _State("start", None, False)
        self._over, self._late, self._ending = threading.Event(), False, False
        self._beats, self._written = 0, time.monotonic()
        self._own: Beat | None = None
        self._heard: dict[int, Heard] | None = None

    def progress(self, phase: str, step: int) -> None:
        """The training thread begins a phase, after so many completed steps; to be said at every step. Costs nothing.
        Where the number goes up by one a step is complete; where it changes otherwise the run has gone forward or back
        to a checkpoint, and has the seconds of a first step again."""
        before = self._state
        warm = before.step is not None and (step == before.step + 1 or (before.warm and step == before.step))
        self._state = _State(phase, step, warm)

    def __enter__(self) -> "Watchdog":
        self._thread, self._pid = threading.get_ident(), os.getpid()
        self._host, self._started = socket.gethostname(), heartbeat.process_started(self._pid)
        self._listener = Listener(self._run_dir)
        self._clear()
        with contextlib.suppress(OSError):
            self._claim.unlink(missing_ok=True)  # of an earlier attempt, whose ranks have all ended
        self._beating = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._beating.start()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and (self._ending or self._claim.exists()):
            self._follow()  # the error is that others were ended
        self._over.set()
        self._beating.join(REPORT_SECONDS)  # a beat that came after would look like a rank that has fallen silent
        if kind is None:
            self._clear()
        else:  # the last beat stays: it says how far the attempt has come
            self.progress(f"{heartbeat.ENDED}{kind.__name__}", self._state.step or 0)
            self._publish()

    @property
    def _claim(self) -> Path:
        return self._run_dir / heartbeat.FOLDER / CLAIM

    def _clear(self) -> None:
        with contextlib.suppress(OSError):  # what is left is told from a living rank by never changing
            heartbeat.remove(self._run_dir, self._rank)

    # The thread that touches files

    def _beat(self) -> None:
        while not self._over.is_set():
            self._publish()
            self._over.wait(self._interval)

    def _publish(self) -> None:
        state = self._state
        self._own = Beat(
            rank=self._rank,
            world_size=self._world_size,
            pid=self._pid,
            started=self._started,
            host=self._host,
            run=self._run_dir.name,
            phase=state.phase,
            step=state.step or 0,
            beats=self._beats,
            stack=heartbeat.stack_of(self._thread),
            time=time.time(),
        )
        self._beats += 1
        try:
            heartbeat.write(self._run_dir, self._own)
            self._written = time.monotonic()
        except OSError:
            return  # a full disk must not end training; the next beat tries again
        # Only when late, so that a thousand ranks do not read one another's files all day
        self._heard = self._listener.listen() if self._late else None

    # The thread that counts, and touches none

    def _watch(self) -> None:
        state, idle, last = self._state, 0.0, time.monotonic()
        while not self._over.wait(self._interval / 2):
            now = time.monotonic()
            idle += min(now - last, 2 * self._interval)  # of a pause of the whole process only so much
            last = now
            if self._state is not state:
                state, idle = self._state, 0.0
            allowed = self._config.step if state.warm else self._config.first_step
            self._late = idle >= allowed - self._silence - 2 * self._interval
            if idle < allowed:
                continue
            if heartbeat.in_debugger(self._thread):
                idle = 0.0
                continue
            found = self._find()
            if found or idle >= allowed + self._silence:  # who has just fallen silent is given away by that
                self._end(state, idle, found)

    def _find(self) -> list[Suspect]:
        own = self._own
        if own is None or self._heard is None or time.monotonic() - self._written > self._silence:
            return []  # who cannot write cannot tell the silence of others from theirs
        heard = {**self._heard, self._rank: Heard(own, 0.0)}
        return suspects.find_suspects(heard, self._world_size, self._silence)

    def _end(self, state: _State, idle: float, found: Sequence[Suspect]) -> None:
        self._ending = True
        report = threading.Thread(target=self._report, args=(state, idle, found), daemon=True)
        report.start()
        report.join(REPORT_SECONDS + 1.0)
        os._exit(HungError.exit_code)

    # Once it is settled that the run is hung, in threads that may wait for files

    def _report(self, state: _State, idle: float, found: Sequence[Suspect]) -> None:
        """One event for all ranks, by the first that notices. The others wait for it, lest they kill its writer."""
        try:
            self._claim.touch(exist_ok=False)
        except FileExistsError:
            suspects.kill(self._verdict())
            return
        except OSError:
            pass  # then each says it for itself, where anything can be written at all
        named = found or self._everybody()
        print(self._last_words(state, idle, named), file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):
            run_folder.append_events(self._run_dir, [self._event(state, idle, named)])
        with contextlib.suppress(OSError):
            storage.write_json(self._claim, [asdict(one) for one in found])
        suspects.kill(found)

    def _last_words(self, state: _State, idle: float, named: Sequence[Suspect]) -> str:
        run, text = self._run_dir.name, _sentence(state, idle, named)
        if os.environ.get(log_lines.FORMAT) != "json":
            return f"{run}: {text}"
        return log_lines.line(text, level="error", run=run, rank=self._rank, step=state.step)

    def _event(self, state: _State, idle: float, named: Sequence[Suspect]) -> dict[str, Any]:
        return {
            "event": "hung",
            "step": state.step or 0,
            "phase": state.phase,
            "seconds": round(idle, 1),
            "noticed_by": self._rank,
            "ranks": [one.record() for one in named[:NAMED]],
            "left_out": len(named[NAMED:]),
        }

    def _everybody(self) -> list[Suspect]:
        heard = {rank: one for rank, one in (self._heard or {}).items() if rank < self._world_size}
        if self._own is not None:
            heard[self._rank] = Heard(self._own, 0.0)
        why = "stands still, and nothing tells it from the others"
        return [suspects.suspect(one, why) for _, one in sorted(heard.items())]

    def _follow(self) -> None:
        """In the training thread, whose group has broken because a rank is being ended as hung."""
        if self._ending:
            threading.Event().wait()  # the watching thread ends this process
        suspects.kill(self._verdict())
        os._exit(HungError.exit_code)

    def _verdict(self) -> list[Suspect]:
        """Whom the rank that noticed first suspects, once it has written its event; nobody where it takes too long."""
        until = time.monotonic() + REPORT_SECONDS
        while time.monotonic() < until:
            with contextlib.suppress(OSError, ValueError, TypeError):
                return [Suspect(**one) for one in json.loads(self._claim.read_bytes())]
            time.sleep(0.05)
        return []


def _sentence(state: _State, idle: float, named: Sequence[Suspect]) -> str:
    who = "; ".join(str(one) for one in named[:NAMED])
    return f"no progress for {idle:.0f} s at step {state.step or 0} ({state.phase}), the run ends with 7: {who}"
