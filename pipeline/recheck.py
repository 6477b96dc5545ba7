"""`electra report --check`: is a written report still what its records come to?

Everything is computed again from `results.jsonl`, the answers behind it and the runs' records, and compared with what
is in OUT/report: every number of report.json and of the CSV files (to nine digits), every line of the page and the main
drawing. The description of machine and software is taken from the report, because another machine may check it;
drawings are left out where they were made by another matplotlib. Writes nothing.
"""

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from itertools import zip_longest
from pathlib import Path
from typing import Any

from data_prep import storage
from data_prep.errors import CheckError, DataError
from pipeline import report
from pipeline.scoring import DisagreementError

_TOLD = 3  # differences that the error names
_DIGITS = 1e-9  # relative: another processor may sum in another order
_DRAWING = re.compile(r'(<svg(?: role="img" aria-label="[^"]*")?)[^>]*>.*?</svg>', re.DOTALL)  # but its description


def check(out: Path) -> list[str]:
    """The names of the files that agree with the records of the experiment in `out`.

    CheckError names the first differences; DataError where there is no report, or a record is broken.
    """
    if not (out / "report" / "report.json").exists():
        raise DataError(f"{out} has no report to check; run `electra report {out}` first.")
    stored = storage.read_json(out / "report" / "report.json")
    environment = stored.get("environment") if isinstance(stored, dict) else None
    if not isinstance(environment, dict):
        raise DataError(f"{out / 'report' / 'report.json'} is no report; run `electra report {out}` to write one.")
    try:
        files = report.render(out, environment)
    except DisagreementError as error:
        raise CheckError(str(error)) from None
    drawn_alike = environment.get("matplotlib") == metadata.version("matplotlib")
    found = [
        f"{name}: {difference}"
        for name, expected in files.items()
        for difference in _differences(out / "report" / name, expected, drawn_alike)
    ]
    if found:
        more = f" (and {len(found) - _TOLD:,} more)" if len(found) > _TOLD else ""
        raise CheckError(
            f"{out / 'report'} is not what the records of this experiment come to: {'; '.join(found[:_TOLD])}{more}; "
            f"`electra report {out}` writes it anew."
        )
    return list(files)


def _differences(path: Path, expected: bytes, drawn_alike: bool) -> Iterator[str]:
    if not path.exists():
        yield "is missing"
        return
    stored = path.read_bytes()
    if stored == expected or (path.suffix == ".svg" and not drawn_alike):
        return
    there, here = (content.decode("utf-8", errors="replace") for content in (stored, expected))
    match path.suffix:
        case ".json":
            yield from _values(json.loads(there), json.loads(here), "")
        case ".csv":
            yield from _fields(there, here)
        case _:
            yield from _lines(there, here, drawn_alike)


def _values(stored: Any, expected: Any, where: str) -> Iterator[str]:
    """Differing leaves of two trees, by their paths."""
    if isinstance(stored, Mapping) and isinstance(expected, Mapping):
        for key in dict.fromkeys([*expected, *stored]):
            yield from _values(stored.get(key), expected.get(key), f"{where}.{key}" if where else str(key))
    elif isinstance(stored, list) and isinstance(expected, list) and len(stored) == len(expected):
        for index, pair in enumerate(zip(stored, expected, strict=True)):
            yield from _values(*pair, f"{where}[{index}]")
    elif not _same(stored, expected):
        yield f"{where} is {_short(stored)}, recomputed {_short(expected)}"


def _fields(stored: str, expected: str) -> Iterator[str]:
    """Differing fields of two CSV files, by line and column."""
    there, here = (list(csv.reader(text.splitlines())) for text in (stored, expected))
    head, none = here[0], list[str]()
    for number, (own, wanted) in enumerate(zip_longest(there, here, fillvalue=none), start=1):
        for column, (value, other) in enumerate(zip_longest(own, wanted)):
            if not _same(_number(value), _number(other)):
                name = head[column] if column < len(head) else f"field {column + 1}"
                yield f"line {number}, {name} is {_short(value)}, recomputed {_short(other)}"


def _lines(stored: str, expected: str, drawn_alike: bool) -> Iterator[str]:
    """Differing lines of two pages, each from where it begins to differ."""
    if not drawn_alike:
        stored, expected = (_DRAWING.sub(r"\1></svg>", text) for text in (stored, expected))
    for number, (own, wanted) in enumerate(zip_longest(stored.splitlines(), expected.splitlines(), fillvalue=""), 1):
        if own != wanted:
            at = next((i for i, pair in enumerate(zip(own, wanted, strict=False)) if pair[0] != pair[1]), 0)
            start = max(0, at - 12)
            yield f"line {number} has {_short(own[start:])}, recomputed {_short(wanted[start:])}"


def _same(stored: Any, expected: Any) -> bool:
    if isinstance(stored, float | int) and isinstance(expected, float | int):
        return math.isclose(stored, expected, rel_tol=_DIGITS, abs_tol=1e-12)
    return bool(stored == expected)


def _number(text: str | None) -> float | str | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
