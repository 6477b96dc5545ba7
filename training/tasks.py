"""What a fine-tuning task is, whichever suite it comes from: examples, a description, the metrics.

A task's data is materialised once as one JSON-lines file, which every fine-tuning then reads; its SHA-256 is part of
what identifies a result. Metrics are scikit-learn's. Nothing here knows torch, and scikit-learn is imported only when
a score is computed, because configuration models import this module.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep import storage
from data_prep.errors import DataError

Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Example:
    """One sentence or a pair, with its class. Examples of one `group` (of one document, say) are not independent of
    one another; None: it stands alone."""

    text_a: str
    text_b: str | None
    label: int
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task of a suite. `metrics[0]` is its score; `in_mean` says whether the score enters the suite's mean."""

    suite: str
    name: str
    metrics: tuple[str, ...]
    in_mean: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskData:
    """The examples of one task. `subset` is true when either side is a declared part of the official split."""

    suite: str
    task: str
    classes: tuple[str, ...]
    train: list[Example]
    dev: list[Example]
    subset: bool = False

    @property
    def majority(self) -> float:
        """Dev accuracy of always answering the most frequent dev class."""
        counts = np.bincount([example.label for example in self.dev], minlength=len(self.classes))
        return float(counts.max() / counts.sum())

    @property
    def dev_groups(self) -> Labels:
        """The group of each dev example `[n_dev]`, what intervals draw; without one, an example is its own."""
        return np.array([i if e.group is None else e.group for i, e in enumerate(self.dev)], dtype=np.int64)

    def lines(self) -> Iterator[str]:
        """The JSON lines of the file, header first: the same data always gives the same bytes."""
        yield json.dumps({"suite": self.suite, "task": self.task, "classes": self.classes, "subset": self.subset})
        for split, examples in (("train", self.train), ("dev", self.dev)):
            for example in examples:
                group = [] if example.group is None else [example.group]
                row = [split, example.text_a, example.text_b, example.label, *group]
                yield json.dumps(row, ensure_ascii=False)

    def sha256(self) -> str:
        """SHA-256 (hex) of the file `save` writes."""
        digest = hashlib.sha256()
        for line in self.lines():
            digest.update(line.encode() + b"\n")
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write the file, atomically and durably."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with storage.atomic_writer(path) as file:
            file.writelines(line.encode() + b"\n" for line in self.lines())


def load_task(path: Path) -> TaskData:
    """The task data that `TaskData.save` wrote; DataError when the file is missing or is not one."""
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            header = json.loads(next(file))
            rows = [json.loads(line) for line in file]
        sides: dict[str, list[Example]] = {"train": [], "dev": []}
        for split, text_a, text_b, label, *group in rows:
            sides[split].append(Example(text_a, text_b, label, *group))
        classes = tuple(header["classes"])
        return TaskData(suite=header["suite"], task=header["task"], classes=classes, subset=header["subset"], **sides)
    except (OSError, StopIteration, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a readable task file ({error}); delete it and evaluate again.") from error


def _accuracy(label: Labels, prediction: Labels) -> float:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(label, prediction))


def _f1(label: Labels, prediction: Labels) -> float:
    """F1 of class 1; 0 where no positive was predicted or exists."""
    from sklearn.metrics import f1_score

    return float(f1_score(label, prediction, pos_label=1, zero_division=0.0))


def _matthews(label: Labels, prediction: Labels) -> float:
    """Matthews' correlation; 0 where one class only was predicted."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(label, prediction))


METRICS: dict[str, Callable[[Labels, Labels], float]] = {"accuracy": _accuracy, "f1": _f1, "matthews": _matthews}


def score(task: Task, label: Labels, prediction: Labels) -> dict[str, float]:
    """Every metric of the task over dev labels and predictions `[n]`; the first one is the task's score."""
    return {name: METRICS[name](label, prediction) for name in task.metrics}
