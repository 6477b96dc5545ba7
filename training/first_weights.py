"""The first weights of a run that begins with others: filled in, checked, and told of.

Weights go from main network to main network and from generator to generator; of several folders the first that has a
tensor gives it, and a folder that holds a generator alone fills the main network of an arm that trains none. A frozen
generator is the origin's network that predicts masked tokens, whole. Only weights are taken over: optimizer, schedule
and stream begin anew. What the folders are was settled when the run was planned (`training.origin`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data_prep.errors import CheckpointError, ConfigError
from training import checkpoints, hf_config, hf_import, ledgers, origin
from training.checkpoints import Progress
from training.network import Network, fill
from training.objectives import Objective
from training.origin import Origin
from training.ranks import on_rank_zero
from training.settings import RunSpec

Event = dict[str, Any]


def inherited(spec: RunSpec, run_dir: Path) -> Progress:
    """Where a run begins: at step 0 with the ledgers of the runs that it goes on from, as far as they are known; a
    second stage at the row after the last that the first one has read, which rollbacks have led further than was
    planned. Every rank calls; rank 0 looks."""
    return on_rank_zero(lambda: _inherited(spec, run_dir))


def _inherited(spec: RunSpec, run_dir: Path) -> Progress:
    origins = [origin.at(folder) for folder, _ in _planned(spec, run_dir)]
    found = ledgers.union(one.ledgers for one in origins)
    total, position = ledgers.total(found), spec.identity.start_position
    if position:  # a second stage: it reads on
        position = max(one.position for one in origins)
    return Progress(**{name: getattr(total, name) for name in ledgers.NAMES}, position=position, inherited=found)


def begin(objective: Objective, spec: RunSpec, run_dir: Path) -> list[Event]:
    """Give an objective's networks their first weights. Every rank calls; rank 0 makes sure that the folders are whole
    and what was planned, so that a rank does not fail alone.

    An event for each network: the folders that gave it something (`from`: each with its identity, `flops`, the model
    FLOPs it stands for or None where unknown, whether its `vocabulary` is known beyond its size, and the parts that it
    `differs` in from what an earlier folder gave), and the parts that all of them lack and that keep random values.

    CheckpointError where a folder is not whole, ConfigError where it is not what the run was planned with, or does not
    fill a frozen generator.
    """
    found = on_rank_zero(lambda: _verify(spec, run_dir))
    networks = objective.networks()
    frozen = {name: network for name, network in networks.items() if _is_frozen(network)}
    trained = {name: network for name, network in networks.items() if name not in frozen}
    sources = {folder: _load(one) for folder, one in found.items()}
    weights = [sources[folder] for folder, _ in _planned(spec, run_dir, ["weights"])]
    events = _fill_trained(trained, objective.main, weights)
    generators = [sources[folder] for folder, _ in _planned(spec, run_dir, ["generator"])]
    if frozen and not generators:
        raise ConfigError(f"{spec.name}: has a frozen generator and nothing to fill it from; set generator.init_from")
    return events + [_fill_frozen(name, network, generators[0]) for name, network in frozen.items()]


@dataclass(frozen=True, slots=True)
class _Source:
    """The tensors of an origin by canonical name, for the same three purposes as the sizes in `Origin`."""

    origin: Origin
    main: Mapping[str, Tensor] | None
    generator: Mapping[str, Tensor] | None
    masked: Mapping[str, Tensor] | None

    def gave(self, differs: Sequence[str] = ()) -> Event:
        found = self.origin
        return {
            "folder": str(found.folder),
            "identity": found.identity,
            "flops": ledgers.total(found.ledgers).flops_counted if found.ledgers else None,
            "vocabulary": found.tokenizer_sha256 is not None or found.vocabulary is not None,
            "differs": list(differs),
        }


def _planned(
    spec: RunSpec, run_dir: Path, purposes: Sequence[str] = ("weights", "generator")
) -> list[tuple[Path | str, str]]:
    """Folders and the identities they must have, as the plan says; relative ones start at the run's own folder, and
    addresses are those of an object store."""
    return [
        (folder if "://" in folder else (run_dir / folder).resolve(), identity)
        for purpose in purposes
        for folder, identity in zip(
            spec.placement.init.get(purpose, []), spec.identity.init.get(purpose, []), strict=True
        )
    ]


def _verify(spec: RunSpec, run_dir: Path) -> dict[Path | str, Origin]:
    """What the folders are; that they are there, whole, and what the plan names."""
    verified = {}
    for folder, identity in dict(_planned(spec, run_dir)).items():
        if not origin.is_origin(folder):
            raise CheckpointError(
                f"{folder}: no checkpoint is there, and {spec.name} begins with it; train that run first"
            )
        found = verified[folder] = origin.at(folder)
        if found.identity != identity:
            raise ConfigError(
                f"{folder}: holds {found.identity}, and {spec.name} was planned to begin with {identity}; plan it "
                "again, or put the folder back"
            )
        if not hf_config.is_hugging_face(folder):
            checkpoints.verify(folder)
    return verified


def _load(found: Origin) -> _Source:
    if hf_config.is_hugging_face(found.folder):
        tensors = hf_import.read(Path(found.folder)).tensors
        return _Source(
            found,
            main=tensors if found.main else None,
            generator=tensors if found.generator else None,
            masked=tensors if found.masked else None,
        )
    objective = checkpoints.objective_of(checkpoints.read(found.folder))
    networks = {
        name: {key: parameter.detach() for key, parameter in network.parameters().items()}
        for name, network in objective.networks().items()
    }
    main, generator = networks[objective.main], networks.get("generator")
    return _Source(found, main=main, generator=generator, masked=(generator or main) if found.masked else None)


def _is_frozen(network: Network) -> bool:
    return not any(parameter.requires_grad for parameter in network.parameters().values())


def _fill_trained(networks: Mapping[str, Network], main: str, sources: Sequence[_Source]) -> list[Event]:
    """Each network from what each source has for it; no event where there is no source."""
    gave: dict[str, list[Event]] = {name: [] for name in networks}
    filled: set[int] = set()  # parameters, by id: networks share some
    for source in sources:
        offers = {main: source.main, "generator": source.generator}
        if source.main is None and "generator" not in networks:
            offers = {main: source.generator}
        for name, network in networks.items():
            tensors = offers.get(name)
            if tensors is not None:
                gave[name].append(source.gave(_fill_rest(network, tensors, filled, source)))
    return [_event(name, gave[name], _lacked(network, filled)) for name, network in networks.items() if sources]


def _event(network: str, gave: Sequence[Event], lacked: Sequence[str]) -> Event:
    return {"event": "weights", "network": network, "from": list(gave), "lacked": list(lacked)}


def _fill_rest(network: Network, tensors: Mapping[str, Tensor], filled: set[int], source: _Source) -> list[str]:
    """Fill what no earlier source has; the parts that one has filled with other values."""
    parameters = network.parameters()
    new = {name for name in tensors.keys() & parameters.keys() if id(parameters[name]) not in filled}
    fill(network, {name: tensors[name] for name in new}, str(source.origin.folder))
    filled |= {id(parameters[name]) for name in new}
    both = tensors.keys() & parameters.keys() - new
    return _parts(name for name in both if not torch.equal(tensors[name].to(parameters[name]), parameters[name]))


def _fill_frozen(name: str, network: Network, source: _Source) -> Event:
    if source.masked is None:
        raise ConfigError(f"{source.origin.folder}: holds no network that predicts masked tokens; name another folder")
    lacked = fill(network, source.masked, str(source.origin.folder))
    if lacked:
        raise ConfigError(
            f"{source.origin.folder}: lacks {', '.join(_parts(lacked))} of the frozen generator; name another folder"
        )
    return _event(name, [source.gave()], lacked=[])


def _lacked(network: Network, filled: set[int]) -> list[str]:
    return _parts(name for name, parameter in network.parameters().items() if id(parameter) not in filled)


def _parts(names: Iterable[str]) -> list[str]:
    """`embeddings`, `encoder` and heads by name, of which the tensors are parts."""
    return sorted({".".join(name.split(".")[: 2 if name.startswith("heads.") else 1]) for name in names})
