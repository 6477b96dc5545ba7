"""What a planned run begins with: nothing, other weights (`init_from`), or the first of its two stages.

Paths are resolved to what lies there, and checked against the arm and its corpus. Looked up once: where the source is
gone, and an earlier attempt at the run has left `run.json`, that says what it was. Nothing is read of a checkpoint but
its manifest; torch is imported only where there is something to look up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.errors import CheckpointError, ConfigError
from data_prep.manifest import Manifest
from data_prep.storage import Location
from training.arms import ArmConfig, FrozenGenerator
from training.checks import check_sizes, check_vocabulary, frozen_size
from training.ledgers import total, union
from training.settings import RunSpec
from training.sizes import EncoderConfig, ModelConfig
from training.vocabulary import of_corpus

if TYPE_CHECKING:
    from training.origin import Origin

Paths = Mapping[str, list[Path]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """An arm whose paths are resolved, and what its run begins with: identities and folders by what they are for, the
    model FLOPs that they stand for (as counted, and as budgeted), and a position in the stream."""

    arm: ArmConfig
    identities: dict[str, list[str]]
    folders: dict[str, list[str]]
    inherited: float
    inherited_budget: float
    start: int = 0


def second_stage(arm: ArmConfig, first: RunSpec) -> Beginning:
    """Both networks begin as what the first stage will have come to, whose identity is known before it is trained, and
    the stream goes on."""
    name = f"{first.identity.fingerprint()}@{first.steps}"
    return Beginning(
        arm=arm.model_copy(update={"init_from": []}),
        identities={"weights": [name], "generator": [name]},
        folders={},
        inherited=first.inherited + first.steps * first.flops_per_step,
        inherited_budget=first.budget,
        start=first.steps * first.identity.global_batch,  # rows that the frozen generator was not trained on
    )


def beginning(
    arm: ArmConfig,
    encoder: EncoderConfig,
    manifest: Manifest,
    seed: int,
    *,
    corpus_dir: Location | None,
    before: RunSpec | None,
) -> Beginning:
    """Resolve `init_from` of the arm and of a frozen generator; what is no longer there is as `before` found it.

    ConfigError where it is nothing that the arm can begin with, CheckpointError where it was not trained yet.
    """
    generator = getattr(arm, "generator", None)
    frozen = generator.init_from if isinstance(generator, FrozenGenerator) else None
    named = {"weights": arm.init_from, "generator": [] if frozen is None else [frozen]}
    paths = {purpose: folders for purpose, folders in named.items() if folders}
    if not paths:
        return Beginning(arm=arm, identities={}, folders={}, inherited=0.0, inherited_budget=0.0)
    try:
        origins = _origins(paths, arm, seed)
    except (ConfigError, CheckpointError):
        if before is None or not _answers(before, paths):
            raise
        return _as_before(arm, before)
    corpus = of_corpus(corpus_dir, manifest)
    for one in [one for ones in origins.values() for one in ones]:
        check_vocabulary(arm, one, manifest, corpus)
    for one in origins.get("weights", []):
        check_sizes(arm, one, encoder)
    network = frozen_size(arm, origins["generator"][0], manifest) if "generator" in origins else None
    cost = total(union(one.ledgers for ones in origins.values() for one in ones))
    return Beginning(
        arm=_resolved(arm, network),
        identities={purpose: [one.identity for one in ones] for purpose, ones in origins.items()},
        folders={purpose: [str(one.folder) for one in ones] for purpose, ones in origins.items()},
        inherited=cost.flops_counted,
        inherited_budget=cost.planned,
    )


def _origins(paths: Paths, arm: ArmConfig, seed: int) -> dict[str, list["Origin"]]:
    from training.origin import find

    return {
        purpose: [find(path, label=arm.label, objective=arm.objective, seed=seed) for path in folders]
        for purpose, folders in paths.items()
    }


def _answers(before: RunSpec, paths: Paths) -> bool:
    """Whether an earlier plan has found as many things as these, for the same purposes."""
    found, asked = before.identity.init, paths
    return {key: len(names) for key, names in found.items()} == {key: len(names) for key, names in asked.items()}


def _as_before(arm: ArmConfig, before: RunSpec) -> Beginning:
    """What an earlier attempt found; a run that is finished, or has a checkpoint, needs no more of it."""
    generator = getattr(before.identity.arm, "generator", None)
    return Beginning(
        arm=_resolved(arm, generator.network if isinstance(generator, FrozenGenerator) else None),
        identities=before.identity.init,
        folders=before.placement.init,
        inherited=before.inherited,
        inherited_budget=before.inherited_budget,
    )


def _resolved(arm: ArmConfig, network: ModelConfig | None) -> ArmConfig:
    """The arm without paths; a frozen generator of the size that it was found to have."""
    resolved: dict[str, Any] = {"init_from": []}
    generator = getattr(arm, "generator", None)
    if isinstance(generator, FrozenGenerator):
        resolved["generator"] = generator.model_copy(update={"init_from": None, "network": network})
    return arm.model_copy(update=resolved)
