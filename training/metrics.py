"""Metric lines: the record of a run that everything else reads.

Rank 0 appends one JSON object a line to `metrics/A-NNNNN.jsonl`, a new numbered file for each attempt, flushed a line
at a time. Each line says at which step its attempt resumed: readers drop what earlier attempts wrote beyond it (that
trajectory is lost) and a torn last line, so a killed run needs no repair. Nothing here talks to a tracking server.
"""

import contextlib
import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from data_prep.errors import DataError
from training.run_folder import events, write_whole

_TAIL_BYTES = 1 << 16  # many lines; one line is a kilobyte


class MetricWriter:
    """Appends lines of one attempt; use as a context manager. A line that cannot be written, as on a full disk, is kept
    and tried again with the next."""

    def __init__(self, run_dir: Path, resumed_at: int = 0) -> None:
        self._resumed_at = resumed_at
        self.attempt = next_attempt(run_dir)
        folder = run_dir / "metrics"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = open(folder / f"A-{self.attempt:05d}.jsonl", "xb", buffering=0)  # noqa: SIM115
        self._pending = b""

    def write(self, step: int, values: dict[str, float]) -> None:
        """Append the values of a completed step."""
        line = {
            "attempt": self.attempt,
            "resumed_at": self._resumed_at,
            "step": step,
            "time": time.time(),
            "values": values,
        }
        self._pending += json.dumps(line).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        with contextlib.suppress(OSError):
            write_whole(self._file, self._pending, self._file.tell())
            self._pending = b""

    def __enter__(self) -> "MetricWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flush()
        self._file.close()


def next_attempt(run_dir: Path) -> int:
    """The number of the segment that the next attempt will write."""
    return max((int(path.stem.removeprefix("A-")) for path in _segments(run_dir)), default=-1) + 1


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of the surviving trajectory, one a step, in step order; an empty list before the first line."""
    surviving: dict[int, dict[str, Any]] = {}
    for path in _segments(run_dir):
        lines = _lines(path)
        if lines:
            surviving = {step: line for step, line in surviving.items() if step <= lines[0]["resumed_at"]}
        surviving |= {line["step"]: line for line in lines}
    return [surviving[step] for step in sorted(surviving)]


def all_lines(run_dir: Path) -> list[dict[str, Any]]:
    """Every line of every attempt in the order they were written, those of lost trajectories too."""
    return [line for path in _segments(run_dir) for line in _lines(path)]


def newest_line(run_dir: Path) -> dict[str, Any] | None:
    """The last line of the newest attempt, reading no more than its end; None before the first line."""
    segments = _segments(run_dir)
    if not segments:
        return None
    with open(segments[-1], "rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        complete = file.read().split(b"\n")[:-1]
    return json.loads(complete[-1]) if complete else None


def flops_spent(run_dir: Path) -> float:
    """Model FLOPs spent by all attempts so far, as far as lines and events tell; 0 before the first. The figure only
    grows, from one attempt to the next, so what a lost attempt repeated is not forgotten."""
    lines = (line["values"].get("flops_spent", 0.0) for line in all_lines(run_dir))
    return max((*lines, *(event.get("flops_spent", 0.0) for event in events(run_dir))), default=0.0)


def unlogged_steps(run_dir: Path, step: int) -> int:
    """Steps that the attempt before has done by `step`, as its signs of life say, beyond the last that is on record: a
    metric line, its beginning, or where it went back to. Which came last, numbers of segments tell, not clocks."""
    segment = began = None
    for event in events(run_dir):
        if event["event"] == "started":
            segment, began = event["attempt"], event["step"]
        elif event["event"] == "rollback" and segment is not None:  # the next segment is begun after it
            segment, began = segment + 1, event["to_step"]
    line = next(reversed(all_lines(run_dir)), None)
    if line is not None and (segment is None or line["attempt"] >= segment):
        return max(0, step - int(line["step"]))
    return 0 if began is None else max(0, step - int(began))


def _segments(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "metrics").glob("A-*.jsonl"))


def _lines(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes().split(b"\n")
    lines = []
    for number, text in enumerate(raw, start=1):
        if number == len(raw):  # what follows the last newline: empty, or a line torn by a kill
            break
        try:
            lines.append(json.loads(text))
        except ValueError:
            raise DataError(f"{path}:{number}: not a JSON line; restore the file or remove this attempt") from None
    return lines
