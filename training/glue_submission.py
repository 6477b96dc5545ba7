"""The zip that the GLUE server takes: one TSV of answers for each test set, under the names it knows.

Guarantees: every file has the server's header, an answer to each test example in the set's order, and the official
label names; a set that is missing or not whole is named before anything is written, since the server refuses it. The
diagnostic set (AX) is answered by the MNLI classifier, and may be left out. The same answers give the same bytes.
"""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from data_prep import storage
from data_prep.errors import DataError
from training.glue import GLUE, OPTIONAL
from training.glue_rows import GlueTask
from training.tasks import Labels

# of every test set by its name at the server: the official number of examples (Wang et al. 2019)
SIZES = {
    "CoLA": 1063,
    "SST-2": 1821,
    "MRPC": 1725,
    "STS-B": 1379,
    "QQP": 390_965,
    "MNLI-m": 9796,
    "MNLI-mm": 9847,
    "QNLI": 5463,
    "RTE": 3000,
    "WNLI": 146,
    "AX": 1104,
}
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip can name


def write_submission(path: Path, answers: Mapping[str, tuple[Sequence[str], Labels]]) -> None:
    """Write `path` from (index, predictions `[n]`: classes or values) of each test set by its name. DataError where
    one is missing, or not as long as the official set; nothing is written then."""
    if missing := [name for name in SIZES if name not in answers and name not in OPTIONAL]:
        raise DataError(f"{path}: the submission lacks {', '.join(missing)}: predict those test sets too.")
    for name, (_, prediction) in answers.items():
        refuse_partial(name, len(prediction))
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage.atomic_writer(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in (name for name in SIZES if name in answers):
            member = zipfile.ZipInfo(f"{name}.tsv", date_time=_EPOCH)
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, _content(name, *answers[name]))


def refuse_partial(name: str, examples: int) -> None:
    """DataError where the test set called `name` is not as long as the official one: the server wants it whole."""
    if examples != SIZES[name]:
        raise DataError(
            f"the test set of {name} has {examples} examples and the official one {SIZES[name]}: a submission needs "
            "the whole of it: get it anew."
        )


def task_of(name: str) -> GlueTask:
    """The task whose classifier answers the test set called `name`."""
    return next(entry for entry in GLUE.values() if name in (entry.test or (entry.task.name,)))


def _content(name: str, index: Sequence[str], prediction: Labels) -> str:
    entry = task_of(name)
    if entry.labels:
        words = [entry.labels[int(answer)] for answer in prediction]
    else:
        words = [f"{answer:.3f}" for answer in np.clip(prediction, 0.0, entry.task.largest)]
    rows = (f"{place}\t{word}" for place, word in zip(index, words, strict=True))
    return "\n".join(["index\tprediction", *rows]) + "\n"
