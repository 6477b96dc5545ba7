"""From budgets and steps to runs: what a plan holds, and what it refuses."""

from pathlib import Path

import pytest

from data_prep.errors import ConfigError
from data_prep.manifest import load
from tests.training.synthetic import MODEL, write_corpus
from training.arms import BertArm, ElectraArm, ElectraTwoStageArm, FrozenGenerator, MlmArm, NetworkGenerator
from training.flops import train_flops
from training.run import Stream, mean_counts, plan_run, plan_runs, save_at
from training.settings import Compute, RunSpec, ScheduleConfig, TrainingConfig

TRAINING = TrainingConfig(global_batch=12, micro_batch=8)
TWO_STAGE = ElectraTwoStageArm(learning_rate=1e-3, temperature=0.9)


def plan(arm, corpus: Path, **options: object) -> list[RunSpec]:  # type: ignore[no-untyped-def]
    known = {"model": MODEL, "training": TRAINING, "manifest": load(corpus), "seed": 2, "corpus_dir": corpus}
    return plan_runs(arm=arm, **{**known, **options})  # type: ignore[arg-type]


def counted(spec: RunSpec, corpus: Path) -> float:
    """What the steps of a run cost by the rows they read."""
    identity = spec.identity
    stream = Stream(
        arm=identity.arm,
        encoder=identity.model,
        training=TRAINING,
        manifest=load(corpus),
        seed=2,
        start=identity.start_position,
        corpus_dir=corpus,
    )
    costs = stream.costs(spec.steps)
    assert costs is not None and len(costs) == spec.steps
    return float(costs.sum())


def test_a_plan_holds_the_schedule_in_steps_and_the_way_to_compute(corpus: Path) -> None:
    training = TRAINING.model_copy(
        update={
            "schedule": ScheduleConfig(kind="wsd", warmup_fraction=0.1, decay_fraction=0.25),
            "compute": Compute(attention="reference", activation_checkpointing=True),
        }
    )
    (run,) = plan(MlmArm(learning_rate=1e-3), corpus, steps=40, training=training)
    assert run.identity.schedule.model_dump() == {"kind": "wsd", "warmup_steps": 4, "decay_steps": 10}
    assert run.placement.compute == training.compute
    assert (run.identity.init, run.placement.init, run.inherited, run.part_of) == ({}, {}, 0.0, None)


def test_steps_make_the_budget(corpus: Path) -> None:
    """One for all seeds, by the mean; what a step of a seed costs is exact where its rows are at hand."""
    arm, manifest = ElectraArm(learning_rate=1e-3), load(corpus)
    (exact,), (mean,) = plan(arm, corpus, steps=7), plan(arm, corpus, steps=7, corpus_dir=None)
    assert (exact.steps, mean.steps) == (7, 7)
    assert 7 * exact.flops_per_step == pytest.approx(counted(exact, corpus), rel=1e-12)
    row = train_flops(arm, MODEL.encoder(manifest.vocab_size), mean_counts(manifest, arm))
    assert mean.budget == pytest.approx(7 * 12 * row, rel=1e-12)
    (other,) = plan(arm, corpus, steps=7, seed=3)
    assert exact.budget == mean.budget == other.budget
    assert len({run.flops_per_step for run in (exact, mean, other)}) == 3
    assert (exact.name, other.name) == ("electra-7steps-s2", "electra-7steps-s3")


def test_a_budget_is_met_by_the_nearest_step(corpus: Path) -> None:
    """A plan for what nine steps cost has nine steps, and so has one for a third of a step more or less."""
    (nine,) = plan(BertArm(learning_rate=1e-3), corpus, steps=9)
    for steps in (8.67, 9.0, 9.33):
        (run,) = plan(BertArm(learning_rate=1e-3), corpus, budget=steps * nine.flops_per_step)
        assert run.steps == 9
        assert run.flops_per_step == pytest.approx(nine.flops_per_step, rel=1e-12)


@pytest.mark.parametrize("at_hand", [True, False], ids=["exact", "mean"])
def test_two_stages_share_a_budget(at_hand: bool, corpus: Path) -> None:
    budget = 6e8
    first, second = plan(TWO_STAGE, corpus, budget=budget, corpus_dir=corpus if at_hand else None)
    assert (first.name, second.name) == ("electra_two_stage-first-6.00e+08-s2", "electra_two_stage-6.00e+08-s2")
    assert (first.part_of, second.part_of) == (second.name, None)
    assert first.identity.arm == MlmArm(name="electra_two_stage-first", learning_rate=1e-3)
    assert second.identity.arm == TWO_STAGE
    spent = first.steps * first.flops_per_step
    assert abs(spent - budget / 2) <= first.flops_per_step / 2 * 1.1  # steps differ in cost where they are exact
    assert second.inherited == spent
    assert abs(spent + second.steps * second.flops_per_step - budget) <= second.flops_per_step / 2 * 1.1
    assert second.budget == budget
    if at_hand:
        assert spent == pytest.approx(counted(first, corpus), rel=1e-12)
    name = f"{first.identity.fingerprint()}@{first.steps}"
    assert second.identity.init == {"weights": [name], "generator": [name]}
    folder = f"../{first.name}/checkpoints/step-{first.steps:08d}"
    assert second.placement.init == {"weights": [folder], "generator": [folder]}
    # the frozen generator samples on rows that it was not trained on
    assert (first.identity.start_position, second.identity.start_position) == (0, first.steps * 12)


def test_two_stages_share_steps(corpus: Path) -> None:
    first, second = plan(TWO_STAGE, corpus, steps=9)
    assert (first.steps, second.steps) == (4, 5)
    assert second.inherited == pytest.approx(counted(first, corpus), rel=1e-12)
    assert second.steps * second.flops_per_step == pytest.approx(counted(second, corpus), rel=1e-12)
    assert second.budget == plan(TWO_STAGE, corpus, steps=9, seed=3)[1].budget
    assert (first.name, second.name) == ("electra_two_stage-first-9steps-s2", "electra_two_stage-9steps-s2")
    assert first.part_of == second.name
    with pytest.raises(ConfigError, match="'electra_two_stage' has two stages and needs two steps or more"):
        plan(TWO_STAGE, corpus, steps=1)


def test_the_first_stage_is_another_run_where_anything_differs(corpus: Path) -> None:
    """Identities chain: what the second begins with is told by everything the first depends on."""
    names = {
        plan(TWO_STAGE.model_copy(update=arm), corpus, budget=6e8, **options)[1].identity.init["weights"][0]
        for arm, options in (({}, {}), ({"learning_rate": 2e-3}, {}), ({"mask_prob": 0.2}, {}), ({}, {"seed": 3}))
    }
    assert len(names) == 4
    assert plan(TWO_STAGE, corpus, budget=6e8)[1].identity.init["weights"][0] in names


@pytest.mark.parametrize(
    ("arm", "model", "sentence"),
    [
        (
            ElectraArm(learning_rate=1e-3, name="wide", generator=NetworkGenerator(width=0.78)),
            {"hidden_size": 256},
            "generator.width 0.78 of 'wide' makes a hidden size of 200, which does not split into heads of 64",
        ),
        (
            ElectraArm(learning_rate=1e-3, generator=FrozenGenerator()),
            {},
            "the frozen generator of 'electra' has no weights; set generator.init_from",
        ),
        (MlmArm(learning_rate=1e-3), {"max_positions": 16}, "model.max_positions: 16 is less than the corpus's"),
    ],
)
def test_what_an_arm_cannot_be_is_refused_by_its_key(arm, model, sentence, corpus: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError) as caught:
        plan(arm, corpus, steps=3, model=MODEL.model_copy(update=model))
    assert sentence in str(caught.value)


def test_every_arm_but_bert_takes_packed_rows(tmp_path: Path) -> None:
    write_corpus(tmp_path, packed=True, rows=40)
    for arm in (ElectraArm(learning_rate=1e-3), MlmArm(learning_rate=1e-3), TWO_STAGE):
        assert plan(arm, tmp_path, steps=2)[-1].steps in (1, 2)
    with pytest.raises(ConfigError, match=r"'bert' needs pairs of segments; set corpus\.layout to 'segments'"):
        plan(BertArm(learning_rate=1e-3), tmp_path, steps=2)


def test_a_budget_or_a_number_of_steps_is_needed(corpus: Path) -> None:
    with pytest.raises(ValueError, match="needs a budget or a number of steps"):
        plan_run(arm=MlmArm(learning_rate=1e-3), model=MODEL, training=TRAINING, manifest=load(corpus), seed=0)


def test_budgets_of_a_grid_are_saved_at_the_nearest_step_of_the_run() -> None:
    """Of 10 steps of 2.0 after 5.0 that it began with; the last one where a budget lies within a step of its end."""
    grid = {5.9: [], 7.0: [1], 15.2: [5], 25.0: [10], 26.5: [10], 27.0: []}
    assert {flops: save_at([flops], 5.0, 2.0, 10) for flops in grid} == grid
    assert save_at([25.9, 15.2, 15.3], 5.0, 2.0, 10) == [5, 10]
