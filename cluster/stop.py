"""What a signal means to a process that trains or drives training: save and stop, and the second Ctrl-C: end at once.

SIGTERM (`ray job stop`, Kubernetes, Slurm's scancel), SIGUSR1 (Slurm's --signal) and the first Ctrl-C ask that what
runs saves and stops; how it is asked is the caller's. Guarantees: SIGTERM as often as may be asks the same; a disk that
refuses the request harms nothing and is asked until it takes it; the handlers that were there before are back at the
end. Python runs handlers in the main thread only, so that elsewhere nothing is changed. Not here: what becomes of a
process that is killed when its grace is over (nothing: its newest checkpoint counts).
"""

import contextlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

INTERRUPTED = 130  # exit code, of the second Ctrl-C
RETRY_SECONDS = 0.5

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@contextlib.contextmanager
def stop_on_signals(ask: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, `ask(reason)` when a signal asks for a stop, at the first only; a second Ctrl-C ends this
    process with 130 at once, and children that follow it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    refused: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # whose `put` a handler may call
    over = threading.Event()
    threading.Thread(target=_insist, args=(ask, refused, over), name="stop-request", daemon=True).start()
    handler = _Handler(ask, refused)
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        over.set()
        refused.put(None)
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


def _insist(ask: Callable[[str], None], refused: "queue.SimpleQueue[str | None]", over: threading.Event) -> None:
    """In a thread: ask again what could not be written, until it is or the block has ended."""
    reason = refused.get()
    while reason is not None and not over.wait(RETRY_SECONDS):
        with contextlib.suppress(OSError):
            ask(reason)
            return


class _Handler:
    """Python calls it between two instructions of the main thread, so it asks and returns."""

    def __init__(self, ask: Callable[[str], None], refused: "queue.SimpleQueue[str | None]") -> None:
        self._ask, self._refused = ask, refused
        self._asked = self._interrupted = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        interrupt = number == signal.SIGINT
        if interrupt and self._interrupted:
            _say("interrupted again: ended at once; the same command again resumes from the newest checkpoint")
            os._exit(INTERRUPTED)
        self._interrupted |= interrupt
        if self._asked:
            return
        self._asked = True
        if interrupt:
            _say("interrupted: saves, then stops; Ctrl-C again ends it at once")
        reason = "Ctrl-C" if interrupt else signal.Signals(number).name
        try:
            self._ask(reason)
        except OSError as error:
            _say(f"{reason}: the request to stop cannot be written yet ({error.strerror or error}); it is tried again")
            self._refused.put(reason)


def _say(sentence: str) -> None:
    """Straight to the file: a stream may be in the middle of a write that this handler interrupts."""
    with contextlib.suppress(OSError):
        os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, f"\nelectra: {sentence}\n".encode())
