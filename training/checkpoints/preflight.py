"""Before the first step: whether the store takes what the run will save, how fast, whether there is room for it, there
and on the way, and whether all ranks share it."""

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from data_prep.errors import PreflightError
from data_prep.storage import TEMPORARY_MARK, Folder
from training.checkpoints.manifest import answering
from training.checkpoints.parts import BYTES
from training.engine import STATES
from training.objectives import Objective
from training.ranks import on_rank_zero
from training.settings import RunSpec

LARGEST_PROBE = 16_000_000  # bytes


def preflight(store: Folder, objective: Objective, spec: RunSpec) -> dict[str, Any]:
    """Write a probe to a store and take it away again: `mb_per_second`, `free_bytes` (None where nobody knows, as of an
    object store) and `need_bytes`, those of all checkpoints that will lie there at once. PreflightError where it cannot
    be written to, or has too little room."""
    size = bytes_of(objective)
    count = most_kept(spec)
    need, free = count * size, store.free_bytes()
    store.prepare()
    if free is not None and free < need:
        raise PreflightError(
            f"{store}: {spec.name} will keep up to {count} checkpoints of {_megabytes(size)}, {_megabytes(need)} in "
            f"all, and {_megabytes(free)} are free; free the space, lower training.checkpoints.keep_last, or name an "
            "object store in training.checkpoints.to"
        )
    return {"mb_per_second": _speed(store, min(size, LARGEST_PROBE)), "free_bytes": free, "need_bytes": need}


def bytes_of(objective: Objective) -> int:
    """About what a checkpoint takes: fp32 parameters, and the optimizer's state of those that are trained."""
    return sum(p.numel() * BYTES * (1 + len(STATES) * p.requires_grad) for p in objective.parameters())


def most_kept(spec: RunSpec) -> int:
    """How many checkpoints lie there at once at most: those that retention keeps, the best one among them, and the one
    being written; never more than the run saves."""
    config, save_at = spec.placement.checkpoints, spec.placement.save_at
    intervals = 0 if config.every is None else spec.steps // config.every
    saved = len({*save_at, spec.steps}) + intervals
    for_good = len(save_at) + (0 if config.keep_every is None else spec.steps // config.keep_every)
    return min(saved, config.keep_last + 1 + for_good + config.keep_best)


def check_temporary(store: Folder, objective: Objective, group: dist.ProcessGroup | None = None) -> None:
    """A part comes into an object store by way of a file in the system's temporary folder. Every rank calls;
    PreflightError on all where the parts of a host's ranks have no room there."""
    if store.is_local:
        return
    place = tempfile.gettempdir()
    said = [("", "", 0)] * dist.get_world_size()
    dist.all_gather_object(said, (socket.gethostname(), place, shutil.disk_usage(place).free), group=group)
    on_rank_zero(lambda: _refuse_small(store, said, bytes_of(objective) // len(said)), group)


def _refuse_small(store: Folder, said: Sequence[tuple[str, str, int]], part: int) -> None:
    for (host, place), ranks in Counter((host, place) for host, place, _ in said).items():
        free = min(room for *where, room in said if where == [host, place])
        if free < ranks * part:
            raise PreflightError(
                f"{place} on {host}: checkpoints go to {store} by way of temporary files there, "
                f"{_megabytes(ranks * part)} at once, and {_megabytes(free)} are free; free the space, or name a "
                "larger folder in the environment variable TMPDIR"
            )


def _speed(store: Folder, size: int) -> float:
    """Megabytes a second at which a file of so many random bytes is written and lies on the disk."""
    probe, data = _probe_name(), os.urandom(size)
    began = time.monotonic()
    try:
        store.write_bytes(probe, data)
        seconds = time.monotonic() - began
        store.delete(probe)
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise PreflightError(
            f"{store}: a probe of {_megabytes(size)} cannot be written ({reason}); free the space, or choose another "
            "--out"
        ) from None
    return size / 1e6 / max(seconds, 1e-6)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= 10_000_000 else f"{size / 1e6:,.1f} MB"


def check_shared(store: Folder, group: dist.ProcessGroup | None = None) -> None:
    """Each rank writes a small file to the store and rank 0 looks for all of them. Every rank calls; PreflightError on
    all where one cannot write, or where rank 0 does not see what another wrote: nothing could be restored."""
    probe, refused = _probe_name(), None
    try:
        store.write_bytes(probe, b"electra")
    except (OSError, PreflightError) as error:
        refused = getattr(error, "strerror", None) or " ".join(str(error).split())
    said: list[tuple[str, str | None]] = [("", None)] * dist.get_world_size()
    dist.all_gather_object(said, (probe, refused), group=group)
    try:
        on_rank_zero(lambda: _look_for(store, said), group)
    finally:
        with contextlib.suppress(OSError):
            store.delete(probe)


def _look_for(store: Folder, said: Sequence[tuple[str, str | None]]) -> None:
    for rank, (probe, refused) in enumerate(said):
        if refused is not None:
            raise PreflightError(
                f"{store}: rank {rank} cannot write there ({refused}); correct that, or name an object store in "
                "training.checkpoints.to"
            )
        with answering(store):
            seen = store.size(probe) is not None
        if not seen:
            raise PreflightError(
                f"{store}: rank 0 does not see what rank {rank} writes there; choose an --out that all machines "
                "share, or name an object store in training.checkpoints.to"
            )


def _probe_name() -> str:
    return f".probe{TEMPORARY_MARK}{os.getpid()}-{secrets.token_hex(4)}"
