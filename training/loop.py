"""The step and the loop: one run on one rank, from its newest checkpoint to its last step.

Guarantees: every loss is divided by the global count of the whole step, known before the first micro-batch; this code
reads the device every `log_every` steps only (DeepSpeed reads the gradient norm once a step, to skip what is not
finite); the stream position moves after the optimizer's step and lives in the checkpoint; on the CPU the same world
size repeats bit for bit, because dropout is seeded by (seed, step, rank, micro-batch). `done.json` is written last: a
run with it is finished.

The process group exists before and outlives this module. Knows nothing of Ray, MLflow or the command line.
"""

import json
import platform
import shutil
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
from data_prep.order import Order, order_of
from data_prep.reader import RowReader
from data_prep.storage import Location
from training import checkpoint
from training.checkpoint import Progress
from training.engine import Engine, parameter_count
from training.evaluation import evaluate_heldout
from training.flops import Counts, executed_counts, train_flops
from training.loader import Loader, StepBatches
from training.meter import Meter
from training.metrics import MetricWriter, flops_spent
from training.objectives import Objective, build, to_device
from training.optimizer import learning_rate
from training.paper_flops import train_arm
from training.ranks import on_rank_zero
from training.settings import RunSpec

DONE = "done.json"
RECORD = "run.json"


def train(spec: RunSpec, corpus: Location, run_dir: Path, device: torch.device) -> None:
    """Train a run to its end on this rank; returns at once when it is done. Every rank must call.

    Errors that all ranks can see (a loss that is not finite, a refused identity, rank 0's file work) are raised on all.
    """
    if on_rank_zero(lambda: _is_done(spec, run_dir)):
        return
    manifest = load_manifest(corpus)
    _check_corpus(spec, manifest)
    run = _Run(spec, manifest, corpus, run_dir, device)
    try:
        run.resume()
        run.train()
    finally:
        run.engine.close()
    dist.barrier()


def _is_done(spec: RunSpec, run_dir: Path) -> bool:
    """Whether the run is finished; refuses a finished run of another identity."""
    if not (run_dir / DONE).exists():
        return False
    record = storage.read_json(run_dir / RECORD)
    _refuse_changes(run_dir, record["identity"], spec)
    return True


class _Run:
    """One attempt at a run: engine, loaders, progress."""

    def __init__(
        self, spec: RunSpec, manifest: Manifest, corpus: Location, run_dir: Path, device: torch.device
    ) -> None:
        identity, placement = spec.identity, spec.placement
        self.spec, self.run_dir, self.device = spec, run_dir, device
        self.special = manifest.special
        self.packed = manifest.layout == "packed"
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(_torch_seed("init", identity.seed))
        objective = build(identity.arm, identity.model, self.special, seq_len=identity.seq_len, packed=self.packed)
        reader = RowReader(corpus, "train", manifest)
        order = order_of(manifest, "train", identity.seed, identity.order)
        self.loader = self._loader(reader, objective, order, identity.global_batch)
        self.heldout = RowReader(corpus, "heldout", manifest)
        # keys of its own: row 7 held out is masked and sampled independently of row 7 trained on
        heldout_order = order_of(manifest, "heldout", _torch_seed("heldout", identity.seed), identity.order)
        self.heldout_loader = self._loader(self.heldout, objective, heldout_order, placement.micro_batch)
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

    def resume(self) -> None:
        """Continue from the newest verified checkpoint, if any; an identity that changed is refused by key. Rank 0
        chooses, and leaves a line in `events.jsonl` saying what it passed over and why."""
        folder, spent = on_rank_zero(self._choose)
        self.progress = Progress(flops_spent=spent)
        if folder is None:
            return
        found = checkpoint.verify(folder)
        checkpoint.restore(self.engine, found)
        self.progress = replace(found.progress, flops_spent=max(found.progress.flops_spent, spent))

    def _choose(self) -> tuple[Path | None, float]:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        found, passed_over = checkpoint.newest(self.run_dir)
        if found is None and passed_over:
            raise CheckpointError(f"{self.run_dir}: no valid checkpoint is left ({passed_over[0]})")
        if found is not None:
            _refuse_changes(self.run_dir, found.spec.identity.model_dump(mode="json"), self.spec)
        storage.write_json(self.run_dir / RECORD, _run_record(self.spec))
        for stale in (self.run_dir / "checkpoints").glob("*.tmp"):
            shutil.rmtree(stale)
        event = {"time": time.time(), "event": "started", "world_size": self.world_size, "passed_over": passed_over}
        event["step"] = 0 if found is None else found.progress.step
        with open(self.run_dir / "events.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")
        return (None if found is None else found.folder), flops_spent(self.run_dir)

    def train(self) -> None:
        """Steps to the end, then the final checkpoint and `done.json`."""
        meter = Meter(self.engine.objective, self.device)
        remaining = self.spec.steps - self.progress.step
        if self.rank == 0 and remaining:
            with MetricWriter(self.run_dir, self.progress.step) as writer:
                self._steps(meter, remaining, writer)
        else:
            self._steps(meter, remaining, None)
        if not self.heldout_metrics:  # killed between the last checkpoint and the record
            self._evaluate()
        on_rank_zero(lambda: storage.write_json(self.run_dir / DONE, self._done_record()))

    def _steps(self, meter: Meter, remaining: int, writer: MetricWriter | None) -> None:
        start = time.monotonic() - self.progress.seconds
        for batches in self.loader.steps(self.progress.position, remaining):
            rate = self._step(batches, meter)
            self._advance(time.monotonic() - start)
            placement = self.spec.placement
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
        figures["train/gradient_norm"] = self.engine.gradient_norm()  # infinite: skipped, and counted as such
        if self._due(self.spec.placement.eval_every):
            figures |= self._evaluate()
        if writer is not None:
            writer.write(
                self.progress.step, {**_finite(figures), **self._clock(window.seconds, window.flop_counts, rate)}
            )

    def _evaluate(self) -> dict[str, float]:
        self.heldout_metrics = evaluate_heldout(
            self.engine.objective, self.heldout_loader, self.heldout.n_rows, self.spec.placement, self.device
        )
        if not np.isfinite(self.heldout_metrics["heldout/loss"]):
            raise DivergedError(
                f"{self.spec.name}: the held-out loss is not finite at step {self.progress.step}; lower learning_rate"
            )
        return self.heldout_metrics

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

    def _executed(self) -> float:
        """What the counted steps dispatched: whole rows, every mask slot, filler rows."""
        identity = self.spec.identity
        rows = self.spec.placement.micro_batch * self.loader.accumulation * self.world_size * self.progress.step
        counts = executed_counts(rows, identity.seq_len, identity.arm.max_predictions(identity.seq_len))
        return train_flops(identity.arm, identity.model, counts)

    def _paper(self) -> float:
        """The counted steps in the ELECTRA paper's convention, for standing beside its tables."""
        identity = self.spec.identity
        rows = self.progress.step * identity.global_batch
        return train_arm(identity.arm, identity.model, identity.seq_len, rows)

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
            "flops_executed": self._executed(),
            "flops_paper": self._paper(),
            "tokens": progress.tokens,
            "seconds": progress.seconds,  # evaluation and saving included
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


def _refuse_changes(run_dir: Path, before: dict[str, object], spec: RunSpec) -> None:
    now = spec.identity.model_dump(mode="json")
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if changed:
        raise ConfigError(
            f"{run_dir}: was trained with another {', '.join(changed)}; use another --out or remove the folder"
        )


def _finite(figures: dict[str, float]) -> dict[str, float]:
    """Without the figures that do not exist: an AUC without replaced tokens, the norm of a skipped step."""
    return {name: value for name, value in figures.items() if np.isfinite(value)}


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{dist.get_world_size()} × {torch.cuda.get_device_name(device)}"
    return f"{dist.get_world_size()} CPU process(es) on {platform.machine()}"
