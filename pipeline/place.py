"""Where a stage works: an experiment, its folder held by this process, the console, and Ray on demand.

Ray is started at most once for a whole command, and not at all when nothing is left to run. Heavy imports stay inside
the functions.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.config import ClusterConfig
from cluster.launch import is_started_again
from cluster.session import session
from data_prep.errors import ConfigError, DataError
from pipeline import config as yaml_config
from pipeline.console import Console, duration, quiet_libraries
from pipeline.experiment import Experiment
from pipeline.folder import Folder, open_folder
from pipeline.gather import CONFIG_NAME
from training import requests
from training.protocol import SOURCES, too_long

if TYPE_CHECKING:
    from cluster.launch import Ranks


@dataclass(slots=True, kw_only=True)
class Place:
    """Where a stage works."""

    experiment: Experiment
    folder: Folder
    console: Console
    stack: ExitStack
    ranks: "Ranks | None" = None  # the processes that train together, where a launcher other than Ray started them
    ray_running: bool = field(default=False)
    worked: bool = field(default=False)  # whether any stage found something to do

    def start_ray(self) -> None:
        """Join the configured cluster, or start an embedded Ray that ends with this command; once."""
        if not self.ray_running:
            join_ray(self.experiment.cluster, self.stack, self.console)
            self.ray_running = self.worked = True


def join_ray(cluster: ClusterConfig, stack: ExitStack, console: Console) -> None:
    """Join the configured cluster, or start an embedded Ray that ends with the stack."""
    num_cpus = cluster.num_cpus if cluster.address is not None else cores(cluster)
    started = time.monotonic()
    stack.enter_context(session(cluster.address, num_cpus))
    where = cluster.address or "on this machine"
    console.say(f"ray: ready {where} in {duration(time.monotonic() - started)}")


def cores(cluster: ClusterConfig) -> int:
    """Logical CPUs of the embedded Ray: fewer cores than training workers must not mean waiting for ever."""
    return cluster.num_cpus or max(os.cpu_count() or 1, cluster.num_workers * cluster.threads_per_worker)


def read_experiment(target: Path, overrides: Sequence[str]) -> Experiment:
    """The experiment in a YAML file, or the one an experiment folder was made by."""
    path = target / CONFIG_NAME if target.is_dir() and (target / CONFIG_NAME).exists() else target
    return yaml_config.load(path, overrides, Experiment)


def default_folder(target: Path, experiment: Experiment) -> Path:
    """Where results go without `--out`: the folder that was named, or runs/NAME."""
    return target if target.is_dir() else Path("runs") / experiment.name


def suite_overrides(given: Mapping[str, Path | str | None]) -> list[str]:
    """Options that say where suites are, by the keys they set, as overrides: those suites are evaluated and no other;
    nothing where there are none. DataError where there is no such folder or file."""
    for key, place in given.items():
        there = not isinstance(place, Path) or place.is_dir() or (key == "blimp" and place.is_file())
        if not there:
            raise DataError(f"{place}: no such folder; --{key.replace('_', '-')} names the one that holds the data")
    suites = [suite for suite, keys in SOURCES.items() if any(given.get(key) is not None for key in keys)]
    if not suites:
        return []
    found = {key: given.get(key) for keys in SOURCES.values() for key in keys}
    places = {key: str(place.resolve()) if isinstance(place, Path) else place for key, place in found.items()}
    return [f"evaluation.suites=[{', '.join(suites)}]"] + [
        f"evaluation.{key}={json.dumps(place)}" for key, place in places.items()
    ]


def evaluation_overrides(
    places: Mapping[str, Path | str | None], numbers: Mapping[str, object], protocol: str | None, size: str | None
) -> list[str]:
    """The options of `electra evaluate` as overrides. ConfigError for a size without its protocol."""
    if size is not None and protocol != "electra_paper":
        raise ConfigError("--size says whose numbers --protocol electra_paper takes: name that protocol too")
    found = suite_overrides(places)
    found += [f"evaluation.{key}={value}" for key, value in numbers.items() if value is not None]
    if protocol is not None:
        named = f"{{name: {protocol}{f', size: {size}' if size else ''}}}"
        found += [f"evaluation.protocol={named}", f"evaluation.squad_protocol={named}"]
    return found


def check_tasks(experiment: Experiment) -> None:
    """Find missing task data, and texts that are longer than the model's positions, before any work."""
    from pipeline.evaluate_data import check

    if refused := too_long(experiment.evaluation, experiment.model.max_positions):
        raise ConfigError(f"{refused} of model.max_positions: lower it")
    check(experiment.evaluation)


@contextmanager
def open_place(experiment: Experiment, out: Path, console: Console, ranks: "Ranks | None" = None) -> Iterator[Place]:
    """Hold the experiment's folder; end what was started when the block ends. What earlier commands were asked is taken
    back."""
    offline = all(source.kind != "datasets" for source in experiment.corpus.sources)
    quiet_libraries(offline=offline and experiment.evaluation.glue_dataset is None)
    with open_folder(out, experiment) as folder, ExitStack() as stack:
        if ranks is None or not is_started_again():
            requests.clear(folder.runs)
        yield Place(experiment=experiment, folder=folder, console=console, stack=stack, ranks=ranks)


def shown(path: Path) -> str:
    """The path as a person would type it from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
