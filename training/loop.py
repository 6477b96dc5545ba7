"""The step and the loop: one run on one rank, from its newest checkpoint to its last step.

Guarantees: every loss is divided by the global count of the whole step, known before the first micro-batch; the host
reads the device every `log_every` steps only; the stream position moves after the optimizer's step and lives in the
checkpoint; the same world size repeats bit for bit, because dropout is seeded by (seed, step, rank, micro-batch).
`done.json` is written last: a run with it is finished.

The process group exists before and outlives this module. Knows nothing of Ray, MLflow or the command line.
"""

import platform
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from data_prep import storage
from data_prep.errors import CheckpointError, ConfigError, DivergedError
from data_prep.keyed import key
from data_prep.manifest import Manifest
from data_prep.manifest import load as load_manifest
from data_prep.shards import RowReader
from training import checkpoint
from training.checkpoint import Progress
from training.engine import Engine, parameter_count
from training.evaluation import evaluate_heldout
from training.flops import Counts, train_flops
from training.loader import Loader, StepBatches
from training.meter import Meter
from training.metrics import MetricWriter, flops_spent
from training.objectives import Objective, build, to_device
from training.optimizer import learning_rate
from training.settings import RunSpec

DONE = "done.json"


def train(spec: RunSpec, corpus_dir: Path, run_dir: Path, device: torch.device) -> None:
    """Train a run to its end on this rank; returns at once when it is done. Raises the same error on every rank."""
    if (run_dir / DONE).exists():
        return
    manifest = load_manifest(corpus_dir)
    _check_corpus(spec, manifest)
    rank = dist.get_rank()
    if rank == 0:
        run_dir.mkdir(parents=True, exist_ok=True)
        storage.write_json(run_dir / "run.json", _run_record(spec))
    run = _Run(spec, manifest, corpus_dir, run_dir, device)
    try:
        run.resume()
        run.train()
    finally:
        run.engine.close()
    dist.barrier()


class _Run:
    """One attempt at a run: engine, loaders, progress."""

    def __init__(
        self, spec: RunSpec, manifest: Manifest, corpus_dir: Path, run_dir: Path, device: torch.device
    ) -> None:
        identity, placement = spec.identity, spec.placement
        self.spec, self.run_dir, self.device = spec, run_dir, device
        self.special = manifest.special
        self.packed = manifest.layout == "packed"
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(_torch_seed("init", identity.seed))
        objective = build(
            identity.arm, identity.model, self.special, seq_len=identity.seq_len, seed=identity.seed, packed=self.packed
        )
        self.loader = self._loader(RowReader(corpus_dir, "train", manifest), objective, identity.global_batch)
        self.heldout = RowReader(corpus_dir, "heldout", manifest)
        self.heldout_loader = self._loader(self.heldout, objective, placement.micro_batch * self.world_size)
        self.engine = Engine(
            objective,
            identity.optimizer,
            micro_batch=placement.micro_batch,
            accumulation=self.loader.accumulation,
            zero_stage=placement.zero_stage,
            device=device,
        )
        self.progress = Progress()
        self.heldout_metrics: dict[str, float] = {}

    def _loader(self, reader: RowReader, objective: Objective, global_batch: int) -> Loader:
        return Loader(
            reader,
            objective,
            self.special,
            seed=self.spec.identity.seed,
            global_batch=global_batch,
            micro_batch=self.spec.placement.micro_batch,
            rank=self.rank,
            world_size=self.world_size,
        )

    def resume(self) -> None:
        """Continue from the newest verified checkpoint, if any; an identity that changed is refused by key."""
        found, passed_over = checkpoint.newest(self.run_dir)
        spent = flops_spent(self.run_dir)
        self.progress = Progress(flops_spent=spent)
        if found is None:
            if passed_over:
                raise CheckpointError(f"{self.run_dir}: no valid checkpoint is left ({passed_over[0]})")
            return
        changed = _changed_keys(found.spec, self.spec)
        if changed:
            raise ConfigError(
                f"{self.run_dir}: was trained with another {', '.join(changed)}; use another --out or remove the folder"
            )
        checkpoint.restore(self.engine, found)
        self.progress = replace(found.progress, flops_spent=max(found.progress.flops_spent, spent))

    def train(self) -> None:
        """Steps to the end, then the final checkpoint and `done.json`."""
        meter = Meter(self.engine.objective, self.device)
        remaining = self.spec.steps - self.progress.step
        if self.rank != 0:
            self._steps(meter, remaining, None)
        else:
            with MetricWriter(self.run_dir) as writer:
                self._steps(meter, remaining, writer)

    def _steps(self, meter: Meter, remaining: int, writer: MetricWriter | None) -> None:
        start = time.monotonic() - self.progress.seconds
        for batches in self.loader.steps(self.progress.position, remaining):
            rate = self._step(batches, meter)
            self._advance(time.monotonic() - start)
            placement = self.spec.placement
            if self._due(placement.log_every, placement.eval_every, placement.checkpoint_every):
                self._log(meter, rate, writer)  # before saving, so that the checkpoint's ledger is up to date
            if self._due(placement.checkpoint_every):
                self._save()
        if self.rank == 0:
            storage.write_json(self.run_dir / DONE, self._done_record())

    def _step(self, batches: StepBatches, meter: Meter) -> float:
        """One optimizer step; returns its learning rate."""
        identity, step = self.spec.identity, self.progress.step
        totals, terms = meter.global_counts(batches), self.engine.objective.loss_terms()
        for index, host_batch in enumerate(batches.micro_batches):
            torch.manual_seed(_torch_seed("dropout", identity.seed, step, self.rank, index))
            outputs = self.engine.forward(to_device(host_batch, self.device))
            loss = sum(t.weight * outputs.sums[t.name] / totals[t.count].clamp(min=1) for t in terms)
            assert isinstance(loss, torch.Tensor)
            self.engine.backward(loss)
            rate = learning_rate(step, identity.arm.learning_rate, identity.steps, identity.warmup_steps)
            self.engine.step(rate)
            meter.add(outputs)
        return rate

    def _advance(self, seconds: float) -> None:
        self.progress = replace(
            self.progress,
            step=self.progress.step + 1,
            position=self.progress.position + self.spec.identity.global_batch,
            seconds=seconds,
        )

    def _due(self, *intervals: int | None) -> bool:
        """Whether the completed step is a multiple of one of the intervals, or the last."""
        step = self.progress.step
        return step == self.spec.steps or any(every is not None and step % every == 0 for every in intervals)

    def _log(self, meter: Meter, rate: float, writer: MetricWriter | None) -> None:
        """Read the window's figures (all ranks take part), check them, evaluate where due, write a line."""
        window = meter.read()
        self._count(window.flop_counts)
        figures = {f"train/{name}": value for name, value in self.engine.objective.metrics(window.sums).items()}
        if not np.isfinite(figures["train/loss"]):
            raise DivergedError(
                f"{self.spec.name}: the loss is not finite at step {self.progress.step}; lower the arm's learning_rate"
            )
        norm = self.engine.gradient_norm()
        if norm is not None:
            figures["train/gradient_norm"] = norm
        if self._due(self.spec.placement.eval_every):
            self.heldout_metrics = evaluate_heldout(
                self.engine.objective, self.heldout_loader, self.heldout.n_rows, self.spec.placement, self.device
            )
            figures |= self.heldout_metrics
        if writer is not None:
            writer.write(
                self.progress.step, {**_finite(figures), **self._clock(window.seconds, window.flop_counts, rate)}
            )

    def _count(self, window: Counts) -> None:
        flops = train_flops(self.spec.identity.arm, self.spec.identity.model, window)
        self.progress = replace(
            self.progress,
            flops_counted=self.progress.flops_counted + flops,
            flops_spent=self.progress.flops_spent + flops,
            tokens=self.progress.tokens + int(window.tokens),
        )

    def _clock(self, seconds: float, window: Counts, rate: float) -> dict[str, float]:
        flops = train_flops(self.spec.identity.arm, self.spec.identity.model, window)
        return {
            "learning_rate": rate,
            "flops": self.progress.flops_counted,
            "flops_spent": self.progress.flops_spent,
            "tokens": self.progress.tokens,
            "seconds": self.progress.seconds,
            "tokens_per_second": window.tokens / seconds,
            "flops_per_second": flops / seconds,
            "skipped_steps": self.engine.skipped_steps(),
        }

    def _save(self) -> None:
        checkpoint.save(self.run_dir, self.engine, self.spec, self.special, self.packed, self.progress)

    def _done_record(self) -> dict[str, object]:
        progress = self.progress
        return {
            "step": progress.step,
            "budget": self.spec.budget,
            "flops_per_step": self.spec.flops_per_step,
            "flops_counted": progress.flops_counted,
            "flops_spent": progress.flops_spent,
            "tokens": progress.tokens,
            "seconds": progress.seconds,
            "tokens_per_second": progress.tokens / progress.seconds,
            "checkpoint": f"step-{progress.step:08d}",
            "heldout": _finite(self.heldout_metrics),
            "parameters": parameter_count(self.engine.objective),
            "world_size": self.world_size,
            "hardware": _hardware(self.device),
        }


def _torch_seed(*parts: int | str) -> int:
    return int(key(*parts)) & (2**63 - 1)


def _run_record(spec: RunSpec) -> dict[str, object]:
    arm = spec.identity.arm
    flat = {"arm": arm.label, "objective": arm.objective, "steps": spec.steps, "seed": spec.identity.seed}
    return {**spec.model_dump(mode="json"), **flat}


def _check_corpus(spec: RunSpec, manifest: Manifest) -> None:
    if spec.identity.manifest_sha256 != manifest.sha256:
        raise ConfigError(f"{spec.name}: the corpus is not the one this run was planned for; plan the run again")


def _changed_keys(before: RunSpec, now: RunSpec) -> list[str]:
    old, new = before.identity.model_dump(mode="json"), now.identity.model_dump(mode="json")
    return [name for name in new if old.get(name) != new[name]]


def _finite(figures: dict[str, float]) -> dict[str, float]:
    """Without the figures that do not exist (an AUC over a batch without replaced tokens)."""
    return {name: value for name, value in figures.items() if np.isfinite(value)}


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{dist.get_world_size()} × {torch.cuda.get_device_name(device)}"
    return f"{dist.get_world_size()} CPU process(es) on {platform.machine()}"
