"""What a run began with, and which of its figures are its own, from its `run.json` and `done.json`.

FLOPs, tokens and seconds in `done.json` contain those of the runs that the weights came from; what a Hugging Face
folder cost is not known, and in no figure. Folders go by their names alone: whoever reads a model card need not know
where they lie. Imports nothing heavy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INHERITED = ("flops_counted", "tokens", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A run at one of its steps, or a Hugging Face folder, which has none. `identity`: the run's fingerprint, or the
    SHA-256 of the folder's weights. `generator_only`: it gave a frozen generator, and nothing that is trained."""

    name: str
    identity: str
    step: int | None
    generator_only: bool


def origins(identity: Mapping[str, Any], placement: Mapping[str, Any]) -> list[Origin]:
    """What the run of this identity began with, each once; empty where its weights began at random."""
    init = identity.get("init", {})  # not in a record of before there was any
    folders = {
        name: folder
        for purpose, names in init.items()
        for name, folder in zip(names, placement["init"][purpose], strict=True)
    }
    return [_origin(name, folder, name not in init.get("weights", [])) for name, folder in folders.items()]


def _origin(name: str, folder: str, generator_only: bool) -> Origin:
    path = Path(folder)
    run, _, step = name.partition("@")
    if not step:
        return Origin(name=path.name, identity=run.removeprefix("sha256:"), step=None, generator_only=generator_only)
    if path.parent.name == "checkpoints":
        whose = path.parents[1].name
    else:  # in an object store, below the run's name; or a folder that was moved elsewhere
        whose = path.parent.name if "://" in folder else path.name
    return Origin(name=whose, identity=run, step=int(step), generator_only=generator_only)


def inherited(done: Mapping[str, Any]) -> dict[str, float]:
    """The share of `INHERITED` figures that others paid for; zeros in a record of before there was any."""
    share: dict[str, float] = done.get("inherited", {})
    return {name: share.get(name, 0) for name in INHERITED}


def own(done: Mapping[str, Any]) -> dict[str, float]:
    """The rest of these figures."""
    return {name: done[name] - value for name, value in inherited(done).items()}
