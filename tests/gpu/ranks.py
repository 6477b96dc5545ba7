"""What a process alone does for the GPU tests: a process of its own, because the tests' process has a gloo group, and
DeepSpeed keeps the first it sees. `kind` is cuda, or cpu, on which all of it can be tried."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist

from cluster.config import ClusterConfig
from cluster.launch import alone
from tests.training.engine_ranks import ENGINES, RATE, ROWS, Run
from training.engine import Engine
from training.objectives import to_device
from training.settings import RunSpec

UNWAITED = ("ddp", "zero0", "zero1")  # stages 2 and 3 move gradients and parameters during the backward pass


@contextmanager
def group(folder: Path, kind: str) -> Iterator[torch.device]:
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/store-{kind}", rank=0, world_size=1)
    yield torch.device(kind)
    dist.destroy_process_group()


def every_engine(rank: int, corpus: Path, folder: Path, kind: str) -> None:
    """Every engine, its layers compiled and not, in fp32 and as `auto` has it, into `folder/engines.json`."""
    found = {}
    with group(folder, kind) as device:
        for name, engine in ENGINES.items():
            for precision in ("fp32", "auto"):
                for compiled in (False, True):
                    settings = {**engine, "precision": precision, "compute": {"compile": compiled}}
                    run = Run(corpus, settings, 0, 1, accumulation=4, device=device)
                    with run.started() as started:
                        run.step(started, 0)
                        run.step(started, 1)
                    found[f"{name} {precision} {compiled}"] = run.figures
    (folder / "engines.json").write_text(json.dumps(found))


def without_waiting(rank: int, corpus: Path, folder: Path, kind: str) -> None:
    """Two steps of four micro-batches by every engine of `UNWAITED`; the second raises where the host waits for the
    device, but for the engine's step that updates: it reads the gradient norm."""
    with group(folder, kind) as device:
        for name in UNWAITED:
            run = Run(corpus, ENGINES[name], 0, 1, accumulation=4, device=device)
            with run.started() as engine:
                run.step(engine, 0)
                unwaited_step(run, engine)
    (folder / "unwaited").touch()


def unwaited_step(run: Run, engine: Engine) -> None:
    batches = run.loader.step_at(ROWS)
    with no_waiting(run.device):
        totals, terms = run.meter.global_counts(batches), engine.objective.loss_terms()
    for index, host in enumerate(batches.micro_batches):
        with no_waiting(run.device):
            outputs = engine.forward(to_device(host, run.device))
            engine.backward(sum(t.weight * outputs.sums[t.name] / totals[t.count].clamp(min=1) for t in terms))
            run.meter.add(outputs)
        updates = index + 1 == len(batches.micro_batches)
        with nullcontext() if updates else no_waiting(run.device):
            engine.step(RATE)


@contextmanager
def no_waiting(device: torch.device) -> Iterator[None]:
    """Whatever makes the host wait for the GPU raises."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def without_ray(rank: int, specs: list[RunSpec], corpus: Path, runs: Path, kind: str) -> None:
    """Runs as `cluster.num_workers: 0` trains them."""
    config = ClusterConfig(num_workers=0, use_gpu=kind == "cuda")
    on = {spec.name: corpus for spec in specs}
    alone().train_runs(specs, on, runs, config, lambda spec, line: None)
