"""A driver or a worker killed amid a grid, and the same command again: the results of a grid that nobody disturbed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.pipeline.tiny_evaluation import config, write_glue, write_model

pytestmark = [pytest.mark.slow, pytest.mark.multi]

DRIVER = """
import sys
from pathlib import Path
from cluster.session import session
from pipeline import evaluate_work
from pipeline.console import Console
from pipeline.evaluate import evaluate_model
from pipeline.evaluate_targets import model_at
from training.protocol import EvaluationConfig

config, model, out = sys.argv[1:]
with session(num_cpus=1):
    settings = EvaluationConfig.model_validate_json(config)
    evaluate_model(Path(out), settings, model_at(Path(model)), corpus=None, console=Console(sys.stderr))
"""


def start(folder: Path, out: Path) -> subprocess.Popen[str]:
    asked = config(folder, suites=["glue"], squad_dir=None, blimp=None, tasks=["RTE", "STS-B"], seeds=3)
    command = [sys.executable, "-c", DRIVER, asked.model_dump_json(), str(folder / "tiny-bert"), str(out)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, text=True)


def records(out: Path) -> dict[str, bytes]:
    """Each record of a unit: what it took is in it, so a unit that ran again has another."""
    return {path.name: path.read_bytes() for path in (out / "evaluation" / "units").glob("*.json")}


def results(out: Path) -> set[str]:
    """The rows of results.jsonl, without what they took."""
    rows: list[dict[str, Any]] = [
        json.loads(line) for line in (out / "evaluation" / "results.jsonl").read_text().splitlines()
    ]
    times = ("seconds", "cpu_seconds")
    return {json.dumps({name: value for name, value in row.items() if name not in times}) for row in rows}


def wait_for_records(driver: subprocess.Popen[str], out: Path, count: int) -> None:
    deadline = time.monotonic() + 240
    while len(records(out)) < count:
        assert driver.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def children(pid: int) -> list[int]:
    """The processes below `pid` that run a unit."""
    found, below = [], {pid}
    stats = [Path("/proc") / name for name in os.listdir("/proc") if name.isdigit()]
    parents = {}
    for path in stats:
        try:
            text = (path / "stat").read_text()
            parents[int(path.name)] = int(text.rpartition(")")[2].split()[1])
        except OSError:  # gone since
            continue
    while more := [child for child, parent in parents.items() if parent in below and child not in below]:
        below.update(more)
    for child in below:
        try:
            if b"ray::_execute" in (Path("/proc") / str(child) / "cmdline").read_bytes():
                found.append(child)
        except OSError:
            continue
    return found


def test_killed_driver_and_worker_leave_the_same_results_and_nothing_runs_twice(tmp_path: Path) -> None:
    folder = write_glue(tmp_path / "glue", "RTE", "STS-B", rows=200).parent
    write_model(folder / "tiny-bert")
    undisturbed = start(folder, tmp_path / "undisturbed")

    out = tmp_path / "disturbed"
    driver = start(folder, out)
    wait_for_records(driver, out, 1)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    kept = records(out)
    assert 1 <= len(kept) < 6
    assert not (out / "evaluation" / "results.jsonl").exists()

    driver = start(folder, out)
    wait_for_records(driver, out, len(kept) + 1)
    while not (killed := children(driver.pid)):
        assert driver.poll() is None, "no worker was seen at work"
    kept = records(out)
    for worker in killed:
        os.kill(worker, signal.SIGKILL)
    assert driver.wait(timeout=300) == 0
    assert undisturbed.wait(timeout=300) == 0

    assert results(out) == results(tmp_path / "undisturbed")
    assert len(results(out)) == 6
    after = records(out)
    assert len(after) == 6
    assert {name: after[name] for name in kept} == kept
