"""What tests of whole runs share: specifications on the synthetic corpus, weights of a checkpoint, a run cut short."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from data_prep import storage
from data_prep.manifest import load
from data_prep.rows import SpecialIds
from training import checkpoints
from training.arms import ArmConfig, BertArm, ElectraArm, NetworkGenerator, RobertaArm
from training.checkpoints import Progress, Saver
from training.engine import Engine
from training.run import plan_run
from training.settings import RunSpec, TrainingConfig
from training.sizes import ModelConfig

MODEL = ModelConfig(
    embedding_size=16, hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, max_positions=64, dropout=0.1
)
CPU = torch.device("cpu")
ELECTRA = ElectraArm(learning_rate=5e-3, generator=NetworkGenerator(width=1.0))
BERT = BertArm(learning_rate=5e-3)
ROBERTA = RobertaArm(learning_rate=5e-3)


def spec_for(arm: ArmConfig, corpus: Path, steps: int = 24, **training: object) -> RunSpec:
    """A run of so many steps of 12 rows in two micro-batches of 8."""
    manifest = load(corpus)
    settings = {"global_batch": 12, "micro_batch": 8, "log_every": 6, "eval_rows": 30} | training
    config = TrainingConfig.model_validate(settings)
    one = plan_run(arm=arm, model=MODEL, training=config, manifest=manifest, budget=1e12, seed=3)
    budget = one.flops_per_step * steps
    return plan_run(arm=arm, model=MODEL, training=config, manifest=manifest, budget=budget, seed=3)


def done(run_dir: Path) -> dict[str, Any]:
    """A finished run's record."""
    record: dict[str, Any] = json.loads((run_dir / "done.json").read_text())
    return record


def events(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]


def cut_back(run_dir: Path, step: int) -> None:
    """As if the run had been killed after the checkpoint of `step`."""
    (run_dir / "done.json").unlink()
    for folder in (run_dir / "checkpoints").glob("step-*"):
        if folder.name > f"step-{step:08d}":
            shutil.rmtree(folder)


def save(engine: Engine, spec: RunSpec, special: SpecialIds, progress: Progress, folder: Path) -> Path:
    """Save an engine's state into a store and wait for it; the folder of the checkpoint."""
    saver = Saver(storage.folder(folder), engine, spec, special, False, None)
    saver.start(progress, heldout_loss=None, next_rows="")
    outcome = saver.settle()
    assert outcome.saved, outcome.reason
    return folder / checkpoints.checkpoint_name(progress.step)


def weights(run_dir: Path, step: int) -> dict[str, torch.Tensor]:
    """Parameters and optimizer state in the checkpoint of a step, by `kind/name`."""
    found = checkpoints.verify(run_dir / "checkpoints" / f"step-{step:08d}")
    kinds = checkpoints.load_tensors(found, ("param", "exp_avg", "exp_avg_sq"))
    return {f"{kind}/{name}": tensor for kind, tensors in kinds.items() for name, tensor in tensors.items()}


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    """The same names, the same bits."""
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name
