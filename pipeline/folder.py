"""An experiment's directory: held by one process, made by one experiment.

What shaped its results must not change under them; placement may, evaluation may (its records each carry an identity),
and arms, budgets and seeds may be added, since every run is a folder of its own. Guarantees that a folder that cannot
be written, is in use, or holds another experiment is an error before any work. What the parts write into it is theirs.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_prep import storage
from data_prep.errors import ConfigError
from pipeline import config as yaml_config
from pipeline import corpora
from pipeline.experiment import Experiment
from pipeline.gather import CONFIG_NAME
from training.arms import ArmConfig, FrozenGenerator
from training.run_folder import EVENTS, append_lines
from training.settings import Placement, budget_name

# The rate that a sweep chose is part of each run's identity.
_FREE = {"cluster", "evaluation", "sweep", *(f"training.{name}" for name in Placement.model_fields)}


class Folder:
    """An experiment's directory, open for writing by this process. Make one with `open_folder`."""

    def __init__(self, path: Path, corpora: Mapping[str, storage.Folder]) -> None:
        self.path = path
        self.corpora = corpora  # by name
        self.runs = path / "runs"
        self.evaluation = path / "evaluation"
        self.report = path / "report"
        self.export = path / "export"

    def event(self, stage: str, event: str, **details: Any) -> None:
        """Append `{time, stage, event, ...}` to events.jsonl; a killed process can tear only the line it was at."""
        line = {"time": round(time.time(), 3), "stage": stage, "event": event, **details}
        append_lines(self.path / EVENTS, [line])


@contextmanager
def open_folder(path: Path, experiment: Experiment) -> Iterator[Folder]:
    """Make sure `path` is writable, ours alone and of this experiment; then store the configuration in it.

    Raises PreflightError for a folder that cannot be written or is in use by another process, ConfigError when it
    holds another experiment.
    """
    path = path.absolute()
    with storage.LocalFolder(path).held():
        stored = path / CONFIG_NAME
        if stored.exists():
            check_identity(stored, experiment)
        text = yaml_config.dump(_with_absolute_origins(experiment))
        if not stored.exists() or stored.read_text(encoding="utf-8") != text:
            storage.write_bytes(stored, text.encode())
        yield Folder(path, corpora.places(experiment, path))


def _with_absolute_origins(experiment: Experiment) -> Experiment:
    """The folders that weights begin in as seen from anywhere: the copy of the file may be read from elsewhere."""
    return experiment.model_copy(update={"arms": [_with_absolute_origin(arm) for arm in experiment.arms]})


def _with_absolute_origin(arm: ArmConfig) -> ArmConfig:
    update: dict[str, Any] = {"init_from": [path.expanduser().absolute() for path in arm.init_from]}
    generator = getattr(arm, "generator", None)
    if isinstance(generator, FrozenGenerator) and generator.init_from is not None:
        origin = generator.init_from.expanduser().absolute()
        update["generator"] = generator.model_copy(update={"init_from": origin})
    return arm.model_copy(update=update)


def check_identity(stored: Path, experiment: Experiment) -> None:
    """ConfigError when `experiment` is not the one whose results lie beside the file `stored`."""
    changed = changes(yaml_config.load(stored, model=Experiment), experiment)
    if changed:
        keys = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
        raise ConfigError(
            f"{stored.parent}: holds results made with other values of {keys}; "
            f"choose another folder with --out, or remove this one to start again"
        )


def changes(first: Experiment, second: Experiment) -> list[str]:
    """Keys of the first experiment whose values in the second forbid it to go on with the first one's results."""
    before, now = _by_name(first), _by_name(second)
    for list_name in ("arms", "budgets", "corpora"):
        now[list_name] = {name: item for name, item in now[list_name].items() if name in before[list_name]}
    now["seeds"] = before["seeds"] if now["seeds"] >= before["seeds"] else now["seeds"]
    return [key for key in _differences(before, now, "") if not _is_free(key)]


def _by_name(experiment: Experiment) -> dict[str, Any]:
    """The tree with arms and budgets under the names their runs carry, so that additions can be told apart, and without
    the places that files of corpora and first weights lie at. An arm says which corpus it reads."""
    tree = experiment.model_dump(mode="json")
    tree["corpora"] = {name: config.identity() for name, config in experiment.corpus_configs().items()}
    tree["corpus"] = tree["corpora"].pop(corpora.MAIN)
    tree["arms"] = {
        arm.label: _without_places(arm.model_dump(mode="json")) | {"corpus": experiment.corpus_of(arm.label)}
        for arm in experiment.arms
    }
    tree["budgets"] = {budget_name(budget): budget for budget in experiment.budgets or []}
    return tree


def _without_places(arm: dict[str, Any]) -> dict[str, Any]:
    """An arm without the folders its weights begin in: what they hold is part of each run's identity."""
    inner = {key: _without_places(value) for key, value in arm.items() if isinstance(value, dict)}
    return {key: value for key, value in {**arm, **inner}.items() if key != "init_from"}


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in _FREE)


def _differences(before: Any, now: Any, prefix: str) -> Iterator[str]:
    """Dotted keys whose values differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            yield from _differences(before.get(key), now.get(key), f"{prefix}.{key}" if prefix else str(key))
    elif before != now:
        yield prefix
