"""What one rank of two does for tests/training/test_checkpoint_ranks.py; what it sees goes into a JSON file."""

import errno
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from data_prep.errors import CheckError, CheckpointError, PreflightError
from tests.training.saved import engine, fill, local, saver, take
from training import checkpoints
from training.engine import Engine


def work(corpus: Path, folder: Path, rank: int, world: int) -> None:
    found: dict[str, Any] = {}
    with engine() as built:
        fill(built, 1.0)
        failing(found, built, corpus, folder, rank)
        choosing(found, built, folder, rank)
    (folder / f"saw-{rank}.json").write_text(json.dumps(found))


def failing(found: dict[str, Any], built: Engine, corpus: Path, folder: Path, rank: int) -> None:
    """Rank 1's disk fails at step 2."""

    def fail(step: int) -> None:
        if rank == 1 and step == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO), "rank 1's disk")

    saving = saver(local(folder), built, corpus, while_writing=fail)
    outcomes = [asdict(take(saving, step)) for step in (1, 2)]
    dist.barrier()
    found["files"] = sorted(path.name for path in (folder / "checkpoints").rglob("*"))
    dist.barrier()
    fill(built, 3.0)
    found["outcomes"] = [*outcomes, asdict(take(saving, 3))]


def choosing(found: dict[str, Any], built: Engine, folder: Path, rank: int) -> None:
    """A flipped byte in the part that rank 1 hashes; a bit of this rank's copy of what rank 0 saved; no store."""
    store = local(folder)
    best, _ = checkpoints.choose(store)
    assert best is not None
    found["best"] = [best.name, best.manifest["world_size"], [part["name"] for part in best.manifest["parts"]]]
    checkpoints.restore(built, best)
    checkpoints.prove(built, best, "rows 3")
    if rank == 1:
        next(iter(built.held())).tensors["exp_avg"].view(-1)[0] += 1.0  # saved by rank 0, held by both
    with pytest.raises(CheckError) as caught:
        checkpoints.prove(built, best, "rows 3")
    found["proof"] = str(caught.value)

    dist.barrier()
    if rank == 0:
        part = folder / "checkpoints" / "step-00000003" / "part-00001.safetensors"
        part.write_bytes(part.read_bytes()[:-1] + b"?")
    dist.barrier()
    earlier, passed_over = checkpoints.choose(store)
    found["earlier"] = [earlier and earlier.name, passed_over]
    dist.barrier()
    if rank == 0:
        for manifest in (folder / "checkpoints").glob("step-*/manifest.json"):
            manifest.unlink()
    dist.barrier()
    found["shared"] = refusal(lambda: checkpoints.check_shared(local(folder / f"disk-{rank}")))
    checkpoints.check_shared(store)
    found["refusals"] = [refusal(lambda: checkpoints.choose(store))]
    dist.barrier()


def refusal(action: Any) -> str:
    with pytest.raises((CheckpointError, PreflightError)) as caught:
        action()
    return f"{type(caught.value).__name__}: {caught.value}"
