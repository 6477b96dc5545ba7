"""Trains one run as `electra train` does, as a process of its own that a test can signal: exit codes are the errors'.

python -m tests.cluster.driver SPEC CORPUS RUNS CLUSTER     (each JSON)
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from training.settings import RunSpec

ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def command(spec: RunSpec, corpus: Path, runs: Path, **cluster: Any) -> list[str]:
    words = [spec.model_dump(mode="json"), str(corpus), str(runs), cluster]
    return [sys.executable, "-m", "tests.cluster.driver", *map(json.dumps, words)]


def start(spec: RunSpec, corpus: Path, runs: Path, **cluster: Any) -> "subprocess.Popen[str]":
    """In a process group of its own, as a shell starts it."""
    return subprocess.Popen(
        command(spec, corpus, runs, **cluster),
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def told(run: Path, *kinds: str) -> list[Any]:
    """The run's events of these kinds; none before there are any."""
    path = run / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] in kinds]


def main(spec: str, corpus: str, runs: str, cluster: str) -> int:
    from cluster.config import ClusterConfig
    from cluster.launch import alone
    from cluster.session import session
    from cluster.trainer import train_runs
    from data_prep.errors import ElectraError
    from training import requests

    config, one = ClusterConfig.model_validate_json(cluster), RunSpec.model_validate_json(spec)
    work = [one], {one.name: json.loads(corpus)}, Path(json.loads(runs)), config, lambda spec, line: None
    requests.clear(work[2])
    try:
        if config.num_workers == 0:
            alone().train_runs(*work)
            return 0
        with session(config.address, config.num_cpus):
            train_runs(*work)
    except ElectraError as error:
        print(error, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
