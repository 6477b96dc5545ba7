"""`electra status`: what an operator reads, of all experiments, of one, of one run, and of a cluster beside them."""

import fcntl
import json
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.jobs import Job
from cluster.nodes import Node
from data_prep.errors import DataError, PreflightError
from pipeline import place, status
from pipeline.run_status import RunStatus
from tests.cluster.ray_head import free_ports
from tests.pipeline.stories import Told
from tests.pipeline.test_cli import QUICKSTART, electra, refused


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def experiment(out: Path, *settings: str) -> Path:
    """The folder of one in which nothing has been trained."""
    out.mkdir(parents=True)
    (out / "config.yaml").write_text(QUICKSTART.read_text(encoding="utf-8"), encoding="utf-8")
    return out


def recent(**figures: float) -> Told:
    """One that is told from a minute ago."""
    return Told(now=time.time() - 60, figures=figures)


def finished(steps: int) -> Told:
    return Told().start().train(steps).event("finished", step=steps)


def rows(text: str) -> list[list[str]]:
    """The cells of the lines of tables, which two blanks part."""
    return [[cell.strip() for cell in line.strip().split("  ") if cell.strip()] for line in text.splitlines()]


# --- all experiments --------------------------------------------------------------------------------------------------


def test_without_a_folder_all_experiments_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = finished(20).write(experiment(Path("runs/a")) / "runs" / "bert-s0", 20)
    (done / "done.json").write_text("{}")
    run = recent().start().train(10)
    run.write(experiment(Path("runs/b")) / "runs" / "electra-s0", 40)
    Told().start().train(5).write(experiment(Path("runs/c")) / "runs" / "electra-s0", 40)
    experiment(Path("runs/d"))
    told = electra("status")
    assert (told.exit_code, told.stderr) == (0, "")
    table = {row[0]: row[1:] for row in rows(told.stdout)[3:]}
    assert table["runs/a"][:2] == ["unfinished", "1 of 6"]  # three arms, two budgets, one seed
    assert table["runs/b"][:4] == ["training", "0 of 6", "electra-s0", "10/40"]
    assert table["runs/c"][:4] == ["killed", "0 of 6", "electra-s0", "5/40"]
    assert table["runs/d"] == ["nothing trained", "0 of 6", "–", "–", "–", "–"]


def test_nothing_to_tell_of_says_how_to_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = electra("status", "--json")
    assert told.stderr == "no experiment in runs/; name a folder, or begin one: electra quickstart\n"
    assert json.loads(told.stdout) == {"verb": "status", "exit_code": 0, "experiments": [], "cluster": None}


def test_a_run_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = experiment(Path("runs/a"))
    broken = Told().start().train(5).write(out / "runs" / "bert-s0", 40) / "metrics" / "A-00000.jsonl"
    broken.write_bytes(b"\x00\x00\n" + broken.read_bytes())
    Told().start().train(10).write(out / "runs" / "electra-s0", 40)
    for target in ([], ["runs/a"]):
        told = electra("status", *target)
        assert told.exit_code == 0
        assert "10/40" in told.stdout
        assert "warning: runs/a/runs/bert-s0/metrics/A-00000.jsonl:1: not a JSON line" in told.stdout


# --- one experiment, one run ------------------------------------------------------------------------------------------


def test_the_runs_of_an_experiment(tmp_path: Path) -> None:
    out = experiment(tmp_path / "out")
    figures = {"train/loss": 2.5, "tokens_per_second": 12345.6, "data_wait": 0.021}
    (finished(20).write(out / "runs" / "bert-s0", 20) / "done.json").write_text("{}")
    run = recent(**figures).start().train(10).event("failed", step=10, reason="a worker died").start(5).train(10)
    run.write(out / "runs" / "electra-s0", 40)
    told = electra("status", out)
    assert told.stdout.splitlines()[0].startswith(f"{out}: 2 of 6 runs begun, 1 finished; ")
    table = {row[0]: row[1:] for row in rows(told.stdout)}
    assert table["run"] == [
        "state",
        "step",
        "FLOPs",
        "tokens/s",
        "waits for data",
        "loss",
        "left",
        "restarts",
        "goodput",
    ]  # nobody knows MFU, a held-out loss or a checkpoint
    # steps 5 to 15 again: 20 s for 10 steps; 15 × 1.5 s of useful steps in 40 s
    assert table["electra-s0"] == [
        "training", "15/40", "1.50e+02/4.00e+02", "12,346", "2.1%", "2.5000", "50 s", "1", "56.2%"
    ]  # fmt: skip
    assert table["bert-s0"] == ["finished", "20/20", "2.00e+02/2.00e+02", "–", "–", "–", "–", "0", "75.0%"]
    assert "  electra-s0: restart 1: failed at step 10: a worker died" in told.stdout.splitlines()


def test_one_run_is_told_by_itself(tmp_path: Path) -> None:
    out = experiment(tmp_path / "out")
    run_dir = Told().start().train(10).event("stopped", step=10, reason="SIGTERM").write(out / "runs" / "x", 40)
    Told().start().train(5).write(out / "runs" / "y", 40)
    assert electra("status", run_dir).stdout.splitlines() == [
        f"{run_dir}",
        "  state     stopped",
        "  step      10/40",
        "  FLOPs     1.00e+02/4.00e+02",
        "  restarts  0",
        "  goodput   75.0%",
    ]


def test_as_json(tmp_path: Path) -> None:
    out = experiment(tmp_path / "out")
    Told().start().train(10).event("stopped", step=10, reason="SIGTERM").write(out / "runs" / "x", 40)
    told = electra("status", out, "--json")
    record = json.loads(told.stdout)
    assert (record["verb"], record["exit_code"], record["cluster"]) == ("status", 0, None)
    ((found,), (run,)) = record["experiments"], record["experiments"][0]["runs"]
    assert {**found, "runs": None} == {
        "out": str(out), "held": False, "working": False, "planned": 6, "runs": None, "seconds_left": None,
        "unreadable": [],
    }  # fmt: skip
    assert (run["run"], run["state"], run["step"], run["steps"], run["flops"]) == ("x", "stopped", 10, 40, 100.0)
    assert (run["goodput"], run["checkpoint"], run["restarts"]) == (0.75, None, [])


def test_runs_of_a_sweep_come_first(tmp_path: Path) -> None:
    out = experiment(tmp_path / "out")
    Told().start().train(5).write(experiment(out / "sweep") / "runs" / "electra-lr1e-3", 10)
    assert [line for line in electra("status", out).stdout.splitlines() if "begun" in line] == [
        f"{out}/sweep: 1 of 6 runs begun, 0 finished"
    ]
    Told().start().train(5).write(out / "runs" / "electra-s0", 10)
    assert [line for line in electra("status", out).stdout.splitlines() if "begun" in line] == [
        f"{out}/sweep: 1 of 6 runs begun, 0 finished",
        f"{out}: 1 of 6 runs begun, 0 finished",
    ]


def test_an_experiment_in_which_nothing_has_begun(tmp_path: Path) -> None:
    assert electra("status", experiment(tmp_path / "out")).stdout == f"{tmp_path}/out: no run has begun\n"


def test_what_is_no_experiment_is_exit_4(tmp_path: Path) -> None:
    assert refused(4, "status", tmp_path).startswith(f"{tmp_path}: holds no run that has begun; name an")
    assert refused(4, "status", tmp_path / "none") == (
        f"{tmp_path}/none: no such folder; of a job on a cluster, give --address or set RAY_API_SERVER_ADDRESS"
    )


# --- time left --------------------------------------------------------------------------------------------------------


def run_at(step: int, seconds_left: float | None) -> RunStatus:
    """Of a run of 40 steps and 400 FLOPs."""
    unknown: dict[str, Any] = dict.fromkeys(
        ["tokens_per_second", "mfu", "data_wait", "loss", "heldout_loss", "checkpoint", "goodput", "quiet", "where"]
    )
    return RunStatus(
        run="x", state="training" if seconds_left else "finished", step=step, steps=40, flops=10.0 * step,
        flops_planned=400.0, seconds_left=seconds_left, restarts=[], **unknown,
    )  # fmt: skip


def test_an_experiment_takes_its_remaining_flops_at_the_newest_pace() -> None:
    """Three arms at 400 and 800 FLOPs: 3600. One run is done, one at 100 of 400 FLOPs goes on for 60 s: 5 FLOPs/s."""
    found = place.read_experiment(QUICKSTART, ["budgets=[400, 800]"])
    assert status.planned(found) == 6
    assert status.seconds_left(found, [run_at(40, None), run_at(10, 60.0)]) == (3600 - 500) / 5
    assert status.seconds_left(found, [run_at(40, None)]) is None
    repeated = place.read_experiment(QUICKSTART, ["budgets=[400, 800]", "seeds=2"])
    assert status.seconds_left(repeated, [run_at(10, 60.0)]) == (7200 - 100) / 5
    branched = place.read_experiment(
        QUICKSTART, ["budgets=[400, 800]", "training.schedule.kind=wsd", "training.schedule.branches=true"]
    )
    assert status.seconds_left(branched, [run_at(10, 60.0)]) is None
    arm = "arms=[{objective: mlm, learning_rate: 1e-3}]"
    one = place.read_experiment(QUICKSTART, [arm, "budgets=null", "steps=40", "seeds=2"])
    assert (status.planned(one), status.seconds_left(one, [run_at(10, 60.0)])) == (2, (800 - 100) / 5)


# --- watching ---------------------------------------------------------------------------------------------------------


def test_watching_goes_on_between_runs_and_ends_with_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held by a command: a run trains, has finished, the next trains; then the command lets go."""
    out, naps = experiment(tmp_path / "out"), 0
    run = recent().start().train(10)
    run_dir = run.write(out / "runs" / "x", 20)
    lock = open(out / ".lock", "wb")  # noqa: SIM115
    fcntl.flock(lock, fcntl.LOCK_EX)

    def nap(seconds: float) -> None:
        nonlocal naps
        naps += 1
        assert seconds == status.WATCH_SECONDS
        if naps == 1:
            (run_dir / "done.json").write_text("{}")
        elif naps == 2:
            recent().start().train(5).write(out / "runs" / "y", 20)
        else:
            (out / "runs" / "y" / "done.json").write_text("{}")
            lock.close()

    monkeypatch.setattr(status.time, "sleep", nap)
    # a command on another machine may be between two runs for as long as signs of life are new
    monkeypatch.setattr(status, "QUIET", 0.0)
    told = electra("status", out, "--watch")
    assert told.exit_code == 0
    looks = [line.partition("; ")[0] for line in told.stdout.splitlines() if "begun" in line]
    assert looks == [
        f"{out}: {runs} of 6 runs begun, {done} finished" for runs, done in ((1, 0), (1, 1), (2, 1), (2, 2))
    ]


def test_watching_from_elsewhere_goes_on_while_signs_are_new(tmp_path: Path) -> None:
    out = experiment(tmp_path / "out")
    (recent().start().train(20).write(out / "runs" / "x", 20) / "done.json").write_text("{}")
    (found,) = json.loads(electra("status", out, "--json").stdout)["experiments"]
    assert (found["held"], found["working"]) == (False, True)


def test_who_has_seen_enough_ends_watching_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(status.time, "sleep", interrupt)
    recent().start().train(10).write(experiment(tmp_path / "out") / "runs" / "x", 20)
    assert electra("status", tmp_path / "out", "--watch").exit_code == 0


def test_watching_is_for_people() -> None:
    assert refused_json(2, "status", "--watch", "--json").startswith("--watch draws for a person")


def refused_json(code: int, *arguments: str) -> str:
    done = electra(*arguments)
    assert done.exit_code == code
    return str(json.loads(done.stdout)["error"])


# --- a cluster beside it ----------------------------------------------------------------------------------------------


class Dashboard:
    """Of a cluster of two nodes that knows two jobs."""

    def __init__(self, address: str | None) -> None:
        self.address = f"http://user:passphrase@{address}"

    def jobs(self) -> list[Job]:
        common: dict[str, Any] = {"message": "", "exit_code": None}
        out = {"out": "/shared/runs/x"}
        return [
            Job(id="electra-x-1", status="FAILED", started=1000.0, metadata=out, **common),
            Job(id="electra-x-1-r2", status="RUNNING", started=2000.0, metadata=out, **common),
        ]

    def find(self, target: str) -> Job:
        found = [job for job in self.jobs() if target in (job.id, job.metadata["out"])]
        if not found:
            raise DataError(f"{target}: no job of that id or folder")
        return found[-1]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        Node(id="a", address="10.0.0.1", head=True, cpus=8.0, gpus=0.0),
        Node(id="b", address="10.0.0.2", head=False, cpus=96.0, gpus=8.0),
    ]
    monkeypatch.setattr(status, "Cluster", Dashboard)
    monkeypatch.setattr("cluster.nodes.nodes", lambda _: nodes)


def test_nodes_and_jobs_of_a_cluster(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert electra("status", "--address", "head:8265").stdout.splitlines() == [
        "nodes of http://[redacted]@head:8265",
        "  address   is      CPUs  GPUs",
        "  --------  ------  ----  ----",
        "  10.0.0.1  head       8     0",
        "  10.0.0.2  worker    96     8",
        "jobs",
        "  job             state    folder          begun",
        "  --------------  -------  --------------  -------------------",
        "  electra-x-1     failed   /shared/runs/x  1970-01-01 00:16:40",
        "  electra-x-1-r2  running  /shared/runs/x  1970-01-01 00:33:20",
    ]


def test_a_job_or_its_folder_names_its_newest_try(cluster: None) -> None:
    for target in ("electra-x-1-r2", "/shared/runs/x"):
        record = json.loads(electra("status", target, "--address", "head:8265", "--json").stdout)
        (job,) = record["cluster"]["jobs"]
        assert (job["id"], job["try"], job["ended"]) == ("electra-x-1-r2", 2, False)
    assert refused(4, "status", "/shared/runs/y", "--address", "head:8265").startswith("/shared/runs/y: no job")


def test_a_folder_is_told_of_though_the_cluster_never_heard_of_it(cluster: None, tmp_path: Path) -> None:
    Told().start().train(5).write(experiment(tmp_path / "out") / "runs" / "x", 40)
    told = electra("status", tmp_path / "out", "--address", "head:8265").stdout
    assert "1 of 6 runs begun" in told and "10.0.0.2" in told and "electra-x-1" not in told


def test_a_cluster_that_does_not_answer_is_a_warning_where_folders_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Told().start().train(5).write(experiment(tmp_path / "out") / "runs" / "x", 40)
    (port,) = free_ports(1)
    sentence = f"no Ray dashboard answers at http://127.0.0.1:{port} (Connection refused)"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", f"http://127.0.0.1:{port}")
    told = electra("status", tmp_path / "out")
    assert told.exit_code == 0
    assert "1 of 6 runs begun" in told.stdout and f"warning: {sentence}" in told.stdout
    record = json.loads(electra("status", tmp_path / "out", "--json").stdout)
    assert list(record["cluster"]) == ["error"] and record["cluster"]["error"].startswith(sentence)
    assert refused(PreflightError.exit_code, "status", "electra-x-1").startswith(sentence)
