"""What checkpoints cost: `python -m tests.benchmarks.checkpoints [ROUNDS]`.

The electra run of configs/quickstart.yaml in one process: blocks of 50 steps with one saving and without any, in turns
within the same minutes. A saving's thread works beside the steps, so its cost is what the block takes longer, by the
clock and by the CPU time of all threads, which a busy machine changes less. Then the way back: a checkpoint chosen
(hashed), restored into an engine and proved.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from data_prep import storage
from data_prep.order import OrderConfig
from tests.benchmarks.train_step import LENGTH, SPECIAL, prepared
from training.arms import ElectraArm, NetworkGenerator
from training.checkpoints import Progress, Saver, choose, prove, restore
from training.engine import Engine, build_engine
from training.objectives import Batch, Objective, build, to_device
from training.settings import Identity, OptimizerConfig, Placement, RunSpec, Schedule
from training.sizes import ModelConfig

VOCAB, ROWS, EVERY = 8192, 8, 50  # rows of a micro-batch, of which a step has two; steps to a saving
CPU = torch.device("cpu")
ARM = ElectraArm(learning_rate=5e-4, generator=NetworkGenerator(width=0.5))
MODEL = ModelConfig.model_validate(
    {"size": "tiny", "max_positions": LENGTH, "init_range": 0.05, "dropout": 0.0, "attention_dropout": 0.0}
).encoder(VOCAB)
PLACEMENT = Placement(micro_batch=ROWS, zero_stage=1)


def specification() -> RunSpec:
    identity = Identity(
        arm=ARM, model=MODEL, optimizer=OptimizerConfig(), order=OrderConfig(), global_batch=2 * ROWS, steps=10_000,
        schedule=Schedule(kind="linear", warmup_steps=0, decay_steps=0), seq_len=LENGTH, seed=0, manifest_sha256="",
        tokenizer_sha256="",
    )  # fmt: skip
    return RunSpec(name="benchmark", budget=1.0, flops_per_step=1.0, identity=identity, placement=PLACEMENT)


def built() -> tuple[Objective, Engine]:
    objective = build(ARM, MODEL, SPECIAL, seq_len=LENGTH, packed=False)
    return objective, build_engine(objective, OptimizerConfig(), PLACEMENT, accumulation=2, device=CPU)


def step(engine: Engine, batch: Batch) -> None:
    terms = engine.objective.loss_terms()
    for _ in range(2):
        outputs = engine.forward(batch)
        parts = [t.weight * outputs.sums[t.name] / (2 * outputs.statistics[t.count]) for t in terms]
        engine.backward(torch.stack(parts).sum())
        engine.step(5e-4)


def seconds(action: Callable[[], None]) -> tuple[float, float]:
    """By the clock, and of the CPU."""
    wall, cpu = time.monotonic(), time.process_time()
    action()
    return time.monotonic() - wall, time.process_time() - cpu


def costs(engine: Engine, batch: Batch, saver: Saver, rounds: int) -> None:
    taken: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    outcomes = []

    def block(saving: bool, number: int) -> None:
        if saving:
            saver.start(Progress(step=number), heldout_loss=None, next_rows="")
        for _ in range(EVERY):
            step(engine, batch)
        if saving:
            outcomes.append(saver.settle())

    block(True, 0)  # warm
    for number in range(1, 2 * rounds + 1):
        saving = bool(number % 2)
        taken[saving].append(seconds(lambda saving=saving, number=number: block(saving, number)))  # type: ignore[misc]
    for at, clock in enumerate(("clock", "CPU")):
        ratios = [a[at] / b[at] - 1 for a, b in zip(taken[True], taken[False], strict=True)]
        spread = f"from {min(ratios):+.2%} to {max(ratios):+.2%}"
        print(f"  {clock}: {statistics.median(ratios):+.2%} of {EVERY} steps ({spread})")
    plain = statistics.median(cpu for _, cpu in taken[False]) / EVERY
    copied = statistics.median(outcome.copy_seconds for outcome in outcomes)
    written = statistics.median(outcome.write_seconds for outcome in outcomes)
    print(
        f"  {outcomes[-1].bytes / 1e6:.0f} MB; copied in {copied / plain:.2f}, written, hashed and summed up in "
        f"{written / plain:.2f} times the CPU time of a step"
    )
    assert all(outcome.saved for outcome in outcomes)


def alone(saver: Saver, plain: float) -> None:
    """A saving with nothing beside it: less for a busy machine to disturb than a difference of blocks."""

    def save() -> None:
        saver.start(Progress(step=1), heldout_loss=None, next_rows="")
        saver.settle()

    taken = statistics.median(seconds(save)[1] for _ in range(5)) / plain
    print(f"  alone: {taken:.2f} times the CPU time of a step, {taken / EVERY:.2%} of {EVERY} steps")


def way_back(store: storage.Folder, plain: float) -> None:
    found, passed_over = choose(store)
    assert found is not None and not passed_over
    _, engine = built()
    actions: dict[str, Callable[[], object]] = {
        "chosen": lambda: choose(store),
        "restored": lambda: restore(engine, found),
        "proved": lambda: prove(engine, found, ""),
    }
    for name, action in actions.items():
        taken = [seconds(action)[1] for _ in range(5)]  # type: ignore[arg-type]
        print(f"  {name} in {statistics.median(taken) / plain:.2f} times the CPU time of a step")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    os.environ["LOCAL_RANK"] = "0"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="electra-") as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
        store = storage.folder(Path(folder) / "checkpoints")
        objective, engine = built()
        batch = to_device(prepared(objective, ROWS, VOCAB), CPU)
        print(f"{engine.parameter_count:,} parameters, steps of {2 * ROWS} × {LENGTH} tokens, a saving every {EVERY}:")
        saver = Saver(store, engine, specification(), SPECIAL, False, None)
        costs(engine, batch, saver, rounds)
        plain = statistics.median(seconds(lambda: step(engine, batch))[1] for _ in range(10))
        alone(saver, plain)
        way_back(store, plain)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
