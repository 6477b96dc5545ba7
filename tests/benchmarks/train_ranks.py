"""One process with two threads against two processes with one each: `python -m tests.benchmarks.train_ranks`.

ELECTRA-Small steps of 32 × 128 tokens, dropout .1, through the engine (ZeRO-1, gloo), in turns within the same minutes,
by the wall clock: gradients cross ranks. On a busy machine the figures mean little.
"""

import os
import socket
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.benchmarks.train_step import ARM, LENGTH, ROWS, SPECIAL, VOCAB, prepared
from training.engine import build_engine
from training.objectives import build, to_device
from training.settings import OptimizerConfig, Placement
from training.sizes import ModelConfig

STEPS, ROUNDS = 4, 3
CPU = torch.device("cpu")


def rank(number: int, world: int, port: int, out: Path) -> None:
    """Median seconds of a step on this rank's share of the rows, written by rank 0."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(number)}
    torch.set_num_threads(2 // world)
    dist.init_process_group("gloo", rank=number, world_size=world)
    torch.manual_seed(0)
    model = ModelConfig.model_validate({"size": "small"}).encoder(VOCAB)
    objective = build(ARM, model, SPECIAL, seq_len=LENGTH, packed=False)
    engine = build_engine(
        objective, OptimizerConfig(), Placement(micro_batch=ROWS // world), accumulation=1, device=CPU
    )
    batch = to_device(prepared(objective, ROWS // world), CPU)
    seconds = []
    for _ in range(STEPS + 1):
        dist.barrier()
        began = time.monotonic()
        outputs = engine.forward(batch)
        terms = objective.loss_terms()
        shares = [t.weight * outputs.sums[t.name] / (outputs.statistics[t.count] * world) for t in terms]
        engine.backward(torch.stack(shares).sum())
        engine.step(1e-4)
        seconds.append(time.monotonic() - began)
    if number == 0:
        out.write_text(str(statistics.median(seconds[1:])))
    engine.close()
    dist.destroy_process_group()


def measured(world: int) -> float:
    """Seconds of a step with so many ranks."""
    with socket.socket() as probe, TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port, out = probe.getsockname()[1], Path(folder) / "seconds"
        probe.close()
        mp.spawn(rank, (world, port, out), nprocs=world)  # type: ignore[no-untyped-call]
        return float(out.read_text())


def main() -> None:
    rounds = np.array([[measured(1), measured(2)] for _ in range(ROUNDS)])
    one, two = np.median(rounds, axis=0)
    print(f"one process, two threads {ROWS * LENGTH / one:8.0f} tokens/s")
    print(f"two processes, one each  {ROWS * LENGTH / two:8.0f} tokens/s   {one / two:.0%} of the one process")


if __name__ == "__main__":
    main()
