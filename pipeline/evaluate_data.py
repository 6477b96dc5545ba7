"""The data that models are evaluated on: which tasks, read where, kept as one file each that every unit reads.

A task's file lies in `evaluation/tasks/` under a name made of its hash, so the same data is written once and what a
result was scored on can be looked at afterwards. Readers and formats are those of training (`glue`, `glue_datasets`,
`squad`, `blimp`, `probes`). One task is held at a time.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from data_prep import storage
from data_prep.errors import ConfigError, DataError
from data_prep.settings import fingerprint
from data_prep.storage import Location
from training import glue, glue_submission, probes, squad
from training.blimp import PairData, load_blimp
from training.protocol import SOURCES, TASKS, EvaluationConfig
from training.squad import SpanData, Version
from training.tasks import Example, TaskData, Unlabelled

Kind = Literal["classes", "spans", "pairs"]
Data = TaskData | SpanData | PairData

PAIRS = "BLiMP"  # what all paradigms together are called where a task's name is wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What one unit answers: the data of a task, or all paradigms. `tests`: its test sets, where they are wanted."""

    suite: str
    task: str
    kind: Kind
    path: Path
    sha256: str
    tests: Path | None = None
    tests_sha256: str | None = None


def check(config: EvaluationConfig) -> None:
    """Read what does not come from the experiment itself, so that a folder that lacks some of it is found before
    anything is prepared or trained. Raises as `materials`."""
    names = task_names(config)
    for _ in read({suite: own for suite, own in names.items() if suite != "probes"}, config, None):
        pass


def task_names(config: EvaluationConfig) -> dict[str, list[str]]:
    """The tasks of each suite that is asked for. ConfigError for a task of another suite."""
    wanted = config.tasks or []
    known = {suite: [*TASKS.get(suite, {})] for suite in config.suites}
    for name in wanted:
        if not any(name in own for own in known.values()):
            which = ", ".join(config.suites)
            raise ConfigError(f"evaluation.tasks: {name} is no task of {which}; add its suite to evaluation.suites.")
    chosen = {suite: [name for name in own if name in wanted] or own for suite, own in known.items()}
    return {suite: own or [PAIRS] for suite, own in chosen.items()}


def materials(
    config: EvaluationConfig, corpus: Location | None, folder: Path, *, tests: bool = False
) -> list[Material]:
    """Every task that is asked for, written to `folder` unless it is there; with `tests`, GLUE's test sets too.

    ConfigError where it is not said where a suite is, or there is no corpus to make probes of; DataError for data that
    is missing, too little or broken.
    """
    found = []
    for data in read(task_names(config), config, corpus):
        sha256 = data.sha256()
        suite, task, kind = _described(data)
        path = folder / f"{suite}-{task}-{sha256[:12]}.jsonl"
        if not path.exists():
            data.save(path)
        sets = _tests(config, task, folder) if tests and suite == "glue" else (None, None)
        found.append(
            Material(suite=suite, task=task, kind=kind, path=path, sha256=sha256, tests=sets[0], tests_sha256=sets[1])
        )
    return found


def _described(data: Data) -> tuple[str, str, Kind]:
    if isinstance(data, PairData):
        return "blimp", PAIRS, "pairs"
    if isinstance(data, SpanData):
        return "squad", data.task.name, "spans"
    return data.suite, data.task, "classes"


def read(names: dict[str, list[str]], config: EvaluationConfig, corpus: Location | None) -> Iterator[Data]:
    """The data of these tasks by suite, one after the other. Raises as `materials`."""
    for suite, own in names.items():
        if suite == "probes":
            yield from _probes(own, config, corpus)
        elif suite == "glue":
            yield from _glue(own, config)
        elif suite == "squad":
            folder = _place(config, "squad")
            yield from (squad.load_squad(folder, cast(Version, name.removeprefix("SQuAD"))) for name in own)
        else:
            yield load_blimp(_place(config, "blimp"), config.pairs)


def _probes(names: Sequence[str], config: EvaluationConfig, corpus: Location | None) -> list[TaskData]:
    if corpus is None:
        raise ConfigError(
            "the built-in probes are made of an experiment's corpus, and this model has none: name what to evaluate on "
            "with --glue-dir, --squad-dir or --blimp"
        )
    return probes.build(corpus, names, config.probes)


def _glue(names: Sequence[str], config: EvaluationConfig) -> Iterator[TaskData]:
    if config.glue_dataset is not None:
        from training.glue_datasets import load_glue_dataset

        yield from (load_glue_dataset(config.glue_dataset, name) for name in names)
        return
    folder = _place(config, "glue")
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: --glue-dir names one that holds {', '.join(names)}.")
    yield from (glue.load_glue(folder, name) for name in names)


def _place(config: EvaluationConfig, suite: str) -> Path:
    key = SOURCES[suite][0]
    place: Path | None = getattr(config, key)
    if place is None:
        option = key.replace("_", "-")
        raise ConfigError(
            f"evaluation.suites has {suite} but nothing says where it is: set evaluation.{key}, or use --{option}."
        )
    return place


# --- test sets --------------------------------------------------------------------------------------------------------


def _tests(config: EvaluationConfig, task: str, folder: Path) -> tuple[Path, str]:
    """The file of a task's test sets, and its hash. DataError where one is not whole, before hours are spent on it."""
    if config.glue_dataset is not None:
        from training.glue_datasets import load_dataset_tests

        sets = load_dataset_tests(config.glue_dataset, task)
    else:
        sets = glue.load_tests(_place(config, "glue"), task)
    for one in sets:
        glue_submission.refuse_partial(one.name, len(one.examples))
    values = [[one.name, one.index, [[e.text_a, e.text_b] for e in one.examples]] for one in sets]
    sha256 = fingerprint(values)
    path = folder / f"test-{task}-{sha256[:12]}.json"
    if not path.exists():
        storage.write_bytes(path, json.dumps(values, ensure_ascii=False).encode())
    return path, sha256


def load_tests(path: Path) -> list[Unlabelled]:
    """The test sets in a file of `evaluation/tasks/`."""
    values: list[Any] = storage.read_json(path)
    return [Unlabelled(name, tuple(index), [Example(a, b, 0) for a, b in examples]) for name, index, examples in values]
