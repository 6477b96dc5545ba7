"""What `electra doctor` sees of the places that a run writes to: speed both ways, room, locks, clocks.

A file of some megabytes is written, read back and taken away; nothing else is. A folder that is not there yet is tried
at the nearest one above it that is. Need is an upper bound: what all runs of the experiment will keep, by the numbers
of `electra plan`, less what they keep already.
"""

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from data_prep import storage
from data_prep.errors import ElectraError
from data_prep.storage import TEMPORARY_MARK, Folder, LocalFolder
from pipeline import corpora
from pipeline.console import duration
from pipeline.corpora import Reading
from pipeline.doctor_finding import Finding, error, ok, warning
from pipeline.experiment import Experiment
from pipeline.plan_size import sizes
from pipeline.plan_traffic import checkpoint_bytes
from training import run_folder
from training.settings import RunSpec

PROBE_BYTES = 64_000_000
_LARGEST_SKEW = 2.0  # seconds; `electra status` and requests to stop go by times of files
_COARSE = 0.05  # file systems stamp by a clock that ticks more rarely
_GB = 1e9


def places(experiment: Experiment | None, out: Path, *, elsewhere: bool = False) -> Iterator[Finding]:
    """Every place that a run of the experiment in `out` writes to; without one, this folder. `elsewhere`: it runs on a
    cluster, whose shared volume this machine need not have."""
    absent = Path(experiment.cluster.submit.shared.path) if experiment is not None and elsewhere else None
    for check, folder, need, checkpoint, stop in _asked(experiment, out):
        if absent is not None and isinstance(folder, LocalFolder) and _is_below(folder.path, absent):
            yield ok(check, f"{folder}: {absent} is not mounted here; doctor on a node, with --out {out}, tries it")
        else:
            yield from place(check, folder, need, checkpoint, stop)


def _is_below(path: Path, absent: Path) -> bool:
    return path.is_relative_to(absent) and not absent.is_dir()


def _asked(experiment: Experiment | None, out: Path) -> Iterator[tuple[str, Folder, int | None, int, int | None]]:
    """The arguments of `place` for each."""
    runs = _planned(experiment, out)
    largest = max((size for _, size in runs), default=0)
    to = experiment.training.checkpoints.to if experiment is not None else None
    need = _need(runs, out) if runs else None
    stop = experiment.cluster.submit.stop_seconds if experiment is not None else None
    yield "storage", storage.folder(out), need if to is None else None, largest if to is None else 0, stop
    if to is not None:
        yield "checkpoints", storage.folder(to), need, largest, stop
    if experiment is not None:
        for name, config in experiment.corpus_configs().items():
            if config.location is not None:
                yield f"corpus {name}".strip(), storage.folder(config.location), None, 0, None


def _planned(experiment: Experiment | None, out: Path) -> list[tuple[RunSpec, int]]:
    """Every run, with the bytes of a checkpoint of it."""
    if experiment is None:
        return []
    readings = {name: Reading(one.manifest) for name, one in corpora.found(experiment, out).items()}
    specs = experiment.runs(readings, out / "runs")
    return [(one, checkpoint_bytes(list(sizes(one.identity.arm, one.identity.model).values()))) for one in specs]


def _need(runs: list[tuple[RunSpec, int]], out: Path) -> int:
    from training.checkpoints.preflight import most_kept

    kept = 0
    for spec, _ in runs:
        with contextlib.suppress(ElectraError, OSError):
            kept += sum(run_folder.store(out / "runs" / spec.name, spec.placement.checkpoints).sizes().values())
    return max(0, sum(most_kept(spec) * size for spec, size in runs) - kept)


def place(check: str, folder: Folder, need: int | None, checkpoint: int, stop: int | None) -> Iterator[Finding]:
    """One place: `need` bytes to come (None: not known), checkpoints of so many bytes, which must be written within
    `stop` seconds of being asked to."""
    there = LocalFolder(_existing(folder.path)) if isinstance(folder, LocalFolder) else folder
    free = there.free_bytes()
    size = PROBE_BYTES if free is None else min(PROBE_BYTES, free // 10)
    try:
        written, read, skew = _probe(there, os.urandom(size))
    except (OSError, ElectraError) as refused:
        yield error(check, f"{folder}: cannot be written to ({_reason(refused)})", _OTHER)
        return
    room = "" if free is None else f", {free / _GB:,.1f} GB free"
    wanted = "" if need is None else f" and up to {need / _GB:,.1f} GB to come ({checkpoint / _GB:.2f} GB a checkpoint)"
    said = f"{folder}: {written:,.0f} MB/s written, {read:,.0f} read{room}{wanted}"
    if free is not None and need is not None and free < need:
        yield error(check, said, "free the space, lower training.checkpoints.keep_last, or name an object store in "
                    "training.checkpoints.to")  # fmt: skip
    elif stop is not None and checkpoint / 1e6 / written > stop:
        seconds = duration(checkpoint / 1e6 / written)
        yield warning(check, f"{said}; one writer saves in {seconds}, and a stop gives {stop} s", "raise "
                      "cluster.submit.stop_seconds, or take faster storage")  # fmt: skip
    else:
        yield ok(check, said)
    if skew is not None:
        yield _clocks(there, skew)
    if isinstance(there, LocalFolder):
        yield from _locks(there)


_OTHER = "choose another --out or address, or change its permissions"


def _existing(path: Path) -> Path:
    while not path.exists() and path.parent != path:
        path = path.parent
    return path


def _probe(folder: Folder, data: bytes) -> tuple[float, float, float | None]:
    """Megabytes a second written and read, and by how many seconds its clock is ahead of ours, where it tells."""
    name, megabytes = f".probe{TEMPORARY_MARK}{os.getpid()}-{secrets.token_hex(4)}", len(data) / 1e6
    skew = None
    try:
        began = time.time()
        folder.write_bytes(name, data)
        ended = time.time()
        if isinstance(folder, LocalFolder):
            skew = _ahead((folder.path / name).stat().st_mtime, began, ended)
            _forget(folder.path / name)
        again = time.time()
        if folder.read_bytes(name) != data:
            raise OSError("what was read is not what was written")
        return megabytes / max(ended - began, 1e-6), megabytes / max(time.time() - again, 1e-6), skew
    finally:
        with contextlib.suppress(OSError, ElectraError):
            folder.delete(name)


def _ahead(stamp: float, began: float, ended: float) -> float:
    """Of a file written meanwhile: 0 where its time lies between."""
    return stamp - ended if stamp > ended + _COARSE else min(0.0, stamp - began + _COARSE)


def _forget(path: Path) -> None:
    """Have the next read come from the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _clocks(folder: Folder, skew: float) -> Finding:
    if abs(skew) <= _LARGEST_SKEW:
        return ok("clocks", f"{folder} and this machine agree within {max(0.1, abs(skew)):.1f} s")
    way = "ahead of" if skew > 0 else "behind"
    return warning(
        "clocks", f"{folder} is {abs(skew):.1f} s {way} this machine: ages and rates will be wrong", "start NTP on both"
    )


def _locks(folder: LocalFolder) -> Iterator[Finding]:
    """An experiment's folder is held by a lock of the kernel."""
    path = folder.path / f".probe{TEMPORARY_MARK}{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with open(path, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as refused:
        yield error(
            "locks", f"{folder}: takes none ({_reason(refused)})", "mount it with locks, or choose another --out"
        )
    finally:
        path.unlink(missing_ok=True)


def _reason(refused: Exception) -> str:
    return getattr(refused, "strerror", None) or " ".join(str(refused).split()) or type(refused).__name__
