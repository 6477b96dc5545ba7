"""Whose a store is: one run's, known by an id that lies in the store and in the run's folder.

Stores below `checkpoints.to` go by the names of runs, and those repeat from experiment to experiment: without the id a
run would go on from another one's checkpoints, and the two would prune one another's. Neither is the id a lock, as
object stores have none: two runs that claim a store within the same second are not told apart.
"""

import secrets
from pathlib import Path

from data_prep import storage
from data_prep.errors import ConfigError
from data_prep.storage import Folder
from training import run_folder
from training.checkpoints.entries import entries
from training.checkpoints.manifest import answering

OWNER = "owner.json"


def claim(store: Folder, run_dir: Path) -> None:
    """Rank 0, before anything is chosen from a store and before `run.json` is written anew.

    ConfigError where it is another run's, or where it is empty and this run's checkpoints lie in the store that the
    configuration named before; StoreError where one gives no answer, PreflightError where it cannot be written to.
    """
    if _is_inside(store, run_dir):
        _refuse_to_begin_anew(store, run_dir)
        return
    home = storage.folder(run_dir)
    own = _id_in(home)
    with answering(store):
        holder = _id_in(store)
    if holder is not None and holder != own:
        raise ConfigError(
            f"training.checkpoints.to: {store} holds the checkpoints of another run than {run_dir}; name another "
            f"place, or remove that folder to train anew, or copy its {OWNER} to {run_dir} to go on from them"
        )
    _refuse_to_begin_anew(store, run_dir)
    if holder is None:
        own = own or secrets.token_hex(16)
        home.write_json(OWNER, {"id": own})
        store.prepare()
        store.write_json(OWNER, {"id": own})


def _is_inside(store: Folder, run_dir: Path) -> bool:
    """In the run's own folder, where no other run's can be."""
    return store.is_local and Path(store.location).is_relative_to(run_dir.absolute())


def _id_in(folder: Folder) -> str | None:
    return None if folder.size(OWNER) is None else str(folder.read_json(OWNER)["id"])


def _refuse_to_begin_anew(store: Folder, run_dir: Path) -> None:
    before = run_folder.store_of(run_dir)
    if before.location == store.location or _holds_any(store) or not _holds_any(before):
        return
    raise ConfigError(
        f"training.checkpoints.to: {run_dir.name} has its checkpoints in {before}, and there are none in {store}; copy "
        "them there, or name their place again"
    )


def _holds_any(store: Folder) -> bool:
    return any(entry.state == "valid" for entry in entries(store))
