"""The networks of a checkpoint or a Hugging Face folder that can judge sentences, each with the scorer that suits it.

An `electra` checkpoint gives two: the discriminator by `rtd`, its generator by `pll`. A main network whose masked-token
head has only ever seen samples in place of [MASK] is none; its generator is. Scorers: `training.minimal_pairs`.
"""

from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import ConfigError
from training import hf_import, origin
from training.checkpoints import load_objective
from training.hf_config import is_hugging_face
from training.minimal_pairs import Scorer, scorers
from training.network import Network


@dataclass(frozen=True, slots=True)
class Judge:
    """A network by the name it has among those of its checkpoint."""

    name: str
    network: Network
    scorer: Scorer


def load_judges(folder: Path | str) -> list[Judge]:
    """The judges of a folder, the main network first. CheckpointError where there is no whole checkpoint; ConfigError
    where no network of it has a head to judge with."""
    judges = _of_hugging_face(Path(folder)) if is_hugging_face(folder) else _of_checkpoint(folder)
    if not judges:
        raise ConfigError(
            f"{folder} has no head that fills masks or detects replaced tokens; choose a checkpoint that has one"
        )
    return judges


def _of_hugging_face(folder: Path) -> list[Judge]:
    found = hf_import.read(folder)
    network = found.network()
    return [Judge(found.role, network, scorer) for scorer in scorers(network)]


def _of_checkpoint(folder: Path | str) -> list[Judge]:
    objective, _ = load_objective(folder)
    networks, known = objective.networks(), origin.at(folder)
    judges = []
    if "rtd" in networks[objective.main].heads:
        judges.append(Judge(objective.main, networks[objective.main], "rtd"))
    if known.masked is not None:  # the network that sees [MASK]
        name = objective.main if known.generator is None else "generator"
        judges.append(Judge(name, networks[name], "pll"))
    return judges
