"""Training under Ray Train with two gloo workers and ZeRO-1: the same result as one process, user errors intact."""

import json
from pathlib import Path

import pytest

from cluster.config import ClusterConfig
from cluster.trainer import train_runs
from data_prep.errors import DataError, PreflightError
from data_prep.manifest import load
from tests.cluster.namespaces import wait_for
from tests.cluster.test_exposed import EXPORT_SECONDS, scraped
from tests.training.synthetic import MODEL, write_corpus
from training.arms import BertArm, ElectraArm
from training.checkpoints import load_objective
from training.metrics import read_metrics
from training.run import plan_run
from training.settings import RunSpec, TrainingConfig

pytestmark = [pytest.mark.multi, pytest.mark.usefixtures("ray_session")]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


def specs(corpus: Path) -> list[RunSpec]:
    training = TrainingConfig(global_batch=15, micro_batch=4, log_every=1, eval_rows=21)
    manifest = load(corpus)
    arms = [ElectraArm(learning_rate=2e-3), BertArm(learning_rate=2e-3)]
    return [plan_run(arm=arm, model=MODEL, training=training, manifest=manifest, budget=4e8, seed=0) for arm in arms]


def on(corpus: Path) -> dict[str, Path]:
    """The corpus of every run."""
    return {spec.name: corpus for spec in specs(corpus)}


@pytest.mark.slow
def test_two_workers_give_the_losses_and_norms_of_one(corpus: Path, tmp_path: Path) -> None:
    """15 rows as 8 + 7 over two ranks, filler in the last micro-batch of one: world size changes rounding only."""
    seen: list[tuple[str, int]] = []
    for world in (1, 2):
        train_runs(
            specs(corpus),
            on(corpus),
            tmp_path / str(world),
            ClusterConfig(num_workers=world),
            lambda spec, line: seen.append((spec.name, line["step"])),
        )
    for spec in specs(corpus):
        one, two = (read_metrics(tmp_path / world / spec.name) for world in ("1", "2"))
        assert len(one) == len(two) == spec.steps >= 5
        for left, right in zip(one, two, strict=True):
            for name in ("train/loss", "train/mlm_loss", "train/gradient_norm", "flops", "tokens"):
                assert right["values"][name] == pytest.approx(left["values"][name], rel=2e-4), (left["step"], name)
            if left["step"] <= 2:
                assert right["values"]["train/loss"] == pytest.approx(left["values"]["train/loss"], rel=1e-5)
                assert right["values"]["train/gradient_norm"] == pytest.approx(
                    left["values"]["train/gradient_norm"], rel=1e-5
                )
        done = json.loads((tmp_path / "2" / spec.name / "done.json").read_text())
        assert done["world_size"] == 2 and done["step"] == spec.steps
        _, found = load_objective(tmp_path / "2" / spec.name / "checkpoints" / done["checkpoint"])
        assert len(found.manifest["parts"]) == 2
        assert (spec.name, spec.steps) in seen
        last = {("electra_step", spec.name): spec.steps, ("electra_loss", spec.name): two[-1]["values"]["train/loss"]}
        wait_for(lambda last=last: last.items() <= scraped().items(), EXPORT_SECONDS, "the metrics are exposed")


@pytest.mark.slow
def test_a_users_mistake_in_a_worker_keeps_its_sentence(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    write_corpus(folder)
    planned = specs(folder)
    run_dir = tmp_path / "runs" / planned[0].name
    run_dir.mkdir(parents=True)
    (run_dir / "checkpoints").write_text("not a folder")
    with pytest.raises(PreflightError, match="checkpoints"):
        train_runs(planned, on(folder), tmp_path / "runs", ClusterConfig(num_workers=1), lambda spec, line: None)


def test_an_altered_shard_is_found_before_anything_starts(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    planned = specs(tmp_path)
    shard = sorted((tmp_path / "train").glob("*.tar"))[1]
    data = bytearray(shard.read_bytes())
    data[700] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DataError, match=rf"{shard.name} was altered"):
        train_runs(planned, on(tmp_path), tmp_path / "runs", ClusterConfig(num_workers=1), lambda spec, line: None)


def test_a_cluster_that_is_too_small_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=r"500 workers need 500 CPUs and Ray has 2"):
        train_runs(specs(corpus), on(corpus), tmp_path, ClusterConfig(num_workers=500), lambda spec, line: None)
    with pytest.raises(PreflightError, match=r"need 1 GPUs and Ray has 0"):
        config = ClusterConfig(num_workers=1, use_gpu=True)
        train_runs(specs(corpus), on(corpus), tmp_path, config, lambda spec, line: None)
