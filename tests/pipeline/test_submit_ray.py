"""A cluster operator's day against a real Ray head that asks for a token: submit, follow, stop, again, finish."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.namespaces import wait_for
from tests.cluster.ray_head import TOKEN, Head, ray_head
from tests.conftest import ROOT, Road
from tests.pipeline.test_cli import QUICKSTART
from tests.pipeline.test_examples import examples, needs_a_cluster
from tests.training.synthetic import write_corpus

pytestmark = [pytest.mark.multi, pytest.mark.slow]

STEPS = 2000
NAME = f"electra-{STEPS}steps-s0"
SETTINGS = [
    "corpus.seq_len=32",
    "model={embedding_size: 8, hidden_size: 8, num_layers: 1, num_heads: 1, intermediate_size: 8, max_positions: 32}",
    "evaluation.protocol.max_length=32",
    "arms=[{objective: electra, learning_rate: 0.001}]",
    "budgets=null",
    f"steps={STEPS}",
    "training={global_batch: 8, micro_batch: 8, log_every: 20, eval_rows: 16, engine: ddp, checkpoints: {every: 100}}",
    "cluster.num_workers=1",
    f"cluster.submit.python={sys.executable}",
    "cluster.submit.env=[PYTHONPATH]",
    "cluster.submit.stop_seconds=90",
]


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with ray_head() as head:
        yield head


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.yaml").write_text(QUICKSTART.read_text(encoding="utf-8"), encoding="utf-8")
    return folder


class Operator:
    """Types commands in a working directory."""

    def __init__(self, head: Head, project: Path) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.environment = {**inherited, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **head.environment}
        self.project = project

    def begins(self, *words: str | Path) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "pipeline.cli", *map(str, words)]
        return subprocess.Popen(
            command, cwd=self.project, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def types(self, *words: str | Path) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        process = self.begins(*words)
        out, err = process.communicate(timeout=240)
        return process.returncode, out, err


@pytest.mark.long
def test_submit_follow_stop_submit_again_finish(head: Head, project: Path, tmp_path: Path) -> None:
    operator, out = Operator(head, project), tmp_path / "shared" / "x"
    write_corpus(out / "corpus", rows=200)
    events, submit = out / "runs" / NAME / "events.jsonl", ["submit", "a.yaml", *SETTINGS, "--out", out]

    code, told, err = operator.types(*submit, "--json")
    assert code == 0, err
    first = json.loads(told)
    assert (first["submitted"], first["try"], first["out"]) == (True, 1, str(out))

    # the same again finds it, and follows it
    following = operator.begins(*submit, "--wait")
    wait_for(lambda: events.exists() and '"saved"' in events.read_text(), 120, "it trains and has saved")
    code, told, err = operator.types("stop", out, "--now", "--json")
    assert (code, json.loads(told)["job"], json.loads(told)["asked"]) == (0, first["id"], True), err
    told, err = following.communicate(timeout=240)
    assert following.returncode == 75, (told, err)
    assert re.search(rf"{first['id']}: is (pending|running) already; nothing was submitted", told)
    assert f"{first['id']}: stopped, exit code 75" in told
    stopped = next(json.loads(line) for line in events.read_text().splitlines() if '"stopped"' in line)
    assert 0 < stopped["step"] < STEPS
    assert (out / "runs" / NAME / "checkpoints" / f"step-{stopped['step']:08d}" / "manifest.json").is_file()

    # submitted again: a visible retry, which goes on from there
    code, told, err = operator.types(*submit, "--wait")
    assert code == 0, (told, err)
    assert f"{first['id']}-r2: submitted to {head.url}, try 2 at it" in told
    assert f"train: {NAME}: resumes at step {stopped['step']} from step-{stopped['step']:08d}" in told
    assert f"{first['id']}-r2: succeeded, exit code 0" in told
    assert json.loads((out / "runs" / NAME / "done.json").read_text())["step"] == STEPS

    # and again: there is nothing to do
    code, told, err = operator.types(*submit, "--json")
    assert (code, json.loads(told)["submitted"], json.loads(told)["id"]) == (0, False, f"{first['id']}-r2"), err
    code, told, _ = operator.types("logs", out, "-f")
    assert code == 0 and f"resumes at step {stopped['step']}" in told
    code, told, _ = operator.types("logs", first["id"])
    assert code == 0 and "stopped at step" in told and "resumes at step" not in told


def test_the_drivers_own_exit_code(head: Head, project: Path, tmp_path: Path) -> None:
    """No run to report on is 4; Ray's own command line would end with 1."""
    operator = Operator(head, project)
    words = ["submit", "a.yaml", *SETTINGS, "--out", tmp_path / "none", "--verb", "report", "--wait", "--json"]
    code, told, err = operator.types(*words)
    record = json.loads(told)
    assert (code, record["exit_code"], record["status"]) == (4, 4, "FAILED"), err
    assert record["result"]["exit_code"] == 4
    assert TOKEN not in told + err


def test_doctor_sees_the_head(head: Head, project: Path, tmp_path: Path) -> None:
    """What it is, that it asks for a token, and whether the work fits; with another token, why not."""
    operator = Operator(head, project)
    operator.environment["HF_HUB_OFFLINE"] = "1"
    words = ["doctor", "a.yaml", *SETTINGS, "--out", tmp_path, "--json"]
    code, told, err = operator.types(*words, "--bundle", tmp_path / "report.tar.gz", "--address", head.url)
    found = {one["check"]: one for one in json.loads(told)["findings"]}
    assert (found["ray"]["state"], found["ray authentication"]["state"]) == ("ok", "ok"), found
    assert f"at {head.url}: 1 node(s), 2 CPUs" in found["ray"]["said"]
    assert found["ray authentication"]["said"].startswith("asks for a token")
    assert code == 3 * any(one["state"] == "error" for one in found.values()), err
    assert (tmp_path / "report.tar.gz").is_file()
    code, told, _ = operator.types(*words, "cluster.num_workers=3")
    ray = next(one for one in json.loads(told)["findings"] if one["check"] == "ray")
    assert (code, ray["state"]) == (3, "error") and "3 workers of 1 CPU do not fit" in ray["said"]
    operator.environment["RAY_AUTH_TOKEN"] = "0" * 56
    code, told, err = operator.types(*words)
    ray = next(one for one in json.loads(told)["findings"] if one["check"] == "ray")
    assert (code, ray["state"]) == (3, "error") and "refuses the token" in ray["said"]
    assert TOKEN not in told + err and "RAY_AUTH_TOKEN" in ray["remedy"]


def test_the_helps_examples_that_name_a_cluster(head: Head, road: Road) -> None:
    """In the order of a day, on an experiment that is finished, so that the job has little to do."""
    operator, shared = Operator(head, road.folder), road.out.parent.parent
    here = [
        f"cluster.submit.{one}" for one in (f"shared.path={shared}", f"python={sys.executable}", "env=[PYTHONPATH]")
    ]
    found = {example.split()[0]: shlex.split(example) for example in examples() if needs_a_cluster(example)}
    day = ["submit", "logs", "status", "stop", "doctor"]
    assert found.keys() == set(day)
    for verb in day:
        words = [head.url if word.startswith("http://") else word for word in found[verb]]
        words = [word.replace("/shared/", f"{shared}/") for word in words] + (here if verb == "submit" else [])
        code, told, err = operator.types(*words)
        assert code in ((0, 3) if verb == "doctor" else (0,)), (words, told, err)
        assert {"submit": "succeeded, exit code 0", "logs": "all 4 runs are done", "status": "4 of 4 runs begun"}.get(
            verb, ""
        ) in told  # fmt: skip


@pytest.mark.parametrize("token", [None, "0" * 56])
def test_a_wrong_token_and_none(head: Head, project: Path, token: str | None) -> None:
    operator = Operator(head, project)
    operator.environment |= {"RAY_AUTH_MODE": "disabled"} if token is None else {"RAY_AUTH_TOKEN": token}
    code, told, err = operator.types("logs", "any")
    assert (code, told) == (3, "")
    assert err.startswith(
        f"electra: the cluster at {head.url} refuses the token, or wants one: set RAY_AUTH_MODE=token"
    )
    assert err.count("\n") == 1 and TOKEN not in err and "0000" not in err


@pytest.mark.long
def test_a_head_that_dies_while_it_is_followed(project: Path, tmp_path: Path) -> None:
    """Of its own: the others need theirs."""
    with ray_head(cpus=1) as head:
        operator = Operator(head, project)
        write_corpus(tmp_path / "y" / "corpus", rows=200)
        events = tmp_path / "y" / "runs" / NAME / "events.jsonl"
        process = operator.begins("submit", "a.yaml", *SETTINGS, "--out", tmp_path / "y", "--wait")
        wait_for(lambda: events.exists() and '"started"' in events.read_text(), 120, "it trains")
        head.end()
        began = time.monotonic()
        told, err = process.communicate(timeout=120)
        assert process.returncode == 3, (told, err)
        assert f"electra: no Ray dashboard answers at {head.url} (" in err and err.count("electra: ") == 1
        assert time.monotonic() - began < 60
        assert "electra events OUT" in err
