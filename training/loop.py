"""One run on one rank, from its newest verified checkpoint to `done.json`.

Guarantees: nothing is trained before what is resumed has proved itself (the hashes of its parts, exact checksums of
what the engine holds afterwards, the rows of the next batch); a changed identity is refused by key and a changed
placement recorded; a run that is asked to stop saves and says so with StoppedError on every rank; one that has left the
road goes back to a verified checkpoint and skips the rows it had read since. `done.json` is written last: a run with it
is finished.

The process group exists before and outlives this module. Knows nothing of Ray, MLflow or the command line. The steps
are in `training.attempt`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from data_prep.errors import ConfigError, ElectraError, StoppedError
from data_prep.manifest import Manifest
from data_prep.manifest import load as load_manifest
from data_prep.storage import Folder, Location
from training import checkpoints, first_weights, run_folder, trunk
from training.attempt import Attempt, Surroundings, torch_seed
from training.checkpoints import Checkpoint
from training.control import Control
from training.devices import device_name, peak_flops
from training.heartbeat import read_beats
from training.metrics import flops_spent, next_attempt, unlogged_steps
from training.objectives import Objective, build
from training.ranks import on_rank_zero
from training.requests import Inbox
from training.rollback import Rollback, is_left_behind, recorded
from training.settings import RunSpec
from training.watchdog import Watchdog


def train(
    spec: RunSpec,
    corpus: Location,
    run_dir: Path,
    device: torch.device,
    *,
    profile: int = 0,
    inbox: Inbox | None = None,
) -> None:
    """Train a run to its end on this rank; returns at once when it is done. Every rank must call. So many steps as
    `profile` says are traced on rank 0. `inbox` is what this rank is asked from outside.

    Errors that all ranks can see (a loss that is not finite, a refused identity, rank 0's file work) are raised on all.
    StoppedError: it was asked to stop, and has saved.
    """
    if on_rank_zero(lambda: _is_done(run_dir, spec)):
        return
    manifest = load_manifest(corpus)
    if spec.identity.manifest_sha256 != manifest.sha256:
        raise ConfigError(f"{spec.name}: the corpus is not the one this run was planned for; plan the run again")
    before = on_rank_zero(lambda: _before(spec, run_dir))  # looked up before the first sign of life of this attempt
    rank, world_size = dist.get_rank(), dist.get_world_size()
    with (
        Watchdog(run_dir, rank, world_size, spec.placement.watchdog) as watchdog,
        Control(device) as control,
    ):
        store = checkpoints.store(run_dir, spec.placement.checkpoints)
        on_rank_zero(lambda: checkpoints.claim(store, run_dir), control.group)
        found, passed_over = checkpoints.choose(
            store, group=control.group, left_behind=lambda progress: is_left_behind(progress, before.rollbacks)
        )
        on_rank_zero(lambda: _refuse_changes(spec, run_dir, found), control.group)
        if found is not None and before.rollbacks:  # the tidying after a rollback may have been cut short
            later = found.progress.step
            on_rank_zero(lambda: checkpoints.set_aside(store, after=later), control.group)
        objective = _objective(spec, manifest)
        checkpoints.check_temporary(store, objective, control.group)
        start = _Start(found, passed_over)
        if found is None:
            of_trunk, missed = trunk.beginning(spec, run_dir, control.group)
            start = _Start(None, [*passed_over, *missed], of_trunk)
        on_rank_zero(lambda: _announce(spec, run_dir, store, objective, device, start, before), control.group)
        if found is None:
            checkpoints.check_shared(store, control.group)
            events = first_weights.begin(objective, spec, run_dir)
            on_rank_zero(lambda: run_folder.append_events(run_dir, events))
        surroundings = Surroundings(run_dir, store, device, control, watchdog, inbox or Inbox())
        attempt = Attempt(spec, objective, manifest, corpus, surroundings)
        try:
            _resume(attempt, start, before)
            attempt.train(profile)
        except ElectraError as error:
            if rank == 0 and not isinstance(error, StoppedError):
                attempt.journal.append({"event": "failed", "step": attempt.progress.step, "reason": str(error)})
            raise
        finally:
            attempt.engine.close()
        dist.barrier()


@dataclass(frozen=True, slots=True)
class _Start:
    """What an attempt starts from: a checkpoint of the run's own, or, before there is any, its trunk's."""

    own: Checkpoint | None
    passed_over: list[str]
    of_trunk: Checkpoint | None = None

    @property
    def found(self) -> Checkpoint | None:
        return self.own or self.of_trunk


@dataclass(frozen=True, slots=True)
class _Before:
    """What earlier attempts have left on record."""

    spent: float  # model FLOPs, those of steps that no metric line tells of by their mean
    unlogged: int  # steps
    rollbacks: list[Rollback]


def _is_done(run_dir: Path, spec: RunSpec) -> bool:
    """Rank 0: whether the run is finished; says so where it was killed just before it could."""
    if not run_folder.is_done(run_dir, spec):
        return False
    if not any(event["event"] == "finished" for event in run_folder.last_events(run_dir)):
        run_folder.append_events(run_dir, [{"event": "finished", "step": spec.steps}])
    return True


def _before(spec: RunSpec, run_dir: Path) -> _Before:
    """Rank 0, with the run's folder made."""
    run_dir.mkdir(parents=True, exist_ok=True)
    beat = read_beats(run_dir).get(0)
    unlogged = 0 if beat is None else unlogged_steps(run_dir, beat.step)
    spent = flops_spent(run_dir) + unlogged * spec.flops_per_step
    return _Before(spent, unlogged, recorded(run_folder.events(run_dir)))


def _refuse_changes(spec: RunSpec, run_dir: Path, found: Checkpoint | None) -> None:
    """Rank 0: an identity that changed is refused by key before anything is built; leaves `run.json`."""
    if found is not None:
        run_folder.refuse_changes(run_dir, found.spec.identity.model_dump(mode="json"), spec)
    run_folder.write_run_record(run_dir, spec)


def _objective(spec: RunSpec, manifest: Manifest) -> Objective:
    identity = spec.identity
    torch.manual_seed(torch_seed("init", identity.seed))
    return build(
        identity.arm,
        identity.model,
        manifest.special,
        seq_len=identity.seq_len,
        packed=manifest.layout == "packed",
        compute=spec.placement.compute,
    )


def _announce(
    spec: RunSpec,
    run_dir: Path,
    store: Folder,
    objective: Objective,
    device: torch.device,
    start: _Start,
    before: _Before,
) -> None:
    """Rank 0: events saying from where and on what the attempt starts (without `peak_flops`, which is that of a device,
    there is no MFU), and what changed of the placement. Before the first step of all, the store is tried out, and of a
    branch it is said where it leaves its trunk."""
    found = start.own
    name, world_size = device_name(device), dist.get_world_size()
    started: dict[str, Any] = {
        "event": "started",
        "attempt": next_attempt(run_dir),
        "step": 0 if start.found is None else start.found.progress.step,
        "from": None if found is None else found.name,
        "world_size": world_size,
        "device": name,
        "peak_flops": peak_flops(name),
        "passed_over": start.passed_over,
        "unlogged": before.unlogged,  # steps that the attempt before had done beyond what is on record
        "flops_spent": before.spent,
    }
    if found is None:
        started |= trunk.told(spec, start.of_trunk)
        started["preflight"] = checkpoints.preflight(store, objective, spec)
        run_folder.append_events(run_dir, [started])
        return
    then = found.spec.placement.model_dump(mode="json") | {"world_size": found.manifest["world_size"]}
    now = spec.placement.model_dump(mode="json") | {"world_size": world_size}
    changed = {key: [then.get(key), now[key]] for key in now if then.get(key) != now[key]}
    run_folder.append_events(run_dir, [started, *([{"event": "placement", "changed": changed}] if changed else [])])


def _resume(attempt: Attempt, start: _Start, before: _Before) -> None:
    """Continue from a verified checkpoint; without one, from where the run that this one continues has ended."""
    if start.found is None:
        attempt.begin(first_weights.inherited(attempt.spec, attempt.run_dir))
    else:
        attempt.restore(start.found)
    attempt.spent_before(before.spent)
