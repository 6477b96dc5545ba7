"""What tests of drivers put where ranks leave theirs."""

import errno
import socket
import time

from training.heartbeat import Beat, process_started
from training.settings import RunSpec


def beat(spec: RunSpec, pid: int, beats: int = 0) -> Beat:
    return Beat(
        rank=0,
        world_size=1,
        pid=pid,
        started=process_started(pid),
        host=socket.gethostname(),
        run=spec.name,
        phase="step",
        step=7,
        beats=beats,
        stack=["training/attempt.py:7 in train: step()"],
        time=time.time(),
    )


def refuse(*words: object, **more: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
