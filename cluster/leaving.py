"""What a pod of the head does before it is taken away: its driver saves, and this waits for it.

    python -m cluster.leaving SECONDS

Kubernetes runs it as the container's preStop hook, since KubeRay stops no job by itself. Every command of this project
on this host gets SIGTERM, saves and ends (`cluster.stop`). Guarantees: waits no longer than SECONDS and always ends
with 0, since a hook that fails only ends the container sooner; where nothing runs it ends at once. Linux only.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

_MODULE = "pipeline.cli"
_POLL_SECONDS = 0.2


def drivers(proc: Path = Path("/proc")) -> set[int]:
    """The processes that run `python -m pipeline.cli`; the shell that has started one is none."""
    found = set()
    for path in proc.glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # ended meanwhile
            words = path.read_bytes().split(b"\0")
            if words[1:3] == [b"-m", _MODULE.encode()]:
                found.add(int(path.parent.name))
    return found


def leave(seconds: float) -> bool:
    """Ask every driver to save and end; whether all of them have within so many seconds."""
    asked: set[int] = set()
    until = time.monotonic() + seconds
    while running := drivers():
        for number in running - asked:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGTERM)
        asked |= running
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


if __name__ == "__main__":
    leave(float(sys.argv[1]))
