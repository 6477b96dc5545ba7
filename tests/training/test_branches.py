"""Budgets as decay branches off one trunk: what is planned, and that a branch is what a whole run would have been."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from data_prep.errors import CheckpointError, ConfigError, DivergedError
from data_prep.manifest import load
from pipeline import gather, rows_read, story_words
from pipeline.events import story_of
from tests.training.engine_ranks import run_group
from tests.training.runs import BERT, CPU, ELECTRA, MODEL, ROBERTA, assert_equal, cut_back, done, events, weights
from training import origin
from training.arms import ArmConfig, ElectraTwoStageArm, FrozenGenerator
from training.branches import plan_branches
from training.faults import Faults
from training.loop import train
from training.metrics import read_metrics
from training.optimizer import learning_rate
from training.run import plan_run
from training.run_folder import read_run_record
from training.settings import RunSpec, ScheduleConfig, TrainingConfig

pytestmark = pytest.mark.usefixtures("process_group")

SCHEDULE = {"kind": "wsd", "warmup_fraction": 0.25, "decay_fraction": 0.25, "branches": True}
STEPS = (8, 14, 24)  # warm-up 2; decays 2, 4 and 6, which begin at 6, 10 and 18
KEEP = {"every": 2, "keep_last": 99}


def settings(**training: object) -> TrainingConfig:
    known = {"global_batch": 12, "micro_batch": 8, "log_every": 4, "eval_rows": 24, "schedule": SCHEDULE}
    return TrainingConfig.model_validate(known | training)


def planned(arm: ArmConfig, corpus: Path, steps: tuple[int, ...] = STEPS, **training: object) -> list[RunSpec]:
    """The trunk, and its branches from the smallest on, of so many average steps."""
    known: dict[str, Any] = {"arm": arm, "model": MODEL, "manifest": load(corpus), "seed": 3}
    known["training"] = settings(**training)
    step = plan_run(budget=1e12, **known).flops_per_step
    return plan_branches(budgets=[count * step for count in steps], **known)


def whole(branch: RunSpec) -> RunSpec:
    """The same run, trained from its first step."""
    return branch.model_copy(update={"placement": branch.placement.model_copy(update={"trunk": None})})


def trained(spec: RunSpec, corpus: Path, runs: Path) -> Path:
    train(spec, corpus, runs / spec.name, CPU)
    return runs / spec.name


def started(run_dir: Path) -> list[dict[str, Any]]:
    return [event for event in events(run_dir) if event["event"] == "started"]


def die_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """As if killed when so many steps are completed."""

    def before_step(self: Faults, completed: int) -> None:
        if completed == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(Faults, "before_step", before_step)


# --- plans ------------------------------------------------------------------------------------------------------------


def test_the_largest_budget_is_the_trunk_of_the_others(corpus: Path) -> None:
    trunk, small, middle = planned(BERT, corpus)
    assert [run.steps for run in (trunk, small, middle)] == [24, 8, 14]
    assert [run.identity.schedule.decay_steps for run in (trunk, small, middle)] == [6, 2, 4]
    assert {run.identity.schedule.warmup_steps for run in (trunk, small, middle)} == {2}  # a quarter of 8, in all
    assert [run.first_step for run in (trunk, small, middle)] == [0, 6, 10]
    assert (trunk.placement.trunk, trunk.placement.save_at) == (None, [6, 10])
    assert small.placement.trunk == middle.placement.trunk == f"../{trunk.name}"
    assert [run.flops_by(run.steps) / run.flops_per_step for run in (trunk, small, middle)] == pytest.approx([24, 2, 4])
    assert middle.flops_by(9) == 0.0 and middle.flops_by(11) == middle.flops_per_step
    assert [run.budget / run.flops_per_step for run in (trunk, small, middle)] == pytest.approx([24, 8, 14])


def test_trunk_and_branch_have_one_rate_until_the_branch_decays(corpus: Path) -> None:
    """To the last bit: the rate at a step is the identity's."""
    trunk, *branches = planned(BERT, corpus)

    def rate(run: RunSpec, step: int) -> float:
        return learning_rate(step, 1e-3, run.steps, run.identity.schedule)

    for branch in branches:
        assert [rate(branch, step) for step in range(branch.first_step)] == [
            rate(trunk, step) for step in range(branch.first_step)
        ]
        decay = branch.steps - branch.first_step
        assert [rate(branch, branch.first_step + n) for n in range(decay)] == pytest.approx(
            [1e-3 * (1 - n / decay) for n in range(decay)], rel=1e-12
        )


def test_what_is_saved_for_good_is_saved_by_the_part_that_trains_it(corpus: Path) -> None:
    one = planned(BERT, corpus)[0].flops_per_step
    trunk, small, middle = planned(BERT, corpus, checkpoints={"at_flops": [4 * one, 7 * one, 12 * one]})
    assert [run.placement.save_at for run in (trunk, small, middle)] == [[4, 6, 7, 10, 12], [7], [12]]


def test_what_cannot_branch_is_refused(corpus: Path, tmp_path: Path) -> None:
    for arm, sentence in (
        (ElectraTwoStageArm(learning_rate=1e-3), "'electra_two_stage' has two stages"),
        (BERT.model_copy(update={"init_from": [tmp_path]}), r"'bert' begins with the weights of others \(init_from\)"),
        (ELECTRA.model_copy(update={"generator": FrozenGenerator(init_from=tmp_path)}), "'electra' begins with the"),
    ):
        with pytest.raises(ConfigError, match=f"{sentence}.*set training.schedule.branches to false"):
            plan_branches(arm=arm, model=MODEL, training=settings(), manifest=load(corpus), seed=3, budgets=[1e8, 1e9])
    with pytest.raises(ConfigError, match=r"are 1 step\(s\) of arm 'bert', of which 0 decay: too few for a branch"):
        planned(BERT, corpus, (1, 8))
    for change, sentence in (
        ({"kind": "linear"}, "set kind to wsd"),
        ({"decay_fraction": 0.0}, "set decay_fraction between 0 and 1"),
        ({"decay_fraction": 1.0, "warmup_fraction": 0.0}, "set decay_fraction between 0 and 1"),
    ):
        with pytest.raises(ValidationError, match=sentence):
            ScheduleConfig.model_validate({**SCHEDULE, **change})


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tree(corpus: Path, process_group: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs' folder of a `roberta` whose trunk and branches are trained; not to be changed."""
    runs = tmp_path_factory.mktemp("tree") / "runs"
    for spec in planned(ROBERTA, corpus):
        trained(spec, corpus, runs)
    return runs


def copied(tree: Path, trunk: RunSpec, runs: Path) -> Path:
    """The trunk alone, elsewhere."""
    return Path(shutil.copytree(tree / trunk.name, runs / trunk.name))


def test_a_branch_is_what_a_whole_run_would_have_been(tree: Path, corpus: Path, tmp_path: Path) -> None:
    """Weights and optimizer state to the last bit, dropout included; all that counts is the same, and spent is what the
    decay took."""
    trunk, *branches = planned(ROBERTA, corpus)
    full = done(tree / trunk.name)
    assert full["shared"] == {"run": None, "step": 0} | dict.fromkeys(full["inherited"], 0)
    for branch in branches:
        short, long = tree / branch.name, trained(whole(branch), corpus, tmp_path)
        assert_equal(weights(short, branch.steps), weights(long, branch.steps))
        mine, its, shared = done(short), done(long), done(short)["shared"]
        for name in ("step", "tokens", "position", "start_position", "heldout", "skipped_steps", "checkpoint"):
            assert mine[name] == its[name], name
        for name in ("flops_counted", "flops_executed", "flops_paper"):
            assert mine[name] == pytest.approx(its[name], rel=1e-12)
        assert its["flops_spent"] == its["flops_counted"]
        assert mine["flops_spent"] + shared["flops_counted"] == pytest.approx(mine["flops_counted"], rel=1e-12)
        assert mine["flops_spent"] == pytest.approx(branch.flops_by(branch.steps), rel=0.1)  # rows differ in length
        assert (shared["run"], shared["step"]) == (trunk.identity.fingerprint(), branch.first_step)
        assert mine["seconds"] > shared["seconds"] > 0
        assert [line["step"] for line in read_metrics(short)] == [
            step for step in range(branch.first_step + 1, branch.steps + 1) if step % 4 == 0 or step == branch.steps
        ]


def test_a_branch_says_so(tree: Path, corpus: Path) -> None:
    trunk, _, middle = planned(ROBERTA, corpus)
    run_dir = tree / middle.name
    assert read_run_record(run_dir) == middle
    (event,) = started(run_dir)
    at_ten = next(line for line in read_metrics(tree / trunk.name) if line["step"] == 10)["values"]
    assert event["step"] == 10 and event["from"] is None
    assert event["trunk"] == {
        "run": trunk.name,
        "planned": 10,
        "step": 10,
        "flops": at_ten["flops"],
        "identity": f"{trunk.identity.fingerprint()}@10",
    }
    story = story_of(run_dir)
    assert story_words.sentence(story.entries[0]).startswith(f"attempt 1 branched off {trunk.name} at step 10 on 1 × ")
    made = done(run_dir)
    assert story.totals is not None
    assert story.totals.flops_spent == made["flops_spent"]
    assert story.totals.flops_counted == pytest.approx(made["flops_spent"], rel=1e-9)  # nothing was lost
    assert story.totals.goodput is not None and story.totals.goodput < 1.0


def test_all_of_one_seed_have_read_the_same_rows(tree: Path, corpus: Path) -> None:
    contents = gather.read(tree.parent)
    (group,) = rows_read.alike(contents)
    assert sorted(group.runs) == sorted(run.name for run in planned(ROBERTA, corpus))
    assert group.ranges == [(0, 24 * 12)]
    for run in contents.runs:
        assert run.done is not None
        assert run.done["flops_counted"] == pytest.approx(run.budget, rel=0.05)  # rows differ in length


def test_weights_of_a_branch_cost_what_its_trunk_did_too(tree: Path, corpus: Path) -> None:
    _, small, _ = planned(ROBERTA, corpus)
    found, made = origin.find(tree / small.name, label="roberta", objective="roberta", seed=3), done(tree / small.name)
    (ledger,) = found.ledgers.values()
    assert ledger.flops_counted == made["flops_counted"]
    assert ledger.flops_spent == pytest.approx(made["flops_counted"], rel=1e-12)  # nobody was killed
    assert found.position == 8 * 12


@pytest.mark.parametrize("saved", [False, True], ids=["before it saved", "after it saved"])
def test_a_killed_branch_goes_on(
    saved: bool, tree: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps are lost and made again, the third and the fourth, or the first two."""
    trunk, _, middle = planned(ROBERTA, corpus, checkpoints=KEEP if saved else {}, log_every=1)
    copied(tree, trunk, tmp_path)
    if saved:
        cut_back(trained(middle, corpus, tmp_path), 12)
    else:
        die_at(monkeypatch, 12)
        with pytest.raises(KeyboardInterrupt):
            trained(middle, corpus, tmp_path)
        monkeypatch.undo()
    run_dir = trained(middle, corpus, tmp_path)
    assert_equal(weights(run_dir, 14), weights(tree / middle.name, 14))
    first, second = started(run_dir)
    assert "trunk" in first and ("trunk" in second) == (not saved)
    assert (second["step"], second["from"]) == ((12, "step-00000012") if saved else (10, None))
    made, undisturbed = done(run_dir), done(tree / middle.name)
    assert made["shared"] == undisturbed["shared"]
    assert made["flops_counted"] == pytest.approx(undisturbed["flops_counted"], rel=1e-12)
    lost = (made["flops_spent"] - undisturbed["flops_spent"]) / middle.flops_per_step
    assert lost == pytest.approx(2.0, abs=0.3)  # rows differ in length


def test_a_branch_waits_for_its_trunk_and_for_no_other(tree: Path, corpus: Path, tmp_path: Path) -> None:
    trunk, small, middle = planned(ROBERTA, corpus)
    with pytest.raises(
        CheckpointError, match=r"branches off .* at step 6, and that run has no checkpoint there yet; train"
    ):
        trained(small, corpus, tmp_path)
    there = copied(tree, trunk, tmp_path)
    (there / "done.json").unlink()
    shutil.rmtree(there / "checkpoints" / "step-00000010")
    trained(small, corpus, tmp_path)  # the trunk is at work, and has passed its step
    with pytest.raises(CheckpointError, match=r"branches off .* at step 10, and"):
        trained(middle, corpus, tmp_path)
    (other, _, stray) = planned(ROBERTA.model_copy(update={"learning_rate": 1e-3}), corpus)
    assert other.name == trunk.name
    with pytest.raises(ConfigError, match=r"is of a run with another arm than .*; choose another --out"):
        trained(stray, corpus, tmp_path)


@pytest.mark.parametrize("kept", [[6], []], ids=["an earlier one", "none"])
def test_a_finished_trunk_serves_with_what_it_kept(kept: list[int], tree: Path, corpus: Path, tmp_path: Path) -> None:
    """A budget that was added later branches off where the trunk saved for a smaller one, or is trained whole."""
    trunk, _, middle = planned(ROBERTA, corpus)
    there = copied(tree, trunk, tmp_path)
    for step in {6, 10}.difference(kept):
        shutil.rmtree(there / "checkpoints" / f"step-{step:08d}")
    run_dir = trained(middle, corpus, tmp_path)
    assert_equal(weights(run_dir, 14), weights(tree / middle.name, 14))
    (event,) = started(run_dir)
    assert event["trunk"]["step"] == event["step"] == done(run_dir)["shared"]["step"] == (6 if kept else 0)
    words = story_words.started(event)
    assert words.startswith(
        f"branched off {trunk.name} at step 6 on"
        if kept
        else f"began at step 0, since {trunk.name} keeps no checkpoint up to step 10 on"
    )


def test_a_broken_checkpoint_of_the_trunk_is_passed_over(tree: Path, corpus: Path, tmp_path: Path) -> None:
    trunk, _, middle = planned(ROBERTA, corpus)
    part = next((copied(tree, trunk, tmp_path) / "checkpoints" / "step-00000010").glob("part-*"))
    part.write_bytes(part.read_bytes()[:-1])
    run_dir = trained(middle, corpus, tmp_path)
    assert_equal(weights(run_dir, 14), weights(tree / middle.name, 14))
    (event,) = started(run_dir)
    assert event["step"] == 6 and "was cut or altered" in event["passed_over"][0]


def test_a_larger_budget_leaves_finished_runs_as_they_are(tree: Path, corpus: Path, tmp_path: Path) -> None:
    """The trunk of before is a branch in the new plan, and as it is done, it is the run it was."""
    runs = shutil.copytree(tree, tmp_path / "runs")
    trunk, *branches = planned(ROBERTA, corpus, (*STEPS, 32))
    assert branches[-1].placement.trunk == f"../{trunk.name}"
    before = {run.name: (runs / run.name / "run.json").read_bytes() for run in branches}
    for branch in branches:
        trained(branch, corpus, runs)
    assert before == {run.name: (runs / run.name / "run.json").read_bytes() for run in branches}


def test_a_branch_that_leaves_the_road_goes_back_to_where_it_began(tree: Path, corpus: Path, tmp_path: Path) -> None:
    """Before it has saved for itself, its trunk's checkpoint is what there is, however often."""
    fault = [{"kind": "nan", "step": 11, "times": 2}]
    trunk, _, middle = planned(ROBERTA, corpus, stability={"max_skipped": 2}, faults=fault)
    copied(tree, trunk, tmp_path)
    run_dir = trained(middle, corpus, tmp_path)
    (rollback,) = [event for event in events(run_dir) if event["event"] == "rollback"]
    assert (rollback["step"], rollback["to_step"]) == (13, 10)
    assert (rollback["from_position"], rollback["to_position"]) == (120, 156)
    made = done(run_dir)
    assert (made["rollbacks"], made["skipped"], made["start_position"]) == (1, [[120, 156]], 0)
    lost = made["flops_spent"] - (made["flops_counted"] - made["shared"]["flops_counted"])
    assert lost == pytest.approx(3 * middle.flops_per_step, rel=0.15)
    shutil.rmtree(run_dir)
    for_ever = [{"kind": "nan", "step": 11, "times": 99}]
    *_, middle = planned(ROBERTA, corpus, stability={"max_skipped": 2}, faults=for_ever)
    with pytest.raises(DivergedError, match="going back 3 times did not help; lower the arm's learning_rate"):
        trained(middle, corpus, tmp_path)


def test_a_trunk_that_skipped_rows_hands_that_on(corpus: Path, tmp_path: Path) -> None:
    fault = [{"kind": "nan", "step": 4, "times": 2}]
    trunk, small, _ = planned(ROBERTA, corpus, stability={"max_skipped": 2}, faults=fault, checkpoints=KEEP)
    trained(trunk, corpus, tmp_path)
    calm = small.model_copy(update={"placement": small.placement.model_copy(update={"faults": []})})
    run_dir = trained(calm, corpus, tmp_path)
    made = done(run_dir)
    assert done(tmp_path / trunk.name)["skipped"] == made["skipped"] == [[48, 72]]
    assert (made["rollbacks"], made["rows_skipped"], made["start_position"]) == (0, 24, 0)
    assert made["shared"]["flops_spent"] > made["shared"]["flops_counted"]
    assert made["flops_spent"] == pytest.approx(2 * small.flops_per_step, rel=0.15)


def test_a_spike_just_after_the_branch_is_judged_by_the_trunk(
    tree: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its windows alone would be too few for a mean."""
    trunk, _, middle = planned(ROBERTA, corpus)
    there, recalled = copied(tree, trunk, tmp_path), []
    assert [line["step"] for line in read_metrics(there)] == [4, 6, 8, 10, 12, 16, 20, 24]
    monkeypatch.setattr("training.stability.Stability.recall", lambda self, lines: recalled.append(list(lines)))
    trained(middle, corpus, tmp_path)
    assert [line["step"] for line in recalled[0]] == [4, 6, 8, 10]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"optimizer": {"kind": "adamw"}, "zero_stage": 3}, {"optimizer": {"kind": "adamw"}, "engine": "ddp"}],
    ids=["stage 3", "ddp"],
)
def test_other_engines_branch_alike(options: dict[str, object], corpus: Path, tmp_path: Path) -> None:
    """Two networks, whose generator draws; AdamW counts its updates."""
    trunk, small = planned(ELECTRA, corpus, (8, 14), **options)
    trained(trunk, corpus, tmp_path)
    long = trained(whole(small), corpus, tmp_path / "whole")
    assert_equal(weights(trained(small, corpus, tmp_path), 8), weights(long, 8))


def branch(corpus: Path, folder: Path, _rank: int, _world: int) -> None:
    """One rank of a branch, at stage 1 and without dropout, which goes by the rank."""
    trained(calm(planned(ROBERTA, corpus))[1], corpus, folder)


def calm(specs: list[RunSpec]) -> list[RunSpec]:
    model = MODEL.model_copy(update={"dropout": 0.0, "attention_dropout": 0.0}).encoder(
        specs[0].identity.model.vocab_size
    )
    return [spec.model_copy(update={"identity": spec.identity.model_copy(update={"model": model})}) for spec in specs]


@pytest.mark.slow
@pytest.mark.multi
def test_two_ranks_branch_off_a_trunk_of_one(corpus: Path, tmp_path: Path) -> None:
    trunk, small, _ = calm(planned(ROBERTA, corpus))
    trained(trunk, corpus, tmp_path)
    run_group(2, corpus, tmp_path, branch)
    one, two = (weights(trained(whole(small), corpus, tmp_path / "whole"), 8), weights(tmp_path / small.name, 8))
    assert one.keys() == two.keys()
    for name in one:
        assert torch.allclose(one[name], two[name], rtol=1e-4, atol=1e-6), name
    made = done(tmp_path / small.name)
    assert (made["world_size"], made["shared"]["step"], made["position"]) == (2, 6, 8 * 12)
