"""Checkpoints: saved beside training, complete or not there, verified before they are used, kept by rule.

`Saver` writes them, `choose` finds the one to resume from, `restore` loads it into an engine and `prove` shows that the
engine holds what was saved. `listing` and `prune` are what an operator sees of them.
"""

from training.checkpoints.aside import set_aside
from training.checkpoints.entries import Entry
from training.checkpoints.manifest import MANIFEST, VERSION, Checkpoint, Progress, read, verify
from training.checkpoints.ownership import claim
from training.checkpoints.preflight import check_shared, check_temporary, preflight
from training.checkpoints.proof import prove, rows_hash
from training.checkpoints.restore import choose, load_objective, load_tensors, newest, objective_of, restore
from training.checkpoints.retention import kept, listing, prune
from training.checkpoints.saver import Outcome, Saver
from training.run_folder import checkpoint_name, store, store_of

__all__ = [
    "MANIFEST",
    "VERSION",
    "Checkpoint",
    "Entry",
    "Outcome",
    "Progress",
    "Saver",
    "check_shared",
    "check_temporary",
    "checkpoint_name",
    "choose",
    "claim",
    "kept",
    "listing",
    "load_objective",
    "load_tensors",
    "newest",
    "objective_of",
    "preflight",
    "prove",
    "prune",
    "read",
    "restore",
    "rows_hash",
    "set_aside",
    "store",
    "store_of",
    "verify",
]
