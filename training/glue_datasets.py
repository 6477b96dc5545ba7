"""The GLUE tasks out of the `datasets` library: the layout of `nyu-mll/glue`, by its name or as a local copy.

Gives the same examples, in the same order, as the official TSV files would. Columns and splits are that layout's; its
label −1 (test) is none. Where a label column carries its classes' names, the names decide; else that layout's order.
No code of a dataset is ever run.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import DataError
from training.glue import GLUE, OPTIONAL
from training.tasks import Example, TaskData, Unlabelled

Value = Callable[[str, Any], float]

CONFIGS = {
    "CoLA": "cola",
    "SST-2": "sst2",
    "MRPC": "mrpc",
    "STS-B": "stsb",
    "QQP": "qqp",
    "MNLI": "mnli",
    "QNLI": "qnli",
    "RTE": "rte",
    "WNLI": "wnli",
    "AX": "ax",
}
_PAIR = ("sentence1", "sentence2")
_TEXTS: dict[str, tuple[str, ...]] = {
    "CoLA": ("sentence",),
    "SST-2": ("sentence",),
    "QQP": ("question1", "question2"),
    "MNLI": ("premise", "hypothesis"),
    "QNLI": ("question", "sentence"),
}
# that layout's classes in its order, as our names of them
_CLASSES: dict[str, tuple[str, ...]] = {
    "MNLI": ("entailment", "neutral", "contradiction"),
    "QNLI": ("entailment", "not_entailment"),
    "RTE": ("entailment", "not_entailment"),
}
_DEV = {"MNLI": "validation_matched", "MNLI-mm": "validation_mismatched"}
_TEST = {"MNLI-m": "test_matched", "MNLI-mm": "test_mismatched"}


def load_glue_dataset(name_or_path: str | Path, name: str) -> TaskData:
    """The train and dev examples of one task; DataError naming the dataset, split and row that is at fault."""
    entry = GLUE[name]
    splits = {"train": "train"} | {side.name: _DEV.get(side.name, "validation") for side in entry.task.sides()}
    sides = {side: _labelled(str(name_or_path), name, split) for side, split in splits.items()}
    return TaskData(
        suite="glue", task=name, classes=entry.labels, train=sides.pop("train"), dev=sides.pop(name), also=sides
    )


def load_dataset_tests(name_or_path: str | Path, name: str) -> list[Unlabelled]:
    """The test sets of one task, without labels, by the names the GLUE server knows; DataError as above."""
    sets, texts = [], _TEXTS.get(name, _PAIR)
    for side in GLUE[name].test or (name,):
        config = CONFIGS[side if side in OPTIONAL else name]
        rows = list(_rows(_load(str(name_or_path), config, _TEST.get(side, "test")), config, ("idx", *texts)))
        index = tuple(str(row["idx"]) for _, row in rows)
        sets.append(Unlabelled(side, index, [_example(row, texts, 0) for _, row in rows]))
    return sets


def _labelled(place: str, name: str, split: str) -> list[Example]:
    texts, table = _TEXTS.get(name, _PAIR), _load(place, CONFIGS[name], split)
    value = _class_of(name, table) if GLUE[name].labels else _number_up_to(GLUE[name].task.largest or 0.0)
    rows = _rows(table, f"{place} {CONFIGS[name]}/{split}", ("label", *texts))
    return [_example(row, texts, value(where, row["label"])) for where, row in rows]


def _example(row: dict[str, Any], texts: Sequence[str], label: float) -> Example:
    first, *second = (row[column] for column in texts)
    return Example(first, second[0] if second else None, label)


def _class_of(name: str, table: Any) -> Value:
    labels = GLUE[name].labels
    own = list(getattr((table.features or {}).get("label"), "names", ()))
    names = own if set(own) == set(labels) else list(_CLASSES.get(name, labels))

    def value(where: str, label: Any) -> float:
        if not isinstance(label, int) or not 0 <= label < len(names):
            raise DataError(f"{where}: label {label!r} is no class of {name}; take a split with labels.")
        return labels.index(names[label])

    return value


def _number_up_to(largest: float) -> Value:
    def value(where: str, label: Any) -> float:
        if not isinstance(label, int | float) or not 0.0 <= label <= largest:  # NaN too
            raise DataError(f"{where}: score {label!r} is no number from 0 to {largest:g}; take a split with scores.")
        return round(float(label), 3)  # as the official file has it: the column is of half its precision

    return value


def _rows(table: Any, where: str, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(its place, the row) of every row. DataError where a column is not there, or nothing is."""
    count = 0
    for count, row in enumerate(_streamed(table, where), start=1):
        for column in columns:
            if column not in row:
                raise DataError(f"{where} has no column {column!r}: this is not the layout of nyu-mll/glue.")
            if row[column] is None:
                raise DataError(f"{where}, row {count - 1}: {column} is empty; get it anew.")
        yield f"{where}, row {count - 1}", row
    if count == 0:
        raise DataError(f"{where} holds no examples; get it anew.")


def _streamed(table: Any, where: str) -> Iterator[dict[str, Any]]:
    try:
        yield from table
    except Exception as error:  # the library has no one error for what can go wrong
        raise DataError(f"{where} cannot be read ({_short(error)}); get it anew, or give a GLUE folder.") from None


def _load(place: str, config: str, split: str) -> Any:
    import datasets

    datasets.disable_progress_bars()
    try:
        # streamed: the library's cache takes two local folders of one name for the same dataset
        return datasets.load_dataset(place, config, split=split, streaming=True)
    except Exception as error:
        raise DataError(
            f"{place}: {config}/{split} cannot be loaded ({_short(error)}); or give a GLUE folder."
        ) from None


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
