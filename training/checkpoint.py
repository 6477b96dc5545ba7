"""Checkpoints: every rank's own slices in safetensors, a manifest last, nothing pickled.

`checkpoints/step-00000123/` holds `part-RRRRR.safetensors` (one a rank: contiguous slices of parameters and optimizer
state, fp32, keyed `kind/name@start`) and `manifest.json` (sizes, hashes, shapes, the names of frozen parameters, which
have no optimizer state, run, position, ledgers). A parameter that modules share stands once, under its first name in
`named_parameters()`. The folder is written under a temporary name and renamed when the manifest is in it, so a folder
of that name is complete; without a valid manifest a checkpoint does not exist. Restoring reads slices by name, whatever
the world size and ZeRO stage.

Not here: writing in the background, retention, object storage.
"""

import json
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from data_prep import storage
from data_prep.errors import CheckpointError
from data_prep.rows import SpecialIds
from training.engine import STATES, Engine
from training.ledgers import Ledger, Ledgers
from training.objectives import Objective, build
from training.ranks import on_rank_zero
from training.settings import RunSpec

MANIFEST = "manifest.json"
VERSION = 2


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands after `step` completed steps, `skipped` of which changed nothing (a gradient was not finite).

    Ledgers: model FLOPs that the surviving trajectory `counted`, and `spent` with what restarts repeated; of the
    surviving trajectory also what was `executed`, and the ELECTRA paper's convention. They contain those of the runs
    that this one began with, which `inherited` keeps apart. `degenerate`: what the last held-out evaluation says of a
    network that learned nothing.
    """

    step: int = 0
    position: int = 0
    skipped: int = 0
    flops_counted: float = 0.0
    flops_spent: float = 0.0
    flops_executed: float = 0.0
    flops_paper: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    degenerate: str | None = None
    inherited: Ledgers = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint: its folder and its manifest."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def progress(self) -> Progress:
        stored = self.manifest["progress"]
        inherited = {run: Ledger(**ledger) for run, ledger in stored.get("inherited", {}).items()}
        return Progress(**{**stored, "inherited": inherited})

    @property
    def spec(self) -> RunSpec:
        return RunSpec.model_validate(self.manifest["spec"])

    @property
    def special(self) -> SpecialIds:
        return SpecialIds.model_validate(self.manifest["special"])

    @property
    def sha256(self) -> str:
        """Hash of the manifest, which holds the hashes of the parts: names this checkpoint and no other."""
        return storage.sha256_of(self.folder / MANIFEST)


def save(run_dir: Path, engine: Engine, spec: RunSpec, special: SpecialIds, packed: bool, progress: Progress) -> Path:
    """Write a checkpoint; every rank calls, every rank returns when it is complete."""
    final = run_dir / "checkpoints" / f"step-{progress.step:08d}"
    temporary = final.with_name(final.name + ".tmp")

    def begin() -> None:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)

    def commit() -> None:
        parts = sorted(temporary.glob("part-*.safetensors"))
        storage.write_json(
            temporary / MANIFEST,
            {
                "version": VERSION,
                "parts": [{"name": p.name, "bytes": p.stat().st_size, "sha256": storage.sha256_of(p)} for p in parts],
                "shapes": engine.shapes,
                "frozen": [name for name, p in engine.objective.named_parameters() if not p.requires_grad],
                "progress": asdict(progress),
                "spec": spec.model_dump(mode="json"),
                "special": special.model_dump(mode="json"),
                "packed": packed,
                "identity": spec.identity.fingerprint(),
                "world_size": dist.get_world_size(),
            },
        )
        if final.exists():  # an invalid one: a valid one would have been resumed from
            final.rename(final.with_name(f"{final.name}.broken-{time.time_ns()}"))
        temporary.rename(final)
        storage.sync_folder(final.parent)

    on_rank_zero(begin)
    part = temporary / f"part-{dist.get_rank():05d}.safetensors"
    save_file(_own_tensors(engine), part)
    with open(part, "rb") as file:
        os.fsync(file.fileno())
    dist.barrier()
    on_rank_zero(commit)
    return final


def _own_tensors(engine: Engine) -> dict[str, Tensor]:
    return {
        f"{kind}/{piece.name}@{piece.start}": tensor.detach().to("cpu", torch.float32, copy=True)
        for piece in engine.slices()
        for kind, tensor in piece.tensors.items()
    }


def verify(folder: Path) -> Checkpoint:
    """The checkpoint in a folder if it is whole; otherwise CheckpointError saying what is wrong with it."""
    found = read(folder)
    for part in found.manifest["parts"]:
        file = folder / part["name"]
        if not file.is_file():
            raise CheckpointError(f"{file} is missing: restore it or choose another checkpoint.")
        if file.stat().st_size != part["bytes"] or storage.sha256_of(file) != part["sha256"]:
            raise CheckpointError(f"{file} was cut or altered (size or sha256 differs): choose another checkpoint.")
    return found


def read(folder: Path) -> Checkpoint:
    """The checkpoint in a folder by its manifest alone, without a look at the parts: enough to plan with.
    CheckpointError where there is none of this version."""
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no {MANIFEST}: it is not a finished checkpoint; choose another.")
    try:
        manifest = json.loads(path.read_bytes())
        found = Checkpoint(folder, manifest)
        if manifest["version"] != VERSION or not manifest["parts"]:
            raise CheckpointError(f"{path} is of another version or lists no parts: choose another checkpoint.")
        _ = found.progress, found.spec, found.special, manifest["packed"], manifest["shapes"], manifest["frozen"]
        _ = [(part["name"], part["bytes"], part["sha256"]) for part in manifest["parts"]]
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{path} is not a checkpoint manifest: choose another checkpoint.") from None
    return found


def newest(run_dir: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest verified checkpoint of a run, and a sentence for each newer one that was passed over."""
    passed_over: list[str] = []
    for folder in sorted((run_dir / "checkpoints").glob("step-????????"), reverse=True):
        try:
            return verify(folder), passed_over
        except CheckpointError as error:
            passed_over.append(str(error))
    return None, passed_over


def load_tensors(checkpoint: Checkpoint, kinds: Iterable[str] = ("param",)) -> dict[str, dict[str, Tensor]]:
    """Full fp32 tensors by kind and parameter name, put together from the slices; frozen parameters have no other kind
    than `param`. CheckpointError where an element is missing or stands twice."""
    shapes: dict[str, list[int]] = checkpoint.manifest["shapes"]
    trained = shapes.keys() - checkpoint.manifest["frozen"]
    names = {kind: [name for name in shapes if kind == "param" or name in trained] for kind in kinds}
    full = {kind: {name: torch.empty(shapes[name]).view(-1) for name in names[kind]} for kind in names}
    pieces: dict[tuple[str, str], list[tuple[int, int]]] = {(kind, name): [] for kind in full for name in full[kind]}
    for part in checkpoint.manifest["parts"]:
        for key, tensor in _read_part(checkpoint.folder / part["name"]).items():
            kind, _, rest = key.partition("/")
            if kind not in full:
                continue
            name, _, start = rest.rpartition("@")
            if (kind, name) not in pieces:
                raise CheckpointError(f"{checkpoint.folder}: its manifest does not list {key}: choose another.")
            stop = int(start) + tensor.numel()
            pieces[kind, name].append((int(start), stop))
            full[kind][name][int(start) : stop] = tensor
    for (kind, name), intervals in pieces.items():
        edges = [0, *(edge for interval in sorted(intervals) for edge in interval), full[kind][name].numel()]
        if any(edges[i] != edges[i + 1] for i in range(0, len(edges), 2)):
            raise CheckpointError(f"{checkpoint.folder}: slices of {kind}/{name} do not fit together: choose another.")
    return {kind: {name: flat.view(shapes[name]) for name, flat in tensors.items()} for kind, tensors in full.items()}


def _read_part(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path} cannot be read ({error}): choose another checkpoint.") from None


def restore(engine: Engine, checkpoint: Checkpoint) -> None:
    """Load parameters and optimizer state into an engine, at any world size and ZeRO stage."""
    tensors, progress = load_tensors(checkpoint, ("param", *STATES)), checkpoint.progress
    engine.load(tensors["param"], {kind: tensors[kind] for kind in STATES}, progress.step - progress.skipped)


def load_objective(folder: Path) -> tuple[Objective, Checkpoint]:
    """The trained networks of a checkpoint, verified, on the CPU in evaluation mode."""
    checkpoint = verify(folder)
    return objective_of(checkpoint), checkpoint


def objective_of(checkpoint: Checkpoint) -> Objective:
    """As `load_objective`, of a checkpoint that somebody has verified."""
    identity = checkpoint.spec.identity
    objective = build(
        identity.arm,
        identity.model,
        checkpoint.special,
        seq_len=identity.seq_len,
        packed=checkpoint.manifest["packed"],
    )
    _copy(load_tensors(checkpoint)["param"], objective, checkpoint.folder)
    return objective.eval()


def _copy(tensors: dict[str, Tensor], objective: Objective, folder: Path) -> None:
    """Not by `load_state_dict`, which asks for a shared parameter under every name it has."""
    parameters = dict(objective.named_parameters())
    stored, wanted = ({name: tensor.shape for name, tensor in found.items()} for found in (tensors, parameters))
    differing = sorted(name for name, _ in stored.items() ^ wanted.items())
    if differing:
        raise CheckpointError(
            f"{folder}: {differing[0]} does not fit the network that the manifest describes; choose another checkpoint."
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
