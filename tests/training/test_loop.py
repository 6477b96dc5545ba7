"""One run from start to end: it learns, counts, resumes, repeats itself, and refuses what it must."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from data_prep.errors import CheckpointError, ConfigError, DivergedError
from data_prep.order import OrderConfig
from tests.training.runs import (
    BERT,
    CPU,
    ELECTRA,
    MODEL,
    ROBERTA,
    assert_equal,
    cut_back,
    done,
    events,
    spec_for,
    weights,
)
from training import first_weights
from training.arms import ArmConfig, RobertaArm
from training.checkpoints import Progress
from training.engine import Engine
from training.flops import executed_flops
from training.loop import train
from training.metrics import read_metrics
from training.objectives import Objective, Roberta
from training.paper_flops import train_arm
from training.saving import Saving
from training.settings import RunSpec

pytestmark = pytest.mark.usefixtures("process_group")

ARMS = [ELECTRA, BERT, ROBERTA]
ENGINE_BACKWARD = Engine.backward


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.label)
def test_a_run_learns_and_counts_what_was_planned(arm: ArmConfig, corpus: Path, tmp_path: Path) -> None:
    spec = spec_for(arm, corpus, steps=150)
    train(spec, corpus, tmp_path, CPU)
    made, lines = done(tmp_path), read_metrics(tmp_path)
    assert made["step"] == spec.steps == 150
    assert abs(made["flops_counted"] / spec.budget - 1) < 0.01
    identity = spec.identity
    rows = 150 * identity.global_batch
    paper = train_arm(identity.arm, identity.model, identity.seq_len, rows)
    assert made["flops_paper"] == pytest.approx(paper, rel=1e-12)
    assert made["flops_spent"] == made["flops_counted"] == lines[-1]["values"]["flops"]
    assert [line["step"] for line in lines] == list(range(6, 151, 6))
    # a uniform guess over the vocabulary costs log 96 = 4.56; frequencies alone save half a nat and more
    assert lines[0]["values"]["train/mlm_loss"] == pytest.approx(np.log(96), abs=0.3)
    assert made["heldout"]["heldout/mlm_loss"] < np.log(96) - 0.5
    assert made["heldout"]["heldout/mlm_loss"] == lines[-1]["values"]["heldout/mlm_loss"]


@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        ("reference_adam", {"zero_stage": 1}),
        ("reference_adam", {"zero_stage": 2}),
        ("adamw", {"zero_stage": 0}),
        ("adamw", {"zero_stage": 1}),
        ("adamw", {"zero_stage": 3}),
        ("adamw", {"engine": "ddp"}),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(
    kind: str, engine: dict[str, object], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout is on: its seeds depend on the step, so weights and optimizer state agree bit for bit. The third step is
    skipped (its gradient is not finite), so AdamW has made five updates when the run is cut after six steps."""
    optimizer = {"kind": kind}
    spec = spec_for(ELECTRA, corpus, steps=18, checkpoints={"every": 6, "keep_last": 99}, optimizer=optimizer, **engine)
    poison_step(monkeypatch, 3)
    train(spec, corpus, tmp_path / "whole", CPU)
    poison_step(monkeypatch, 3)
    train(spec, corpus, tmp_path / "cut", CPU)
    cut_back(tmp_path / "cut", 6)
    train(spec, corpus, tmp_path / "cut", CPU)
    assert_equal(weights(tmp_path / "whole", 18), weights(tmp_path / "cut", 18))
    whole, cut = done(tmp_path / "whole"), done(tmp_path / "cut")
    assert cut["flops_counted"] == whole["flops_counted"]
    assert cut["skipped_steps"] == whole["skipped_steps"] == 1
    lines = read_metrics(tmp_path / "cut")
    assert [line["values"]["skipped_steps"] for line in lines] == [1, 1, 1]
    repeated = whole["flops_counted"] - lines[0]["values"]["flops"]
    assert cut["flops_spent"] == pytest.approx(whole["flops_counted"] + repeated, rel=1e-12)
    assert {line["attempt"] for line in lines} == {0, 1}


def poison_step(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Make a gradient of the `step`-th step from now on (of two micro-batches) infinite."""
    calls, backward = 0, ENGINE_BACKWARD

    def poisoned(self: Engine, loss: Tensor) -> None:
        nonlocal calls
        calls += 1
        backward(self, loss * torch.inf if calls == 2 * step else loss)

    monkeypatch.setattr(Engine, "backward", poisoned)


def test_stages_agree_and_load_each_other(corpus: Path, tmp_path: Path) -> None:
    """Six steps at one stage, six more at the other: what twelve at one stage give, to the rounding of sums."""
    train(spec_for(ROBERTA, corpus, steps=12, zero_stage=1), corpus, tmp_path / "straight", CPU)
    for first, second in ((1, 2), (2, 1)):
        folder = tmp_path / f"{first}{second}"
        train(
            spec_for(ROBERTA, corpus, steps=12, zero_stage=first, checkpoints={"every": 6, "keep_last": 99}),
            corpus,
            folder,
            CPU,
        )
        cut_back(folder, 6)
        train(spec_for(ROBERTA, corpus, steps=12, zero_stage=second), corpus, folder, CPU)
        mixed, straight = weights(folder, 12), weights(tmp_path / "straight", 12)
        for name in straight:
            torch.testing.assert_close(mixed[name], straight[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.label)
def test_a_kill_between_the_last_checkpoint_and_the_record_loses_nothing(
    arm: ArmConfig, corpus: Path, tmp_path: Path
) -> None:
    spec = spec_for(arm, corpus, steps=6)
    train(spec, corpus, tmp_path, CPU)
    before = done(tmp_path)
    (tmp_path / "done.json").unlink()
    train(spec, corpus, tmp_path, CPU)
    assert done(tmp_path) == {**before, "attempts": 2}


def test_lines_of_a_lost_trajectory_are_dropped(corpus: Path, tmp_path: Path) -> None:
    """Attempt 0 logs every 2 steps to 12, its checkpoints beyond 6 are lost; attempt 1 logs every 3."""
    train(
        spec_for(ROBERTA, corpus, steps=12, log_every=2, checkpoints={"every": 6, "keep_last": 99}),
        corpus,
        tmp_path,
        CPU,
    )
    cut_back(tmp_path, 6)
    train(
        spec_for(ROBERTA, corpus, steps=12, log_every=3, checkpoints={"every": 6, "keep_last": 99}),
        corpus,
        tmp_path,
        CPU,
    )
    lines = read_metrics(tmp_path)
    assert [(line["step"], line["attempt"]) for line in lines] == [(2, 0), (4, 0), (6, 0), (9, 1), (12, 1)]
    spent = [line["values"]["flops_spent"] for line in lines]
    assert spent == sorted(spent)
    assert [event["step"] for event in events(tmp_path) if event["event"] == "started"] == [0, 6]


def test_micro_batches_do_not_change_a_step(corpus: Path, tmp_path: Path) -> None:
    """12 rows as 2 × 8 (4 of filler) or 3 × 4 or 1 × 12, dropout off: the same losses to float32 rounding."""
    model = MODEL.model_copy(update={"dropout": 0.0, "attention_dropout": 0.0})
    losses = []
    for micro in (8, 4, 12):
        spec = spec_for(BERT, corpus, steps=6, micro_batch=micro, log_every=1)
        identity = spec.identity.model_copy(update={"model": model.encoder(spec.identity.model.vocab_size)})
        spec = spec.model_copy(update={"identity": identity})
        train(spec, corpus, tmp_path / str(micro), CPU)
        losses.append([line["values"]["train/loss"] for line in read_metrics(tmp_path / str(micro))])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-5)


def test_a_done_run_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    spec = spec_for(ROBERTA, corpus, steps=6)
    train(spec, corpus, tmp_path, CPU)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    train(spec, corpus, tmp_path, CPU)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}


def test_a_changed_identity_is_refused_by_key(corpus: Path, tmp_path: Path) -> None:
    spec = spec_for(ROBERTA, corpus, steps=6)
    train(spec, corpus, tmp_path, CPU)
    other = spec_for(ROBERTA, corpus, steps=6, global_batch=16)
    with pytest.raises(ConfigError, match="another global_batch"):  # finished, and not what is asked for
        train(other, corpus, tmp_path, CPU)
    (tmp_path / "done.json").unlink()
    record = (tmp_path / "run.json").read_bytes()
    with pytest.raises(ConfigError, match="another global_batch"):
        train(other, corpus, tmp_path, CPU)
    assert (tmp_path / "run.json").read_bytes() == record
    with pytest.raises(ConfigError, match="another order"):
        train(spec_for(ROBERTA, corpus, steps=6, order=OrderConfig(window_shards=1)), corpus, tmp_path, CPU)


def test_a_damaged_checkpoint_is_passed_over_and_a_lone_one_refused(corpus: Path, tmp_path: Path) -> None:
    spec = spec_for(ROBERTA, corpus, steps=12, checkpoints={"every": 6, "keep_last": 99})
    train(spec, corpus, tmp_path, CPU)
    (tmp_path / "done.json").unlink()
    part = tmp_path / "checkpoints" / "step-00000012" / "part-00000.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    train(spec, corpus, tmp_path, CPU)
    (started,) = [event for event in events(tmp_path) if event["event"] == "started"][1:]
    assert started["step"] == 6 and "part-00000.safetensors was cut or altered" in started["passed_over"][0]
    assert done(tmp_path)["step"] == 12

    (tmp_path / "done.json").unlink()
    for manifest in (tmp_path / "checkpoints").glob("step-????????/manifest.json"):
        manifest.unlink()
    with pytest.raises(CheckpointError, match="no valid checkpoint is left"):
        train(spec, corpus, tmp_path, CPU)


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.label)
def test_a_loss_that_is_not_finite_stops_the_run(arm: ArmConfig, corpus: Path, tmp_path: Path) -> None:
    """The warm-up's first rate is 0; the second update spoils the weights, so that the ten steps after it are skipped,
    and no checkpoint is from before."""
    wild = arm.model_copy(update={"learning_rate": 1e30})
    with pytest.raises(DivergedError, match=r"at step 12 10 steps in a row .* not finite, and there is no earlier"):
        train(spec_for(wild, corpus, steps=12), corpus, tmp_path, CPU)
    assert not (tmp_path / "done.json").exists()


def test_weights_spoiled_by_the_last_update_are_not_published(corpus: Path, tmp_path: Path) -> None:
    """Two steps: the training loss of the second is taken before its update, and is fine."""
    wild = RobertaArm(learning_rate=1e30)
    with pytest.raises(DivergedError, match="at step 2 the held-out loss was not finite"):
        train(spec_for(wild, corpus, steps=2, log_every=1, schedule={"warmup_fraction": 0.5}), corpus, tmp_path, CPU)
    assert not (tmp_path / "done.json").exists() and not list((tmp_path / "checkpoints").glob("step-????????"))


# --- what the records carry -------------------------------------------------------------------------------------------


def test_ledgers_follow_a_placement_that_changes(corpus: Path, tmp_path: Path) -> None:
    """Six steps of 12 rows as 2 × 8 (4 of filler), then six as 1 × 12: executed in all 6 × 16 + 6 × 12 rows."""
    train(spec_for(ELECTRA, corpus, steps=12, checkpoints={"every": 6, "keep_last": 99}), corpus, tmp_path, CPU)
    cut_back(tmp_path, 6)
    spec = spec_for(ELECTRA, corpus, steps=12, micro_batch=12)
    train(spec, corpus, tmp_path, CPU)
    identity, made = spec.identity, done(tmp_path)
    executed = executed_flops(identity.arm, identity.model, rows=6 * 16 + 6 * 12, seq_len=identity.seq_len)
    assert made["flops_executed"] == pytest.approx(executed, rel=1e-12)
    paper = train_arm(identity.arm, identity.model, identity.seq_len, 12 * 12)
    assert made["flops_paper"] == pytest.approx(paper, rel=1e-12)
    assert made["flops_counted"] < made["flops_executed"]


def test_first_weights_and_ledgers_come_from_the_run_it_continues(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learning rate too small to move anything leaves what `begin` put there; a resumed attempt begins nothing."""
    calls = []
    earlier = Progress(
        flops_counted=1e12, flops_spent=2e12, flops_executed=3e12, flops_paper=4e12, tokens=5000, seconds=6.0
    )

    def begin(objective: Objective, spec: RunSpec, run_dir: Path) -> list[dict[str, object]]:
        calls.append(run_dir)
        with torch.no_grad():
            objective.embeddings.word.weight.fill_(0.25)
        return [{"event": "weights", "from": "somewhere"}]

    monkeypatch.setattr(first_weights, "begin", begin)
    monkeypatch.setattr(first_weights, "inherited", lambda spec, run_dir: earlier)
    spec = spec_for(
        ROBERTA.model_copy(update={"learning_rate": 1e-30}), corpus, steps=6, checkpoints={"every": 3, "keep_last": 99}
    )
    train(spec, corpus, tmp_path, CPU)
    assert bool((weights(tmp_path, 6)["param/embeddings.word.weight"] == 0.25).all())
    made, alone = done(tmp_path), spec.flops_per_step * 6
    assert made["flops_counted"] == pytest.approx(1e12 + alone, rel=1e-3)
    assert made["flops_spent"] - made["flops_counted"] == pytest.approx(1e12)
    assert made["flops_executed"] > 3e12 + alone and made["flops_paper"] > 4e12 and made["seconds"] > 6.0
    assert (made["step"], made["degenerate"]) == (6, None)
    cut_back(tmp_path, 3)
    train(spec, corpus, tmp_path, CPU)
    assert calls == [tmp_path]
    assert done(tmp_path)["tokens"] == made["tokens"] > 5000
    told = [event["event"] for event in events(tmp_path) if event["event"] in ("started", "weights")]
    assert told == ["started", "weights", "started"]


def test_a_degenerate_solution_is_said_once_and_so_is_its_end(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged at steps 2, 4, …, 12; the attempt that resumes at 6 knows what the checkpoint's evaluation said."""
    verdicts = iter([None, "no better: .1", "no better: .2", None, "worse: .3", "worse: .4"])
    judged: list[dict[str, float]] = []

    def verdict(self: Roberta, metrics: dict[str, float]) -> str | None:
        judged.append(metrics)
        return next(verdicts)

    monkeypatch.setattr(Roberta, "verdict", verdict)
    spec = spec_for(ROBERTA, corpus, steps=12, log_every=2, eval_every=2, checkpoints={"every": 6, "keep_last": 99})
    monkeypatch.setattr(Saving, "start", killed_when_saved(Saving.start))
    with pytest.raises(KeyboardInterrupt):
        train(spec, corpus, tmp_path, CPU)
    monkeypatch.undo()
    monkeypatch.setattr(Roberta, "verdict", verdict)
    train(spec, corpus, tmp_path, CPU)
    kinds = ("started", "degenerate", "recovered")
    told = [event for event in events(tmp_path) if event["event"] in kinds]
    assert [(event["event"], event["step"], event.get("reason")) for event in told] == [
        ("started", 0, None),
        ("degenerate", 4, "no better: .1"),
        ("started", 6, None),
        ("recovered", 8, None),
        ("degenerate", 10, "worse: .3"),
    ]
    assert done(tmp_path)["degenerate"] == "worse: .4"
    assert all("mlm_loss" in metrics for metrics in judged) and len(judged) == 6


def killed_when_saved(start: Callable[..., None]) -> Callable[..., None]:
    def save_and_die(self: Saving, *arguments: Any) -> None:
        start(self, *arguments)
        self.finish()
        raise KeyboardInterrupt

    return save_and_die
