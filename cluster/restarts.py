"""When training is started again after a failure, and when it is not: a budget that progress renews.

A failure is judged by what it cost. A new checkpoint, or a finished run, since the last failure shows that restarting
helps, so that counting starts anew: preemptible nodes may fail a hundred times in three weeks. `max_failures` in a row
without one, or three attempts that all came to the same step and no further, show that it does not. A store that gives
no answer is given longer to come back than a worker. Pure: no clock, no file, no Ray.
"""

from dataclasses import dataclass
from typing import Literal

from data_prep.errors import ElectraError

SAME_STEP = 3
PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds
STORE_PAUSE, LONGEST_STORE_PAUSE = 30.0, 600.0

Kind = Literal["lost", "hung", "store"]  # a worker, its node or Ray; a rank; the answer of a store
_EXIT_CODES: dict[Kind, int] = {"lost": 1, "hung": 7, "store": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What ended a worker group, and how far training had come."""

    run: str
    step: int  # the last that was seen of the run
    saved: tuple[int, int]  # runs that are finished, and the step of the run's newest checkpoint (0: none)
    reason: str
    kind: Kind = "lost"
    stepped: bool = True  # the attempt that failed has completed a step; otherwise `step` is an earlier one's


class RestartsExhaustedError(ElectraError):
    """Restarting does not help. Its exit code is that of the last failure: 7 for a hang, 3 for a store, otherwise 1."""

    def __init__(self, sentence: str, *, kind: Kind) -> None:
        super().__init__(sentence)
        self.exit_code = _EXIT_CODES[kind]


class Budget:
    """Failures since the last progress."""

    def __init__(self, max_failures: int) -> None:
        self._max_failures = max_failures
        self._in_a_row: list[Failure] = []

    def pause(self, failure: Failure) -> float:
        """Seconds to wait before the next attempt: 1, 2, 4, … up to a minute; for a store 30, 60, … up to ten minutes.
        RestartsExhaustedError where there is to be none."""
        if self._in_a_row and failure.saved > self._in_a_row[-1].saved:
            self._in_a_row = []
        self._in_a_row.append(failure)
        same = self._in_a_row[-SAME_STEP:]
        stuck = all(one.stepped for one in same) and len({(one.run, one.step) for one in same}) == 1
        if len(same) == SAME_STEP and stuck:
            raise self._exhausted(f"failed {SAME_STEP} times at step {failure.step}")
        if len(self._in_a_row) >= self._max_failures:
            times = f"{len(self._in_a_row)} times" if len(self._in_a_row) > 1 else "once"
            raise self._exhausted(f"failed {times} without a new checkpoint, last at step {failure.step}")
        first, longest = (STORE_PAUSE, LONGEST_STORE_PAUSE) if failure.kind == "store" else (PAUSE, LONGEST_PAUSE)
        return float(min(first * 2 ** (len(self._in_a_row) - 1), longest))

    def _exhausted(self, what: str) -> RestartsExhaustedError:
        last = self._in_a_row[-1]
        return RestartsExhaustedError(
            f"{last.run}: {what} ({last.reason}); put this right, and the same command again resumes from step "
            f"{last.saved[1]}",
            kind=last.kind,
        )
