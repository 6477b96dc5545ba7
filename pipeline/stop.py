"""`electra stop`: ask what trains in a folder to save, and to end or to go on.

A request is a file beside the runs (`training.requests`); a command that takes the folder clears it first, so one that
nobody answers does no harm later. `--now` goes another way: Ray ends the job, whatever it is at.
"""

from pathlib import Path
from typing import Any

from cluster.jobs import Cluster
from data_prep.errors import ConfigError
from pipeline.console import Console
from pipeline.place import shown
from pipeline.run_folders import is_held, runs_at
from pipeline.sweep import FOLDER
from training import requests


def stop(target: Path, console: Console, *, reason: str, save_only: bool = False) -> dict[str, Any]:
    """Leave the request in the folder of the runs that `target` names, and say what will come of it. DataError where it
    names none."""
    run_dir = runs_at(_at_work(target))[0]
    runs_dir, held = run_dir.absolute().parent, is_held(run_dir)
    what: requests.Asked = "save" if save_only else "stop"
    requests.ask(runs_dir, what, reason)
    where = shown(runs_dir.parent)
    if save_only:
        console.say(f"asked {where} to save: the run that trains saves after one of its next steps and goes on")
    else:
        console.say(
            f"asked {where} to stop: the run that trains saves after one of its next steps, no other is begun, and its "
            "command ends with exit code 75; the same command again resumes"
        )
    if not held:
        console.warn(
            f"no command on this machine works in {where}; unless one does on another machine, the request comes to "
            "nothing, and the next command that trains there clears it"
        )
    return {"asked": what, "reason": reason, "runs": str(runs_dir), "held": held}


def stop_job(target: str, console: Console, *, address: str | None, save_only: bool) -> dict[str, Any]:
    """Have Ray end the job of this id or folder: SIGTERM, on which training saves, and SIGKILL when the job's
    `stop_seconds` are over. DataError where there is no such job."""
    if save_only:
        raise ConfigError("--now ends a job and --save lets it go on: give one of them")
    cluster = Cluster(address)
    job = cluster.find(target)
    asked = not job.ended and cluster.stop(job.id)
    if asked:
        seconds = job.metadata.get("stop_seconds", "a few")
        console.say(f"{job.id}: told to save and end; what of it is left after {seconds} s is killed")
    else:
        console.say(f"{job.id}: has ended already ({job.status.lower()})")
    return {"job": job.id, "asked": asked}


def _at_work(target: Path) -> Path:
    """The sweep of the experiment that was named, while a command works in it; else what was named."""
    within = target / FOLDER
    return within if is_held(within / "runs" / "any") else target
