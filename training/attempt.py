"""One attempt at a run on one rank: the step, and what happens between steps.

Guarantees: every loss is divided by the global count of the whole step, known before the first micro-batch; this code
reads the device every `log_every` steps only (the engine reads the gradient norm once a step, to skip what is not
finite); the stream position moves after the optimizer's step and lives in the checkpoint; on the CPU the same world
size repeats bit for bit, because dropout is seeded by (seed, step, rank, micro-batch).

What ranks must do alike and cannot know alone (another rank was asked to stop, another rank still writes its part of a
checkpoint) they agree on through `training.control`, at the same step on all and without waiting.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from data_prep.errors import ConfigError, DivergedError, StoppedError
from data_prep.keyed import key
from data_prep.manifest import Manifest
from data_prep.order import Order, order_of
from data_prep.reader import RowReader
from data_prep.storage import Folder, Location
from training import checkpoints, record, run_folder, trunk
from training.checkpoints import Checkpoint, Progress
from training.communication import collective_clock
from training.control import Control
from training.devices import reset_memory_peak
from training.engine import build_engine
from training.faults import Faults
from training.figures import Figures
from training.loader import Loader, StepBatches
from training.meter import Meter
from training.metrics import MetricWriter, read_metrics
from training.objectives import Objective, to_device
from training.optimizer import learning_rate
from training.profile import WARMUP, profiled
from training.ranks import on_rank_zero
from training.requests import Inbox
from training.rollback import Rollback, in_a_row, is_left_behind, past_rollbacks, recorded
from training.run_folder import Journal
from training.saving import Saving
from training.settings import RunSpec
from training.stability import OffTheRoadError, Stability
from training.watchdog import Watchdog

_ASKED = ("", "save", "stop")  # by the number that ranks exchange


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a rank has around it: folders, its device, and its ways to other ranks and to the outside."""

    run_dir: Path
    store: Folder  # of checkpoints
    device: torch.device
    control: Control
    watchdog: Watchdog
    inbox: Inbox


class Attempt:
    """Engine, loaders and progress of one rank. `begin` or `restore`, then `train`."""

    def __init__(
        self, spec: RunSpec, objective: Objective, manifest: Manifest, corpus: Location, around: Surroundings
    ) -> None:
        identity, placement = spec.identity, spec.placement
        self.spec, self.around, self.run_dir, self.device = spec, around, around.run_dir, around.device
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.special = manifest.special
        reader = RowReader(corpus, "train", manifest)
        self.order = order_of(manifest, "train", identity.seed, identity.order)
        self.loader = self._loader(reader, objective, self.order, identity.global_batch)
        heldout = RowReader(corpus, "heldout", manifest)
        # keys of its own: row 7 held out is masked and sampled independently of row 7 trained on
        heldout_order = order_of(manifest, "heldout", torch_seed("heldout", identity.seed), identity.order)
        heldout_loader = self._loader(heldout, objective, heldout_order, placement.micro_batch)
        self.engine = build_engine(
            objective, identity.optimizer, placement, accumulation=self.loader.accumulation, device=self.device
        )
        self.progress = Progress()
        self.journal, self.group = Journal(self.run_dir), around.control.group
        self.figures = Figures(
            spec, self.engine, self.loader, heldout_loader, heldout.n_rows, self.journal, self.device, self.group
        )
        self.faults = Faults(placement.faults, self.run_dir, self.rank)
        self.saving = Saving(
            spec,
            self.engine,
            manifest,
            around.store,
            self.journal,
            around.control,
            while_writing=self.faults.while_saving,
            waiting=lambda: around.watchdog.progress("save", self.progress.step),
        )
        self.stability = Stability(placement.stability, placement.log_every)
        self._skipped_before = 0
        self._reason: str | None = None  # of what this rank was asked

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

    # --- where it starts ----------------------------------------------------------------------------------------------

    def begin(self, progress: Progress) -> None:
        """Go on from this progress with what the engine holds."""
        self.progress = progress
        self._skipped_before = progress.skipped - self.engine.skipped_steps()
        placement = self.spec.placement
        self.stability = Stability(placement.stability, placement.log_every, progress.skipped)
        self.stability.recall(on_rank_zero(lambda: self._losses(progress), self.group))

    def restore(self, found: Checkpoint) -> None:
        """Load a checkpoint that was chosen and have it proved; where a rollback came back to it before, the rows that
        it skipped stay skipped. CheckError where the engine does not hold what was saved."""
        self.around.watchdog.progress("restore", found.progress.step)
        checkpoints.restore(self.engine, found)
        progress = found.progress
        checkpoints.prove(self.engine, found, self._next_rows(progress.position), group=self.group)
        self.begin(past_rollbacks(progress, self._rollbacks()))
        self.saving.resumed_from(progress.step)
        self.faults.after_restore(progress.step)

    def _losses(self, progress: Progress) -> list[dict[str, Any]]:
        """Rank 0: what the trajectory's metric lines say of its loss, those of the trunk that it has left too."""
        left_at = next((ledger.step for ledger in progress.shared.values()), 0)
        folder = trunk.folder_of(self.spec, self.run_dir)
        before = [] if folder is None or not left_at else _losses(folder, left_at)
        return [*before, *_losses(self.run_dir, progress.step)]

    def _rollbacks(self) -> list[Rollback]:
        return on_rank_zero(lambda: recorded(run_folder.events(self.run_dir)), self.group)

    def spent_before(self, flops: float) -> None:
        """Model FLOPs that all attempts before have spent; never less than what the checkpoint says."""
        self.progress = replace(self.progress, flops_spent=max(self.progress.flops_spent, flops))

    def _next_rows(self, position: int) -> str:
        """A hash of the rows of the global batch at a position, whatever the world size."""
        positions = np.arange(position, position + self.spec.identity.global_batch, dtype=np.int64)
        return checkpoints.rows_hash(*self.order.locate(positions))

    # --- to the end ---------------------------------------------------------------------------------------------------

    def train(self, profile: int) -> None:
        """Steps to the end, then the final checkpoint and `done.json`."""
        remaining = self.spec.steps - self.progress.step
        if profile and self.progress.step > 0 and remaining < profile + WARMUP:
            profile = 0  # of a resumption there may be little left
        if profile and remaining < profile + WARMUP:
            raise ConfigError(
                f"{self.spec.name}: {profile} steps are traced after {WARMUP} others, and it has {remaining} left; ask "
                "for fewer with --profile"
            )
        reset_memory_peak(self.device)
        with self.saving, collective_clock(self.spec.placement, self.device) as clock:
            meter = Meter(self.engine.objective, self.device, clock)
            while self.progress.step < self.spec.steps:
                try:
                    with self._writer() as writer:
                        self._steps(meter, writer, profile if self.rank == 0 else 0)
                except OffTheRoadError as trouble:
                    self.progress, _ = self.figures.count(self.progress, meter)  # spent since the last metric line
                    self._roll_back(trouble)
                    meter, profile = Meter(self.engine.objective, self.device, clock), 0
        self.around.watchdog.progress("finish", self.progress.step)
        if self.figures.heldout is None:  # killed between the last checkpoint and the record
            self.progress, _ = self.figures.evaluate(self.progress)
        on_rank_zero(self._finish, self.group)

    @contextmanager
    def _writer(self) -> Iterator[MetricWriter | None]:
        """Rank 0's metric lines from here on."""
        if self.rank > 0:
            yield None
            return
        with MetricWriter(self.run_dir, self.progress.step) as writer:
            yield writer

    def _finish(self) -> None:
        record.write_done_record(
            self.run_dir,
            self.spec,
            self.progress,
            heldout=self.figures.heldout or {},
            parameters=self.engine.parameter_count,
            device=self.device,
        )
        self.journal.append({"event": "finished", "step": self.progress.step})

    # --- steps --------------------------------------------------------------------------------------------------------

    def _steps(self, meter: Meter, writer: MetricWriter | None, profile: int) -> None:
        start, placement = time.monotonic() - self.progress.seconds, self.spec.placement
        remaining = self.spec.steps - self.progress.step
        with profiled(self.run_dir, profile, self.device) as step_ended:
            for batches in meter.waiting(self.loader.steps(self.progress.position, remaining)):
                self.faults.before_step(self.progress.step)
                rate = self._step(batches, meter)
                step_ended()
                self._advance(time.monotonic() - start)
                asked = self._between_steps()
                if asked or self._due(placement.log_every, placement.eval_every) or self.saving.due(self.progress.step):
                    self._log(meter, rate, writer)  # before saving, so that the checkpoint's ledger is up to date
                    self._save(asked)
                    meter.restart_clock()

    def _step(self, batches: StepBatches, meter: Meter) -> float:
        """One optimizer step; returns its learning rate."""
        identity, step = self.spec.identity, self.progress.step
        totals, terms = meter.global_counts(batches), self.engine.objective.loss_terms()
        rate = learning_rate(step, identity.arm.learning_rate, identity.steps, identity.schedule)
        rate *= self.faults.rate_factor(step)
        factor = self.faults.loss_factor(step)
        skipped = self.engine.skipped_steps()
        for index, host_batch in enumerate(batches.micro_batches):
            torch.manual_seed(torch_seed("dropout", identity.seed, step, self.rank, index))
            outputs = self.engine.forward(to_device(host_batch, self.device))
            loss = sum(t.weight * outputs.sums[t.name] / totals[t.count].clamp(min=1) for t in terms)
            assert isinstance(loss, torch.Tensor)
            self.engine.backward(loss * factor if factor != 1.0 else loss)
            self.engine.step(rate)
            meter.add(outputs)
        meter.end_step(skipped=self.engine.skipped_steps() > skipped)
        return rate

    def _advance(self, seconds: float) -> None:
        self.progress = replace(
            self.progress,
            step=self.progress.step + 1,
            position=self.progress.position + self.spec.identity.global_batch,
            skipped=self._skipped_before + self.engine.skipped_steps(),
            seconds=seconds,
        )

    def _between_steps(self) -> str:
        """What ranks tell each other after every step; returns what any of them was asked. A saving that all ranks have
        written is settled; the engine's skipped steps are judged."""
        step = self.progress.step
        self.around.watchdog.progress("step", step)
        request = self.around.inbox.poll()
        if request is not None and request[0] == "stop":
            self._reason = request[1]
        said = 0 if request is None else _ASKED.index(request[0])
        learned = self.around.control.exchange(said, *self.saving.said()) or [0, 0, 0]
        self.saving.learned(learned[1], learned[2], self.stability.well_until)
        self.stability.after_step(step, self.progress.skipped)
        return _ASKED[learned[0]]

    def _due(self, *intervals: int | None) -> bool:
        """Whether the completed step is a multiple of one of the intervals, or the last."""
        step = self.progress.step
        return step == self.spec.steps or any(every is not None and step % every == 0 for every in intervals)

    def _log(self, meter: Meter, rate: float, writer: MetricWriter | None) -> None:
        """Read the window, write its line, and judge it: in that order, so that what was spent is on record before
        anything goes back."""
        progress, window = self.figures.count(self.progress, meter)
        evaluate = self._due(self.spec.placement.eval_every)
        self.progress, values = self.figures.take(progress, window, rate, evaluate=evaluate)
        if writer is not None:
            writer.write(self.progress.step, record.finite(values))
        self.stability.after_window(self.progress.step, window.steps, values.get("train/loss"))
        if evaluate:
            self.stability.after_evaluation(self.progress.step, window.steps, values["heldout/loss"])

    # --- saving, stopping, going back ---------------------------------------------------------------------------------

    def _save(self, asked: str) -> None:
        """Begin a saving where one is due or asked for. At the last step, and before a stop, it is waited for."""
        step, stop = self.progress.step, asked == "stop"
        if not asked and not self.saving.due(step):
            return
        self.around.watchdog.progress("save", step)
        self.saving.start(self.progress, self.figures.heldout_loss(step), self._next_rows(self.progress.position))
        if step == self.spec.steps or stop:
            self.saving.finish()
        if stop and step < self.spec.steps:
            self._stop()

    def _stop(self) -> None:
        """End all ranks alike: the one that was asked says why."""
        reasons: list[str | None] = [None] * self.world_size
        self.around.control.finish()
        dist.all_gather_object(reasons, self._reason, group=self.group)
        why = next((one for one in reasons if one), "asked")
        event = {"event": "stopped", "step": self.progress.step, "reason": why}
        on_rank_zero(lambda: self.journal.append(event), self.group)
        raise StoppedError(
            f"{self.spec.name}: stopped at step {self.progress.step} of {self.spec.steps} ({why}), saved; the same "
            "command again resumes"
        )

    def _roll_back(self, trouble: OffTheRoadError) -> None:
        """Back to the newest verified checkpoint from before the trouble, and past the rows that were read since; when
        that did not help, to the one before it. DivergedError where there is none, or where it did not help so often;
        nothing resumes from what was saved since the trouble, either way."""
        self.saving.settle()
        lost, store, where = self.progress, self.around.store, f"{self.spec.name}: at step {self.progress.step}"
        past = on_rank_zero(lambda: in_a_row(run_folder.events(self.run_dir)), self.group)
        found = self._before(trouble.since, past)
        if found is None or len(past) >= self.spec.placement.stability.max_rollbacks:
            on_rank_zero(lambda: checkpoints.set_aside(store, after=trouble.since), self.group)
            tried = f", and going back {len(past)} times did not help" if past else ""
            missing = ", and there is no earlier checkpoint to go back to" if found is None else ""
            raise DivergedError(f"{where} {trouble}{tried}{missing}; lower the arm's learning_rate")
        rollback = Rollback.between(lost, found.progress, str(trouble))
        on_rank_zero(lambda: rollback.record(self.run_dir), self.group)
        on_rank_zero(lambda: checkpoints.set_aside(store, after=rollback.to_step), self.group)
        self.figures.forget()
        self.restore(found)
        self.spent_before(lost.flops_spent)

    def _before(self, since: int, past: list[Rollback]) -> Checkpoint | None:
        """The checkpoint to go back to, given what was gone back to for the same trouble."""
        limits = [since, min(since, *(one.to_step - 1 for one in past))] if past else [since]
        rollbacks = self._rollbacks()
        for limit in reversed(limits):
            found, _ = checkpoints.choose(
                self.around.store,
                group=self.group,
                at_most=limit,
                left_behind=lambda progress: is_left_behind(progress, rollbacks),
            )
            if found is None:
                found, _ = trunk.beginning(self.spec, self.run_dir, self.group)
            if found is not None and found.progress.step <= limit:
                return found
        return None


def _losses(run_dir: Path, step: int) -> list[dict[str, Any]]:
    """Rank 0: the metric lines of the surviving trajectory up to a step, as far as they hold a loss."""
    names = ("train/loss",)
    return [
        {"step": line["step"], "values": {name: line["values"][name] for name in names if name in line["values"]}}
        for line in read_metrics(run_dir)
        if line["step"] <= step
    ]


def torch_seed(*parts: int | str) -> int:
    """A seed for torch from what names it."""
    return int(key(*parts)) & (2**63 - 1)
