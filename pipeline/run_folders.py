"""Runs as a person names them on the command line: one run's folder, or an experiment's for all of its runs.

Reads names and the experiment's lock, nothing else.
"""

import fcntl
from pathlib import Path

from data_prep.errors import DataError
from data_prep.storage import LOCK
from training.run_folder import RECORD


def runs_at(target: Path) -> list[Path]:
    """The folders of the runs that `target` names, by name: OUT, OUT/runs or OUT/runs/NAME. DataError where it names
    none."""
    if (target / RECORD).is_file():
        return [target]
    for folder in (target / "runs", target):
        if found := sorted(path.parent for path in folder.glob(f"*/{RECORD}")):
            return found
    raise DataError(
        f"{target}: holds no run that has begun; name an experiment's folder (OUT) or one of its runs (OUT/runs/NAME)"
    )


def is_held(run_dir: Path) -> bool:
    """Whether a command holds the experiment of a run, as `is_held_experiment` sees it."""
    return is_held_experiment(run_dir.absolute().parents[1])


def is_held_experiment(out: Path) -> bool:
    """Whether a command holds an experiment's folder, as far as this machine can see: a file system that several
    machines share need not show the locks of the others.

    Looking takes a shared lock for a moment; a command that starts just then waits for it (`storage.LOCK_SECONDS`).
    """
    try:
        with open(out / LOCK, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock file, or none that this user may read: nobody who can be seen
        return False
    return False
