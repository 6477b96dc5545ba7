"""The step and the loop: one run on one rank, from its newest checkpoint to its last step.

Guarantees: every loss is divided by the global count of the whole step, known before the first micro-batch; this code
reads the device every `log_every` steps only (the engine reads the gradient norm once a step, to skip what is not
finite); the stream position moves after the optimizer's step and lives in the checkpoint; on the CPU the same world
size repeats bit for bit, because dropout is seeded by (seed, step, rank, micro-batch). `done.json` is written last: a
run with it is finished.

The process group exists before and outlives this module. Knows nothing of Ray, MLflow or the command line.
"""

import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from data_prep.errors import CheckpointError, ConfigError, DivergedError
from data_prep.keyed import key
from data_prep.manifest import Manifest
from data_prep.manifest import load as load_manifest
from data_prep.order import Order, order_of
from data_prep.reader import RowReader
from data_prep.storage import Location
from training import checkpoint, first_weights, record, run_folder
from training.checkpoint import Progress
from training.communication import collective_clock
from training.devices import device_name, peak_flops, reset_memory_peak
from training.engine import build_engine
from training.evaluation import evaluate_heldout
from training.flops import train_flops
from training.loader import Loader, StepBatches
from training.meter import Meter, Window
from training.metrics import MetricWriter, flops_spent
from training.objectives import Objective, build, to_device
from training.optimizer import learning_rate
from training.profile import WARMUP, profiled
from training.ranks import on_rank_zero
from training.settings import RunSpec


def train(spec: RunSpec, corpus: Location, run_dir: Path, device: torch.device, *, profile: int = 0) -> None:
    """Train a run to its end on this rank; returns at once when it is done. Every rank must call. So many steps as
    `profile` says are traced on rank 0.

    Errors that all ranks can see (a loss that is not finite, a refused identity, rank 0's file work) are raised on all.
    """
    if on_rank_zero(lambda: run_folder.is_done(run_dir, spec)):
        return
    manifest = load_manifest(corpus)
    if spec.identity.manifest_sha256 != manifest.sha256:
        raise ConfigError(f"{spec.name}: the corpus is not the one this run was planned for; plan the run again")
    found, spent = on_rank_zero(lambda: _choose(spec, run_dir, device))
    run = _Run(spec, manifest, corpus, run_dir, device, fresh=found is None)
    try:
        run.resume(found, spent)
        run.train(profile)
    finally:
        run.engine.close()
    dist.barrier()


def _choose(spec: RunSpec, run_dir: Path, device: torch.device) -> tuple[Path | None, float]:
    """Rank 0: the newest verified checkpoint, if any, and the FLOPs that earlier attempts spent; an identity that
    changed is refused by key. Leaves `run.json`, and an event saying what was passed over and why, and on what it runs:
    without `peak_flops`, which is that of a device, there is no MFU."""
    run_dir.mkdir(parents=True, exist_ok=True)
    found, passed_over = checkpoint.newest(run_dir)
    if found is None and passed_over:
        raise CheckpointError(f"{run_dir}: no valid checkpoint is left ({passed_over[0]})")
    if found is not None:
        run_folder.refuse_changes(run_dir, found.spec.identity.model_dump(mode="json"), spec)
    run_folder.write_run_record(run_dir, spec)
    for stale in (run_dir / "checkpoints").glob("*.tmp"):
        shutil.rmtree(stale)
    step = 0 if found is None else found.progress.step
    name = device_name(device)
    hardware = {"world_size": dist.get_world_size(), "device": name, "peak_flops": peak_flops(name)}
    run_folder.append_events(run_dir, [{"event": "started", "step": step, **hardware, "passed_over": passed_over}])
    return (None if found is None else found.folder), flops_spent(run_dir)


class _Run:
    """One attempt at a run: engine, loaders, progress."""

    def __init__(
        self,
        spec: RunSpec,
        manifest: Manifest,
        corpus: Location,
        run_dir: Path,
        device: torch.device,
        *,
        fresh: bool,
    ) -> None:
        identity, placement = spec.identity, spec.placement
        self.spec, self.run_dir, self.device = spec, run_dir, device
        self.special = manifest.special
        self.packed = manifest.layout == "packed"
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(_torch_seed("init", identity.seed))
        objective = build(
            identity.arm,
            identity.model,
            self.special,
            seq_len=identity.seq_len,
            packed=self.packed,
            compute=placement.compute,
        )
        if fresh:
            events = first_weights.begin(objective, spec, run_dir)
            on_rank_zero(lambda: run_folder.append_events(run_dir, events))
        reader = RowReader(corpus, "train", manifest)
        order = order_of(manifest, "train", identity.seed, identity.order)
        self.loader = self._loader(reader, objective, order, identity.global_batch)
        self.heldout = RowReader(corpus, "heldout", manifest)
        # keys of its own: row 7 held out is masked and sampled independently of row 7 trained on
        heldout_order = order_of(manifest, "heldout", _torch_seed("heldout", identity.seed), identity.order)
        self.heldout_loader = self._loader(self.heldout, objective, heldout_order, placement.micro_batch)
        self.engine = build_engine(
            objective, identity.optimizer, placement, accumulation=self.loader.accumulation, device=device
        )
        self.progress = Progress()
        self.skipped_before = 0
        self.heldout_metrics: dict[str, float] = {}

    def _loader(self, reader: RowReader, objective: Objective, order: Order, global_batch: int) -> Loader:
        return Loader(
            reader,
            objective,
            self.special,
            order,
            global_batch=global_batch,
            micro_batch=self.spec.placement.micro_batch,
            rank=self.rank,
            world_size=self.world_size,
        )

    def resume(self, folder: Path | None, spent: float) -> None:
        """Continue from a verified checkpoint; without one, from where the run that this one continues has ended."""
        if folder is None:
            begun = first_weights.inherited(self.spec, self.run_dir)
            begun = replace(begun, position=self.spec.identity.start_position)
        else:
            found = checkpoint.verify(folder)
            checkpoint.restore(self.engine, found)
            begun = found.progress
        self.progress = replace(begun, flops_spent=max(begun.flops_spent, spent))
        self.skipped_before = begun.skipped

    def train(self, profile: int) -> None:
        """Steps to the end, then the final checkpoint and `done.json`."""
        remaining = self.spec.steps - self.progress.step
        if profile and 0 < remaining < profile + WARMUP:
            raise ConfigError(
                f"{self.spec.name}: {profile} steps are traced after {WARMUP} others, and it has {remaining} left; ask "
                "for fewer with --profile"
            )
        reset_memory_peak(self.device)
        with collective_clock(self.spec.placement, self.device) as clock:
            meter = Meter(self.engine.objective, self.device, clock)
            if self.rank == 0 and remaining:
                with MetricWriter(self.run_dir, self.progress.step) as writer:
                    self._steps(meter, remaining, writer, profile)
            else:
                self._steps(meter, remaining, None, 0)
        if not self.heldout_metrics:  # killed between the last checkpoint and the record
            self._evaluate()
        on_rank_zero(self._finish)

    def _finish(self) -> None:
        record.write_done_record(
            self.run_dir,
            self.spec,
            self.progress,
            heldout=self.heldout_metrics,
            parameters=self.engine.parameter_count,
            device=self.device,
        )

    def _steps(self, meter: Meter, remaining: int, writer: MetricWriter | None, profile: int) -> None:
        start, placement = time.monotonic() - self.progress.seconds, self.spec.placement
        with profiled(self.run_dir, profile, self.device) as step_ended:
            for batches in meter.waiting(self.loader.steps(self.progress.position, remaining)):
                rate = self._step(batches, meter)
                step_ended()
                self._advance(time.monotonic() - start)
                if not self._due(placement.log_every, placement.eval_every, placement.checkpoint_every):
                    continue
                self._log(meter, rate, writer)  # before saving, so that the checkpoint's ledger is up to date
                if self._due(placement.checkpoint_every):
                    self._save()
                meter.restart_clock()

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
            rate = learning_rate(step, identity.arm.learning_rate, identity.steps, identity.schedule)
            self.engine.step(rate)
            meter.add(outputs)
        return rate

    def _advance(self, seconds: float) -> None:
        self.progress = replace(
            self.progress,
            step=self.progress.step + 1,
            position=self.progress.position + self.spec.identity.global_batch,
            skipped=self.skipped_before + self.engine.skipped_steps(),
            seconds=seconds,
        )

    def _due(self, *intervals: int | None) -> bool:
        """Whether the completed step is a multiple of one of the intervals, or the last."""
        step = self.progress.step
        return step == self.spec.steps or any(every is not None and step % every == 0 for every in intervals)

    def _log(self, meter: Meter, rate: float, writer: MetricWriter | None) -> None:
        """Read the window's figures (all ranks take part), check them, evaluate where due, write a line."""
        window = meter.read()
        dispatched = window.steps * self.spec.placement.micro_batch * self.loader.accumulation * self.world_size
        self.progress = record.count(self.progress, self.spec, window, dispatched)
        figures = {f"train/{name}": value for name, value in self.engine.objective.metrics(window.sums).items()}
        if not np.isfinite(figures["train/loss"]):
            raise DivergedError(
                f"{self.spec.name}: the loss is not finite at step {self.progress.step}; lower the arm's learning_rate"
            )
        figures["train/gradient_norm"] = self.engine.gradient_norm()  # infinite: skipped, and counted as such
        if self._due(self.spec.placement.eval_every):
            figures |= self._evaluate()
        if writer is not None:
            writer.write(self.progress.step, {**record.finite(figures), **self._clock(window, rate)})

    def _evaluate(self) -> dict[str, float]:
        self.heldout_metrics = evaluate_heldout(
            self.engine, self.heldout_loader, self.heldout.n_rows, self.spec.placement, self.device
        )
        if not np.isfinite(self.heldout_metrics["heldout/loss"]):
            raise DivergedError(
                f"{self.spec.name}: the held-out loss is not finite at step {self.progress.step}; lower learning_rate"
            )
        self._judge()
        return self.heldout_metrics

    def _judge(self) -> None:
        """Say so where the held-out figures show that nothing was learned, and where they no longer do."""
        plain = {name.removeprefix("heldout/"): value for name, value in self.heldout_metrics.items()}
        before, reason = self.progress.degenerate, self.engine.objective.verdict(plain)
        self.progress = replace(self.progress, degenerate=reason)
        if (before is None) != (reason is None):  # the sentence holds figures, which change every time
            kind = "recovered" if reason is None else "degenerate"
            event = {"event": kind, "step": self.progress.step, "reason": reason}
            on_rank_zero(lambda: run_folder.append_events(self.run_dir, [event]))

    def _clock(self, window: Window, rate: float) -> dict[str, float]:
        flops = train_flops(self.spec.identity.arm, self.spec.identity.model, window.flop_counts)
        peak = peak_flops(device_name(self.device))
        return {
            "learning_rate": rate,
            "flops": self.progress.flops_counted,
            "flops_spent": self.progress.flops_spent,
            "tokens": self.progress.tokens,
            "seconds": self.progress.seconds,
            "skipped_steps": self.progress.skipped,
            **window.speed(flops, peak and peak * self.world_size),
        }

    def _save(self) -> None:
        checkpoint.save(self.run_dir, self.engine, self.spec, self.special, self.packed, self.progress)


def _torch_seed(*parts: int | str) -> int:
    return int(key(*parts)) & (2**63 - 1)
