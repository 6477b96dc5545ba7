"""The road of a run that is killed, asked to stop and resumed, as a person walks it with `electra`."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.pipeline.test_cli import QUICKSTART, ROOT, electra
from tests.training.synthetic import write_corpus

NAME = "electra-300steps-s0"
SETTINGS = [
    "corpus.seq_len=32",
    "model={embedding_size: 8, hidden_size: 8, num_layers: 1, num_heads: 1, intermediate_size: 8, max_positions: 32}",
    "arms=[{objective: electra, learning_rate: 0.001}]",
    "budgets=null",
    "steps=300",
    "training={global_batch: 8, micro_batch: 8, log_every: 10, eval_rows: 16, engine: ddp, checkpoints: {every: 20}}",
    "cluster.num_workers=0",
]


def train(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    command = [sys.executable, "-m", "pipeline.cli", "train", str(QUICKSTART), "--out", "out", *SETTINGS, *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


@pytest.mark.slow
def test_killed_then_asked_to_stop_then_finished(tmp_path: Path) -> None:
    """A checkpoint every 20 steps, a line every 10: of a kill after step 55, 15 steps are lost, 10 of them logged."""
    folder = tmp_path / "out"
    run, events = folder / "runs" / NAME, folder / "runs" / NAME / "events.jsonl"
    write_corpus(folder / "corpus", rows=200)

    # killed by a fault: nothing is said, as by any SIGKILL
    assert ended(train(tmp_path, "training.faults=[{kind: kill, step: 55}]"))[0] == -9
    told = electra("events", folder).stdout
    assert "fault injected at step 55, rank 0: kill" in told and "at step 55 or later (killed?)" in told

    # resumed, and asked to stop as soon as it trains
    process = train(tmp_path, "--json")
    until = time.monotonic() + 120
    while events.read_text().count('"started"') < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert "warning" not in electra("stop", folder, "--reason", "lunch").output  # somebody trains there
    code, out, err = ended(process)
    record = json.loads(out)
    assert (code, record["exit_code"]) == (75, 75), err
    assert record["error"].startswith(f"{NAME}: stopped at step ")
    assert record["error"].endswith(" of 300 (lunch), saved; the same command again resumes")
    assert f"train: {NAME}: resumes at step 40 from step-00000040" in err

    # the same command again
    code, out, err = ended(train(tmp_path))
    assert code == 0, err
    stopped = next(json.loads(line) for line in events.read_text().splitlines() if '"stopped"' in line)
    assert f"train: {NAME}: resumes at step {stopped['step']} from step-{stopped['step']:08d}" in out
    assert "2 resumptions and 0 rollbacks, 15 steps lost: see electra events out" in out

    (told_run,) = json.loads(electra("events", run, "--json").stdout)["runs"]
    costs = [(entry["event"], entry["cost"]["steps"]) for entry in told_run["entries"] if entry["cost"] is not None]
    assert costs == [("silent", 15), ("stopped", 0)]
    totals, done = told_run["totals"], json.loads((run / "done.json").read_text())
    assert (totals["attempts"], totals["step"], totals["steps_lost"]) == (3, 300, 15)
    assert totals["flops_counted"] == done["flops_counted"]
    assert totals["flops_spent"] == done["flops_spent"]
    lost = (done["flops_spent"] - done["flops_counted"]) / done["flops_per_step"]
    assert 9 < lost < 16  # rows differ in length
    assert totals["useful_seconds"] == pytest.approx(done["step_seconds"])
    assert 0 < totals["goodput"] < 1
    rows = [line.split()[:2] for line in electra("checkpoints", folder, "--verify").stdout.splitlines()[3:]]
    assert rows == [["step-00000280", "valid"], ["step-00000300", "valid"]]
