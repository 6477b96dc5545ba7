"""What a person sees while the pipeline works: live progress with an ETA on a terminal, plain lines elsewhere.

Plain output is at most one line per stage every five seconds, and always the first and the last, so that a log file
stays readable; ELECTRA_LOG_FORMAT=json makes its lines objects (`data_prep.log_lines`). The layers know nothing of
this: they take plain callables, and a verb hands them a `Stage`'s methods. Safe to call from several threads.
`quiet_libraries` keeps third-party chatter out of the same stream.
"""

import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from data_prep import log_lines
from data_prep.log_lines import Level
from data_prep.redact import redact

Figure = float | str
_RATE_WINDOW = 60.0  # seconds of history that an ETA is made from


def quiet_libraries(*, offline: bool = False) -> None:
    """Set the variables that libraries read when imported; call before importing any of them.

    A value already in the environment wins. `offline` keeps Hugging Face libraries from looking for a network: the
    quickstart needs none. WDS_SECURE is not a matter of taste and is always set (webdataset then refuses to run what
    an archive contains).
    """
    quiet = {
        "TRANSFORMERS_VERBOSITY": "error",
        "DATASETS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_V2_ENABLED": "1",
    }
    if offline:
        quiet["HF_HUB_OFFLINE"] = "1"
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    os.environ["WDS_SECURE"] = "1"


class Stage(ABC):
    """One piece of work with a count. The newest `figures` are shown beside it: numbers with four digits, text as it
    is."""

    def __init__(self, name: str, total: float | None, unit: str, clock: Callable[[], float]) -> None:
        self.name, self.total, self.unit, self.done = name, total, unit, 0.0
        self.figures: dict[str, Figure] = {}
        self._clock = clock
        self._start = clock()
        self._lock = threading.RLock()
        self._samples: deque[tuple[float, float]] = deque([(self._start, 0.0)], maxlen=1000)

    def advance(self, n: float = 1, **figures: Figure) -> None:
        """`n` more are done."""
        with self._lock:
            self.update(self.done + n, **figures)

    def update(self, done: float, **figures: Figure) -> None:
        """`done` are done in all."""
        with self._lock:
            self.done = done
            if figures:
                self.figures = figures
            now = self._clock()
            self._samples.append((now, done))
            while len(self._samples) > 2 and now - self._samples[0][0] > _RATE_WINDOW:
                self._samples.popleft()
            self._show()

    @abstractmethod
    def _show(self) -> None:
        """Draw the new state."""

    @property
    def elapsed(self) -> float:
        """Seconds since the stage began."""
        return self._clock() - self._start

    @property
    def remaining(self) -> float | None:
        """Seconds to go at the pace of the last minute; None while there is no pace or no total."""
        then, before = self._samples[0]
        pace = (self.done - before) / (self._clock() - then) if self._clock() > then else 0.0
        return None if self.total is None or pace <= 0 else max(0.0, self.total - self.done) / pace

    def count(self) -> str:
        """`3/8 units`, `3 units`, or nothing for work that is not counted."""
        of = f"/{_figure(self.total)}" if self.total is not None else ""
        return f"{_figure(self.done)}{of} {self.unit}".strip() if of or self.done else ""

    def figures_text(self) -> str:
        """`loss 5.12, tokens/s 3400`."""
        return ", ".join(f"{name.replace('_', ' ')} {_figure(value)}" for name, value in self.figures.items())


class _LiveStage(Stage):
    def bind(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task(self.name, total=self.total, stage=self)

    def _show(self) -> None:
        self._progress.update(self._task, completed=self.done)


class _PlainStage(Stage):
    def bind(self, console: "Console", interval: float) -> None:
        self._console, self._interval = console, interval
        self._last = self._start
        self._write(f"{self.name}: started" + (f", {self.count()}" if self.total is not None else ""))

    def _write(self, text: str) -> None:
        run, step = self.figures.get("run"), str(self.figures.get("step", "")).partition("/")[0]
        self._console.say(text, run=None if run is None else str(run), step=int(step) if step.isdecimal() else None)

    def _show(self) -> None:
        if self._clock() - self._last >= self._interval:
            self._last = self._clock()
            left = self.remaining
            parts = [self.count(), duration(self.elapsed), f"about {duration(left)} left" if left else ""]
            self._write(_line(self.name, parts, self.figures_text()))

    def end(self, word: str) -> None:
        self._write(_line(self.name, [word, self.count(), duration(self.elapsed)], self.figures_text()))


class _Remaining(ProgressColumn):
    """The same ETA the plain lines give: from our samples, so that both agree."""

    def render(self, task: Task) -> Text:
        left = task.fields["stage"].remaining
        return Text("" if left is None or task.finished else f"{duration(left)} left", style="cyan")


class _Details(ProgressColumn):
    def render(self, task: Task) -> Text:
        stage: Stage = task.fields["stage"]
        return Text("  ".join(part for part in (stage.count(), stage.figures_text()) if part), overflow="ellipsis")


class Console:
    """Where a verb speaks. `stream` is stdout, or stderr when stdout is kept for `--json`."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        interactive: bool | None = None,
        interval: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stream = stream or sys.stdout
        terminal = self.stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._json = log_lines.in_json()
        self.interactive = (terminal if interactive is None else interactive) and not self._json
        self._interval, self._clock = interval, clock
        self._rich = RichConsole(file=self.stream, highlight=False, force_terminal=self.interactive or None)
        self._progress: Progress | None = None

    @contextmanager
    def stage(self, name: str, total: float | None = None, unit: str = "") -> Iterator[Stage]:
        """Show `name` from start to end; `total` in `unit`s gives it a bar and an ETA. Stages may nest."""
        if self.interactive:
            with self._live(name, total, unit) as stage:
                yield stage
            return
        plain = _PlainStage(name, total, unit, self._clock)
        plain.bind(self, self._interval)
        try:
            yield plain
        except BaseException:
            plain.end("stopped")
            raise
        plain.end("done")

    @contextmanager
    def _live(self, name: str, total: float | None, unit: str) -> Iterator[Stage]:
        outermost = self._progress is None
        if self._progress is None:
            self._progress = Progress(
                SpinnerColumn(finished_text="✓"), TextColumn("{task.description}"), BarColumn(bar_width=24),
                _Details(), TimeElapsedColumn(), _Remaining(), console=self._rich,
            )  # fmt: skip
            self._progress.start()
        stage = _LiveStage(name, total, unit, self._clock)
        stage.bind(self._progress)
        try:
            yield stage
            whole = stage.total if stage.total is not None else max(stage.done, 1.0)
            self._progress.update(stage._task, total=whole, completed=whole)
        finally:
            self._progress.stop_task(stage._task)
            if outermost:
                self._progress.stop()
                self._progress = None

    def say(self, text: str, *, run: str | None = None, step: int | None = None) -> None:
        """One line for the reader, without secrets. `run` and `step` it is of are for those who read objects."""
        if self._json:
            self._object(text, "info", run=run, step=step)
        elif self.interactive:
            self._rich.print(redact(text), markup=False, soft_wrap=True)
        else:
            print(redact(text), file=self.stream, flush=True)

    def warn(self, text: str, *, run: str | None = None, step: int | None = None) -> None:
        """One line that matters later."""
        if self._json:
            self._object(text, "warning", run=run, step=step)
        elif self.interactive:
            self._rich.print(Text(f"warning: {redact(text)}", style="yellow"), soft_wrap=True)
        else:
            self.say(f"warning: {text}")

    def result(self, text: str) -> None:
        """What was asked for itself, such as a script for a scheduler: no line of a log in any format."""
        print(redact(text), file=self.stream, flush=True)

    def _object(self, text: str, level: Level, **more: Any) -> None:
        print(log_lines.line(text, level=level, **more), file=self.stream, flush=True)

    def paint(self, pieces: Sequence[tuple[str, str]]) -> None:
        """One line of pieces, each in a style of rich's; without them where nobody sees colours."""
        text = Text.assemble(*((redact(piece), style) for piece, style in pieces))
        if self.interactive:
            self._rich.print(text, soft_wrap=True)
        else:
            self.say(text.plain)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Aligned columns; those that hold only numbers are set flush right."""
        cells = [[redact(str(cell)) for cell in row] for row in rows]
        if self._json:
            self._object(title, "info", table=[dict(zip(columns, row, strict=True)) for row in cells])
            return
        right = [all(_numeric(row[i]) for row in cells) for i in range(len(columns))]
        if self.interactive:
            table = Table(title=title, title_justify="left", title_style="bold")
            for column, flush in zip(columns, right, strict=True):
                table.add_column(column, justify="right" if flush else "left")
            for row in cells:
                table.add_row(*map(Text, row))
            self._rich.print(table)
            return
        widths = [max(len(row[i]) for row in [list(columns), *cells]) for i in range(len(columns))]
        self.say(title)
        for row in [list(columns), ["-" * width for width in widths], *cells]:
            aligned = (
                cell.rjust(width) if flush else cell.ljust(width)
                for cell, width, flush in zip(row, widths, right, strict=True)
            )
            self.say("  " + "  ".join(aligned).rstrip())


def duration(seconds: float) -> str:
    """`8 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _figure(value: Figure) -> str:
    if isinstance(value, str):
        return value
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e7 else f"{value:.4g}"


def _line(name: str, parts: Sequence[str], figures: str) -> str:
    text = f"{name}: {', '.join(part for part in parts if part)}"
    return f"{text}; {figures}" if figures else text


def _numeric(cell: str) -> bool:
    try:
        float(cell.replace(",", "").replace("±", "").split(" ")[0] or "x")
    except ValueError:
        return cell in ("", "-", "–")
    return True
