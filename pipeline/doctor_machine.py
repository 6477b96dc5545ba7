"""What `electra doctor` sees of this machine: packages, processors, memory, limits, compilers.

Limits of a container count (control groups of version 1 and 2), for what the machine has is not what a process gets.
Reads files and starts no process; imports nothing heavy.
"""

import os
import resource
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from cluster.config import ClusterConfig
from pipeline.doctor_finding import Finding, error, ok, warning
from pipeline.experiment import Experiment
from pipeline.place import cores

PACKAGE = "electra-pretraining"
LOCK = Path(__file__).resolve().parent.parent / "requirements.lock"
PYTHON = (3, 11)  # that the lock was made with
_FEWEST_FILES = 4096  # open at once; Ray and NCCL take hundreds a process
_SMALL_SHM = 256 * 2**20  # what Docker gives (64 MiB) is too little for Ray's objects and NCCL's rings
_NAMED = 5
_GIB = 2**30


# --- packages ---------------------------------------------------------------------------------------------------------


def packages(lock: Path = LOCK) -> Iterator[Finding]:
    """Python and the packages that the code imports, against those it was tested with."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    if sys.version_info[:2] == PYTHON:
        yield ok("python", here)
    else:
        yield warning("python", f"{here}; the pinned packages are tested with 3.11", "make a .venv with Python 3.11")
    if not lock.is_file():
        yield warning("packages", f"{lock} is not there to compare with", "run from a checkout, or compare by hand")
        return
    yield from _compared(locked(lock), {_plain(name) for name in direct()})


def _compared(wanted: dict[str, str], needed: set[str]) -> Iterator[Finding]:
    found = {name: installed(name) for name in wanted}
    missing = [name for name in wanted if name in needed and found[name] is None]
    other = [
        f"{name} {found[name]} ({version})"
        for name, version in wanted.items()
        if found[name] is not None and found[name] != version
    ]
    remedy = "pip install -r requirements.lock"
    if missing:
        yield error("packages", f"{', '.join(missing)} not installed", remedy)
    if other:
        more = f" and {len(other) - _NAMED} more" if len(other) > _NAMED else ""
        yield warning("packages", f"others than were tested: {', '.join(other[:_NAMED])}{more}", remedy)
    if not missing and not other:
        yield ok("packages", f"the {sum(one is not None for one in found.values())} installed are those of {LOCK.name}")


def locked(lock: Path) -> dict[str, str]:
    """Versions by name."""
    lines = (line.split("#")[0].split(";")[0].strip() for line in lock.read_text(encoding="utf-8").splitlines())
    return {_plain(name): version for name, equals, version in (line.partition("==") for line in lines) if equals}


def direct() -> list[str]:
    """What the code imports itself."""
    try:
        wanted = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return []
    return ["".join(_leading(line)) for line in wanted if "extra ==" not in line]


def _leading(requirement: str) -> Iterator[str]:
    for character in requirement:
        if not (character.isalnum() or character in "-_."):
            return
        yield character


def installed(name: str) -> str | None:
    """Its version, without what tells builds apart (`+cpu`)."""
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


# --- processors and memory --------------------------------------------------------------------------------------------


def processors(experiment: Experiment | None, root: Path = Path("/")) -> Iterator[Finding]:
    """CPUs that this process may use, against those that the configuration asks of this machine."""
    have, limit = len(os.sched_getaffinity(0)), cpu_limit(root)
    usable = min(float(have), limit or float("inf"))
    said = f"{usable:g} of {os.cpu_count()} usable" + (f" (control group: {limit:g})" if limit else "")
    if experiment is None or experiment.cluster.address is not None:
        yield ok("cpus", said)
        return
    yield from _enough(experiment.cluster, said, usable)


def _enough(cluster: ClusterConfig, said: str, usable: float) -> Iterator[Finding]:
    threads = max(1, cluster.num_workers) * cluster.threads_per_worker
    fits = max(1, int(usable))
    if threads > usable:
        yield warning(
            "cpus",
            f"{said}, and {cluster.num_workers} workers of {cluster.threads_per_worker} threads share them",
            f"set cluster.num_workers={fits} cluster.threads_per_worker=1, or take a larger machine",
        )
    elif cores(cluster) > usable:
        yield warning(
            "cpus", f"{said}, and Ray would run tasks on {cores(cluster)}", f"set cluster.num_cpus={max(fits, threads)}"
        )
    else:
        yield ok("cpus", said)


def memory(root: Path = Path("/")) -> Iterator[Finding]:
    """Memory, shared memory, open files."""
    total, free = _meminfo(root)
    limit = memory_limit(root)
    usable = min(total, limit or total)
    limited = f" (control group: {limit / _GIB:.1f})" if limit else ""
    yield ok("memory", f"{usable / _GIB:.1f} GiB{limited}, {min(free, usable) / _GIB:.1f} available")
    shm = root / "dev/shm"
    if shm.is_dir():
        size = shutil.disk_usage(shm).total
        said = f"/dev/shm has {size / 2**20:,.0f} MiB"
        more = "start the container with --shm-size=8g, or mount an emptyDir of medium Memory there"
        yield ok("shared memory", said) if size >= _SMALL_SHM else warning("shared memory", said, more)
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = f"{files:,} at once" if files != resource.RLIM_INFINITY else "no limit"
    if files != resource.RLIM_INFINITY and files < _FEWEST_FILES:
        raised = min(65536, most) if most != resource.RLIM_INFINITY else 65536
        yield warning("open files", said, f"ulimit -n {raised}")
    else:
        yield ok("open files", said)


def _meminfo(root: Path) -> tuple[int, int]:
    """Bytes in all, and available."""
    lines = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
    values = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 1}
    return values["MemTotal"], values["MemAvailable"]


def cpu_limit(root: Path = Path("/")) -> float | None:
    """CPUs that the control groups above this process allow; None without a limit."""
    found = []
    for folder in _groups(root, "cpu"):
        if (words := _words(folder / "cpu.max")) and words[0] != "max":
            found.append(int(words[0]) / int(words[1]))
        quota, period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
        if quota and period and int(quota[0]) > 0:
            found.append(int(quota[0]) / int(period[0]))
    return min(found, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that they allow; None without a limit."""
    found = []
    for folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (words := _words(folder / name)) and words[0].isdecimal() and int(words[0]) < 2**60:
                found.append(int(words[0]))
    return min(found, default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The control groups of this process, and those above each."""
    base = root / "sys/fs/cgroup"
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        own = base / controller if names else base
        yield own
        parts = Path(path.lstrip("/")).parts
        yield from (own.joinpath(*parts[:count]) for count in range(1, len(parts) + 1))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


# --- compilers --------------------------------------------------------------------------------------------------------


def compilers(experiment: Experiment | None) -> Iterator[Finding]:
    """What builds kernels at run time. DeepSpeed is kept from it (`training.engine.zero`: no optimizer on the CPU, no
    kernels of its own), so that only compiled layers need a compiler: Triton calls it."""
    beside = Path(sys.executable).parent
    names = {
        "C++": _found(os.environ.get("CXX", "c++"), "g++", "clang++"),
        "C": _found(os.environ.get("CC", "cc"), "gcc", "clang"),
        "ninja": _found("ninja", str(beside / "ninja")),
        "nvcc": _found("nvcc", f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin/nvcc"),
    }
    there = ", ".join(f"{name} {path}" for name, path in names.items() if path is not None) or "none"
    wanted = experiment is not None and experiment.training.compute.compile and experiment.cluster.use_gpu
    if wanted and names["C"] is None:
        yield error(
            "compiler",
            f"training.compute.compile needs a C compiler, and there is none (there: {there})",
            "install gcc and Python's headers on every node, or set training.compute.compile=false",
        )
        return
    need = "compiled layers call the C compiler" if wanted else "nothing is built at run time"
    yield ok("compiler", f"{there}; {need}, and DeepSpeed builds no CPU-Adam")


def _found(*names: str) -> str | None:
    return next((path for name in names if (path := shutil.which(name)) is not None), None)
