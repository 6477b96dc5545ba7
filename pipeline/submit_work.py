"""What `electra submit` sends, whatever to: a verb, its configuration, where results go, and an id made of them.

Guarantees: alike work has the same id, whatever its placement, so that a command that is repeated names what it began;
results go where every machine sees them. Sending is `pipeline.submit`'s. Imports nothing heavy.
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cluster.submit_config import Backend
from data_prep.errors import ConfigError
from pipeline.experiment import Experiment
from pipeline.place import default_folder, read_experiment
from training.settings import Placement

Verb = Literal["prepare", "train", "evaluate", "report", "export", "experiment run"]
# The driver joins the Ray that runs it.
THERE = ("cluster.address=auto", "cluster.num_cpus=null")
_LONGEST_NAME = 15  # of the experiment in a submission id: with the rest it is a name for Kubernetes, too (47)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be done, wherever."""

    verb: Verb
    config: Path
    overrides: tuple[str, ...]
    experiment: Experiment
    out: str  # as seen from over there
    json_: bool = False  # of a local one, as the person asked; a job always ends with a JSON line

    @property
    def cluster_id(self) -> str:
        """Of a cluster that stays and does any work of the experiment."""
        return f"electra-{self._short_name}"

    @property
    def _short_name(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.experiment.name.lower())[:_LONGEST_NAME].strip("-")

    @property
    def submission_id(self) -> str:
        """From what is done and where results go, without placement: alike for alike work."""
        placement: Any = {"cluster": True, "training": set(Placement.model_fields)}
        tree = self.experiment.model_dump(mode="json", exclude=placement)
        digest = hashlib.sha256(json.dumps([self.verb, self.out, tree], sort_keys=True).encode()).hexdigest()
        return f"electra-{self._short_name}-{self.verb.split()[0]}-{digest[:8]}"

    def words(self, config: str, python: str, *settings: str, json_: bool) -> list[str]:
        """The command line that does it."""
        place = [config, *self.overrides, *settings, "--out", self.out]
        if self.verb == "export":  # it goes by the experiment's folder alone, and needs no Ray
            place = [self.out]
        return [python, "-m", "pipeline.cli", *self.verb.split(), *place, *(["--json"] if json_ else [])]


def shared_folder(experiment: Experiment) -> str:
    """Where the results of what is sent go without `--out`, as every machine sees it."""
    return os.path.normpath(f"{experiment.cluster.submit.shared.path}/runs/{experiment.name}")


def work_of(
    config: Path, overrides: Sequence[str], verb: Verb, out: Path | None, backend: Backend | None, json_: bool = False
) -> tuple[Work, Backend]:
    """The work that a command line names and the backend it is for. ConfigError where results would lie on one machine
    only."""
    experiment = read_experiment(config, overrides)
    submit = experiment.cluster.submit
    backend = backend or submit.backend
    if backend == "local":
        place = str((out or default_folder(config, experiment)).absolute())
    elif out is not None and not out.is_absolute():
        raise ConfigError(
            f"--out {out}: every machine must see the folder under this name; name one on the shared volume, such as "
            f"{shared_folder(experiment)}"
        )
    else:
        place = os.path.normpath(out or shared_folder(experiment))
    found = Work(verb=verb, config=config, overrides=tuple(overrides), experiment=experiment, out=place, json_=json_)
    return found, backend
