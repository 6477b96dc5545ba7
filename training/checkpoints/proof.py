"""That an engine holds what was saved: checksums that do not depend on how parameters are divided among ranks.

A kind's checksum is Σ x·w mod 2⁶⁴ over all its elements: x the bits of the fp32 value as an integer, w = a + 2b·i with
odd numbers a and b from a hash of the parameter's name and i the element's index in it. Sums over slices add up to it,
whatever the slices are. It is exact: one altered bit changes it (w is odd), and so do two elements of a parameter that
have changed places (|x − x′| and 2|i − i′| are below 2³², so their product with an odd number is no multiple of 2⁶⁴).
"""

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from data_prep.errors import CheckError
from training.checkpoints.manifest import Checkpoint
from training.engine import STATES, Engine, Slice

KINDS = ("param", *STATES)
_CHUNK = 1 << 16  # |Σ x·j| over a chunk is below 2⁶³
_MASK = (1 << 64) - 1


def checksum(name: str, start: int, tensor: Tensor) -> int:
    """Of a slice [n] of a parameter, fp32 on any device, that begins at `start`. Temporaries are chunks."""
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    a, b = (int.from_bytes(digest[at : at + 8], "little") | 1 for at in (0, 8))
    index = torch.arange(min(_CHUNK, len(tensor)), device=tensor.device)
    total = 0
    for at in range(0, len(tensor), _CHUNK):
        bits = tensor[at : at + _CHUNK].view(torch.int32).long()
        plain, weighted = torch.stack([bits.sum(), (bits * index[: len(bits)]).sum()]).tolist()
        total += (a + 2 * b * (start + at)) * plain + 2 * b * weighted
    return total & _MASK


def add(shares: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The checksums of a whole, by kind, from those of its shares."""
    total = dict.fromkeys(KINDS, 0)
    for share in shares:
        for kind, value in share.items():
            total[kind] = (total[kind] + value) & _MASK
    return total


def written(checksums: Mapping[str, int]) -> dict[str, str]:
    """As a manifest holds them."""
    return {kind: f"{value:016x}" for kind, value in checksums.items()}


def rows_hash(epochs: NDArray[np.int64], rows: NDArray[np.int64]) -> str:
    """Of the rows of a global batch, in order, and the epochs that they are read in."""
    return hashlib.sha256(np.stack([epochs, rows]).astype("<i8").tobytes()).hexdigest()


def prove(engine: Engine, checkpoint: Checkpoint, next_rows: str, *, group: dist.ProcessGroup | None = None) -> None:
    """Compare what an engine holds with what the manifest says; `next_rows` is the `rows_hash` of the batch that comes
    next. Every rank calls; CheckError on all, naming what differs.

    What every rank holds whole is compared on every rank, and so are the weights that forward passes read, where they
    are not those that the optimizer updates.
    """
    manifest, progress = checkpoint.manifest, checkpoint.progress
    differing = _differing(_held_checksums(engine.held(), group), manifest["proof"])
    weights = _held_checksums(engine.weights(), group)["param"]
    differing += ["the weights that are computed with"] * (f"{weights:016x}" != manifest["proof"]["param"])
    differing += ["the count of updates"] * bool(engine.updates() - {progress.step - progress.skipped})
    differing += ["the rows of the next batch"] * (next_rows != manifest["next_rows"])
    gathered: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, differing, group=group)
    said = [f"{', '.join(names)} (rank {rank})" for rank, names in enumerate(gathered) if names]
    if said:
        raise CheckError(
            f"{checkpoint}: what was restored from it is not what was saved ({'; '.join(said)}); try again, and if it "
            "stays so, remove this checkpoint to resume from the one before"
        )


def _held_checksums(pieces: Iterable[Slice], group: dist.ProcessGroup | None) -> dict[str, int]:
    """Of what the ranks hold divided together, and of what this rank holds as all do."""
    divided: list[dict[str, int]] = []
    replicated: list[dict[str, int]] = []
    for piece in pieces:
        share = {kind: checksum(piece.name, piece.start, tensor) for kind, tensor in piece.tensors.items()}
        (replicated if piece.replicated else divided).append(share)
    gathered: list[dict[str, int]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, add(divided), group=group)
    return add([*gathered, *replicated])


def _differing(found: Mapping[str, int], saved: Mapping[str, str]) -> list[str]:
    return [kind for kind, value in written(found).items() if value != saved[kind]]
