"""Where a stage works: an experiment, its folder held by this process, the console, and Ray on demand.

Ray is started at most once for a whole command, and not at all when nothing is left to run. Heavy imports stay inside
the functions.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.config import ClusterConfig
from cluster.session import session
from data_prep.errors import DataError
from pipeline import config as yaml_config
from pipeline.console import Console, duration, quiet_libraries
from pipeline.experiment import Experiment
from pipeline.folder import Folder, open_folder
from pipeline.gather import CONFIG_NAME

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
        if self.ray_running:
            return
        cluster = self.experiment.cluster
        num_cpus = cluster.num_cpus if cluster.address is not None else cores(cluster)
        started = time.monotonic()
        self.stack.enter_context(session(cluster.address, num_cpus))
        self.ray_running = self.worked = True
        where = cluster.address or "on this machine"
        self.console.say(f"ray: ready {where} in {duration(time.monotonic() - started)}")


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


def glue_overrides(glue_dir: Path | None) -> list[str]:
    """`--glue-dir` as overrides."""
    if glue_dir is None:
        return []
    if not glue_dir.is_dir():
        raise DataError(f"{glue_dir}: no such folder; --glue-dir names the one that holds the tasks' folders")
    return ["evaluation.suite=glue", f"evaluation.glue_dir={json.dumps(str(glue_dir.resolve()))}"]


def check_tasks(experiment: Experiment) -> None:
    """Find missing task data before any work."""
    from pipeline.evaluate import check_tasks as check

    check(experiment.evaluation)


@contextmanager
def open_place(experiment: Experiment, out: Path, console: Console, ranks: "Ranks | None" = None) -> Iterator[Place]:
    """Hold the experiment's folder; end what was started when the block ends."""
    quiet_libraries(offline=all(source.kind != "datasets" for source in experiment.corpus.sources))
    with open_folder(out, experiment) as folder, ExitStack() as stack:
        yield Place(experiment=experiment, folder=folder, console=console, stack=stack, ranks=ranks)


def shown(path: Path) -> str:
    """The path as a person would type it from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
