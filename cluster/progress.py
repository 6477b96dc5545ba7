"""Following runs from outside: by the metric lines that their rank 0 appends to files."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.worker import Assignment, OnProgress
from training.metrics import newest_line

POLL_SECONDS = 1.0


@contextmanager
def passing_refusals() -> Iterator[None]:
    """One look at files that others write: an error of the file system is over at the next, while a closed pipe is the
    reader's end. A run of weeks outlives many of the former."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError:
        pass


@contextmanager
def following(assignment: Assignment, on_progress: OnProgress) -> Iterator[None]:
    """Call `on_progress(spec, line)` from a thread with each run's newest metric line while the block runs. What the
    file system refuses is tried again a second later; another error, as a closed pipe, stops the following, not the
    training, and is raised at the end."""
    stop = threading.Event()
    failures: list[Exception] = []

    def poll_until_stopped() -> None:
        try:
            poll()
        except Exception as error:
            failures.append(error)

    def poll() -> None:
        seen: dict[str, int] = {}
        while True:
            ending = stop.wait(POLL_SECONDS)
            with passing_refusals():
                look(seen)
            if ending:
                return

    def look(seen: dict[str, int]) -> None:
        for spec in assignment.specs:
            line = newest_line(assignment.run_dir(spec))
            if line is not None and line["step"] != seen.get(spec.name):
                seen[spec.name] = line["step"]
                on_progress(spec, line)

    thread = threading.Thread(target=poll_until_stopped, name="metrics-follower", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]
