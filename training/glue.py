"""GLUE from its usual folder layout: the task table and the readers.

`DIR/<Task>/train.tsv` and `dev.tsv`, tab-separated, unquoted UTF-8. Where only `train.subset.tsv` or `dev.subset.tsv`
is there it is read instead, and the data says `subset`. Identifier columns are never looked at, so rows with empty
ids are as good as any. The columns and label names are those of the GLUE distribution (Wang et al. 2018); the scores
are CoLA's Matthews correlation and the accuracy of MRPC and RTE, as in the ELECTRA paper's mean.

This table holds three tasks; more are more rows of it.
"""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import DataError
from training.tasks import Example, Task, TaskData


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueTask:
    """Where a task's files keep what. `header` names the columns of a file that has no header line."""

    task: Task
    text_a: str
    text_b: str | None
    label: str
    labels: tuple[str, ...]  # as written in the file; the index is the class
    header: tuple[str, ...] | None = None


def _task(name: str, *metrics: str) -> Task:
    return Task(suite="glue", name=name, metrics=metrics)


GLUE: dict[str, GlueTask] = {
    "CoLA": GlueTask(
        task=_task("CoLA", "matthews", "accuracy"),
        header=("source", "label", "mark", "sentence"),
        text_a="sentence",
        text_b=None,
        label="label",
        labels=("0", "1"),
    ),
    "MRPC": GlueTask(
        task=_task("MRPC", "accuracy", "f1"),
        text_a="#1 String",
        text_b="#2 String",
        label="Quality",
        labels=("0", "1"),
    ),
    "RTE": GlueTask(
        task=_task("RTE", "accuracy"),
        text_a="sentence1",
        text_b="sentence2",
        label="label",
        labels=("not_entailment", "entailment"),
    ),
}

TASKS: dict[str, Task] = {name: entry.task for name, entry in GLUE.items()}


def load_glue(glue_dir: Path, name: str) -> TaskData:
    """The train and dev examples of one task; DataError naming the folder, file and line that is at fault."""
    entry = GLUE[name]
    folder = glue_dir / name
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: --glue-dir must hold one folder per task, with train.tsv, dev.tsv.")
    train, train_subset = _find(folder, "train")
    dev, dev_subset = _find(folder, "dev")
    return TaskData(
        suite="glue",
        task=name,
        classes=entry.labels,
        train=list(read_examples(train, entry)),
        dev=list(read_examples(dev, entry)),
        subset=train_subset or dev_subset,
    )


def _find(folder: Path, split: str) -> tuple[Path, bool]:
    """The file of a split, and whether it is a declared subset of it."""
    for path, subset in ((folder / f"{split}.tsv", False), (folder / f"{split}.subset.tsv", True)):
        if path.is_file():
            return path, subset
    raise DataError(f"{folder} has neither {split}.tsv nor {split}.subset.tsv: put the GLUE file there.")


def read_examples(path: Path, entry: GlueTask) -> Iterator[Example]:
    """The examples of one TSV file in file order; DataError with file and line for a row that breaks the format."""
    classes = {text: index for index, text in enumerate(entry.labels)}
    # utf-8-sig: some distributions of MRPC begin with a byte order mark
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        rows = _rows(path, reader)
        header = entry.header or tuple(next(rows, ()))
        wanted = [entry.text_a, entry.label] + ([entry.text_b] if entry.text_b else [])
        if missing := [column for column in wanted if column not in header]:
            raise DataError(f"{path}:1: the header has no column {missing[0]!r}: this is not the GLUE layout.")
        at_a, at_label = header.index(entry.text_a), header.index(entry.label)
        at_b = header.index(entry.text_b) if entry.text_b else None
        count = 0
        for row in rows:
            where = f"{path}:{reader.line_num}"
            if len(row) != len(header):
                raise DataError(f"{where}: {len(row)} columns where {len(header)} are expected: repair that line.")
            if row[at_label] not in classes:
                raise DataError(f"{where}: label {row[at_label]!r} is none of {', '.join(classes)}: repair that line.")
            count += 1
            yield Example(row[at_a], None if at_b is None else row[at_b], classes[row[at_label]])
        if count == 0:
            raise DataError(f"{path} holds no examples: put the GLUE file there.")


def _rows(path: Path, reader: Iterable[list[str]]) -> Iterator[list[str]]:
    """The rows, with a decoding or csv error turned into a sentence."""
    try:
        yield from reader
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not unquoted UTF-8 TSV ({error}): put the GLUE file there.") from error
