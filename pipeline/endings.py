"""How a command ends: the exit code and the one sentence of whatever went wrong.

A user's mistake is the sentence and the exit code of its error (2 configuration, 3 surroundings, 4 data, 5 checkpoint,
6 diverged, 7 hung, 8 an upload refused, 9 a failed check); 75 is no mistake: the command was asked to stop (SIGTERM,
SIGUSR1, and of training the first Ctrl-C and `electra stop`), and the same command again resumes; training has saved,
unless the sentence says otherwise. What the operating system refuses anywhere, in a worker too, is 3; Ctrl-C outside
training is 130, as the second one within it is (`cluster.stop`); anything unforeseen is 1, with a traceback on
`--debug`.
"""

import json
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from cluster import failures
from data_prep import log_lines
from data_prep.errors import ElectraError
from data_prep.redact import redact, redact_logs

if TYPE_CHECKING:
    from cluster.launch import Ranks


@dataclass(slots=True)
class Where:
    """What the end of a command needs to know of it."""

    folder: Path | None = None  # stands in for the path of an error that names none, as a failed write does not
    ranks: "Ranks | None" = None  # the processes that it is one of


@contextmanager
def errors(json_: bool, debug: bool) -> Iterator[Where]:
    """End the process as DESIGN's exit codes say; the sentence goes to stderr, and to stdout as JSON if asked for. Of
    several processes that fail together one says it, and all end alike."""
    where, heard = Where(), _Signals()
    redact_logs()
    with heard.listening():
        yield from _ending(where, heard, json_, debug)


def _ending(where: Where, heard: "_Signals", json_: bool, debug: bool) -> Iterator[Where]:
    try:
        yield where
        if where.ranks is not None:
            where.ranks.leave()
    except typer.Exit:
        raise
    except BrokenPipeError:  # typer ends this process with 1
        if where.ranks is not None:
            where.ranks.fail("output closed", 1)
            where.ranks.leave()
        raise
    except KeyboardInterrupt:
        _end(*heard.ending(), json_, debug=False, ranks=where.ranks)
    except ElectraError as error:
        _end(str(error), error.exit_code, json_, debug, ranks=where.ranks)
    except Exception as error:
        causes = list(failures.causes(error))
        refusal = next((sentence for cause in causes if (sentence := _refusal(cause, where.folder))), None)
        _end(refusal or _unforeseen(causes[0]), 3 if refusal else 1, json_, debug, ranks=where.ranks)


class _Signals:
    """SIGTERM and SIGUSR1 interrupt the command as Ctrl-C does, so that all that holds something lets go of it: as
    KeyboardInterrupt, the one interruption that Ray hands on while it waits. Training hears them itself
    (`cluster.stop`)."""

    def __init__(self) -> None:
        self._name: str | None = None  # of the first that came
        self._over = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While the block runs; afterwards they are answered as before. Python hears signals in the main thread
        only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, self._hear) for one in (signal.SIGTERM, signal.SIGUSR1)}
        try:
            yield
        finally:
            for one, old in before.items():
                signal.signal(one, signal.SIG_DFL if old is None else old)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if not self._over:
            self._name = self._name or signal.Signals(number).name
            raise KeyboardInterrupt

    def ending(self) -> tuple[str, int]:
        """The sentence and the exit code of an interruption; no signal after it interrupts the saying."""
        self._over = True
        what = "interrupted" if self._name is None else f"interrupted by {self._name}"
        return f"{what}; the same command again resumes", 130 if self._name is None else 75


def _refusal(error: BaseException, folder: Path | None) -> str | None:
    """What the operating system refused, as a sentence with path and reason; None for other errors."""
    somewhere = f"{folder}" if folder is not None else "the output folder"
    full = re.search(r"no space left on device|disk quota exceeded", str(error), re.IGNORECASE)
    if isinstance(error, OSError) and error.strerror:
        paths = [str(path) for path in (error.filename, error.filename2) if path is not None]
        return f"{' and '.join(paths) or somewhere}: {error.strerror[:1].lower()}{error.strerror[1:]}"
    if full:  # as libraries that write files in C++ and Rust say it
        return f"{somewhere}: {full.group().lower()}"
    return _first_line(error) if isinstance(error, OSError) and not hasattr(error, "cause") else None


def _unforeseen(error: BaseException) -> str:
    return f"internal error, {type(error).__name__}: {_first_line(error)} (run again with --debug for the traceback)"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


RESUMABLE = (75, 130)  # ends that nothing went wrong before
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def _last_line(sentence: str, code: int) -> str:
    if os.environ.get(log_lines.FORMAT) != "json":  # whatever else stands there may be what went wrong
        return f"electra: {sentence}"
    return log_lines.line(sentence, level="warning" if code in RESUMABLE else "error")


def _end(sentence: str, code: int, json_: bool, debug: bool, ranks: "Ranks | None" = None) -> Any:
    sentence, first = redact(_ANSI.sub("", sentence)), True
    if ranks is not None:
        sentence, code, first = ranks.fail(sentence, code)
    if debug:
        print(redact(traceback.format_exc()), end="", file=sys.stderr)
    if first:
        print(_last_line(sentence, code), file=sys.stderr, flush=True)
    if json_ and (ranks is None or ranks.rank == 0):
        print(json.dumps({"exit_code": code, "error": sentence}), flush=True)
    if ranks is not None:
        ranks.leave()
    raise typer.Exit(code)
