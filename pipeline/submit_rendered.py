"""Work for schedulers that are given a text: KubeRay's operator by kubectl, Slurm by sbatch.

The configuration travels in the text, every setting spelled out, so that what is tried again is what was submitted.
Nothing with a finding is sent (`cluster.render`). kubectl applies the same work under the same name once; Slurm queues
it as often as it is told to. Not here: what became of it, which kubectl, squeue and the run's folder tell.
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from cluster.render import Job, Rendered, kuberay, slurm
from data_prep.errors import ConfigError, PreflightError
from data_prep.redact import redact
from pipeline import config as yaml_config
from pipeline.console import Console
from pipeline.submit_work import THERE, Work

Scheduler = Literal["kuberay", "slurm"]
_SEND_SECONDS = 120.0


def render(work: Work, backend: Scheduler) -> Rendered:
    """The text for the work, and what is wrong with it."""
    cluster, name = work.experiment.cluster, work.submission_id
    scheduler = kuberay if backend == "kuberay" else slurm
    config = scheduler.config_path(cluster.submit, name)
    words = replace(work, overrides=()).words(config, cluster.submit.python, *THERE, json_=True)
    job = Job(id=name, words=tuple(words), experiment=yaml_config.dump(work.experiment), out=work.out)
    return kuberay.render(job, cluster, dict(os.environ)) if backend == "kuberay" else slurm.render(job, cluster)


def submit(work: Work, backend: Scheduler, console: Console, *, dry_run: bool) -> dict[str, Any]:
    """Send the work, or with `dry_run` show the text alone, redacted. ConfigError for a text with findings, of which
    the dry run shows the text first; PreflightError where the scheduler's command refuses it."""
    return _sent(render(work, backend), work.submission_id, work.out, backend, console, dry_run)


def submit_cluster(work: Work, console: Console, *, dry_run: bool) -> dict[str, Any]:
    """As `submit`, of a RayCluster with the machines that the work asks for, which does none and stays until it is
    deleted."""
    cluster, name = work.experiment.cluster, work.cluster_id
    rendered = kuberay.render_cluster(name, cluster, dict(os.environ))
    record = _sent(rendered, name, work.out, "kuberay", console, dry_run)
    at = f"-n {cluster.submit.namespace} " if cluster.submit.namespace else ""
    console.say(
        f"next: kubectl port-forward {at}service/{name}-head-svc 8265:8265; electra submit CONFIG --backend ray "
        f"--address http://127.0.0.1:8265, with the token that `kubectl get secret {at}{name} -o "
        "jsonpath={.data.auth_token} | base64 -d` tells in RAY_AUTH_TOKEN, and RAY_AUTH_MODE=token"
    )
    return record


def _sent(
    rendered: Rendered, name: str, out: str, backend: Scheduler, console: Console, dry_run: bool
) -> dict[str, Any]:
    if dry_run:
        console.result(rendered.text.rstrip("\n"))
    if rendered.findings:
        raise ConfigError(f"{backend} would not run this: {'; '.join(map(redact, rendered.findings))}")
    record = {"id": name, "out": out, "command": list(rendered.command)}
    if dry_run:
        return {"dry_run": True, **record, "text": redact(rendered.text)}
    said = redact(_send(rendered.command, rendered.text))
    console.say(f"{name}: {said}")
    return {**record, "said": said}


def _send(command: Sequence[str], text: str) -> str:
    try:
        sent = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_SEND_SECONDS, check=False)
    except FileNotFoundError:
        raise PreflightError(
            f"{command[0]} is not installed here; --dry-run prints what it would be given on its standard input"
        ) from None
    except subprocess.TimeoutExpired:
        raise PreflightError(
            f"{command[0]} gives no answer within {_SEND_SECONDS:.0f} s; see whether it took it"
        ) from None
    if sent.returncode != 0:
        reason = redact(" ".join(sent.stderr.split())) or f"exit code {sent.returncode}"
        raise PreflightError(f"{command[0]} refuses: {reason}")
    return " ".join(sent.stdout.split())
