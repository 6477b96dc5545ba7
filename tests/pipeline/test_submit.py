"""What is sent, and what is refused before anything is: no cluster is needed to see it."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.jobs import Job
from data_prep.errors import PreflightError
from pipeline import submit
from tests.cluster.ray_head import free_ports
from tests.pipeline.test_cli import QUICKSTART, electra, refused


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a configuration in it; one is in it."""
    folder = tmp_path / "project"
    (folder / "configs").mkdir(parents=True)
    (folder / "configs" / "a.yaml").write_text(QUICKSTART.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    return folder


def dry(*arguments: str) -> dict[str, Any]:
    done = electra("submit", "configs/a.yaml", *arguments, "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    record: dict[str, Any] = json.loads(done.stdout)
    assert (record["verb"], record["exit_code"], record["dry_run"]) == ("submit", 0, True)
    return record


# --- the request ---


def test_the_request_runs_the_verb_with_the_same_configuration(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.delenv("NOT_SET", raising=False)
    request = dry(
        "training.global_batch=32",
        "cluster.submit.env=[NCCL_DEBUG, NOT_SET]",
        "cluster.submit.stop_seconds=120",
        "--verb",
        "experiment run",
    )["request"]
    assert shlex.split(request["entrypoint"]) == [
        *["python", "-m", "pipeline.cli", "experiment", "run", "configs/a.yaml", "training.global_batch=32"],
        "cluster.submit.env=[NCCL_DEBUG, NOT_SET]",
        *["cluster.submit.stop_seconds=120", "cluster.address=auto", "cluster.num_cpus=null"],
        *["--out", "/shared/runs/quickstart", "--json"],
    ]
    assert request["runtime_env"]["working_dir"] == str(project)
    assert {".git", "runs", "*.tar"} <= set(request["runtime_env"]["excludes"])
    assert request["runtime_env"]["env_vars"] == {"NCCL_DEBUG": "WARN", "RAY_JOB_STOP_WAIT_TIME_S": "120"}
    assert request["metadata"] == {"out": "/shared/runs/quickstart", "verb": "experiment run", "stop_seconds": "120"}


def test_the_time_to_save_is_always_sent(project: Path) -> None:
    """Ray's own is three seconds."""
    assert dry()["request"]["runtime_env"]["env_vars"] == {"RAY_JOB_STOP_WAIT_TIME_S": "300"}


def test_what_the_job_runs_is_a_command_line_of_this_version(project: Path) -> None:
    """Every verb that can be submitted takes the words it is given: its help answers."""
    for verb in ("prepare", "train", "evaluate", "report", "export", "experiment run"):
        words = shlex.split(dry("--verb", verb)["request"]["entrypoint"])
        assert words[:3] == ["python", "-m", "pipeline.cli"]
        assert electra(*words[3:], "--help").exit_code == 0


# --- its id ---


def test_the_id_is_of_the_work_and_not_of_its_placement(project: Path) -> None:
    def submission_id(*arguments: str) -> str:
        return str(dry(*arguments)["request"]["submission_id"])

    first = submission_id()
    assert re.fullmatch(r"electra-quickstart-train-[0-9a-f]{8}", first)
    for placed in ("cluster.num_workers=8", "training.micro_batch=4", "training.zero_stage=0", "training.log_every=5"):
        assert submission_id(placed) == first
    others = [
        submission_id("--verb", "prepare"),
        submission_id("--out", "/shared/runs/other"),
        submission_id("training.global_batch=32"),
        submission_id("budgets=[8e11]"),
        submission_id("seed=1"),
    ]
    assert len({first, *others}) == 6
    long = submission_id("name=0A_Very.Long-Name_Of-An-Experiment", "--verb", "experiment run")
    assert re.fullmatch(r"electra-0a-very-long-na-experiment-[0-9a-f]{8}", long)
    assert len(f"{long}-r99") <= 47  # of KubeRay's names


# --- refused before anything is sent ---


def test_what_every_machine_would_not_see_is_refused(project: Path, tmp_path: Path) -> None:
    sentence = refused(2, "submit", "configs/a.yaml", "--out", "runs/x")
    assert sentence == (
        "--out runs/x: every machine must see the folder under this name; name one on the shared volume, such as "
        "/shared/runs/quickstart"
    )
    assert "--working-dir" in refused(2, "submit", QUICKSTART)
    (project / ".rayignore").write_text("configs\n")
    assert refused(2, "submit", "configs/a.yaml").startswith("configs/a.yaml: is not in what is sent of the working")


def test_a_configuration_on_the_shared_volume_need_not_be_sent(project: Path, tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(QUICKSTART.read_text(encoding="utf-8"), encoding="utf-8")
    done = electra("submit", tmp_path / "b.yaml", f"cluster.submit.shared.path={tmp_path}", "--dry-run", "--json")
    request = json.loads(done.stdout)["request"]
    assert f" {tmp_path}/b.yaml " in request["entrypoint"]
    assert request["metadata"]["out"] == f"{tmp_path}/runs/quickstart"


def test_150_mb_are_refused_with_the_biggest_paths_named(project: Path) -> None:
    with open(project / "enwiki.txt", "wb") as file:
        file.truncate(150 * 1024**2)
    sentence = refused(2, "submit", "configs/a.yaml", "--address", "http://127.0.0.1:1")
    assert "the working directory comes to 150.0 MiB, and Ray takes 100.0 MiB" in sentence
    assert "the biggest: enwiki.txt (150.0 MiB), configs/a.yaml (0.0 MiB)" in sentence
    assert dry("cluster.submit.excludes=[enwiki.txt]")["package_bytes"] < 10_000


def test_a_cluster_that_does_not_answer_is_exit_3(project: Path) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    for words in (["submit", "configs/a.yaml"], ["logs", "any"], ["stop", "any", "--now"]):
        assert refused(3, *words, "--address", url).startswith(f"no Ray dashboard answers at {url} ")
        assert "RAY_API_SERVER_ADDRESS" in refused(2, *words)
    assert refused(2, "stop", "any", "--now", "--save") == "--now ends a job and --save lets it go on: give one of them"


# --- here ---


def test_local_is_this_process_as_another_command(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []

    def become(words: list[str]) -> None:
        became.append(words)
        raise SystemExit(75)

    monkeypatch.setattr(submit, "become", become)
    arguments = ["configs/a.yaml", "seed=3", "--backend", "local", "--verb", "prepare"]
    assert electra("submit", *arguments, "--json").exit_code == 75
    out = str(project / "runs" / "quickstart")
    words = [*["-m", "pipeline.cli", "prepare", "configs/a.yaml", "seed=3", "--out"], out]
    assert became == [[sys.executable, *words, "--json"]]
    assert shlex.split(electra("submit", *arguments, "--dry-run").stdout) == [sys.executable, *words]


# --- other schedulers ---


@pytest.mark.parametrize(("backend", "command"), [("kuberay", "kubectl"), ("slurm", "sbatch")])
def test_a_schedulers_command_gets_the_text_of_the_dry_run(
    backend: str, command: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for it keeps what it is given; then there is none, and then one that refuses."""
    settings = ["cluster.submit.image=registry/electra:1", "cluster.submit.shared.claim=shared", "seed=5"]
    settings += ["cluster.submit.worker_groups=[{cpus: 4, replicas: 1}]"]
    words = ["submit", "configs/a.yaml", *settings, "--backend", backend]
    monkeypatch.setenv("PATH", str(tmp_path))  # never a real one, which might reach a cluster
    shown = electra(*words, "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert f"electra-quickstart-train-{dry(*settings)['request']['submission_id'][-8:]}" in shown.stdout
    assert "seed: 5" in shown.stdout  # the configuration is in it, and needs no override
    assert "cluster.address=auto" in shown.stdout and "seed=5" not in shown.stdout

    assert refused(3, *words).startswith(f"{command} is not installed here; --dry-run prints")
    tool = tmp_path / command
    tool.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/words\n/bin/cat >{tmp_path}/text\necho taken as 17\n')
    tool.chmod(0o755)
    sent = electra(*words, "--json")
    assert (sent.exit_code, json.loads(sent.stdout)["said"]) == (0, "taken as 17")
    assert (tmp_path / "text").read_text().rstrip("\n") == shown.stdout.rstrip("\n")
    tool.write_text("#!/bin/sh\necho no quota >&2\nexit 1\n")
    assert refused(3, *words) == f"{command} refuses: no quota"
    assert refused(2, *words, "--wait").startswith("--wait is for Ray Jobs")
    for ignored in (["--again"], ["--address", "http://127.0.0.1:8265"]):
        assert refused(2, *words, *ignored).startswith("--address and --again are for Ray Jobs; leave them out with")


def test_what_a_scheduler_would_refuse_is_not_sent(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No image is named."""
    monkeypatch.setenv("PATH", str(project))
    sentence = refused(2, "submit", "configs/a.yaml", "--backend", "kuberay")
    assert sentence.startswith("kuberay would not run this: ") and "cluster.submit.image" in sentence


def test_a_cluster_that_stays(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A RayCluster alone, named after the experiment and not after its work, with the machines that its jobs have."""
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = ["cluster.submit.image=registry/electra:1", "cluster.submit.shared.claim=shared"]
    settings += ["cluster.submit.namespace=research", "cluster.submit.worker_groups=[{replicas: 3, cpus: 8}]"]
    words = ["submit", "configs/a.yaml", *settings, "--backend", "kuberay"]
    shown = electra(*words, "--cluster-only", "--dry-run", "--json", "--verb", "prepare")
    assert shown.exit_code == 0, shown.output
    record = json.loads(shown.stdout)
    assert record["id"] == "electra-quickstart"
    (document,) = yaml.safe_load_all(record["text"])
    job = list(yaml.safe_load_all(json.loads(electra(*words, "--dry-run", "--json").stdout)["text"]))[1]
    assert (document["kind"], document["metadata"]["name"]) == ("RayCluster", "electra-quickstart")
    (machines,), (of_job,) = (
        [(group["replicas"], group["template"]) for group in one["workerGroupSpecs"]]
        for one in (document["spec"], job["spec"]["rayClusterSpec"])
    )
    assert machines == of_job and machines[0] == 3
    assert document["spec"]["authOptions"] == {"mode": "token"}
    assert "kubectl port-forward -n research service/electra-quickstart-head-svc 8265:8265" in shown.stderr
    assert "`kubectl get secret -n research electra-quickstart -o jsonpath={.data.auth_token}" in shown.stderr
    for wrong in (["--backend", "slurm"], ["--backend", "kuberay", "--wait"], []):
        sentence = refused(2, "submit", "configs/a.yaml", "--cluster-only", *wrong)
        assert sentence.startswith("--cluster-only makes a RayCluster that stays: give --backend kuberay")
    missing = refused(2, "submit", "configs/a.yaml", "--backend", "kuberay", "--cluster-only")
    assert "cluster.submit.image: required" in missing


# --- how it ended ---


@pytest.mark.parametrize(
    ("status", "driver", "told", "code"),
    [
        ("SUCCEEDED", 0, {"exit_code": 0}, 0),
        ("FAILED", 4, {}, 4),
        ("FAILED", 75, {"exit_code": 75}, 75),
        ("STOPPED", None, {"exit_code": 75}, 75),  # Ray does not keep it
        ("STOPPED", None, {}, 130),  # killed before it had ended
    ],
)
def test_the_exit_code_is_the_drivers(status: str, driver: int | None, told: dict[str, Any], code: int) -> None:
    job = Job(id="a", status=status, started=0.0, message="", exit_code=driver, metadata={})
    assert submit.exit_code(job, told) == code


def test_a_job_whose_driver_never_ran_is_exit_3() -> None:
    job = Job(id="a", status="FAILED", started=0.0, message="no such pip\nat x", exit_code=None, metadata={})
    with pytest.raises(PreflightError, match=r"^a: failed outside of its command: no such pip$"):
        submit.exit_code(job, {})
