"""Checkpoints that are put out of the way without being removed: broken ones, and those a rollback leaves behind."""

import contextlib
import time

from data_prep.storage import Folder
from training.checkpoints.entries import REASON, steps_of
from training.checkpoints.manifest import MANIFEST, SUPERSEDED


def set_aside(store: Folder, *, after: int) -> None:
    """Take the manifests of all checkpoints of later steps than `after` away, so that nothing resumes from them: the
    run has left their trajectory. Rank 0 calls, when nothing is being saved. Retention removes them when training has
    passed them again."""
    for name, step in steps_of(store).items():
        if step > after:
            with contextlib.suppress(FileNotFoundError):  # unfinished
                store.move(f"{name}/{MANIFEST}", f"{name}/{SUPERSEDED}")


def set_aside_broken(store: Folder, name: str, reason: str) -> None:
    """Move a checkpoint to a name that says that it is broken, the manifest first, and leave the reason with it."""
    aside = f"{name}.broken-{time.time_ns()}"
    for file in sorted(store.sub(name).names(), key=lambda file: file != MANIFEST):
        store.move(f"{name}/{file}", f"{aside}/{file}")
    store.remove(name)
    store.write_json(f"{aside}/{REASON}", {"reason": reason, "time": time.time()})
