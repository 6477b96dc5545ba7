"""What happens to runs, said while they are trained: resumptions, what was passed over, failures, interventions.

Follows the events that runs append from where it found them, so what earlier commands left is not told again. The words
are those of `electra events` (`pipeline.story_words`).
"""

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster.progress import passing_refusals
from pipeline import story_words
from pipeline.console import Console
from pipeline.story import Record
from training.run_folder import EVENTS

POLL_SECONDS = 1.0

# The first are news, the second are warnings; the rest is heard of elsewhere.
_TOLD = ("weights", "placement", "waiting")
_WARNED = ("save_failed", "rollback", "hung", "failed", "fault")


@contextmanager
def telling(console: Console, runs: Sequence[Path]) -> Iterator[None]:
    """Say what happens to these runs while the block runs, up to its end. What the file system refuses is tried again
    a second later; an error in the saying (a closed pipe) stops it, not the training, and is raised at the end."""
    teller, ended = Teller(console, runs), threading.Event()
    failures: list[Exception] = []

    def follow() -> None:
        try:
            ending = False
            while not ending:
                ending = ended.wait(POLL_SECONDS)
                with passing_refusals():
                    teller.look()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=follow, name="events-follower", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures[0]


class Teller:
    """How far the events of each run have been told."""

    def __init__(self, console: Console, runs: Sequence[Path]) -> None:
        self._console = console
        self._at = {run: _size(run / EVENTS) for run in runs}
        self._begun: set[Path] = set()  # by an attempt since then

    def look(self) -> None:
        """Tell what is new."""
        for run in self._at:
            for event in self._new(run):
                self._tell(run, event)

    def _new(self, run: Path) -> Iterator[Record]:
        """Whole lines only: what follows the last line break is still being written."""
        if _size(run / EVENTS) <= self._at[run]:
            return
        with open(run / EVENTS, "rb") as file:
            file.seek(self._at[run])
            whole, line_break, _ = file.read().rpartition(b"\n")
        self._at[run] += len(whole) + len(line_break)
        for line in whole.split(b"\n"):
            with contextlib.suppress(ValueError):  # torn by a kill, or empty
                yield json.loads(line)

    def _tell(self, run: Path, event: Record) -> None:
        kind = event["event"]
        if kind == "started":
            self._tell_start(run, event)
        elif kind in _TOLD:
            self._say(run, event, story_words.told(event))
        elif kind in _WARNED:
            self._warn(run, event, story_words.told(event))

    def _tell_start(self, run: Path, event: Record) -> None:
        """Nothing of a run's first beginning, but where it leaves its trunk."""
        for reason in event.get("passed_over", []):
            self._warn(run, event, f"passed over: {reason}")
        if "trunk" in event:
            self._say(run, event, story_words.branched(event["trunk"]))
        elif event["step"] or event.get("from"):
            source = f" from {event['from']}" if event.get("from") else ""
            self._say(run, event, f"resumes at step {event['step']:,}{source}")
        elif run in self._begun:
            self._say(run, event, "begins again at step 0")
        self._begun.add(run)

    def _say(self, run: Path, event: Record, text: str) -> None:
        self._console.say(f"train: {run.name}: {text}", run=run.name, step=event.get("step"))

    def _warn(self, run: Path, event: Record, text: str) -> None:
        self._console.warn(f"train: {run.name}: {text}", run=run.name, step=event.get("step"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
