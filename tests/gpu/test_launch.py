"""The launch path on one GPU: a run under Ray Train over NCCL, and in a process without Ray, as on the CPU."""

import json
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as multiprocessing

from cluster.config import ClusterConfig
from cluster.trainer import train_runs
from data_prep.manifest import load
from tests.gpu.ranks import without_ray
from tests.training.runs import CPU, ELECTRA
from tests.training.synthetic import MODEL
from training.devices import peak_flops
from training.loop import train
from training.metrics import read_metrics
from training.run import plan_run
from training.settings import RunSpec, TrainingConfig

pytestmark = [pytest.mark.gpu, pytest.mark.multi]

STEPS = 4


def spec_in(precision: str, corpus: Path) -> RunSpec:
    """A run without dropout, which a GPU draws otherwise than a CPU."""
    settings = {"global_batch": 15, "micro_batch": 4, "log_every": 1, "eval_rows": 21, "precision": precision}
    training = TrainingConfig.model_validate(settings)
    return plan_run(arm=ELECTRA, model=MODEL, training=training, manifest=load(corpus), steps=STEPS, seed=0)


@pytest.fixture(scope="module")
def on_cpu(corpus: Path, process_group: None, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    folder = tmp_path_factory.mktemp("cpu")
    train(spec_in("fp32", corpus), corpus, folder, CPU)
    return [line["values"] for line in read_metrics(folder)]


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("auto", 1e-2)])
@pytest.mark.parametrize("launcher", ["ray", "none"])
def test_a_gpu_trains_what_a_cpu_trains(
    launcher: str,
    precision: str,
    tolerance: float,
    corpus: Path,
    on_cpu: list[dict[str, float]],
    ray_session: None,
    tmp_path: Path,
) -> None:
    spec = spec_in(precision, corpus)
    if launcher == "ray":
        train_runs(
            [spec], {spec.name: corpus}, tmp_path, ClusterConfig(num_workers=1, use_gpu=True), lambda spec, line: None
        )
    else:
        multiprocessing.spawn(without_ray, ([spec], corpus, tmp_path, "cuda"), nprocs=1)
    folder = tmp_path / spec.name
    done = json.loads((folder / "done.json").read_text())
    assert (done["step"], done["world_size"]) == (STEPS, 1)
    (started,) = [event for event in events(folder) if event["event"] == "started"]
    assert started["device"] == torch.cuda.get_device_name()
    lines = [line["values"] for line in read_metrics(folder)]
    assert len(lines) == len(on_cpu) == STEPS
    for mine, theirs in zip(lines, on_cpu, strict=True):
        for name in ("train/loss", "train/mlm_loss", "train/rtd_loss", "train/gradient_norm"):
            assert mine[name] == pytest.approx(theirs[name], rel=tolerance), name
        assert (mine["flops"], mine["tokens"], mine["skipped_steps"]) == (theirs["flops"], theirs["tokens"], 0)
        assert ("mfu" in mine) == (peak_flops(started["device"]) is not None)
        assert 0 < mine["memory_peak"] < 2**30 and "communication_wait" not in mine


def events(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
