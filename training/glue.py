"""The nine GLUE tasks, read from their usual folder layout: what each is, and where its files keep what.

`DIR/<Task>/train.tsv` and `dev.tsv` (of MNLI `dev_matched.tsv`, `dev_mismatched.tsv`). Where only `train.subset.tsv` or
`dev.subset.tsv` is there it is read instead, and the data says `subset`. Identifier columns are never looked at, so
rows with empty ids are as good as any. Columns and label names are those of the GLUE distribution (Wang et al. 2019),
metrics its official ones. The first metric is the one the ELECTRA paper averages: Matthews for CoLA, Spearman for
STS-B, accuracy elsewhere; of MNLI the matched side, and WNLI is outside the mean.

How a file is parsed is `training.glue_rows`'s; the same data out of `datasets`, `training.glue_datasets`'s.
"""

from collections.abc import Iterator
from pathlib import Path

from data_prep.errors import DataError
from training import glue_rows
from training.glue_rows import GlueTask
from training.tasks import Task, TaskData, Unlabelled

_ENTAILMENT = ("not_entailment", "entailment")


def _task(name: str, *metrics: str, in_mean: bool = True, largest: float | None = None, also: str = "") -> Task:
    further = (also,) if also else ()
    return Task(suite="glue", name=name, metrics=metrics, in_mean=in_mean, largest=largest, also=further)


_TABLE = (
    GlueTask(
        task=_task("CoLA", "matthews", "accuracy"),
        text_a="sentence",
        text_b=None,
        header=("source", "label", "mark", "sentence"),
    ),
    GlueTask(task=_task("SST-2", "accuracy"), text_a="sentence", text_b=None),
    GlueTask(task=_task("MRPC", "accuracy", "f1"), text_a="#1 String", text_b="#2 String", label="Quality"),
    GlueTask(
        task=_task("STS-B", "spearman", "pearson", largest=5.0),
        text_a="sentence1",
        text_b="sentence2",
        label="score",
        labels=(),
    ),
    GlueTask(
        task=_task("QQP", "accuracy", "f1"),
        text_a="question1",
        text_b="question2",
        label="is_duplicate",
        index="id",
        short_rows=True,
    ),
    GlueTask(
        task=_task("MNLI", "accuracy", also="MNLI-mm"),
        text_a="sentence1",
        text_b="sentence2",
        label="gold_label",
        labels=("contradiction", "entailment", "neutral"),
        dev={"MNLI": "dev_matched", "MNLI-mm": "dev_mismatched"},
        test={"MNLI-m": "test_matched", "MNLI-mm": "test_mismatched", "AX": "diagnostic"},
    ),
    GlueTask(task=_task("QNLI", "accuracy"), text_a="question", text_b="sentence", labels=_ENTAILMENT),
    GlueTask(task=_task("RTE", "accuracy"), text_a="sentence1", text_b="sentence2", labels=_ENTAILMENT),
    GlueTask(task=_task("WNLI", "accuracy", in_mean=False), text_a="sentence1", text_b="sentence2"),
)

GLUE: dict[str, GlueTask] = {entry.task.name: entry for entry in _TABLE}

TASKS: dict[str, Task] = {name: entry.task for name, entry in GLUE.items()}

OPTIONAL = ("AX",)  # test sets that a whole copy of GLUE may lack


def load_glue(glue_dir: Path, name: str) -> TaskData:
    """The train and dev examples of one task; DataError naming the folder, file and line that is at fault."""
    entry, folder = GLUE[name], _folder(glue_dir, name)
    stems = {"train": "train"} | (entry.dev or {name: "dev"})
    found = {side: _find(folder, stem) for side, stem in stems.items()}
    read = {side: glue_rows.read_labelled(path, entry) for side, (path, _) in found.items()}
    sides = {side: rows.examples for side, rows in read.items()}
    return TaskData(
        suite="glue",
        task=name,
        classes=entry.labels,
        train=sides.pop("train"),
        dev=sides.pop(name),
        also=sides,
        subset=any(subset for _, subset in found.values()),
        skipped=tuple(place for rows in read.values() for place in rows.skipped),
    )


def load_tests(glue_dir: Path, name: str) -> list[Unlabelled]:
    """The test sets of one task, without labels, by the names the GLUE server knows; DataError as `load_glue`.
    The diagnostic set is read where it is, beside the other tasks or among MNLI's files."""
    entry, folder = GLUE[name], _folder(glue_dir, name)
    sets = []
    for side, stem in (entry.test or {name: "test"}).items():
        path = next((path for path in _places(glue_dir, folder, side, stem) if path.is_file()), folder / f"{stem}.tsv")
        if path.is_file():
            sets.append(glue_rows.read_unlabelled(path, entry, side))
        elif side not in OPTIONAL:
            raise DataError(f"{path} is missing, and a submission needs it: put the GLUE file there.")
    return sets


def _places(glue_dir: Path, folder: Path, side: str, stem: str) -> Iterator[Path]:
    yield folder / f"{stem}.tsv"
    if side in OPTIONAL:
        yield from (glue_dir / stem / f"{stem}.tsv", glue_dir / side / f"{side}.tsv")


def _folder(glue_dir: Path, name: str) -> Path:
    folder = glue_dir / name
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: --glue-dir must hold one folder per task, with train.tsv, dev.tsv.")
    return folder


def _find(folder: Path, stem: str) -> tuple[Path, bool]:
    """The file of a split, and whether it is a declared subset of it."""
    for path, subset in ((folder / f"{stem}.tsv", False), (folder / f"{stem}.subset.tsv", True)):
        if path.is_file():
            return path, subset
    raise DataError(f"{folder} has neither {stem}.tsv nor {stem}.subset.tsv: put the GLUE file there.")
