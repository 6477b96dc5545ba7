"""What an experiment will take: by a stated rate, by finished runs and units, and measured on this machine."""

from pathlib import Path

import pytest

from pipeline import estimate as estimates
from pipeline.config import load
from pipeline.corpora import assumed
from pipeline.devices import stated
from pipeline.estimate import Estimate, estimate, shape_of
from pipeline.experiment import Experiment
from pipeline.measured import Measured, measure
from tests.pipeline import fake_experiment

SMALL = """
name: small
seeds: 2
corpus:
  sources: [{kind: installed_docs, max_bytes: 100000}]
  tokenizer: {kind: wordpiece, vocab_size: 400}
  seq_len: 32
model: {embedding_size: 32, hidden_size: 32, num_layers: 1, num_heads: 2, intermediate_size: 64, dropout: 0.0,
        attention_dropout: 0.0}
training: {global_batch: 8, micro_batch: 8, eval_rows: 16}
arms:
  - {objective: electra, learning_rate: 1.0e-3, generator: {width: 1.0}}
  - {objective: bert, learning_rate: 2.0e-3}
budgets: [1.0e+9, 4.0e+9]
cluster: {num_workers: 1, num_cpus: 2}
evaluation:
  suites: [glue, blimp]
  tasks: [RTE]
  seeds: 3
  glue_dir: GLUE
  blimp: BLIMP
  protocol: {epochs: 2, max_length: 32, batch_size: 16}
"""
TRAIN, DEV, PAIRS = 40, 20, 10


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """On an RTE and a BLiMP of sentences of six words."""
    glue, blimp = tmp_path / "glue" / "RTE", tmp_path / "blimp"
    glue.mkdir(parents=True)
    blimp.mkdir()
    for name, n in (("train", TRAIN), ("dev", DEV)):
        rows = [f"{i}\tone two three four five s{i}\ta b c d e t{i}\t{_word(i)}" for i in range(n)]
        (glue / f"{name}.tsv").write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *rows]) + "\n")
    pair = '{{"UID": "agreement", "linguistics_term": "t", "sentence_good": "the cat sits on the mat {0}", '
    lines = [(pair + '"sentence_bad": "the cat sit on the mat {0}"}}').format(i) for i in range(PAIRS)]
    (blimp / "agreement.jsonl").write_text("\n".join(lines) + "\n")
    path = tmp_path / "small.yaml"
    path.write_text(SMALL.replace("GLUE", str(tmp_path / "glue")).replace("BLIMP", str(blimp)))
    return load(path, (), Experiment)


def _word(i: int) -> str:
    return "entailment" if i % 2 else "not_entailment"


def by_name(found: Estimate) -> dict[str, estimates.RunEstimate]:
    return {run.name: run for run in found.runs}


def test_a_stated_rate_gives_seconds_and_cost(experiment: Experiment, tmp_path: Path) -> None:
    rate = stated("a100", 4, mfu=0.5, price=2.0)
    found = estimate(experiment, tmp_path / "none", stated=rate)
    assert found.assumed and len(found.runs) == 2 * 2 * 2
    for run in found.runs:
        assert run.flops == pytest.approx(run.budget, rel=0.05)
        assert run.tokens == run.steps * 8 * 32
        assert run.seconds == pytest.approx(run.flops / (4 * 312e12 * 0.5))
        assert run.cost == pytest.approx(run.flops / (4 * 312e12 * 0.5) / 3600 * 4 * 2.0)
        assert (run.source, run.done) == ("stated MFU 0.50 on 4 × A100 SXM 80 GB", False)
    assert found.flops == pytest.approx(sum(run.flops for run in found.runs))


def test_evaluations_are_counted_by_their_examples(experiment: Experiment, tmp_path: Path) -> None:
    rte, blimp = estimate(experiment, tmp_path / "none").evaluations
    assert (rte.suite, rte.task, rte.units, rte.done) == ("glue", "RTE", 8 * 3, 0)
    assert rte.unit_steps == 2 * 3  # 2 epochs of 40 examples in batches of 16
    # 12 words of 1.3 tokens and three special ones; one layer of 4·32² + 2·32·64 weights
    tokens = 12 * 1.3 + 3
    forward = 2 * (4 * 32**2 + 2 * 32 * 64) * tokens + 4 * 32 * tokens**2
    assert rte.flops == pytest.approx(24 * forward * (3 * 2 * TRAIN + DEV))
    assert (blimp.task, blimp.units, blimp.unit_steps) == ("BLiMP", 8, 0)
    assert (rte.seconds, rte.source) == (None, "unknown")


def test_measured_times_are_used_by_arm_and_shared_by_cores(experiment: Experiment, tmp_path: Path) -> None:
    runs = experiment.runs(assumed(experiment))
    shapes = {run.identity.arm.label: shape_of(run) for run in runs}
    measured = Measured(
        step_seconds={shapes["electra"]: 0.5, shapes["bert"]: 0.25},
        unit_seconds={
            ("glue", "RTE"): {shapes["electra"]: 4.0, shapes["bert"]: 4.0},
            ("blimp", "BLiMP"): {shapes["electra"]: 6.0, shapes["bert"]: 2.0},
        },
    )
    found = estimate(experiment, tmp_path / "none", measured=measured)
    for run in found.runs:
        once = 0.5 if run.arm == "electra" else 0.25
        assert run.seconds == pytest.approx(run.steps * once + 16 / 8 * 0.4 * once)  # the last evaluation, of 16 rows
        assert run.source == "measured here"
    rte, blimp = found.evaluations
    assert (rte.seconds, blimp.seconds) == (24 * 4.0 / 2, (4 * 6.0 + 4 * 2.0) / 2)  # on two cores
    assert found.seconds == pytest.approx(sum(run.seconds or 0 for run in found.runs) + 48 + 16)


def test_an_arms_name_and_rate_do_not_change_what_a_step_takes(experiment: Experiment) -> None:
    readings = assumed(experiment)
    swept = [
        arm.model_copy(update={"name": f"{arm.label}-{rate}", "learning_rate": rate})
        for arm in experiment.arms
        for rate in (1e-4, 1e-3)
    ]
    both = [*experiment.runs(readings), *experiment.model_copy(update={"arms": swept}).runs(readings)]
    assert len({shape_of(run) for run in both}) == 2


def test_finished_runs_tell_their_own_pace(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = estimates.finished_rates(fake_experiment.write(tmp_path / "fake"))
    assert len(finished) == 3 and all(once == pytest.approx(0.05) for once in finished.values())  # 0.05 s a step
    electra = shape_of(experiment.runs(assumed(experiment))[0])
    monkeypatch.setattr(estimates, "finished_rates", lambda out: {electra: 0.2})
    found = estimate(experiment, tmp_path / "none")
    for run in found.runs:
        expected = (run.steps * 0.2, "finished runs") if run.arm == "electra" else (None, "unknown")
        assert (run.seconds, run.source) == expected
    assert found.seconds is None


def test_a_branch_evaluates_its_own_part_alone(experiment: Experiment, tmp_path: Path) -> None:
    """Every five steps, and at the end; the trunk's evaluations before the branch begins are the trunk's."""
    schedule = {"kind": "wsd", "branches": True, "decay_fraction": 0.5}
    tree = experiment.model_dump(mode="json")
    tree["training"] |= {"schedule": schedule, "eval_every": 5}
    branched = Experiment.model_validate(tree | {"arms": tree["arms"][1:]})
    specs = branched.runs(assumed(experiment))
    shape = shape_of(specs[0])
    found = estimate(branched, tmp_path / "none", measured=Measured(step_seconds={shape: 1.0}, unit_seconds={}))
    for spec, run in zip(specs, found.runs, strict=True):
        marks = [step for step in range(spec.first_step + 1, spec.steps) if step % 5 == 0]
        assert run.seconds == pytest.approx(run.own_steps + (1 + len(marks)) * 16 / 8 * 0.4)
    assert any(spec.first_step > 5 for spec in specs)


def test_rates_of_other_folders_count_where_they_are_given(experiment: Experiment, tmp_path: Path) -> None:
    """Those of an experiment's finished runs serve its sweep too."""
    shapes = {shape_of(spec) for spec in experiment.runs(assumed(experiment))}
    found = estimate(experiment, tmp_path / "none", finished=dict.fromkeys(shapes, 0.5))
    assert {(run.seconds, run.source) for run in found.runs} == {
        (0.5 * run.steps, "finished runs") for run in found.runs
    }


@pytest.mark.slow
def test_this_machine_is_measured(experiment: Experiment, tmp_path: Path) -> None:
    measured = measure(experiment, assumed(experiment), tmp_path / "none")
    found = estimate(experiment, tmp_path / "none", measured=measured)
    assert found.seconds is not None and 0 < found.seconds < 3600
    assert all(run.seconds for run in found.runs) and all(one.seconds for one in found.evaluations)
    assert {1e-4 < once < 1.0 for once in measured.step_seconds.values()} == {True}
