"""`electra doctor` against real things: folders, servers, processes, stores, and trees of control groups."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy
import pytest

from cluster.jobs import ADDRESS
from data_prep.errors import PreflightError
from data_prep.storage import LocalFolder
from pipeline import doctor, doctor_gpu, doctor_machine, doctor_ray, doctor_services, doctor_storage
from pipeline.config import load
from pipeline.doctor_finding import Finding, ok
from pipeline.experiment import Experiment
from pipeline.submit_work import shared_folder
from tests.cluster.ray_head import free_ports
from tests.pipeline.hub_server import TOKEN, Hub, connected
from tests.pipeline.test_cli import QUICKSTART, ROOT, electra
from tests.pipeline.test_tracking_servers import answering


def experiment(*overrides: str) -> Experiment:
    return load(QUICKSTART, overrides, Experiment)


def states(found: Iterator[Finding]) -> list[tuple[str, str]]:
    return [(one.check, one.state) for one in found]


# --- packages ---------------------------------------------------------------------------------------------------------


def test_packages_are_compared_with_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(f"# ours\nnumpy=={numpy.__version__}  # why\nnot-here==1.0\n")
    assert [one.state for one in doctor_machine.packages(lock)][1:] == ["ok"]  # not-here is none of ours
    lock.write_text("numpy==0.0.1\n")
    (other,) = list(doctor_machine.packages(lock))[1:]
    assert (other.state, other.remedy) == ("warning", "pip install -r requirements.lock")
    assert f"numpy {numpy.__version__} (0.0.1)" in other.said
    (missing,) = doctor_machine._compared({"not-here": "1.0"}, {"not-here"})
    assert (missing.state, missing.said) == ("error", "not-here not installed")
    assert states(doctor_machine.packages(tmp_path / "none"))[1:] == [("packages", "warning")]


def test_what_the_code_imports_is_in_the_lock() -> None:
    wanted = set(doctor_machine.locked(doctor_machine.LOCK))
    needed = {doctor_machine._plain(name) for name in doctor_machine.direct()}
    assert {"ray", "torch", "deepspeed"} <= needed <= wanted


# --- limits -----------------------------------------------------------------------------------------------------------


def machine(root: Path, group: str, files: dict[str, str]) -> Path:
    """A root directory with these control groups."""
    for name, text in {"proc/self/cgroup": group, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "proc/meminfo").write_text("MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n")
    return root


@pytest.mark.parametrize(
    ("group", "files", "cpus", "memory"),
    [
        ("0::/\n", {"cpu.max": "250000 100000\n", "memory.max": "1073741824\n"}, 2.5, 2**30),
        ("0::/a/b\n", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000", "a/b/memory.max": "max"}, 1.5, None),
        ("0::/a\n", {"cpu.max": "max 100000\n"}, None, None),
        (
            "4:memory:/x\n2:cpu:/x\n0::/\n",
            {"cpu/x/cpu.cfs_quota_us": "50000", "cpu/x/cpu.cfs_period_us": "100000",
             "memory/x/memory.limit_in_bytes": "536870912", "memory/memory.limit_in_bytes": "9223372036854771712"},
            0.5, 2**29,
        ),
    ],
    ids=["v2", "v2 above", "none", "v1"],
)  # fmt: skip
def test_limits_of_control_groups(
    group: str, files: dict[str, str], cpus: float | None, memory: int | None, tmp_path: Path
) -> None:
    root = machine(tmp_path, group, files)
    assert doctor_machine.cpu_limit(root) == cpus
    assert doctor_machine.memory_limit(root) == memory
    said = next(iter(doctor_machine.memory(root))).said
    assert said.startswith(f"{(memory or 8 * 2**30) / 2**30:.1f} GiB")


def test_more_workers_than_processors(tmp_path: Path) -> None:
    """Half a CPU, whatever the machine has."""
    root = machine(tmp_path, "0::/\n", {"cpu.max": "50000 100000"})
    (many,) = doctor_machine.processors(experiment("cluster.num_workers=3"), root)
    assert (many.state, "3 workers" in many.said) == ("warning", True)
    assert many.remedy is not None and "cluster.num_workers=1" in many.remedy
    # those of a cluster are elsewhere
    there = experiment("cluster.num_workers=3", "cluster.address=auto")
    assert states(doctor_machine.processors(there, root)) == [("cpus", "ok")]
    two = machine(tmp_path / "two", "0::/\n", {"cpu.max": "max 100000"})
    assert states(doctor_machine.processors(experiment("cluster.num_workers=1", "cluster.num_cpus=1"), two)) == [
        ("cpus", "ok")
    ]


def test_compiled_layers_need_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wants = experiment("training.compute.compile=true", "cluster.use_gpu=true")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert states(doctor_machine.compilers(wants)) == [("compiler", "error")]
    assert states(doctor_machine.compilers(experiment())) == [("compiler", "ok")]
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    assert states(doctor_machine.compilers(wants)) == [("compiler", "ok")]


# --- GPUs -------------------------------------------------------------------------------------------------------------


def test_a_gpu_that_is_asked_for_and_not_there() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    assert states(doctor_gpu.gpus(experiment("cluster.use_gpu=true"))) == [("gpus", "error")]
    assert states(doctor_gpu.gpus(experiment("cluster.use_gpu=true", "cluster.address=auto"))) == [("gpus", "ok")]


@pytest.mark.slow
@pytest.mark.multi
def test_two_processes_add_up() -> None:
    (found,) = doctor_gpu.carries("gloo", 2)
    assert found.state == "ok" and "64 MiB added up" in found.said, found
    (refused,) = doctor_gpu.carries("no-such-backend", 1)
    assert refused.state == "error" and "an all-reduce over 1 fails" in refused.said, refused


# --- storage ----------------------------------------------------------------------------------------------------------


def test_storage_is_probed_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_storage, "PROBE_BYTES", 1_000_000)
    found = list(doctor_storage.places(None, tmp_path / "not" / "yet"))
    assert states(iter(found)) == [("storage", "ok"), ("clocks", "ok")]
    assert "MB/s written" in found[0].said and "GB free" in found[0].said
    assert list(tmp_path.iterdir()) == []


def test_what_an_experiment_needs_is_what_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ELECTRA-Large: 12 bytes of each of 354,655,291 parameters; of three, the best, and one being written."""
    monkeypatch.setattr(doctor_storage, "PROBE_BYTES", 1_000_000)
    large = load(ROOT / "configs" / "electra-large.yaml", ["training.checkpoints.keep_last=3"], Experiment)
    size = 12 * 354_655_291
    assert large.training.checkpoints.keep_best
    first = next(iter(doctor_storage.places(large, tmp_path)))
    assert f"up to {5 * size / 1e9:,.1f} GB to come ({size / 1e9:.2f} GB a checkpoint)" in first.said


def test_too_little_room_is_an_error_and_too_slow_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_storage, "PROBE_BYTES", 1_000_000)
    folder = LocalFolder(tmp_path)
    small = next(iter(doctor_storage.place("storage", folder, 10**18, 10**9, 300)))
    assert (small.state, "keep_last" in (small.remedy or "")) == ("error", True)
    slow = next(iter(doctor_storage.place("storage", folder, 0, 10**18, 300)))
    assert (slow.state, "stop_seconds" in (slow.remedy or "")) == ("warning", True)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """A file where a folder should be, and a file system without files."""
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "out", Path("/proc/electra/out")):
        (found,) = doctor_storage.places(None, place)
        assert (found.check, found.state) == ("storage", "error"), found
        assert str(place) in found.said and "--out" in (found.remedy or "")


def test_a_shared_volume_that_only_the_cluster_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not mounted, this machine's own disks say nothing of it; where it is, or nobody is elsewhere, all is
    tried. The folder without --out is that of `electra submit`."""
    monkeypatch.setattr(doctor_storage, "PROBE_BYTES", 100_000)
    shared = tmp_path / "volume"
    one = experiment(f"cluster.submit.shared.path={shared}")
    out = Path(shared_folder(one))
    assert out == shared / "runs" / "quickstart"
    (found,) = doctor_storage.places(one, out, elsewhere=True)
    assert found.state == "ok" and f"{shared} is not mounted here" in found.said and f"--out {out}" in found.said
    assert "MB/s" in next(iter(doctor_storage.places(one, out))).said
    shared.mkdir()
    assert "MB/s" in next(iter(doctor_storage.places(one, out, elsewhere=True))).said
    monkeypatch.setattr(doctor_services, "hub", lambda: iter([ok("hub", "not asked")]))
    shared.rmdir()
    done = electra("doctor", QUICKSTART, f"cluster.submit.shared.path={shared}", "--address", "http://127.0.0.1:1")
    assert done.exit_code == 3 and f"ok       storage: {out}: {shared} is not mounted here" in done.stdout


def test_a_clock_that_is_wrong() -> None:
    assert doctor_storage._ahead(100.0, 90.0, 91.0) == 9.0
    assert doctor_storage._ahead(80.0, 90.0, 91.0) == pytest.approx(-10, abs=0.1)
    assert doctor_storage._ahead(90.5, 90.0, 91.0) == 0.0
    assert doctor_storage._clocks(LocalFolder("/x"), -9.0).said.startswith("/x is 9.0 s behind this machine")


# --- Ray --------------------------------------------------------------------------------------------------------------


@contextmanager
def dashboard(host: str, status: int) -> Iterator[int]:
    """Something that answers as a dashboard does who has no token; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/api/jobs/" else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((host, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_a_dashboard_open_to_the_world_is_an_error() -> None:
    """One that others reach without a token; not one on the loopback interface, nor one that asks for a token."""
    if not doctor_ray.own_addresses():
        pytest.skip("this machine has no address but loopback")
    with dashboard("0.0.0.0", 200) as port:
        (found,) = doctor_ray._open_here(f"http://127.0.0.1:{port}")
        assert (found.check, found.state) == ("ray authentication", "error")
        assert f":{port}, without a token" in found.said and "RAY_AUTH_MODE=token" in (found.remedy or "")
        outside = f"http://{doctor_ray.own_addresses()[0]}:{port}"
        assert states(doctor_ray._authentication(outside)) == [("ray authentication", "error")]
        assert states(doctor_ray._authentication(f"http://127.0.0.1:{port}")) == [("ray authentication", "ok")]
    with dashboard("127.0.0.1", 200) as port:
        assert list(doctor_ray._open_here(f"http://127.0.0.1:{port}")) == []
    with dashboard("0.0.0.0", 401) as port:
        assert list(doctor_ray._open_here(f"http://127.0.0.1:{port}")) == []


def test_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    (port,) = free_ports(1)
    found = list(doctor_ray.ray(None, f"http://127.0.0.1:{port}"))[-1]
    assert (found.check, found.state) == ("ray", "error")
    assert found.said.startswith(f"no Ray dashboard answers at http://127.0.0.1:{port} ")
    joined = list(doctor_ray.ray(experiment(f"cluster.address=127.0.0.1:{port}"), None))[-1]
    assert (joined.check, joined.state) == ("ray", "error") and f"127.0.0.1:{port}" in joined.said
    assert list(doctor_ray.ray(None, None))[-1].state == "ok"


@pytest.mark.parametrize(
    ("cpus", "gpus", "overrides", "state"),
    [
        (2, 0, ("cluster.num_workers=2",), "ok"),
        (1, 0, ("cluster.num_workers=2",), "error"),
        (1, 0, ("cluster.num_workers=2", "cluster.min_workers=1"), "warning"),
        (64, 7, ("cluster.num_workers=8", "cluster.use_gpu=true"), "error"),
    ],
)
def test_a_cluster_that_is_too_small(cpus: float, gpus: float, overrides: tuple[str, ...], state: str) -> None:
    assert states(doctor_ray._enough("x", cpus, gpus, experiment(*overrides))) == [("ray", state)]


# --- services ---------------------------------------------------------------------------------------------------------


def test_mlflow_that_refuses_is_away_or_answers(empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert states(doctor_services.mlflow(None)) == [("mlflow", "ok")]
    with answering(401, "no") as (address, _):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:hunter2hunter2@{address}")
        (found,) = doctor_services.mlflow(None)
        assert (found.state, "hunter2" in str(found)) == ("error", False)
        assert "MLFLOW_TRACKING_PASSWORD" in (found.remedy or "")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_ports(1)[0]}")
    assert states(doctor_services.mlflow(None)) == [("mlflow", "warning")]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "mlruns")
    assert states(doctor_services.mlflow(None)) == [("mlflow", "error")]


def test_a_right_to_write_is_tried(empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the experiment of that name where there is one, and nothing is made where there is none."""
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{empty_store}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    (there,) = doctor_services.mlflow(experiment("name=unrelated"))
    assert there.said.endswith("unrelated may be written to")
    client = MlflowClient(tracking_uri=uri)
    assert doctor_services.CHECKED in client.get_experiment_by_name("unrelated").tags
    (none,) = doctor_services.mlflow(experiment("name=another"))
    assert none.said.endswith("another is not there yet") and client.get_experiment_by_name("another") is None


def test_the_hubs_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(monkeypatch) as hub:
        (good,) = doctor_services.hub()
        assert (good.state, "me" in good.said) == ("ok", True), good
        monkeypatch.setenv("HF_TOKEN", "hf_" + "x1Y2" * 8)
        (bad,) = doctor_services.hub()
        assert (bad.state, "does not accept the token (401)" in bad.said) == ("error", True), bad
        assert TOKEN not in str(good) and "x1Y2" not in str(bad)
        monkeypatch.setenv("HF_TOKEN", "")
        monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
        assert states(doctor_services.hub()) == [("hub", "warning")]
        assert isinstance(hub, Hub)
    assert states(doctor_services.hub()) == [("hub", "warning")]  # nobody answers any more


@pytest.mark.parametrize(
    ("access", "state"),
    [
        ({"role": "write"}, "ok"),
        ({"role": "read"}, "warning"),
        ({"role": "fineGrained", "fineGrained": {"scoped": [
            {"entity": {"name": "lab"}, "permissions": ["repo.content.read", "repo.write"]}]}}, "ok"),
        ({"role": "fineGrained", "fineGrained": {"scoped": [
            {"entity": {"name": "lab"}, "permissions": ["repo.content.read"]}]}}, "warning"),
    ],
)  # fmt: skip
def test_the_rights_of_a_token(access: dict[str, object], state: str) -> None:
    found = doctor_services._rights_of("https://hub", {"name": "me", "auth": {"accessToken": access}})
    assert found.state == state and ("lab" in found.said or access["role"] in ("write", "read") or state == "warning")


# --- the verb ---------------------------------------------------------------------------------------------------------


def test_a_check_that_breaks_stops_no_other() -> None:
    def breaks() -> Iterator[Finding]:
        raise ZeroDivisionError("by zero")
        yield ok("never", "")

    def refuses() -> Iterator[Finding]:
        raise PreflightError("x is away; start it")
        yield ok("never", "")

    named = [("a", breaks), ("b", refuses), ("c", lambda: iter([ok("c", "fine")]))]
    found = list(doctor.examine(named))
    assert states(iter(found)) == [("a", "warning"), ("b", "error"), ("c", "ok")]
    assert "ZeroDivisionError: by zero" in found[0].said
    assert (found[1].said, found[1].remedy) == ("x is away", "start it")


def test_exit_code_3_where_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_storage, "PROBE_BYTES", 100_000)
    monkeypatch.setattr(doctor_services, "hub", lambda: iter([ok("hub", "not asked")]))
    for name in (ADDRESS, "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    done = electra("doctor", QUICKSTART, "--out", tmp_path, "--json")
    record = json.loads(done.stdout)
    assert done.exit_code == record["exit_code"] == 3 * bool(record["counts"]["error"])
    checked = {one["check"] for one in record["findings"]}
    assert {"python", "packages", "cpus", "memory", "compiler", "storage", "clocks", "ray", "mlflow", "hub"} <= checked
    assert all(one["remedy"] for one in record["findings"] if one["state"] != "ok")
    lines = [line for line in done.stderr.splitlines() if line.startswith(("ok ", "warning ", "error "))]
    assert len(lines) == len(record["findings"])
    bad = electra("doctor", QUICKSTART, "--out", "/proc/electra")
    assert bad.exit_code == 3 and "error    storage: /proc/electra: cannot be written to" in bad.stdout
