"""Training without Ray: under torchrun as under Ray, in one process, and how several processes end together."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import HashStore
from torch.distributed import TCPStore

from cluster import launch
from cluster.config import ClusterConfig
from cluster.launch import Ranks, RankZeroFailed, address, alone, first_host, join, pick_device, place
from cluster.worker import Assignment
from data_prep.errors import ConfigError, PreflightError, StoppedError
from pipeline import endings, train_stage
from pipeline.console import Console
from pipeline.folder import open_folder
from pipeline.place import Place, open_place, read_experiment
from tests.conftest import ROOT, Road
from tests.training.runs import ELECTRA, assert_equal, spec_for, weights
from tests.training.synthetic import write_corpus
from training import requests
from training.metrics import read_metrics

RUN = "electra-3.00e+08-s0"  # six steps
ONE_RUN = ["budgets=[3e8]", "arms=[{objective: electra, learning_rate: 1e-3, generator: {width: 0.5}}]"]


def electra(road: Road, out: Path, *arguments: str) -> list[str]:
    """The words of `electra train` for one run on the road's corpus."""
    return ["train", str(road.config), f"corpus.location={road.out}/corpus", *ONE_RUN, "--out", str(out), *arguments]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.slow
@pytest.mark.multi
def test_torchrun_trains_what_ray_trains_bit_for_bit(road: Road, tmp_path: Path) -> None:
    """World 2 and one thread under both launchers; dropout is on."""
    torchrun = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()), "-m"]
    command = [*torchrun, "pipeline.cli", *electra(road, tmp_path, "--launcher", "env", "--json")]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=road.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()  # of rank 0 alone
    assert json.loads(line)["trained"] == 1
    record = json.loads((tmp_path / "runs" / RUN / "done.json").read_text())
    assert (record["step"], record["world_size"]) == (6, 2)
    assert_equal(weights(tmp_path / "runs" / RUN, 6), weights(road.out / "runs" / RUN, 6))
    assert (tmp_path / "mlflow.db").exists()


@pytest.mark.slow
@pytest.mark.multi
def test_no_workers_is_this_process_without_ray(road: Road, tmp_path: Path) -> None:
    arguments = electra(road, tmp_path, "cluster.num_workers=0", "--profile", "2")
    text = road.electra(*arguments).stdout
    assert "ray: " not in text
    record = json.loads((tmp_path / "runs" / RUN / "done.json").read_text())
    assert (record["step"], record["world_size"]) == (6, 1)
    values = read_metrics(tmp_path / "runs" / RUN)[-1]["values"]
    assert 0 <= values["data_wait"] < 1 and 0 < values["communication_wait"] < 1
    assert "data wait" in text and "memory peak" in text and "MFU" not in text
    top = (tmp_path / "runs" / RUN / "profile" / "top.txt").read_text().splitlines()
    assert text.count(top[0]) == 1 and all(line in text for line in top)
    assert (tmp_path / "runs" / RUN / "profile" / "trace.json").exists()


@pytest.mark.multi
def test_a_mistake_at_world_two_is_one_sentence_and_everybodys_exit_code(tmp_path: Path) -> None:
    """Two processes as srun starts them; only rank 0 looks at the file."""
    command = [sys.executable, "-m", "pipeline.cli", "train", "none.yaml", "--launcher", "env", "--out", str(tmp_path)]
    slurm = {"SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **slurm, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [2, 2], said
    assert said == [("", "electra: none.yaml: no such configuration file\n"), ("", "")]


def test_which_launcher_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(Place, "start_ray", lambda place: started.append("ray"))
    for workers, ray in ((0, []), (1, ["ray"])):
        experiment = read_experiment(ROOT / "configs/quickstart.yaml", [f"cluster.num_workers={workers}"])
        with open_folder(tmp_path / str(workers), experiment) as folder, ExitStack() as stack:
            here = Place(experiment=experiment, folder=folder, console=Console(), stack=stack)
            train_stage._launched(here)
            assert started == ray and here.worked


def test_a_stop_that_is_asked_while_the_command_prepares_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked before the command took the folder does not; ranks that torchrun starts again took it before."""
    write_corpus(tmp_path / "corpus")
    spec = spec_for(ELECTRA, tmp_path / "corpus")
    experiment = read_experiment(ROOT / "configs/quickstart.yaml", [])
    out, runs = tmp_path / "out", tmp_path / "out" / "runs"
    work = [spec], {spec.name: tmp_path / "corpus"}, runs, ClusterConfig(num_workers=0), lambda spec, line: None
    runs.mkdir(parents=True)
    requests.ask(runs, "stop", "of an earlier command")
    with open_place(experiment, out, Console()):
        assert requests.read(runs) is None
        requests.ask(runs, "stop", "electra stop")
        with pytest.raises(StoppedError, match=r"^electra-.*: stopped before it was started \(electra stop\); "):
            alone().train_runs(*work)
    assert not (runs / spec.name).exists()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with open_place(experiment, out, Console(), alone()), pytest.raises(StoppedError, match="electra stop"):
        alone().train_runs(*work)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    with open_place(experiment, out, Console(), alone()):
        assert requests.read(runs) is None


# --- where a rank finds its place -------------------------------------------------------------------------------------

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "2"}


def test_torchrun_says_the_place_and_otherwise_slurm() -> None:
    assert place(TORCHRUN) == (3, 8, 1)
    assert place(SLURM) == (5, 6, 2)
    assert place({**SLURM, **TORCHRUN}) == (3, 8, 1)


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({}, "neither RANK nor SLURM_PROCID is set"),
        ({"RANK": "0"}, "RANK, WORLD_SIZE, LOCAL_RANK must all be whole numbers"),
        ({**SLURM, "SLURM_NTASKS": "x"}, "SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID must all be whole numbers"),
    ],
)
def test_without_a_place_it_is_said_what_is_missing(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(PreflightError, match=sentence):
        join(environment)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("gpu07", "gpu07"),
        ("gpu[03-07,12]", "gpu03"),
        ("gpu[12,15]", "gpu12"),
        ("a1,b[2-3]", "a1"),
        ("rack2-[1-4]-ib", "rack2-1-ib"),
    ],
)
def test_rank_zero_answers_on_the_first_host_of_a_slurm_job(hosts: str, first: str) -> None:
    assert first_host(hosts) == first
    assert address({"SLURM_JOB_NODELIST": hosts, "SLURM_JOB_ID": "4712345"}) == {
        "MASTER_ADDR": first,
        "MASTER_PORT": "22345",
    }


def test_a_rank_takes_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device(3, use_gpu=False) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert pick_device(3, use_gpu=True) == torch.device("cuda", 3)
    with pytest.raises(PreflightError, match="rank 4 of this host finds 4 GPUs"):
        pick_device(4, use_gpu=True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # as where Slurm shows each task its own
    assert pick_device(3, use_gpu=True) == torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(PreflightError, match="finds 0 GPUs"):
        pick_device(0, use_gpu=True)


# --- how ranks end together -------------------------------------------------------------------------------------------


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> tuple[Ranks, Ranks]:
    """Two ranks of one store, in this process, with little patience."""
    for name in ("POLL_SECONDS", "GRACE_SECONDS", "WATCH_SECONDS", "HANG_SECONDS"):
        monkeypatch.setattr(launch, name, 0.05)
    store = alone().store
    return Ranks(0, 2, 0, store), Ranks(1, 2, 1, store)


def test_rank_zero_fails_before_it_has_planned(two: tuple[Ranks, Ranks]) -> None:
    zero, one = two
    assert zero.fail("no such file", 2) == ("no such file", 2, True)
    with pytest.raises(RankZeroFailed, match="no such file") as error:
        one.follow()
    assert error.value.exit_code == 2
    assert one.fail(str(error.value), 2) == ("no such file", 2, False)


def test_an_error_of_all_is_said_by_rank_zero(two: tuple[Ranks, Ranks], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 comes first and waits for rank 0's word."""
    zero, one = two
    monkeypatch.setattr(launch, "GRACE_SECONDS", 20.0)
    later = threading.Timer(0.2, zero.fail, ("the loss is not finite", 6))
    later.start()
    assert one.fail("the loss is not finite", 6) == ("the loss is not finite", 6, False)
    later.join()


def test_an_error_of_one_rank_is_said_there_and_gives_all_its_exit_code(two: tuple[Ranks, Ranks]) -> None:
    zero, one = two
    assert one.fail("shard 7 is bad", 4) == ("shard 7 is bad", 4, True)
    assert zero.fail("connection closed by peer", 1) == ("shard 7 is bad", 4, False)


def test_where_nothing_is_left_to_train_the_others_end_well(two: tuple[Ranks, Ranks]) -> None:
    """And rank 0 waits until they have heard it."""
    zero, one = two
    leaving = threading.Thread(target=zero.leave)
    leaving.start()
    one.follow()
    time.sleep(0.2)
    assert leaving.is_alive()
    one.leave()
    leaving.join(5.0)
    assert not leaving.is_alive()


def test_of_ranks_that_fail_at_once_one_says_it(two: tuple[Ranks, Ranks], monkeypatch: pytest.MonkeyPatch) -> None:
    """None sees another's failure before it writes its own."""
    _, one = two
    monkeypatch.setattr(Ranks, "_failure", lambda rank, wait=0.0: None)
    assert one.fail("shard 7 is bad", 4) == ("shard 7 is bad", 4, True)
    assert Ranks(2, 3, 2, one.store).fail("shard 7 is bad", 4) == ("shard 7 is bad", 4, False)
    assert Ranks(0, 3, 0, one.store).fail("no space left", 3) == ("shard 7 is bad", 4, False)


def test_closed_output_of_rank_zero_ends_the_others(two: tuple[Ranks, Ranks]) -> None:
    zero, one = two
    one.leave()  # so that rank 0 has nobody to wait for
    with pytest.raises(BrokenPipeError), endings.errors(json_=False, debug=False) as where:
        where.ranks = zero
        raise BrokenPipeError
    with pytest.raises(RankZeroFailed, match="output closed") as error:
        one.follow()
    assert error.value.exit_code == 1


@dataclass
class Exit:
    """What stands in for `os._exit`."""

    codes: list[int] = field(default_factory=list)
    called: threading.Event = field(default_factory=threading.Event)

    def __call__(self, code: int) -> None:
        self.codes.append(code)
        self.called.set()


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> Exit:
    end = Exit()
    monkeypatch.setattr(os, "_exit", end)
    return end


def test_a_rank_that_hangs_after_another_failed_is_ended(two: tuple[Ranks, Ranks], end: Exit) -> None:
    zero, one = two
    with one._watched():
        zero.fail("no space left", 3)
        assert end.called.wait(10.0)
    assert end.codes == [3]


def test_a_rank_that_waits_in_the_store_after_another_failed_is_ended(two: tuple[Ranks, Ranks], end: Exit) -> None:
    """As rank 0 waits for the group that rank 1 does not join: a client of the store that waits is locked."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    zero = Ranks(0, 2, 0, server)
    one = Ranks(1, 2, 1, TCPStore("127.0.0.1", server.port, is_master=False))
    hanging = threading.Thread(target=server.wait, args=(["group"], timedelta(seconds=60)))
    with zero._watched():
        hanging.start()
        one.fail("rank 1 of this host finds 0 GPUs", 3)
        one.leave()
        ended = end.called.wait(10.0)
        one.store.set("group", "")
        hanging.join()
    assert ended and end.codes == [3]


def test_the_device_is_picked_under_watch(two: tuple[Ranks, Ranks], end: Exit, monkeypatch: pytest.MonkeyPatch) -> None:
    zero, one = two

    def pick(local_rank: int, *, use_gpu: bool) -> torch.device:
        zero.fail("no space left", 3)
        assert end.called.wait(10.0)
        raise PreflightError("hung")

    monkeypatch.setattr(launch, "pick_device", pick)
    with pytest.raises(PreflightError, match="hung"):
        one._work(Assignment.model_construct(specs=[None], use_gpu=True))
    assert end.codes == [3]


class Lost(HashStore):
    """A store whose host has left once the failure was read."""

    def clone(self) -> "Lost":
        return self

    def add(self, key: str, amount: int) -> int:
        raise RuntimeError("connection reset by peer")


def test_a_rank_that_hangs_is_ended_without_the_store_too(two: tuple[Ranks, Ranks], end: Exit) -> None:
    store = Lost()
    Ranks(1, 3, 1, store).fail("no space left", 3)
    with Ranks(2, 3, 2, store)._watched():
        assert end.called.wait(10.0)
    assert end.codes == [3]


def test_rank_zero_is_ended_when_the_others_have_heard(two: tuple[Ranks, Ranks], end: Exit) -> None:
    """The store may be in its process."""
    zero, one = two
    with zero._watched():
        one.fail("shard 7 is bad", 4)
        assert not end.called.wait(0.5)
        one.leave()
        assert end.called.wait(10.0)
    assert end.codes == [4]


def test_a_rank_that_ends_by_itself_is_let(
    two: tuple[Ranks, Ranks], end: Exit, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero, one = two
    monkeypatch.setattr(launch, "HANG_SECONDS", 0.4)
    with pytest.raises(ConfigError), one._watched():
        zero.fail("wrong", 2)
        time.sleep(0.2)  # the failure has been seen
        raise ConfigError("wrong")
    time.sleep(0.4)
    assert end.codes == []


def test_an_assignment_travels_as_json(two: tuple[Ranks, Ranks]) -> None:
    zero, _ = two
    given = Assignment(
        specs=[], corpora={"run": "s3://b/c"}, runs_dir=Path("/runs"), threads=2, use_gpu=True, profile=3
    )
    zero._tell(given)
    assert Assignment.model_validate_json(zero.store.get("assignment")) == given
