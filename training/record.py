"""The ledgers of a run, which grow window by window, and `done.json`, which says what came of it.

`done.json` is written last and makes a run finished; only rank 0 writes. The other files of a run's folder are in
`training.run_folder`.
"""

import platform
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from data_prep import storage
from training import run_folder
from training.checkpoints import Progress
from training.flops import executed_flops, train_flops
from training.ledgers import NAMES, total
from training.meter import Window
from training.paper_flops import train_arm
from training.settings import RunSpec


def count(progress: Progress, spec: RunSpec, window: Window, dispatched: int) -> Progress:
    """The ledgers after a window of steps, in which `dispatched` rows were computed, filler included. They grow window
    by window because placement, and so what is dispatched, may change from one attempt to the next."""
    arm, model, seq_len = spec.identity.arm, spec.identity.model, spec.identity.seq_len
    flops = train_flops(arm, model, window.flop_counts)
    executed = executed_flops(arm, model, rows=dispatched, seq_len=seq_len, compute=spec.placement.compute)
    return replace(
        progress,
        flops_counted=progress.flops_counted + flops,
        flops_spent=progress.flops_spent + flops,
        flops_executed=progress.flops_executed + executed,
        flops_paper=progress.flops_paper + train_arm(arm, model, seq_len, window.steps * spec.identity.global_batch),
        tokens=progress.tokens + int(window.flop_counts.tokens),
        step_seconds=progress.step_seconds + window.seconds,
    )


def write_done_record(
    run_dir: Path,
    spec: RunSpec,
    progress: Progress,
    *,
    heldout: dict[str, float],
    parameters: int,
    device: torch.device,
) -> None:
    """What came of a run. The ledgers, tokens and seconds contain those of the runs it began with, whose share is under
    `inherited`, and those of its trunk up to where it branched off, under `shared`, but for what it spent: that is its
    own, as its pace is."""
    begun, shared = total(progress.inherited), total(progress.shared)
    own_tokens = progress.tokens - begun.tokens - shared.tokens
    own_seconds = progress.seconds - begun.seconds - shared.seconds
    record = {
        "step": progress.step,
        "budget": spec.budget,
        "flops_per_step": spec.flops_per_step,
        "flops_counted": progress.flops_counted,
        "flops_spent": progress.flops_spent,
        "flops_executed": progress.flops_executed,
        "flops_paper": progress.flops_paper,
        "tokens": progress.tokens,
        "seconds": progress.seconds,  # evaluation and saving included
        "inherited": {name: getattr(begun, name) for name in NAMES},
        "shared": _shared(progress),
        "tokens_per_second": own_tokens / own_seconds,
        "step_seconds": progress.step_seconds,  # of the surviving trajectory; neither of the two
        "skipped_steps": progress.skipped,
        "rollbacks": progress.rollbacks,
        "start_position": progress.position - progress.step * spec.identity.global_batch - progress.rows_skipped,
        "position": progress.position,
        "skipped": [list(one) for one in progress.skipped_rows],  # positions that rollbacks led past, from and to
        "rows_skipped": progress.rows_skipped,
        "attempts": sum(event["event"] == "started" for event in run_folder.events(run_dir)),
        "checkpoint": f"step-{progress.step:08d}",
        "heldout": finite(heldout),
        "degenerate": progress.degenerate,
        "parameters": parameters,
        "world_size": dist.get_world_size(),
        "hardware": _hardware(device),
    }
    storage.write_json(run_dir / run_folder.DONE, record)


def _shared(progress: Progress) -> dict[str, float | int | str | None]:
    """With the trunk's fingerprint, and the step that it was left at; None and zeros of a run that is no branch."""
    run, step = next(((run, ledger.step) for run, ledger in progress.shared.items()), (None, 0))
    found = total(progress.shared)
    return {"run": run, "step": step, **{name: getattr(found, name) for name in NAMES}}


def finite(figures: dict[str, float]) -> dict[str, float]:
    """Without the figures that do not exist: an AUC without replaced tokens, the norm of a skipped step."""
    return {name: value for name, value in figures.items() if np.isfinite(value)}


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{dist.get_world_size()} × {torch.cuda.get_device_name(device)}"
    return f"{dist.get_world_size()} CPU process(es) on {platform.machine()}"
