"""BLiMP (Warstadt et al. 2020): the reader of its 67 paradigms of 1,000 minimal pairs. Torch-free.

`load_blimp` takes one file of JSON lines, or a folder of them as in the original repository; each may be compressed.
Guarantees: paradigms stand by name, and the pairs of each in the order of a keyed hash of their texts, of which the
first `pairs` are taken, so the choice is the same for every model and a smaller one is part of a larger one, whatever
files the pairs lie in. Text is kept as it is. A row that breaks the format is an error with file and line. Seven of the
official pairs say the same sentence twice; they are kept, and nobody can get them right.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import PositiveInt

from data_prep import keyed
from data_prep.errors import DataError
from data_prep.records import COMPRESSED, Damaged, InputFile, blocks, open_file, split
from data_prep.settings import Settings
from training.task_files import TaskFile

PARADIGMS, PAIRS = 67, 1_000  # of the official release, pairs in each paradigm
_KEYS = ("UID", "linguistics_term", "sentence_good", "sentence_bad")
_SUFFIXES = (".jsonl", *(f".jsonl{suffix}" for suffix in COMPRESSED))
_BOM = b"\xef\xbb\xbf"


class BlimpProtocol(Settings):
    """How minimal pairs are scored, stored with every score: without training, `pairs` of each paradigm (None: all)."""

    name: Literal["zero_shot"] = "zero_shot"
    pairs: PositiveInt | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sentences, the first of which speakers accept."""

    good: str
    bad: str


@dataclass(frozen=True, slots=True)
class Paradigm:
    """Pairs of one construction; `term` is the phenomenon it belongs to, as the files name it."""

    name: str
    term: str
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class PairData(TaskFile):
    """Paradigms in the order of their names."""

    paradigms: tuple[Paradigm, ...]

    @property
    def subset(self) -> bool:
        """Whether paradigms or pairs of the official release are left out."""
        return len(self.paradigms) < PARADIGMS or any(len(p.pairs) < PAIRS for p in self.paradigms)

    def lines(self) -> Iterator[str]:
        """The JSON lines of the file, in the format of BLiMP: the same data always gives the same bytes."""
        for paradigm in self.paradigms:
            for pair in paradigm.pairs:
                values = (paradigm.name, paradigm.term, pair.good, pair.bad)
                yield json.dumps(dict(zip(_KEYS, values, strict=True)), ensure_ascii=False)


def load_blimp(path: Path, pairs: int | None = None) -> PairData:
    """The paradigms of a file or a folder of files, at most `pairs` pairs of each (None: all). DataError where there
    are none, a file is damaged, or a row is no minimal pair."""
    found: dict[str, dict[Pair, None]] = defaultdict(dict)
    terms: dict[str, str] = {}
    for file in _files(path):
        for number, line in _lines(file):
            if not line.strip():
                continue
            name, term, good, bad = _row(f"{file}:{number}", line)
            pair = Pair(good, bad)
            if pair in found[name]:
                raise DataError(f"{file}:{number}: the pair stands twice in paradigm {name}: remove one of the two.")
            if terms.setdefault(name, term) != term:
                raise DataError(f"{file}:{number}: paradigm {name} is of {terms[name]} and of {term}: correct the row.")
            found[name][pair] = None
    if not found:
        raise DataError(f"{path} holds no minimal pairs: put BLiMP's files there.")
    return PairData(tuple(Paradigm(name, terms[name], _chosen(name, found[name], pairs)) for name in sorted(found)))


def _chosen(name: str, candidates: dict[Pair, None], pairs: int | None) -> tuple[Pair, ...]:
    return tuple(sorted(candidates, key=lambda pair: keyed.key("blimp", name, pair.good, pair.bad))[:pairs])


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.name.endswith(_SUFFIXES) and file.is_file())
    if not found:
        raise DataError(f"{path} holds no .jsonl file: name the folder of BLiMP's files (`data` in its repository).")
    return found


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number, content) of every line; lines end at a line feed only."""
    file, number = InputFile(path.name, str(path)), 0
    try:
        with open_file(file) as stream:
            for _, lines in split(blocks(stream, file), b"\n"):
                if lines is None:
                    raise DataError(f"{path}:{number + 1}: the line is too long: this is no file of BLiMP's.")
                for line in lines:
                    number += 1
                    yield number, line.removeprefix(_BOM) if number == 1 else line
    except Damaged as error:
        raise DataError(f"{path} is damaged ({error.reason}): get it anew.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}): check that it is a file of yours.") from error


def _row(where: str, line: bytes) -> tuple[str, str, str, str]:
    """Paradigm, phenomenon, good and bad sentence of one line."""
    try:
        row: Any = orjson.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error}): put BLiMP's file there.") from None
    values = [row.get(key) for key in _KEYS] if isinstance(row, dict) else []
    texts = [value for value in values if isinstance(value, str) and value.strip()]
    if len(texts) < len(_KEYS):
        raise DataError(f"{where}: {', '.join(_KEYS)} must all be there and be texts: correct the row.")
    name, term, good, bad = texts
    return name, term, good, bad
