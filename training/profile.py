"""A torch profiler trace of a few steps of a run: `profile/trace.json` for chrome://tracing or Perfetto, and the
operations that took most time, in words, in `profile/top.txt`.

The first steps of an attempt are left out: they allocate, compile and fill caches. Tracing slows what it traces, so the
metric lines of those steps tell of a slower run. One rank's: the others run as ever.
"""

import gzip
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType

from data_prep import storage

WARMUP = 3  # steps before the first that is traced
TOP = 12  # operations
FOLDER, TRACE, WORDS = "profile", "trace.json", "top.txt"
_LARGE = 32 * 1024**2  # bytes of a trace that is left as it is


@contextmanager
def profiled(run_dir: Path, steps: int, device: torch.device) -> Iterator[Callable[[], None]]:
    """Trace `steps` steps (none: 0) after `WARMUP` others; the block calls what it is given after every step. The files
    are written after the last of them."""
    if steps == 0:
        yield lambda: None
        return
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=WARMUP - 1, warmup=1, active=steps, repeat=1),
        on_trace_ready=lambda trace: _write(trace, run_dir / FOLDER, steps, device),
    ) as profiler:
        yield profiler.step


def _write(trace: Any, folder: Path, steps: int, device: torch.device) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # an earlier trace
    folder.mkdir()
    path = folder / TRACE
    trace.export_chrome_trace(str(path))
    if path.stat().st_size > _LARGE:
        with open(path, "rb") as plain, gzip.open(folder / f"{TRACE}.gz", "wb", compresslevel=3) as packed:
            shutil.copyfileobj(plain, packed)
        path.unlink()
    storage.write_bytes(folder / WORDS, "\n".join(_words(trace, steps, device)).encode() + b"\n")


def _words(trace: Any, steps: int, device: torch.device) -> Iterator[str]:
    """A line an operation, those first that took most time themselves, without what they call."""
    gpu = device.type == "cuda"
    own = own_times(trace.key_averages(), gpu)
    total = sum(time for time, _ in own.values())
    yield f"ms of {'GPU' if gpu else 'CPU'} time a step, share, calls a step"
    for name, (time, calls) in sorted(own.items(), key=lambda item: -item[1][0])[:TOP]:
        yield f"{time / 1000 / steps:10.2f} {time / max(total, 1e-9):7.1%} {calls / steps:8.0f}  {name[:80]}"


def own_times(events: Iterable[Any], gpu: bool) -> dict[str, tuple[float, int]]:
    """Microseconds and calls by name: of what ran on the CPU, or of kernels. (An operator carries its kernels' time as
    well, and annotations that of all they span: on a GPU neither counts.)"""
    found: dict[str, tuple[float, int]] = {}
    for event in events:
        on_gpu = event.device_type != DeviceType.CPU
        if event.key.startswith("ProfilerStep") or on_gpu != gpu or event.is_user_annotation:
            continue
        time, calls = found.get(event.key, (0.0, 0))
        own = event.self_device_time_total if gpu else event.self_cpu_time_total
        found[event.key] = (time + float(own), calls + event.count)
    return found


def top(run_dir: Path) -> list[str]:
    """The lines of `top.txt`."""
    return (run_dir / FOLDER / WORDS).read_text(encoding="utf-8").splitlines()
