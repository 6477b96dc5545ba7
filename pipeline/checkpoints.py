"""`electra checkpoints`: what a run has saved, whether it is whole, which rule keeps it, and pruning by those rules.

Pruning holds the experiment's folder, so nothing is trained, exported or evaluated meanwhile.
"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep import storage
from data_prep.errors import ConfigError, DataError
from pipeline.console import Console
from pipeline.run_folders import runs_at
from pipeline.story_words import plural, size
from training import run_folder
from training.settings import Placement

if TYPE_CHECKING:
    from training.checkpoints import Entry


def checkpoints(
    target: Path,
    console: Console,
    *,
    verify: bool = False,
    prune: bool = False,
    keep_last: int | None = None,
    broken: bool = False,
) -> dict[str, Any]:
    """List the checkpoints of the runs that `target` names, by manifests and sizes, or with `verify` by hashes.
    `prune`: first remove what retention does not keep, with another `keep_last` where that is given, and with `broken`
    what is broken. DataError where `target` names no run, ConfigError for options that change nothing without
    `prune`, PreflightError where the folder is in use or a store gives no answer."""
    if not prune and (keep_last is not None or broken):
        raise ConfigError("--keep-last, --broken: say what --prune removes; add --prune")
    runs = runs_at(target)
    removed = _prune(runs, keep_last, broken) if prune else {}
    return {"runs": [_list(run_dir, console, verify, removed.get(run_dir)) for run_dir in runs]}


def _prune(runs: list[Path], keep_last: int | None, broken: bool) -> dict[Path, list[str]]:
    from training.checkpoints import prune, store_of

    removed = {}
    with storage.LocalFolder(runs[0].absolute().parents[1]).held():
        for run_dir in runs:
            placement = _placement(run_dir)
            if keep_last is not None:
                rules = placement.checkpoints.model_copy(update={"keep_last": keep_last})
                placement = placement.model_copy(update={"checkpoints": rules})
            removed[run_dir] = prune(store_of(run_dir), placement, broken=broken)
    return removed


def _placement(run_dir: Path) -> Placement:
    spec = run_folder.read_run_record(run_dir)
    if spec is None:
        raise DataError(f"{run_dir / run_folder.RECORD}: is not the record of a run; restore it")
    return spec.placement


def _list(run_dir: Path, console: Console, verify: bool, removed: list[str] | None) -> dict[str, Any]:
    from training.checkpoints import listing, store_of

    store = store_of(run_dir)
    entries = listing(store, _placement(run_dir), verify=verify)
    if removed is not None:
        console.say(f"{run_dir.name}: {plural(len(removed), 'checkpoint')} removed{_named(removed)}")
    if entries:
        console.table(
            f"{run_dir.name} ({store}), {'verified by hash' if verify else 'by manifests and sizes'}",
            ["checkpoint", "state", "FLOPs", "tokens", "held-out loss", "size", "saved", "kept by"],
            [_row(entry) for entry in entries],
        )
    else:
        console.say(f"{run_dir.name}: no checkpoint in {store}")
    for entry in entries:
        if entry.reason is not None:
            console.warn(f"{entry.name}: {entry.reason}")
    return {
        "run": run_dir.name,
        "store": str(store),
        "checkpoints": [_record(entry) for entry in entries],
        "removed": removed or [],
    }


def _named(removed: list[str]) -> str:
    return f": {', '.join(removed)}" if removed else ""


def _row(entry: "Entry") -> list[str]:
    return [
        entry.name,
        entry.state,
        "–" if entry.flops_counted is None else f"{entry.flops_counted:.3e}",
        "–" if entry.tokens is None else f"{entry.tokens:,}",
        "–" if entry.heldout_loss is None else f"{entry.heldout_loss:.4f}",
        size(entry.bytes),
        "–" if entry.saved_at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.saved_at)),
        ", ".join(entry.kept_by) or "–",
    ]


def _record(entry: "Entry") -> dict[str, Any]:
    record = asdict(entry)
    del record["placement"]
    return record
