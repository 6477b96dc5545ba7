"""What a fine-tuning task is, whichever suite it comes from: examples, a description, the metrics.

A task's data is materialised once as one JSON-lines file, which every fine-tuning then reads; its SHA-256 is part of
what identifies a result. Metrics are scikit-learn's and SciPy's, with a number where theirs is undefined. Nothing here
knows torch, and those two are imported only when a score is computed, because configuration models import this module.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import DataError
from training.task_files import TaskFile

Labels = NDArray[np.int64] | NDArray[np.float64]  # classes, or the values of a regression


@dataclass(frozen=True, slots=True)
class Example:
    """One sentence or a pair, with its class (an int) or value. Examples of one `group` (of one document, say) are not
    independent of one another; None: it stands alone."""

    text_a: str
    text_b: str | None
    label: float
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Unlabelled:
    """The examples of a test set without labels (theirs are 0), by the name its predictions are handed in under;
    `index` is what its file calls them."""

    name: str
    index: tuple[str, ...]
    examples: list[Example]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task of a suite. `metrics[0]` is its score; `in_mean` says whether the score enters the suite's mean.
    `largest`: it is a regression, of values from 0 to this. `also`: further dev sides, which the same fine-tuning
    answers; each has results under its own name, outside the mean."""

    suite: str
    name: str
    metrics: tuple[str, ...]
    in_mean: bool = True
    largest: float | None = None
    also: tuple[str, ...] = ()

    def sides(self) -> "tuple[Task, ...]":
        """The task, and each further dev side as a task of its own."""
        return (self, *(replace(self, name=name, in_mean=False, also=()) for name in self.also))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskData(TaskFile):
    """The examples of one task; `also` are those of its further dev sides by name. A regression has no classes.

    `subset` is true when any side is a declared part of the official split. `skipped`: rows of the files (FILE:LINE)
    that everyone leaves out.
    """

    suite: str
    task: str
    classes: tuple[str, ...]
    train: list[Example]
    dev: list[Example]
    also: dict[str, list[Example]] = field(default_factory=dict)
    subset: bool = False
    skipped: tuple[str, ...] = ()

    def side(self, name: str) -> list[Example]:
        """The examples of the dev side called `name`."""
        return self.dev if name == self.task else self.also[name]

    def majority(self, name: str) -> float:
        """Accuracy of always answering the most frequent class of that dev side; of a regression 0, the correlation
        of a constant."""
        if not self.classes:
            return 0.0
        classes = np.array([example.label for example in self.side(name)], dtype=np.int64)
        counts = np.bincount(classes, minlength=len(self.classes))
        return float(counts.max() / counts.sum())

    def groups(self, name: str) -> NDArray[np.int64]:
        """The group of each example of that dev side `[n]`, what intervals draw; without one, it is its own."""
        return np.array([i if e.group is None else e.group for i, e in enumerate(self.side(name))], dtype=np.int64)

    def lines(self) -> Iterator[str]:
        """The JSON lines of the file, header first: the same data always gives the same bytes."""
        header = {"suite": self.suite, "task": self.task, "classes": self.classes, "also": list(self.also)}
        yield json.dumps(header | {"subset": self.subset, "skipped": self.skipped})
        for split, examples in (("train", self.train), ("dev", self.dev), *self.also.items()):
            for example in examples:
                group = [] if example.group is None else [example.group]
                row = [split, example.text_a, example.text_b, example.label, *group]
                yield json.dumps(row, ensure_ascii=False)


def load_task(path: Path) -> TaskData:
    """The task data that `TaskData.save` wrote; DataError when the file is missing or is not one."""
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            header = json.loads(next(file))
            sides: dict[str, list[Example]] = {name: [] for name in ("train", "dev", *header["also"])}
            for split, text_a, text_b, label, *group in map(json.loads, file):
                sides[split].append(Example(text_a, text_b, label, *group))
        return TaskData(
            suite=header["suite"],
            task=header["task"],
            classes=tuple(header["classes"]),
            train=sides.pop("train"),
            dev=sides.pop("dev"),
            also=sides,
            subset=header["subset"],
            skipped=tuple(header["skipped"]),
        )
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


def _pearson(label: Labels, prediction: Labels) -> float:
    """Pearson's correlation; 0 where either side is constant."""
    from scipy.stats import pearsonr

    return 0.0 if _constant(label) or _constant(prediction) else float(pearsonr(label, prediction).statistic)


def _spearman(label: Labels, prediction: Labels) -> float:
    """Spearman's rank correlation, equal values sharing their mean rank; 0 where either side is constant."""
    from scipy.stats import spearmanr

    return 0.0 if _constant(label) or _constant(prediction) else float(spearmanr(label, prediction).statistic)


def _constant(values: Labels) -> bool:
    return bool(np.ptp(values) == 0)


METRICS: dict[str, Callable[[Labels, Labels], float]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}


def score(task: Task, label: Labels, prediction: Labels) -> dict[str, float]:
    """Every metric of the task over dev labels and predictions `[n]`; the first one is the task's score."""
    return {name: METRICS[name](label, prediction) for name in task.metrics}


def suite_mean(tasks: Sequence[Task], scores: Mapping[str, float]) -> float | None:
    """The unweighted mean of a suite: over its tasks in the mean, by name. None where a score of one is missing."""
    names = [task.name for task in tasks if task.in_mean]
    if not names or any(name not in scores for name in names):
        return None
    return sum(scores[name] for name in names) / len(names)
