"""A run's evaluation as a model card tells it: one score a task, with its interval and the protocol it was made under.

Intervals are `pipeline.statistics`' (95 %, examples drawn anew, over the run's fine-tunings on the task); they say
nothing of what another pre-training seed would have given. Data sets that the Hub knows are told under its names, so
that its pages can show the score; the built-in probes are known nowhere else and keep their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import DataError
from pipeline import gather, statistics

# Names of data sets on the Hub, by suite or task; a mean over BLiMP's paradigms is no configuration of it there
_DATASETS = {
    "SQuAD1.1": "rajpurkar/squad", "SQuAD2.0": "rajpurkar/squad_v2", "glue": "nyu-mll/glue", "BLiMP": "nyu-mll/blimp",
}  # fmt: skip
_CONFIGURATIONS = {
    "MNLI": "mnli_matched", "MNLI-mm": "mnli_mismatched", "SST-2": "sst2", "STS-B": "stsb", "SQuAD1.1": "plain_text",
    "SQuAD2.0": "squad_v2", "BLiMP": "mean",
}  # fmt: skip
_TASK_TYPES = {"squad": "question-answering", "blimp": "text-ranking", "blimp_generator": "text-ranking"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One task: the mean over `finetunings`, and its interval, None where the answers behind it are not there."""

    suite: str
    task: str
    metric: str
    value: float
    interval: tuple[float, float] | None
    finetunings: int
    n_train: int
    n_dev: int
    majority: float
    subset: bool
    protocol: dict[str, Any]

    @property
    def dataset(self) -> str:
        """The data set's name on the Hub, or our own for what is not there."""
        return _DATASETS.get(self.task) or _DATASETS.get(self.suite, f"electra-{self.suite}")

    @property
    def on_hub(self) -> bool:
        """Whether data set and configuration are on the Hub."""
        return self.suite in ("glue", "squad")

    @property
    def configuration(self) -> str:
        """The task's name within the data set."""
        return _CONFIGURATIONS.get(self.task, self.task.lower())

    @property
    def task_type(self) -> str:
        """As the Hub classes it."""
        return _TASK_TYPES.get(self.suite, "text-classification")

    def note(self) -> str:
        """How the score was made, in one line."""
        parts = [f"development set, {self.n_dev:,} examples{' (a subset)' if self.subset else ''}"]
        if self.interval is not None:
            parts.append(f"95 % interval {self.interval[0]:.4f} to {self.interval[1]:.4f} over examples")
        if self.finetunings:
            parts.append("one fine-tuning" if self.finetunings == 1 else f"mean of {self.finetunings} fine-tunings")
            parts.append(f"protocol {self.protocol.get('name', 'unnamed')}")
        return "; ".join(parts)


def scores(out: Path, results: Sequence[dict[str, Any]]) -> list[Score]:
    """The tasks of one run's results, in order of suite and name; BLiMP's paradigms are one, their mean."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["suite"], _task(result)), []).append(result)
    return [_score(out, suite, task, own) for (suite, task), own in sorted(groups.items())]


def _task(result: dict[str, Any]) -> str:
    return "BLiMP" if _is_blimp(result) else str(result["task"])


def _is_blimp(result: dict[str, Any]) -> bool:
    return str(result["suite"]).startswith("blimp")


def _score(out: Path, suite: str, task: str, results: Sequence[dict[str, Any]]) -> Score:
    first = results[0]
    blimp = _is_blimp(first)
    return Score(
        suite=suite,
        task=task,
        metric=str(first["metric"]),
        value=sum(float(one["score"]) for one in results) / len(results),
        interval=_interval(out, results),
        finetunings=0 if blimp else len(results),
        n_train=int(first["n_train"]),
        n_dev=sum(int(one["n_dev"]) for one in results) if blimp else int(first["n_dev"]),
        majority=float(first["majority"]),
        subset=bool(first["subset"]),
        protocol=first.get("protocol") or {},
    )


def _interval(out: Path, results: Sequence[dict[str, Any]]) -> tuple[float, float] | None:
    try:
        fits = [gather.fit_of(out, result) for result in results]
    except DataError:  # the score stands without the answers; its interval does not
        return None
    estimates = statistics.bootstrap({"model": fits})["model"]
    return statistics.mean(list(estimates.values())).interval()


def model_index(name: str, found: Sequence[Score]) -> list[dict[str, Any]]:
    """The scores in the form that a card's metadata has had for long."""
    results = [
        {
            "task": {"type": one.task_type},
            "dataset": {"type": one.dataset, "name": f"{one.suite} {one.task}", "config": one.configuration}
            | {"split": "validation"},
            "metrics": [{"type": one.metric, "value": round(one.value, 6), "name": one.note()}],
        }
        for one in found
    ]
    return [{"name": name, "results": results}] if results else []


def eval_results(found: Sequence[Score]) -> dict[str, list[dict[str, Any]]]:
    """The scores on data sets that the Hub knows, by the file that holds them (`.eval_results/NAME.yaml`)."""
    files: dict[str, list[dict[str, Any]]] = {}
    for one in (one for one in found if one.on_hub):
        entry = {
            "dataset": {"id": one.dataset, "task_id": one.configuration},
            "value": round(one.value, 6),
            "notes": f"{one.metric}; {one.note()}",
        }
        files.setdefault(f"{one.dataset.split('/')[1]}.yaml", []).append(entry)
    return files
