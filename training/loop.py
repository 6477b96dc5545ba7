"""One run on one rank, from its newest verified checkpoint to `done.json`.

Guarantees: nothing is trained before what is resumed has proved itself (the hashes of its parts, exact checksums of
what the engine holds afterwards, the rows of the next batch); a changed identity is refused by key and a changed
placement recorded; a run that is asked to stop saves and says so with StoppedError on every rank; one that has left the
road goes back to a verified checkpoint and skips the rows it had read since. `done.json` is written last: a run with it
is finished.

The process group exists before and outlives this module. Knows nothing of Ray, MLflow or the command line. The steps
are in `training.attempt`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from data_prep.errors import ConfigError, ElectraError, StoppedError
from data_prep.manifest import Manifest
from data_prep.manifest import load as load_manifest
from data_prep.storage import Folder, Location
from training import checkpoints, first_weights, run_folder
from training.attempt import Attempt, Surroundings, torch_seed
from training.checkpoints import Checkpoint
from training.control import Control
from training.devices import device_name, peak_flops
from training.heartbeat import read_beats
from training.metrics import flops_spent, newest_line, next_attempt
from training.objectives import Objective, build
from training.ranks import on_rank_zero
from training.requests import Inbox
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
    if on_rank_zero(lambda: run_folder.is_done(run_dir, spec)):
        return
    manifest = load_manifest(corpus)
    if spec.identity.manifest_sha256 != manifest.sha256:
        raise ConfigError(f"{spec.name}: the corpus is not the one this run was planned for; plan the run again")
    unlogged = on_rank_zero(lambda: _unlogged_steps(run_dir))  # before the first sign of life of this attempt
    rank, world_size = dist.get_rank(), dist.get_world_size()
    with (
        Watchdog(run_dir, rank, world_size, spec.placement.watchdog) as watchdog,
        Control(device) as control,
    ):
        store = checkpoints.store(run_dir, spec.placement.checkpoints)
        found, passed_over = checkpoints.choose(store, group=control.group)
        on_rank_zero(lambda: _refuse_changes(spec, run_dir, found))
        objective = _objective(spec, manifest)
        on_rank_zero(lambda: _announce(spec, run_dir, store, objective, device, found, passed_over, unlogged))
        if found is None:
            events = first_weights.begin(objective, spec, run_dir)
            on_rank_zero(lambda: run_folder.append_events(run_dir, events))
        surroundings = Surroundings(run_dir, store, device, control, watchdog, inbox or Inbox())
        attempt = Attempt(spec, objective, manifest, corpus, surroundings)
        try:
            _resume(attempt, found, unlogged)
            attempt.train(profile)
        except ElectraError as error:
            if rank == 0 and not isinstance(error, StoppedError):
                event = {"event": "failed", "step": attempt.progress.step, "reason": str(error)}
                run_folder.append_events(run_dir, [event])
            raise
        finally:
            attempt.engine.close()
        dist.barrier()


def _unlogged_steps(run_dir: Path) -> int:
    """Rank 0: steps that the attempt before had done beyond its last metric line, as far as its signs of life tell."""
    run_dir.mkdir(parents=True, exist_ok=True)
    line, beat = newest_line(run_dir), read_beats(run_dir).get(0)
    return 0 if line is None or beat is None else max(0, beat.step - line["step"])


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
    found: Checkpoint | None,
    passed_over: list[str],
    unlogged: int,
) -> None:
    """Rank 0: events saying from where and on what the attempt starts (without `peak_flops`, which is that of a device,
    there is no MFU), and what changed of the placement. Before the first step of all, the store is tried out."""
    name, world_size = device_name(device), dist.get_world_size()
    started: dict[str, Any] = {
        "event": "started",
        "attempt": next_attempt(run_dir),
        "step": 0 if found is None else found.progress.step,
        "from": None if found is None else found.name,
        "world_size": world_size,
        "device": name,
        "peak_flops": peak_flops(name),
        "passed_over": passed_over,
        "unlogged": unlogged,  # steps that the attempt before had done beyond its last metric line
    }
    if found is None:
        started["preflight"] = checkpoints.preflight(store, objective, spec)
        run_folder.append_events(run_dir, [started])
        return
    before = found.spec.placement.model_dump(mode="json") | {"world_size": found.manifest["world_size"]}
    now = spec.placement.model_dump(mode="json") | {"world_size": world_size}
    changed = {key: [before.get(key), now[key]] for key in now if before.get(key) != now[key]}
    run_folder.append_events(run_dir, [started, *([{"event": "placement", "changed": changed}] if changed else [])])


def _resume(attempt: Attempt, found: Checkpoint | None, unlogged: int) -> None:
    """Continue from a verified checkpoint; without one, from where the run that this one continues has ended."""
    spec, run_dir = attempt.spec, attempt.around.run_dir
    if found is None:
        begun = first_weights.inherited(spec, run_dir)
        attempt.begin(replace(begun, position=spec.identity.start_position))
    else:
        attempt.restore(found)
    spent = on_rank_zero(lambda: flops_spent(run_dir))
    attempt.spent_before(spent + unlogged * spec.flops_per_step if spent else spent)
