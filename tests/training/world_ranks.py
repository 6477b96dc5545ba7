"""What a rank does for tests/training/test_world_changes.py: it trains up to a step and notes the rows it was given."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np

from data_prep.errors import StoppedError
from tests.training.runs import CPU, ELECTRA, MODEL, spec_for
from training.faults import Faults
from training.loader import Loader, StepBatches
from training.loop import train
from training.requests import Inbox
from training.settings import RunSpec

STEPS = 24
Rows = dict[str, dict[str, str]]  # position of a step → row → digest of all that was made of it


def planned(corpus: Path, **training: object) -> RunSpec:
    """Without dropout, which goes by the rank; a line and a checkpoint every step."""
    spec = spec_for(ELECTRA, corpus, STEPS, log_every=1, checkpoints={"every": 1, "keep_last": 99}, **training)
    model = MODEL.model_copy(update={"dropout": 0.0, "attention_dropout": 0.0})
    identity = spec.identity.model_copy(update={"model": model.encoder(spec.identity.model.vocab_size)})
    return spec.model_copy(update={"identity": identity})


def train_to(spec: RunSpec, corpus: Path, run_dir: Path, stop: int | None) -> Rows:
    """Train until so many steps are completed (a stop takes effect two steps after it is asked for)."""
    inbox = Inbox()

    def ask(self: Faults, completed: int) -> None:
        if stop is not None and completed == stop - 2:
            inbox.post("stop", "enough")

    with noted() as rows, patch.object(Faults, "before_step", ask):
        try:
            train(spec, corpus, run_dir, CPU, inbox=inbox)
        except StoppedError:
            assert stop is not None
    return rows


@contextmanager
def noted() -> Iterator[Rows]:
    """What the loaders of this process hand out while the block runs."""
    rows: Rows = {}
    step_at = Loader.step_at

    def noting(self: Loader, position: int) -> StepBatches:
        found = step_at(self, position)
        made = [{name: array[i] for name, array in batch.items()} for batch in found.micro_batches for i in range(8)]
        rows[str(position)] = {
            str(row): _digest(arrays) for row, arrays in zip(found.row_ids.tolist(), made, strict=False)
        }
        return found

    with patch.object(Loader, "step_at", noting):
        yield rows


def _digest(arrays: dict[str, np.ndarray]) -> str:  # type: ignore[type-arg]
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def work(corpus: Path, folder: Path, rank: int, world: int) -> None:
    """One rank of one stage, which `folder` describes."""
    stage = json.loads((folder / "stage.json").read_text())
    spec = planned(corpus, zero_stage=stage["zero_stage"])
    rows = train_to(spec, corpus, Path(stage["run_dir"]), stage["stop"])
    (folder / f"rows-{rank}.json").write_text(json.dumps(rows))
