"""The texts of evaluation sets, read from folders as they are distributed.

`.tsv` is the GLUE layout (unquoted, one example a line, texts in the columns GLUE gives them, CoLA without a header),
`.json` that of SQuAD (each context and each question is an example), `.jsonl` one example a line of which every string
is a text, and in `.txt` every block between blank lines is an example. Of a folder those files are read whose name has
one of the splits as a part (`dev_matched.subset.tsv` has `dev`); an address of a single file means that file. The
folder a file lies in names the task. Lines of GLUE that lack columns, of which some distributions have a few, give the
texts they have. Compressed files are not read; a set of which nothing can be read is an error, not an empty set.
"""

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from data_prep.errors import ConfigError, DataError
from data_prep.settings import Settings
from data_prep.storage import Folder, folder

Split = Literal["dev", "test", "train"]

_NAMES = {"dev": {"dev", "valid", "validation", "val"}, "test": {"test"}, "train": {"train"}}
_TEXT_COLUMNS = {"sentence", "sentence1", "sentence2", "question", "question1", "question2"}
_TEXT_COLUMNS |= {"#1 String", "#2 String", "premise", "hypothesis"}
_HEADERLESS = 4  # columns of CoLA's files without a header, the sentence last


class EvaluationSet(Settings):
    """One benchmark."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]
    path: str  # a folder with the files, or one file


@dataclass(frozen=True, slots=True)
class Example:
    """What must not be trained on: the texts of one example, each for itself."""

    task: str
    texts: list[str]


@dataclass(frozen=True, slots=True)
class EvaluationFile:
    """One file of a set."""

    task: str
    folder: Folder
    name: str

    @property
    def where(self) -> str:
        """Its address."""
        return f"{self.folder}/{self.name}"


def find_files(chosen: EvaluationSet, splits: tuple[Split, ...]) -> list[EvaluationFile]:
    """The files of a set, sorted by name. ConfigError: there are none."""
    location, one = _located(chosen.path)
    wanted = set[str]().union(*(_NAMES[split] for split in splits))
    names = [one] if one else [name for name in location.names() if _parts(name) & wanted]
    files = [EvaluationFile(_task(chosen.name, name), location, name) for name in names if _suffix(name) in _READERS]
    for file in files:
        if not _is_unicode(file.name):
            raise ConfigError(f"decontamination.sets: the name of the file {file.where!a} is not UTF-8; rename it.")
    if not files:
        raise ConfigError(
            f"decontamination.sets: {chosen.path} holds no {', '.join(_READERS)} file of {' or '.join(splits)}; "
            "correct the path, or the splits."
        )
    return files


def read_examples(file: EvaluationFile) -> Iterator[Example]:
    """The examples of one file, in order. DataError: it is not what its name says, with the line where it has lines."""
    try:
        text = file.folder.read_bytes(file.name).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file.where} cannot be read as UTF-8 ({error}): put the original file there.") from None
    count = 0
    for texts in _READERS[_suffix(file.name)](file.where, text):
        count += 1
        yield Example(file.task, texts)
    if count == 0:
        raise DataError(f"{file.where} holds no examples: put the original file there.")


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _located(path: str) -> tuple[Folder, str]:
    """(folder, "") of a folder, (its folder, name) of a file."""
    if "://" in path:
        base, _, name = path.rstrip("/").rpartition("/")
        return (folder(base), name) if _suffix(name) in _READERS else (folder(path), "")
    local = Path(path).expanduser()
    return (folder(local.parent), local.name) if local.is_file() else (folder(local), "")


def _suffix(name: str) -> str:
    return "." + name.rpartition("/")[2].rpartition(".")[2]


def _parts(name: str) -> set[str]:
    """The parts of a file's own name."""
    return set(re.split(r"[-_.]", name.rpartition("/")[2].lower()))


def _task(chosen: str, name: str) -> str:
    parent = name.rpartition("/")[0]
    return f"{chosen}/{parent}" if parent else chosen


def _glue(where: str, text: str) -> Iterator[list[str]]:
    lines = io.StringIO(text, newline=None).read().rstrip("\n").split("\n")
    header = lines[0].split("\t")
    columns = [number for number, column in enumerate(header) if column in _TEXT_COLUMNS]
    if not columns and len(header) == _HEADERLESS:
        columns, lines = [_HEADERLESS - 1], ["", *lines]
    if not columns:
        raise DataError(f"{where}:1: no column of the header is one of GLUE's texts: put the original file there.")
    for line in lines[1:]:
        cells = line.split("\t")
        yield [cells[column] for column in columns if column < len(cells)]


def _squad(where: str, text: str) -> Iterator[list[str]]:
    try:
        for article in json.loads(text)["data"]:
            for paragraph in article["paragraphs"]:
                yield [_text(paragraph["context"])]
                yield from ([_text(question["question"])] for question in paragraph["qas"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(f"{where} has not the layout of SQuAD ({error!r}): put the original file there.") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} where a text should be")
    return value


def _jsonl(where: str, text: str) -> Iterator[list[str]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield list(_strings(json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise DataError(f"{where}:{number} is not JSON ({error}): repair that line.") from None


def _strings(value: Any) -> Iterator[str]:
    """All strings in a JSON value but the keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def _blocks(where: str, text: str) -> Iterator[list[str]]:
    return ([block] for block in re.split(r"\n\s*\n", text) if block.strip())


_READERS = {".tsv": _glue, ".json": _squad, ".jsonl": _jsonl, ".txt": _blocks}
