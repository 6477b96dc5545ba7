"""What one rank does for tests/training/test_engine.py: every engine in turn on one small corpus, figures as JSON.

One group of processes a world size runs all there is to run at it, because starting one takes seconds.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from data_prep.errors import CheckError
from data_prep.manifest import load
from data_prep.order import OrderConfig, order_of
from data_prep.reader import RowReader
from tests.conftest import ROOT
from tests.training.cases import ARMS, VARIANTS
from tests.training.runs import CPU, ELECTRA, spec_for
from tests.training.runs import save as saved
from tests.training.synthetic import MODEL, SEQ_LEN, SPECIAL, VOCAB
from training import checkpoints
from training.arms import ArmConfig
from training.checkpoints import Progress
from training.engine import Engine, build_engine, zero
from training.evaluation import evaluate_heldout
from training.loader import Loader
from training.meter import Meter
from training.objectives import Objective, build, to_device
from training.settings import OptimizerConfig, Placement
from training.sizes import ModelConfig

ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "ddp"},
    **{f"zero{stage}": {"engine": "deepspeed", "zero_stage": stage} for stage in range(4)},
}
WORLDS = (2, 1, 3)  # in this order
BEFORE = {1: 2, 3: 1}  # whose checkpoints a world size restores: ranks went, and ranks came
STEPS, SAVED = 5, 3  # steps of a run, and after which its checkpoint is made
ROWS = 22  # a step: 22, 11 + 11 or 7 + 7 + 8 rows, so one rank of three computes more than the others
MICRO_BATCHES = {1: {1: 22, 4: 6}, 2: {1: 11, 4: 3}, 3: {1: 8, 4: 2}}  # rows, by world size and accumulation
RATE = 1e-3
SMALL = MODEL.model_copy(update={"num_layers": 1})
WITH_DROPOUT = SMALL.model_copy(update={"dropout": 0.1, "attention_dropout": 0.1})
SHARED = ARMS["electra"]  # generator and discriminator have their embeddings in common
OTHER_ARMS = {"frozen": VARIANTS["electra, frozen"], "one body": VARIANTS["electra, tying all"]}
MUON = "deepspeed.runtime.zero.muon.muon_optimizer"  # what DeepSpeed imports when a ZeRO engine is made
Work = Callable[[Path, Path, int, int], None]
WORDS = "embeddings.word.weight"


@dataclass
class Run:
    """One run of a few steps and what is seen of it."""

    corpus: Path
    engine: dict[str, Any]
    rank: int
    world: int
    accumulation: int = 1
    arm: ArmConfig = SHARED
    model: ModelConfig = SMALL
    kind: str = "reference_adam"
    device: torch.device = CPU
    figures: dict[str, Any] = field(default_factory=lambda: {"losses": [], "norms": [], "skipped": []})

    @contextmanager
    def started(self) -> Iterator[Engine]:
        torch.manual_seed(0)
        objective = objective_of(self.arm, self.model)
        self.micro_batch = MICRO_BATCHES[self.world][self.accumulation]
        self.placement = Placement(micro_batch=self.micro_batch, **self.engine)
        self.loader = loader_of(self.corpus, objective, self.micro_batch, self.rank, self.world)
        assert self.loader.accumulation == self.accumulation
        self.meter = Meter(objective, self.device)
        optimizer = OptimizerConfig.model_validate({"kind": self.kind})
        engine = build_engine(objective, optimizer, self.placement, accumulation=self.accumulation, device=self.device)
        yield engine
        engine.close()

    def step(self, engine: Engine, number: int, *, spoiled: bool = False) -> None:
        """As the loop does it. `spoiled`: the last rank's first micro-batch gives a gradient that is not finite."""
        batches = self.loader.step_at(number * ROWS)
        totals, terms = self.meter.global_counts(batches), engine.objective.loss_terms()
        share = torch.zeros((), dtype=torch.float64, device=self.device)
        for index, host_batch in enumerate(batches.micro_batches):
            torch.manual_seed(1000 * number + 10 * self.rank + index)  # of dropout
            outputs = engine.forward(to_device(host_batch, self.device))
            loss = torch.stack([t.weight * outputs.sums[t.name] / totals[t.count] for t in terms]).sum()
            share += loss.detach()
            is_bad = spoiled and index == 0 and self.rank == self.world - 1
            engine.backward(loss * torch.inf if is_bad else loss)
            engine.step(RATE)
        dist.all_reduce(share)
        self.figures["losses"].append(float(share))
        self.figures["norms"].append(engine.gradient_norm())
        self.figures["skipped"].append(engine.skipped_steps())


def objective_of(arm: ArmConfig, model: ModelConfig) -> Objective:
    return build(arm, model.encoder(VOCAB), SPECIAL, seq_len=SEQ_LEN, packed=False)


def loader_of(
    corpus: Path, objective: Objective, micro_batch: int, rank: int, world: int, split: str = "train"
) -> Loader:
    manifest = load(corpus)
    reader = RowReader(corpus, split, manifest)
    order = order_of(manifest, split, 0, OrderConfig())
    return Loader(
        reader, objective, SPECIAL, order, global_batch=ROWS, micro_batch=micro_batch, rank=rank, world_size=world
    )


def heldout_of(run: Run, engine: Engine) -> float:
    loader = loader_of(run.corpus, engine.objective, run.micro_batch, run.rank, run.world, "heldout")
    return evaluate_heldout(engine, loader, 40, run.placement, CPU)["heldout/loss"]


def digest(engine: Engine) -> str:
    """Of every bit this rank answers for."""
    sha = hashlib.sha256()
    for piece in engine.slices():
        for tensor in piece.tensors.values():
            sha.update(tensor.detach().numpy().tobytes())
    return sha.hexdigest()


def save(run: Run, engine: Engine, folder: Path, name: str) -> Path:
    return saved(engine, spec_for(ELECTRA, run.corpus), SPECIAL, Progress(step=SAVED), folder / name)


# --- what is run at a world size --------------------------------------------------------------------------------------


def straight(run: Run, folder: Path, name: str) -> dict[str, Any]:
    """Five steps, seen through; held-out rows and a checkpoint in between."""
    with run.started() as engine:
        for number in range(STEPS):
            run.step(engine, number)
            if number + 1 == SAVED and run.accumulation == 1:
                run.figures["heldout"] = heldout_of(run, engine)
                save(run, engine, folder, f"{name}@{run.world}")
    return run.figures


def continued(run: Run, folder: Path, name: str, source: str) -> dict[str, Any]:
    """The last two steps, from a checkpoint that another engine has saved at another world size."""
    torch.manual_seed(1)
    with run.started() as engine:
        run.step(engine, 7)  # weights, state and counts that must all be overwritten
        stored = checkpoints.verify(folder / source / f"step-{SAVED:08d}")
        run.figures["refused"] = refused(engine, stored)
        checkpoints.restore(engine, stored)
        checkpoints.prove(engine, stored, "")
        save(run, engine, folder, f"{source} in {name}@{run.world}")
        for number in range(SAVED, STEPS):
            run.step(engine, number)
    return {key: values if key == "refused" else values[1:] for key, values in run.figures.items()}


def refused(engine: Engine, stored: checkpoints.Checkpoint) -> str:
    """What the proof says of an engine that holds something else."""
    with pytest.raises(CheckError) as caught:
        checkpoints.prove(engine, stored, "")
    return str(caught.value)


def spoiled(run: Run) -> dict[str, Any]:
    """Three steps, the second with a gradient of one rank that is not finite."""
    with run.started() as engine:
        for number in range(3):
            before = digest(engine)
            run.step(engine, number, spoiled=number == 1)
            run.figures.setdefault("unchanged", []).append(digest(engine) == before)
    return run.figures


def repeated(corpus: Path, engine: dict[str, Any], rank: int, world: int) -> dict[str, Any]:
    """Two steps with dropout, twice."""
    digests = []
    for _ in range(2):
        run = Run(corpus, engine, rank, world, model=WITH_DROPOUT)
        with run.started() as started:
            run.step(started, 0)
            run.step(started, 1)
            digests.append(digest(started))
    return {"digests": digests, **run.figures}


def word_gradient(run: Run) -> list[list[float]]:
    """The word table's gradient over a whole step before clipping, as DeepSpeed puts it together from its parts."""
    from deepspeed.utils import safe_get_full_grad

    seen = []
    with run.started() as engine:
        table = engine.objective.get_parameter(WORDS)
        step = engine.step

        def looking(rate: float) -> None:
            seen.append(safe_get_full_grad(table).tolist())
            step(rate)

        with patch.object(engine, "step", looking):
            run.step(engine, 0)
    return seen[-1]


def data_seen(corpus: Path, rank: int, world: int, accumulation: int) -> dict[str, Any]:
    """This rank's rows of two steps, their masks and uniforms, filler left out."""
    loader = loader_of(corpus, objective_of(SHARED, SMALL), MICRO_BATCHES[world][accumulation], rank, world)
    seen: dict[str, list[Any]] = {"rows": [], "mask_positions": [], "mask_weights": [], "uniforms": []}
    for number in range(2):
        batches = loader.step_at(number * ROWS)
        seen["rows"] += [batches.row_ids.tolist()]
        for name in ("mask_positions", "mask_weights", "uniforms"):
            whole = np.concatenate([batch[name] for batch in batches.micro_batches])
            seen[name] += [whole[: len(batches.row_ids)].tolist()]
    return seen


# (engine, the one whose checkpoint it reads): every stage is written and read.
CONTINUED = (("zero3", "zero1"), ("zero0", "zero3"), ("ddp", "zero0"), ("zero2", "ddp"), ("zero1", "zero2"))


def measure(corpus: Path, folder: Path, rank: int, world: int) -> None:
    """Everything there is to see at one world size, into `folder/WORLD-RANK.json`."""
    found: dict[str, Any] = {}
    with patch.object(zero, "PERSISTENT_SIZE", 64):  # so that ZeRO-3 keeps biases whole and divides matrices
        for name, engine in ENGINES.items():
            for accumulation in (1, 4):
                run = Run(corpus, engine, rank, world, accumulation)
                found[f"straight {name} {accumulation}"] = straight(run, folder, name)
        for accumulation in (1, 4):
            found[f"data {accumulation}"] = data_seen(corpus, rank, world, accumulation)
        if world in BEFORE:
            for name, source in CONTINUED:
                run = Run(corpus, ENGINES[name], rank, world)
                found[f"continued {name} {source}"] = continued(run, folder, name, f"{source}@{BEFORE[world]}")
        if world == 2:
            at_two(found, corpus, rank)
    (folder / f"{world}-{rank}.json").write_text(json.dumps(found))


def at_two(found: dict[str, Any], corpus: Path, rank: int) -> None:
    """What two ranks show as well as three."""
    for name, engine in ENGINES.items():
        found[f"spoiled {name}"] = spoiled(Run(corpus, engine, rank, 2, accumulation=4, kind="adamw"))
        found[f"repeated {name}"] = repeated(corpus, engine, rank, 2)
        for label, arm in OTHER_ARMS.items():
            run = Run(corpus, engine, rank, 2, arm=arm)
            with run.started() as started:
                run.step(started, 0)
                run.step(started, 1)
            found[f"{label} {name}"] = run.figures
        half = Run(corpus, {**engine, "precision": "bf16"}, rank, 2)
        with half.started() as started:
            half.step(started, 0)
        found[f"bf16 {name}"] = half.figures
    found["word gradient"] = word_gradient(Run(corpus, ENGINES["zero3"], rank, 2, accumulation=4))


def join(rank: int, world: int, corpus: Path, folder: Path, work: Work) -> None:
    """A process of a group."""
    os.environ["LOCAL_RANK"] = str(rank)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store-{world}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=120),
    )
    work(corpus, folder, rank, world)
    dist.destroy_process_group()


def run_group(world: int, corpus: Path, folder: Path, work: Work = measure) -> None:
    """Start a group of processes that do this work and wait for its end. They are forked from one that has imported
    everything, which takes longer than all that is run here; it is no fork of this one, whose threads and process group
    stay its own."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([__name__, "deepspeed", MUON])
    with patch.dict(os.environ, {"DS_ACCELERATOR": "cpu", "PYTHONPATH": str(ROOT)}):
        multiprocessing.start_processes(join, (world, corpus, folder, work), nprocs=world, start_method="forkserver")
