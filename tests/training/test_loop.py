"""One run from start to end: it learns, counts, resumes, repeats itself, and refuses what it must."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from data_prep.errors import CheckpointError, ConfigError, DivergedError
from data_prep.manifest import load
from data_prep.order import OrderConfig
from training import checkpoint
from training.loop import train
from training.metrics import read_metrics
from training.paper_flops import train_arm
from training.run import plan_run
from training.settings import ArmConfig, BertArm, ElectraArm, ModelConfig, RobertaArm, RunSpec, TrainingConfig

pytestmark = pytest.mark.usefixtures("process_group")

MODEL = ModelConfig(
    embedding_size=16, hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, max_positions=64, dropout=0.1
)
CPU = torch.device("cpu")
ARMS = [
    ElectraArm(learning_rate=5e-3, generator_width=1.0),
    BertArm(learning_rate=5e-3),
    RobertaArm(learning_rate=5e-3),
]


def spec_for(arm: ArmConfig, corpus: Path, steps: int = 24, **training: object) -> RunSpec:
    manifest = load(corpus)
    settings = {"global_batch": 12, "micro_batch": 8, "log_every": 6, "eval_rows": 30} | training
    config = TrainingConfig.model_validate(settings)
    one = plan_run(arm=arm, model=MODEL, training=config, manifest=manifest, budget=1e12, seed=3)
    budget = one.flops_per_step * steps
    return plan_run(arm=arm, model=MODEL, training=config, manifest=manifest, budget=budget, seed=3)


def weights(run_dir: Path, step: int) -> dict[str, torch.Tensor]:
    found = checkpoint.verify(run_dir / "checkpoints" / f"step-{step:08d}")
    kinds = checkpoint.load_tensors(found, ("param", "exp_avg", "exp_avg_sq"))
    return {f"{kind}/{name}": tensor for kind, tensors in kinds.items() for name, tensor in tensors.items()}


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.label)
def test_a_run_learns_and_counts_what_was_planned(arm: ArmConfig, corpus: Path, tmp_path: Path) -> None:
    spec = spec_for(arm, corpus, steps=150)
    train(spec, corpus, tmp_path, CPU)
    done = json.loads((tmp_path / "done.json").read_text())
    lines = read_metrics(tmp_path)
    assert done["step"] == spec.steps == 150
    assert abs(done["flops_counted"] / spec.budget - 1) < 0.01
    identity = spec.identity
    rows = 150 * identity.global_batch
    assert done["flops_paper"] == train_arm(identity.arm, identity.model, identity.seq_len, rows)
    assert done["flops_spent"] == done["flops_counted"] == lines[-1]["values"]["flops"]
    assert [line["step"] for line in lines] == list(range(6, 151, 6))
    # a uniform guess over the vocabulary costs log 96 = 4.56; frequencies alone save half a nat and more
    assert lines[0]["values"]["train/mlm_loss"] == pytest.approx(np.log(96), abs=0.3)
    assert done["heldout"]["heldout/mlm_loss"] < np.log(96) - 0.5
    assert done["heldout"]["heldout/mlm_loss"] == lines[-1]["values"]["heldout/mlm_loss"]


@pytest.mark.parametrize("zero_stage", [1, 2])
def test_a_resumed_run_equals_an_uninterrupted_one(zero_stage: int, corpus: Path, tmp_path: Path) -> None:
    """Dropout is on: its seeds depend on the step, so weights and optimizer state agree bit for bit."""
    spec = spec_for(ARMS[0], corpus, steps=18, checkpoint_every=6, zero_stage=zero_stage)
    train(spec, corpus, tmp_path / "whole", CPU)
    train(spec, corpus, tmp_path / "cut", CPU)
    (tmp_path / "cut" / "done.json").unlink()
    for step in (12, 18):
        shutil.rmtree(tmp_path / "cut" / "checkpoints" / f"step-{step:08d}")
    train(spec, corpus, tmp_path / "cut", CPU)
    assert_equal(weights(tmp_path / "whole", 18), weights(tmp_path / "cut", 18))
    done = {name: json.loads((tmp_path / name / "done.json").read_text()) for name in ("whole", "cut")}
    assert done["cut"]["flops_counted"] == done["whole"]["flops_counted"]
    repeated = (
        done["whole"]["flops_counted"]
        - checkpoint.verify(tmp_path / "cut" / "checkpoints" / "step-00000006").manifest["progress"]["flops_counted"]
    )
    assert done["cut"]["flops_spent"] == pytest.approx(done["whole"]["flops_counted"] + repeated, rel=1e-12)
    assert {line["attempt"] for line in read_metrics(tmp_path / "cut")} == {0, 1}


def test_stages_agree_and_load_each_other(corpus: Path, tmp_path: Path) -> None:
    """Six steps at one stage, six more at the other: what twelve at one stage give, to the rounding of sums."""
    train(spec_for(ARMS[2], corpus, steps=12, zero_stage=1), corpus, tmp_path / "straight", CPU)
    for first, second in ((1, 2), (2, 1)):
        folder = tmp_path / f"{first}{second}"
        train(spec_for(ARMS[2], corpus, steps=12, zero_stage=first, checkpoint_every=6), corpus, folder, CPU)
        (folder / "done.json").unlink()
        shutil.rmtree(folder / "checkpoints" / "step-00000012")
        train(spec_for(ARMS[2], corpus, steps=12, zero_stage=second), corpus, folder, CPU)
        mixed, straight = weights(folder, 12), weights(tmp_path / "straight", 12)
        for name in straight:
            torch.testing.assert_close(mixed[name], straight[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.label)
def test_a_kill_between_the_last_checkpoint_and_the_record_loses_nothing(
    arm: ArmConfig, corpus: Path, tmp_path: Path
) -> None:
    spec = spec_for(arm, corpus, steps=6)
    train(spec, corpus, tmp_path, CPU)
    before = json.loads((tmp_path / "done.json").read_text())
    (tmp_path / "done.json").unlink()
    train(spec, corpus, tmp_path, CPU)
    after = json.loads((tmp_path / "done.json").read_text())
    assert after["heldout"] == before["heldout"]
    assert {k: v for k, v in after.items() if k != "heldout"} == {k: v for k, v in before.items() if k != "heldout"}


def test_lines_of_a_lost_trajectory_are_dropped(corpus: Path, tmp_path: Path) -> None:
    """Attempt 0 logs every 2 steps to 12, its checkpoints beyond 6 are lost; attempt 1 logs every 3."""
    train(spec_for(ARMS[2], corpus, steps=12, log_every=2, checkpoint_every=6), corpus, tmp_path, CPU)
    (tmp_path / "done.json").unlink()
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000012")
    train(spec_for(ARMS[2], corpus, steps=12, log_every=3, checkpoint_every=6), corpus, tmp_path, CPU)
    lines = read_metrics(tmp_path)
    assert [(line["step"], line["attempt"]) for line in lines] == [(2, 0), (4, 0), (6, 0), (9, 1), (12, 1)]
    spent = [line["values"]["flops_spent"] for line in lines]
    assert spent == sorted(spent)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events] == [0, 6]


def test_micro_batches_do_not_change_a_step(corpus: Path, tmp_path: Path) -> None:
    """12 rows as 2 × 8 (4 of filler) or 3 × 4 or 1 × 12, dropout off: the same losses to float32 rounding."""
    model = MODEL.model_copy(update={"dropout": 0.0, "attention_dropout": 0.0})
    losses = []
    for micro in (8, 4, 12):
        spec = spec_for(BertArm(learning_rate=5e-3), corpus, steps=6, micro_batch=micro, log_every=1)
        identity = spec.identity.model_copy(update={"model": model.encoder(spec.identity.model.vocab_size)})
        spec = spec.model_copy(update={"identity": identity})
        train(spec, corpus, tmp_path / str(micro), CPU)
        losses.append([line["values"]["train/loss"] for line in read_metrics(tmp_path / str(micro))])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-5)


def test_a_done_run_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    spec = spec_for(ARMS[2], corpus, steps=6)
    train(spec, corpus, tmp_path, CPU)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    train(spec, corpus, tmp_path, CPU)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}


def test_a_changed_identity_is_refused_by_key(corpus: Path, tmp_path: Path) -> None:
    spec = spec_for(ARMS[2], corpus, steps=6)
    train(spec, corpus, tmp_path, CPU)
    other = spec_for(ARMS[2], corpus, steps=6, global_batch=16)
    with pytest.raises(ConfigError, match="another global_batch"):  # finished, and not what is asked for
        train(other, corpus, tmp_path, CPU)
    (tmp_path / "done.json").unlink()
    record = (tmp_path / "run.json").read_bytes()
    with pytest.raises(ConfigError, match="another global_batch"):
        train(other, corpus, tmp_path, CPU)
    assert (tmp_path / "run.json").read_bytes() == record
    with pytest.raises(ConfigError, match="another order"):
        train(spec_for(ARMS[2], corpus, steps=6, order=OrderConfig(window_shards=1)), corpus, tmp_path, CPU)


def test_a_damaged_checkpoint_is_passed_over_and_a_lone_one_refused(corpus: Path, tmp_path: Path) -> None:
    spec = spec_for(ARMS[2], corpus, steps=12, checkpoint_every=6)
    train(spec, corpus, tmp_path, CPU)
    (tmp_path / "done.json").unlink()
    part = tmp_path / "checkpoints" / "step-00000012" / "part-00000.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    found, passed_over = checkpoint.newest(tmp_path)
    assert found is not None and found.progress.step == 6
    assert len(passed_over) == 1 and "part-00000.safetensors was cut or altered" in passed_over[0]
    train(spec, corpus, tmp_path, CPU)
    assert json.loads((tmp_path / "done.json").read_text())["step"] == 12

    (tmp_path / "done.json").unlink()
    for folder in (tmp_path / "checkpoints").iterdir():
        (folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="no valid checkpoint is left"):
        train(spec, corpus, tmp_path, CPU)


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.label)
def test_a_loss_that_is_not_finite_stops_the_run(arm: ArmConfig, corpus: Path, tmp_path: Path) -> None:
    wild = arm.model_copy(update={"learning_rate": 1e30})
    with pytest.raises(DivergedError, match="not finite at step"):
        train(spec_for(wild, corpus, steps=12), corpus, tmp_path, CPU)
    assert not (tmp_path / "done.json").exists()


def test_weights_spoiled_by_the_last_update_are_not_published(corpus: Path, tmp_path: Path) -> None:
    """Two steps: the training loss of the second is taken before its update, and is fine."""
    wild = RobertaArm(learning_rate=1e30)
    with pytest.raises(DivergedError, match="held-out loss is not finite at step 2"):
        train(spec_for(wild, corpus, steps=2, log_every=1, warmup_fraction=0.5), corpus, tmp_path, CPU)
    assert not (tmp_path / "done.json").exists() and not list((tmp_path / "checkpoints").glob("step-????????"))
