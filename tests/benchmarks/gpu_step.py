"""Speed of a training step on one GPU, in eight minutes at most: `python -m tests.benchmarks.gpu_step`.

First what the card does at most: matmuls, and attention by every back-end. Then steps of ELECTRA-Large and ELECTRA-Base
at 512 tokens, by the engine that trains them (recipes in configs/; rows without padding; one optimizer step a
micro-batch), eager and compiled, with dropout and without, with activations kept and computed again: tokens a second,
MFU (model FLOPs of `training.flops`; peak of `training.devices`), peak memory, and where the time goes.

Every part has its share of the time: what it does not get to is left out and said. Rows that do not fit are halved.
`--tiny` runs the same code on the CPU in seconds, to try the script: its figures mean nothing.
"""

import gc
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from data_prep.rows import SpecialIds, structure
from pipeline.config import load
from pipeline.experiment import Experiment
from tests.benchmarks import gpu_kernels
from tests.benchmarks.gpu_kernels import wait
from tests.benchmarks.gpu_parts import Stopwatch, watched
from training.devices import device_name, memory_peak, peak_flops, reset_memory_peak
from training.engine import Engine, build_engine
from training.flops import Counts, train_flops
from training.masking import RowKeys
from training.objectives import HostBatch, Objective, RowBatch, build, counts, to_device
from training.settings import Placement

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SPECIAL = SpecialIds(pad=0, unk=100, cls=101, sep=102, mask=103)
LIMIT = 480  # seconds of the whole; the parts' add up to less, for a case that has begun is seen through
MATMUL, ATTENTION = 0.15, 0.5  # seconds a line
WARMUP, MOST, WATCHED = 3, 20, 2  # steps: not counted, counted at most, and by part
COUNTED = 4.0  # seconds of counted steps


@dataclass(frozen=True, slots=True)
class Part:
    """Steps of one recipe."""

    recipe: str
    rows: int
    seconds: float
    overrides: tuple[str, ...] = ()

    def experiment(self) -> Experiment:
        return load(CONFIGS / f"{self.recipe}.yaml", self.overrides, Experiment)


@dataclass(frozen=True, slots=True)
class Case:
    """One way to run them."""

    compiled: bool
    dropout: float
    checkpointing: bool = False
    engine: dict[str, Any] = field(default_factory=lambda: {"engine": "deepspeed", "zero_stage": 1})

    def __str__(self) -> str:
        engine = "DDP" if self.engine["engine"] == "ddp" else f"ZeRO-{self.engine['zero_stage']}"
        how = "compiled" if self.compiled else "eager"
        return f"{engine}, {how}, dropout {self.dropout:g}{', recomputed' if self.checkpointing else ''}"


@dataclass(frozen=True, slots=True)
class Figures:
    """What was found of a case."""

    rows: int
    tokens: int  # of a step
    flops: float  # of a step
    first: float  # seconds of the first step, compilation included
    seconds: float  # of a step
    memory: int
    parts: dict[str, float]  # seconds of a step, `rest` included


PARTS = [Part("electra-large", 64, 240.0), Part("electra-base", 128, 120.0)]
_TINY = ("model.size=tiny", "corpus.tokenizer.vocab_size=2000", "corpus.seq_len=64")
TINY = [Part("electra-small", 4, 60.0, _TINY)]
CASES = [
    Case(False, 0.1),
    Case(True, 0.1),
    Case(True, 0.0),
    Case(False, 0.0),
    Case(True, 0.1, checkpointing=True),
    Case(True, 0.1, engine={"engine": "ddp"}),
]


def full_rows(rows: int, length: int, vocab_size: int) -> np.ndarray:
    """Rows without padding, a pair of segments each."""
    found = np.random.default_rng(0).integers(1000, vocab_size, (rows, length))
    found[:, 0], found[:, length // 2], found[:, -1] = SPECIAL.cls, SPECIAL.sep, SPECIAL.sep
    return found


def prepared(objective: Objective, stored: np.ndarray) -> HostBatch:
    index = np.arange(len(stored))
    keys = RowKeys(0, index * 0, index)
    return objective.prepare(RowBatch(stored, structure(stored, SPECIAL), keys, lambda draws: None))  # type: ignore


def step(engine: Engine, host: HostBatch, device: torch.device, watch: Stopwatch | None = None) -> None:
    """As the loop does it, without its statistics."""
    totals = counts(host)
    outputs = engine.forward(to_device(host, device))
    engine.backward(sum(t.weight * outputs.sums[t.name] / totals[t.count] for t in engine.objective.loss_terms()))
    if watch is not None:
        watch.open("optimizer")
    engine.step(1e-4)
    if watch is not None:
        watch.close("optimizer")


def measure(part: Part, case: Case, rows: int, device: torch.device) -> Figures:
    """One case, from nothing to its figures."""
    experiment = part.experiment()
    arm, length = experiment.arms[0], experiment.corpus.seq_len
    rates = {"dropout": case.dropout, "attention_dropout": case.dropout}
    model = experiment.model.model_copy(update=rates).encoder(experiment.corpus.tokenizer.vocab_size)
    compute = {"compile": case.compiled, "activation_checkpointing": case.checkpointing}
    placement = Placement.model_validate({"micro_batch": rows, "compute": compute, **case.engine})
    with device:  # a GPU draws the first weights in no time
        objective = build(arm, model, SPECIAL, seq_len=length, packed=False, compute=placement.compute)
    host = prepared(objective, full_rows(rows, length, model.vocab_size))
    found = counts(host)
    flops = train_flops(arm, model, Counts(tokens=found["real"], squares=rows * length**2, masked=found["masked"]))
    engine = build_engine(objective, experiment.training.optimizer, placement, accumulation=1, device=device)
    first, seconds, memory = timed(engine, host, device)
    parts = by_part(engine, host, device)
    engine.close()
    return Figures(rows, found["real"], flops, first, seconds, memory, parts)


def timed(engine: Engine, host: HostBatch, device: torch.device) -> tuple[float, float, int]:
    """Seconds of the first step and of a later one, and the peak of memory."""
    laps = [time.perf_counter()]
    for _ in range(WARMUP):
        step(engine, host, device)
        wait(device)
        laps.append(time.perf_counter())
    reset_memory_peak(device)
    steps = max(3, min(MOST, math.ceil(COUNTED / (laps[-1] - laps[-2]))))
    began = time.perf_counter()
    for _ in range(steps):
        step(engine, host, device)
    wait(device)
    return laps[1] - laps[0], (time.perf_counter() - began) / steps, memory_peak(device)


def by_part(engine: Engine, host: HostBatch, device: torch.device) -> dict[str, float]:
    with watched(engine.objective, device) as watch:
        for _ in range(WATCHED):
            watch.open("step")
            step(engine, host, device, watch)
            watch.close("step")
        found = {name: seconds / WATCHED for name, seconds in watch.seconds().items()}
    whole = found.pop("step")
    return {**found, "rest": whole - sum(found.values())}


def attempt(part: Part, case: Case, rows: int, device: torch.device) -> Figures | str | None:
    """The figures, none where the rows do not fit, or what went wrong: other cases may go well."""
    try:
        return measure(part, case, rows, device)
    except torch.OutOfMemoryError:
        return None
    except Exception as error:
        return f"failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def cases_of(part: Part, device: torch.device) -> Iterator[tuple[str, Figures | str]]:
    """Every case of a part as far as its time goes."""
    until, rows = time.perf_counter() + part.seconds, part.rows
    for case in CASES:
        label = f"{part.recipe}, {case}"
        if time.perf_counter() > until:
            yield label, "left out: the time of this part is over"
            continue
        found = attempt(part, case, rows, device)
        while found is None and rows > 1:
            clean()
            yield label, f"{rows} rows do not fit; {rows // 2} from here on"
            rows //= 2
            found = attempt(part, case, rows, device)
        yield label, found or "failed: one row does not fit"
        clean()


def clean() -> None:
    """Give back what the last case had: engines hold themselves in circles."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def row(label: str, found: Figures | str, peak: float | None) -> str:
    """A line of the table."""
    if isinstance(found, str):
        return f"{label:<58}{found}"
    mfu = f"{found.flops / found.seconds / peak:.1%}" if peak else "-"
    parts = ", ".join(f"{name} {seconds * 1000:.1f}" for name, seconds in found.parts.items())
    return (
        f"{label:<58}{found.rows:>5}{found.tokens / found.seconds:>12,.0f}{mfu:>8}{found.memory / 2**30:>9.1f}"
        f"{found.first:>9.1f}{found.seconds * 1000:>10.1f}   {parts}"
    )


def heading(device: torch.device, peak: float | None) -> str:
    import deepspeed

    peaked = f"peak {peak / 1e12:.0f} TFLOP/s" if peak else "peak not known, so no MFU"
    return (
        f"{device_name(device)} ({peaked}), driver {driver() if device.type == 'cuda' else '-'}, "
        f"torch {torch.__version__}, CUDA {torch.version.cuda or '-'}, DeepSpeed {deepspeed.__version__}"
    )


def driver() -> str:
    """NVIDIA's own number."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def run(device: torch.device, parts: list[Part], shapes: gpu_kernels.Shapes, share: float) -> dict[str, Figures | str]:
    """Print as it comes. A line of kernels has `share` of its time."""
    peak = peak_flops(device_name(device))
    print(heading(device, peak), flush=True)
    for line in gpu_kernels.matmul_lines(device, shapes, MATMUL * share, peak):
        print(line, flush=True)
    for line in gpu_kernels.attention_lines(device, shapes, ATTENTION * share, peak):
        print(line, flush=True)
    clean()
    print("CUDA graphs: none, the engine does not have them")
    columns = f"{'rows':>5}{'tokens/s':>12}{'MFU':>8}{'GiB':>9}{'first s':>9}{'ms/step':>10}   ms by part"
    print(f"{'step':<58}{columns}", flush=True)
    table: dict[str, Figures | str] = {}
    for part in parts:
        for label, found in cases_of(part, device):
            print(row(label, found, peak), flush=True)
            table[label] = found
    return table


def start_group(device: torch.device) -> None:
    """A group of this process alone, which the engines want."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "DS_ACCELERATOR": device.type}
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def main(tiny: bool) -> None:
    if not tiny and not torch.cuda.is_available():
        raise SystemExit("gpu_step: no CUDA device is here; --tiny tries the script on the CPU")
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"gpu_step: {LIMIT} seconds are over; the rest is left out"))
    signal.alarm(LIMIT)
    device = torch.device("cpu") if tiny else torch.device("cuda", 0)
    start_group(device)
    if tiny:
        run(device, TINY, gpu_kernels.TINY, 0.01)
    else:
        run(device, PARTS, gpu_kernels.Shapes(), 1.0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main("--tiny" in sys.argv[1:])
