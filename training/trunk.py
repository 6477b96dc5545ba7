"""Where a decay branch begins: with a checkpoint of its trunk, as the first of its own (plans: `training.branches`).

Everything comes along: parameters, optimizer state, position, ledgers. Only what the branch spent begins at 0, its
rollbacks with it, and the time in steps, by which its goodput is judged. Any checkpoint of the trunk from before the
decay begins will do, since the way there is the same; the newest is taken.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from data_prep.errors import CheckpointError, ConfigError
from training import checkpoints, ledgers, run_folder
from training.checkpoints import Checkpoint
from training.ledgers import Ledger
from training.ranks import on_rank_zero
from training.rollback import is_left_behind, recorded
from training.settings import Identity, RunSpec


def folder_of(spec: RunSpec, run_dir: Path) -> Path | None:
    """The folder of a branch's trunk; None of a run that is no branch."""
    trunk = spec.placement.trunk
    return None if trunk is None else (run_dir / trunk).resolve()


def beginning(
    spec: RunSpec, run_dir: Path, group: dist.ProcessGroup | None = None
) -> tuple[Checkpoint | None, list[str]]:
    """The trunk's newest verified checkpoint up to where its branch begins, with the branch's progress in it, and a
    sentence for each that was passed over. None of a run that is no branch, and where a finished trunk has kept none:
    then the branch is trained whole. Every rank calls; rank 0 looks.

    CheckpointError where the trunk has not come that far, ConfigError where it is no trunk of this run.
    """
    folder = folder_of(spec, run_dir)
    if folder is None:
        return None, []
    store = on_rank_zero(lambda: run_folder.store_of(folder), group)
    left = on_rank_zero(lambda: recorded(run_folder.events(folder)), group)
    found, passed_over = checkpoints.choose(
        store, group=group, at_most=spec.first_step, left_behind=lambda progress: is_left_behind(progress, left)
    )
    on_rank_zero(lambda: _check(spec, folder, found), group)
    return (None if found is None else _as_first(found)), passed_over


def told(spec: RunSpec, found: Checkpoint | None) -> dict[str, Any]:
    """What the event of the beginning says of it; nothing of a run that is no branch. `flops`: model FLOPs that the
    branch counts and did not spend."""
    if spec.placement.trunk is None:
        return {}
    step, flops = (0, 0.0) if found is None else (found.progress.step, found.progress.flops_counted)
    trunk = {"run": Path(spec.placement.trunk).name, "planned": spec.first_step, "step": step, "flops": flops}
    return {"trunk": trunk | ({} if found is None else {"identity": f"{found.manifest['identity']}@{step}"})}


def _check(spec: RunSpec, folder: Path, found: Checkpoint | None) -> None:
    """Rank 0."""
    its, own = _way_there(spec.identity if found is None else found.spec.identity), _way_there(spec.identity)
    if changed := sorted(name for name in own if its[name] != own[name]):
        raise ConfigError(
            f"{found}: is of a run with another {', '.join(changed)} than {spec.name}, which was to branch off it; "
            "choose another --out, or remove both runs' folders"
        )
    there = found is not None and found.progress.step == spec.first_step
    if not there and not (folder / run_folder.DONE).is_file():
        raise CheckpointError(
            f"{spec.name}: branches off {folder.name} at step {spec.first_step}, and that run has no checkpoint there "
            "yet; train it first"
        )


def _way_there(identity: Identity) -> dict[str, Any]:
    """What decides about a run before its decay."""
    plain = identity.model_dump(mode="json", exclude={"steps"})
    return plain | {"schedule": {name: value for name, value in plain["schedule"].items() if name != "decay_steps"}}


def _as_first(found: Checkpoint) -> Checkpoint:
    """The trunk's checkpoint as its branch's."""
    spec, progress = found.spec, found.progress
    ledger = Ledger(
        step=progress.step,
        planned=spec.budget * progress.step / spec.steps,
        rollbacks=progress.rollbacks,
        rows_skipped=progress.rows_skipped,
        **{name: getattr(progress, name) for name in ledgers.NAMES},
    )
    shared = {found.manifest["identity"]: ledger}
    own = replace(progress, flops_spent=0.0, step_seconds=0.0, rollbacks=0, shared=shared)
    return Checkpoint(found.folder, {**found.manifest, "progress": asdict(own)})
