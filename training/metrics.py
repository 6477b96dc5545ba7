"""Metric lines: the record of a run that everything else reads.

Rank 0 appends one JSON object a line to `metrics/A-NNNNN.jsonl`, a new numbered file for each attempt, flushed a line
at a time. Readers keep the last attempt of a step and drop a torn last line, so a killed run needs no repair. Nothing
here talks to a tracking server.
"""

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from data_prep.errors import DataError


class MetricWriter:
    """Appends lines of one attempt; use as a context manager."""

    def __init__(self, run_dir: Path) -> None:
        folder = run_dir / "metrics"
        folder.mkdir(parents=True, exist_ok=True)
        taken = [int(path.stem.removeprefix("A-")) for path in folder.glob("A-*.jsonl")]
        self.attempt = max(taken, default=-1) + 1
        self._file = open(folder / f"A-{self.attempt:05d}.jsonl", "x", encoding="utf-8")  # noqa: SIM115

    def write(self, step: int, values: dict[str, float]) -> None:
        """Append the values of a completed step."""
        line = {"attempt": self.attempt, "step": step, "time": time.time(), "values": values}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def __enter__(self) -> "MetricWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """All lines of a run, one a step (the last attempt's), in step order; an empty list before the first line."""
    by_step: dict[int, dict[str, Any]] = {}
    for path in sorted((run_dir / "metrics").glob("A-*.jsonl")):
        for line in _lines(path):
            by_step[line["step"]] = line
    return [by_step[step] for step in sorted(by_step)]


def flops_spent(run_dir: Path) -> float:
    """Model FLOPs spent by all attempts so far as far as they were logged, 0 before the first line. The figure only
    grows, from one attempt to the next, so what a lost attempt repeated is not forgotten."""
    lines = (line for path in (run_dir / "metrics").glob("A-*.jsonl") for line in _lines(path))
    return max((line["values"].get("flops_spent", 0.0) for line in lines), default=0.0)


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
