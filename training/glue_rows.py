"""GLUE's TSV files, row by row: UTF-8, tab-separated, never quoted.

A byte order mark, CRLF and empty lines are no faults; every other break of the format is a DataError with file and
line, but for one: the official QQP files hold a few rows without their last columns, which no one reads (the reference
implementation logs and drops them). They are left out and counted; more than a hundredth of them are a broken file.

Lines end at a line feed only: some texts hold a lone carriage return or a Unicode line separator.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data_prep.errors import DataError
from training.tasks import Example, Task, Unlabelled

_BOM = b"\xef\xbb\xbf"
MAX_SKIPPED = 0.01  # of a file's rows


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueTask:
    """A task, and where its files keep what. `labels` are as written in the file, the index is the class; none: a
    regression. `header` names the columns of labelled files that have no header line. `dev` and `test`: the name of a
    side → its file, those of `test` being the names the GLUE server knows."""

    task: Task
    text_a: str
    text_b: str | None
    label: str = "label"
    labels: tuple[str, ...] = ("0", "1")
    header: tuple[str, ...] | None = None
    index: str = "index"  # of test files
    short_rows: bool = False  # the official files hold rows without their last columns, which everyone leaves out
    dev: dict[str, str] = field(default_factory=dict)
    test: dict[str, str] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        """The columns of the one or two texts."""
        return [self.text_a] + ([self.text_b] if self.text_b else [])


@dataclass(frozen=True, slots=True)
class Read:
    """The examples of a file in its order, and the rows left out, as FILE:LINE."""

    examples: list[Example]
    skipped: tuple[str, ...]


def read_labelled(path: Path, entry: GlueTask) -> Read:
    """The examples of a train or dev file; DataError with file and line for a row that breaks the format."""
    value = _class_of(entry.labels) if entry.labels else _number_up_to(entry.task.largest or 0.0)
    skipped = list[str]()
    rows = _rows(path, [entry.label, *entry.texts], entry.header, skipped if entry.short_rows else None)
    examples = [
        Example(text_a, text_b[0] if text_b else None, value(where, label)) for where, (label, text_a, *text_b) in rows
    ]
    return Read(examples, tuple(skipped))


def read_unlabelled(path: Path, entry: GlueTask, name: str) -> Unlabelled:
    """The examples of a test file. Here no row is left out: the server wants an answer to each."""
    index, examples = [], []
    for where, (place, text_a, *text_b) in _rows(path, [entry.index, *entry.texts]):
        if not place:
            raise DataError(f"{where}: has no {entry.index}, by which its answer is handed in: get the file anew.")
        index.append(place)
        examples.append(Example(text_a, text_b[0] if text_b else None, 0))
    return Unlabelled(name, tuple(index), examples)


def _class_of(labels: Sequence[str]) -> Callable[[str, str], float]:
    classes = {text: index for index, text in enumerate(labels)}

    def value(where: str, text: str) -> float:
        if text not in classes:
            raise DataError(f"{where}: label {text!r} is none of {', '.join(classes)}: repair that line.")
        return classes[text]

    return value


def _number_up_to(largest: float) -> Callable[[str, str], float]:
    def value(where: str, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0.0 <= number <= largest:  # NaN too
            raise DataError(f"{where}: score {text!r} is no number from 0 to {largest:g}: repair that line.")
        return number

    return value


def _rows(
    path: Path, columns: Sequence[str], header: Sequence[str] | None = None, skipped: list[str] | None = None
) -> Iterator[tuple[str, list[str]]]:
    """(FOLDER/FILE:LINE, the named columns) of every row. `header` names the columns of a file without header line;
    rows that lack columns are added to `skipped` where that is given."""
    lines, count = _lines(path), 0
    header = header or next(lines, (1, []))[1]
    if not header:
        raise DataError(f"{path} is empty: put the GLUE file there.")
    if missing := [column for column in columns if column not in header]:
        raise DataError(f"{path}:1: the header has no column {missing[0]!r}: this is not the GLUE layout.")
    at = [header.index(column) for column in columns]
    for number, row in lines:
        count += 1
        if len(row) == len(header):
            yield f"{path}:{number}", [row[i] for i in at]
        elif skipped is not None and len(row) < len(header):
            skipped.append(f"{path.name}:{number}")
        else:
            raise DataError(f"{path}:{number}: {len(row)} columns where {len(header)} are expected: repair that line.")
    if skipped and len(skipped) > MAX_SKIPPED * count:
        raise DataError(
            f"{path}: {len(skipped)} rows lack columns, the first at line {skipped[0].rpartition(':')[2]}, where the "
            "official file has a few: put that file there."
        )
    if count == 0:
        raise DataError(f"{path} holds no examples: put the GLUE file there.")


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of every line that is not empty."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(_BOM)
            try:
                text = line.decode().removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as error:
                raise DataError(f"{path}:{number}: not UTF-8 ({error.reason}): put the GLUE file there.") from None
            if text:
                yield number, text.split("\t")
