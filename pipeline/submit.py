"""`electra submit`: an experiment's work sent to where it is done, and what comes back.

The work (`pipeline.submit_work`) is a verb of this command line, run over there with the same configuration and with
results on the volume that all machines share. Guarantees: a command that is repeated finds the job it began; what has
ended unfinished is tried again, visibly; nothing is sent that the backend would refuse, as far as that can be known
here; what is printed is redacted. Ray's status does not say how a stopped driver ended: that is read from the line it
ends with.
"""

import json
import os
import shlex
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from cluster import jobs, working_dir
from cluster.stop import INTERRUPTED
from cluster.submit_config import Backend
from data_prep.errors import ConfigError, PreflightError
from data_prep.redact import redact, redacted
from pipeline import submit_rendered
from pipeline.console import Console
from pipeline.gather import CONFIG_NAME
from pipeline.submit_work import THERE, Work

_KEPT_LINES = 50


def request_of(work: Work, folder: Path) -> tuple[jobs.Request, working_dir.WorkingDir]:
    """What Ray Jobs is asked for the work, from this working directory. ConfigError where that is too large or does not
    hold the configuration."""
    submit = work.experiment.cluster.submit
    sent = working_dir.measure(folder, submit.excludes)
    words = work.words(_config_there(work, sent), submit.python, *THERE, json_=True)
    request = jobs.Request(
        submission_id=work.submission_id,
        entrypoint=shlex.join(words),
        working_dir=str(sent.path),
        excludes=sent.excludes,
        environment=submit.environment(dict(os.environ)),
        metadata={"out": work.out, "verb": work.verb, "stop_seconds": str(submit.stop_seconds)},
    )
    return request, sent


def _config_there(work: Work, sent: working_dir.WorkingDir) -> str:
    """The configuration's path as seen from the job."""
    path = work.config.absolute()
    if path.is_relative_to(work.experiment.cluster.submit.shared.path):
        return str(path)
    if sent.holds(path / CONFIG_NAME if path.is_dir() else path):
        return str(path.relative_to(sent.path))
    raise ConfigError(
        f"{work.config}: is not in what is sent of the working directory {sent.path}; put it there, name another with "
        "--working-dir, or put it on the shared volume"
    )


def submit(
    work: Work,
    backend: Backend,
    console: Console,
    *,
    folder: Path,
    address: str | None = None,
    dry_run: bool = False,
    wait: bool = False,
    again: bool = False,
    cluster_only: bool = False,
) -> dict[str, Any]:
    """Send the work, or with `dry_run` show what would be sent and reach nobody; with `cluster_only`, the machines
    without the work. The record of it, with the exit code of the work where it was waited for."""
    if cluster_only:
        if backend != "kuberay" or wait:
            raise ConfigError("--cluster-only makes a RayCluster that stays: give --backend kuberay, and no --wait")
        return submit_rendered.submit_cluster(work, console, dry_run=dry_run)
    if backend != "ray" and (address is not None or again):
        raise ConfigError(f"--address and --again are for Ray Jobs; leave them out with --backend {backend}")
    if backend == "local":
        return _here(work, console, dry_run)
    if backend != "ray":
        if wait:
            raise ConfigError(f"--wait is for Ray Jobs; what {backend} runs is told by electra events OUT")
        return submit_rendered.submit(work, backend, console, dry_run=dry_run)
    request, sent = request_of(work, folder)
    size = f"{len(sent.files)} files, {sent.package_bytes / 1024**2:.1f} MiB"
    if dry_run:
        shown = redacted(request.arguments())
        console.result(json.dumps(shown, indent=2))
        console.say(f"working directory: {size}; nothing was sent")
        return {"dry_run": True, "request": shown, "package_bytes": sent.package_bytes}
    cluster = jobs.Cluster(address)
    console.say(f"working directory {sent.path}: {size}")
    job, now = cluster.submit(request, again)
    _tell(job, now, cluster, console)
    record = {"id": job.id, "try": job.number, "submitted": now, "address": redact(cluster.address), "out": work.out}
    return {**record, "status": job.status} if not wait else {**record, **_awaited(cluster, job, console)}


def _here(work: Work, console: Console, dry_run: bool) -> dict[str, Any]:
    words = work.words(str(work.config), sys.executable, json_=work.json_)
    if dry_run:
        console.result(shlex.join(words))
        return {"dry_run": True, "command": redacted(words)}
    become(words)


def become(words: Sequence[str]) -> NoReturn:
    """This very process goes on as another command: its signals, streams and exit code are that one's."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(words[0], list(words))


def _tell(job: jobs.Job, now: bool, cluster: jobs.Cluster, console: Console) -> None:
    if not now and job.status == "SUCCEEDED":
        console.say(f"{job.id}: has succeeded already and is not submitted again; --again does")
    elif not now:
        console.say(f"{job.id}: is {job.status.lower()} already; nothing was submitted")
    else:
        retry = f", try {job.number} at it: the one before ended unfinished or was to be done again"
        console.say(f"{job.id}: submitted to {redact(cluster.address)}{retry if job.number > 1 else ''}")
    console.say(f"next: electra logs {job.id} -f, electra stop {job.id} --now")


def _awaited(cluster: jobs.Cluster, job: jobs.Job, console: Console) -> dict[str, Any]:
    """Its lines as they come; then how it ended."""
    last: deque[str] = deque(maxlen=_KEPT_LINES)

    def hear(line: str) -> None:
        last.append(line)
        console.say(redact(line))

    ended = cluster.follow(job.id, hear)
    told = jobs.told_ending(list(last)) or {}
    code = exit_code(ended, told)
    console.say(f"{ended.id}: {ended.status.lower()}, exit code {code}")
    return {"status": ended.status, "exit_code": code, "result": redacted(told)}


def exit_code(job: jobs.Job, told: dict[str, Any]) -> int:
    """Of the driver of a job that has ended, from Ray or else from what it told itself. PreflightError where the driver
    never came to an end of its own."""
    if job.exit_code is not None:
        return job.exit_code
    if job.status == "STOPPED":  # killed, where it told nothing
        return int(told.get("exit_code", INTERRUPTED))
    if job.status == "SUCCEEDED":
        return 0
    reason = redact((job.message.strip().splitlines() or ["no reason is told"])[0])
    raise PreflightError(f"{job.id}: failed outside of its command: {reason}")


def logs(target: str, console: Console, *, address: str | None, follow: bool) -> dict[str, Any]:
    """What a job has written, by its id or its folder. DataError where there is no such job."""
    cluster = jobs.Cluster(address)
    job = cluster.find(target)
    if follow:
        job = cluster.follow(job.id, lambda line: console.say(redact(line)))
    else:
        for line in redact(cluster.logs(job.id)).splitlines():  # at once: a key may have several lines
            console.say(line)
    return {"id": job.id, "status": job.status}
