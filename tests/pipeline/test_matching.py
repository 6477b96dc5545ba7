"""The rules of a matched comparison: each holds of an experiment that keeps it, and fails of one that breaks it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import gather
from pipeline.matching import NOTES, Finding, check
from pipeline.matching_rules import differences
from tests.pipeline import fake_experiment
from training.arms import BertArm, ElectraArm, RobertaArm
from training.flops import network_costs, train_flops
from training.run import mean_counts
from training.sizes import EncoderConfig

ARM = {"electra": ElectraArm, "bert": BertArm, "roberta": RobertaArm}
ELECTRA, BERT = "electra-1.20e+12-s0", "bert-4.00e+11-s0"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A matched experiment: what runs counted is what their networks cost on an average row of the corpus."""
    out = fake_experiment.write(tmp_path_factory.mktemp("matched") / "out", steps_logged=4)
    manifest = fake_experiment.write_corpus(out)
    for folder in sorted((out / "runs").iterdir()):
        spec, done = (json.loads((folder / name).read_text()) for name in ("run.json", "done.json"))
        arm = ARM[spec["arm"]](learning_rate=5e-4)
        model = EncoderConfig.model_validate(spec["identity"]["model"])
        step = 64 * train_flops(arm, model, mean_counts(manifest, arm))
        steps = round(spec["budget"] / step)
        schedule = {"kind": "linear", "warmup_steps": round(0.05 * steps), "decay_steps": 0}
        identity = spec["identity"] | {"steps": steps, "schedule": schedule}
        fake_experiment.change(folder / "run.json", flops_per_step=step, steps=steps, identity=identity)
        counted = {
            "flops_counted": steps * step,
            "flops_spent": 1.5 * steps * step,
            "step": steps,
            "position": 64 * steps,
        }
        fake_experiment.change(folder / "done.json", **counted)
        assert done["hardware"].startswith("2 CPU")
    return out


@pytest.fixture
def out(kept: Path, tmp_path: Path) -> Path:
    """One to spoil."""
    shutil.copytree(kept, tmp_path / "out")
    return tmp_path / "out"


def findings(out: Path) -> list[Finding]:
    return check(gather.read(out))


def broken(out: Path) -> list[tuple[str, str]]:
    return [(one.kind, one.sentence) for one in findings(out) if not one.ok]


def change(out: Path, run: str, file: str, **values: Any) -> None:
    fake_experiment.change(out / "runs" / run / file, **values)


def identity(out: Path, run: str, **values: Any) -> None:
    spec = json.loads((out / "runs" / run / "run.json").read_text())
    change(out, run, "run.json", identity=spec["identity"] | values)


def configure(out: Path, **values: Any) -> None:
    config = yaml.safe_load((out / "config.yaml").read_text())
    (out / "config.yaml").write_text(yaml.safe_dump(config | values))


def test_a_matched_experiment_keeps_every_rule(kept: Path) -> None:
    found = findings(kept)
    assert [one.sentence for one in found if not one.ok] == []
    kinds = [one.kind for one in found]
    assert sorted(set(kinds) - set(NOTES)) == [
        "budget", "evaluation", "generator", "rows", "schedule", "settings", "sweep"
    ]  # fmt: skip
    notes = [one.sentence for one in found if one.kind in NOTES]
    assert notes == [
        "Learning rates: electra 0.0005, bert 0.0005 and roberta 0.0005.",
        "bert alone predicts next sentences: half of its second segments are those of other rows; its masks are "
        "static, in 10 versions, and the others' are drawn anew.",
    ]


def counted(share: float) -> Callable[[Path], None]:
    def spoil(out: Path) -> None:
        done = json.loads((out / "runs" / ELECTRA / "done.json").read_text())
        change(out, ELECTRA, "done.json", flops_counted=share * done["flops_counted"])

    return spoil


def protocol(out: Path) -> None:
    results = fake_experiment.read_results_file(out)
    results[0]["protocol"]["fingerprint"] = "b" * 64
    fake_experiment.write_results_file(out, results)


def seeds(out: Path) -> None:
    results = fake_experiment.read_results_file(out)
    fake_experiment.write_results_file(out, [*results, results[0] | {"finetune_seed": 1}])


def data(out: Path) -> None:
    results = fake_experiment.read_results_file(out)
    fake_experiment.write_results_file(out, [results[0] | {"data_sha256": "other"}, *results[1:]])


BREACHES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "flops": (counted(1.02), "budget", f"{ELECTRA} counted "),
    "corpus": (lambda out: identity(out, BERT, manifest_sha256="9" * 64), "rows", "Runs differ in their corpus: "),
    "batch": (lambda out: identity(out, BERT, global_batch=32), "rows", "Runs differ in training.global_batch: "),
    "order": (lambda out: change(out, BERT, "done.json", start_position=64), "rows", "Not all runs of seed 0 read the"),
    "optimizer": (lambda out: identity(out, BERT, optimizer={"kind": "adamw"}), "settings", "differ in training.optim"),
    "dropout": (
        lambda out: identity(out, BERT, model=fake_experiment.MODEL | {"dropout": 0.1}), "settings", "in model.dropout:"
    ),
    "precision": (
        lambda out: change(out, BERT, "run.json", placement={"precision": "bf16"}), "settings", "differ in precision: "
    ),
    "hardware": (lambda out: change(out, BERT, "done.json", hardware="1 × H"), "settings", "differ in precision: "),
    "step": (lambda out: change(out, BERT, "done.json", step=7), "schedule", f"{BERT} ended at step 7 of the "),
    "warm-up": (
        lambda out: identity(out, BERT, schedule={"kind": "linear", "warmup_steps": 0, "decay_steps": 0}),
        "schedule", f"{BERT} has another schedule than training.schedule says",
    ),
    "branch": (
        lambda out: change(out, BERT, "run.json", placement={"trunk": "../bert"}), "schedule",
        f"{BERT} is a decay branch, and training.schedule.branches does not declare it.",
    ),
    "protocol": (protocol, "evaluation", "Results of probes are under more than one protocol."),
    "seeds": (seeds, "evaluation", "Not every run was evaluated as often on sentence_order of probes."),
    "data": (data, "evaluation", "Results of probes on sentence_order are on different data."),
}  # fmt: skip


@pytest.mark.parametrize("name", BREACHES)
def test_each_breach_is_found_by_its_rule(out: Path, name: str) -> None:
    spoil, kind, sentence = BREACHES[name]
    spoil(out)
    assert [(found, sentence in said) for found, said in broken(out) if found == kind] == [(kind, True)]


def test_a_trunk_is_matched_before_its_branches_have_begun(out: Path) -> None:
    """The warm-up of all is the smallest budget's; of a trunk alone it cannot be told, and its own is taken for it."""
    schedule = {"kind": "wsd", "warmup_fraction": 0.05, "decay_fraction": 0.1, "branches": True}
    config = yaml.safe_load((out / "config.yaml").read_text())
    configure(out, training={**config["training"], "schedule": schedule})
    for arm in fake_experiment.ARMS:
        small, large = (out / "runs" / fake_experiment.run_name(arm, budget) for budget in fake_experiment.BUDGETS)
        steps = {folder: json.loads((folder / "run.json").read_text())["steps"] for folder in (small, large)}
        warmup = round(0.05 * steps[small])
        for folder in (small, large):
            planned = {"kind": "wsd", "warmup_steps": warmup, "decay_steps": round(0.1 * steps[folder])}
            identity(out, folder.name, schedule=planned)
    assert broken(out) == []
    for arm in fake_experiment.ARMS:
        shutil.rmtree(out / "runs" / fake_experiment.run_name(arm, fake_experiment.BUDGETS[0]))
    assert broken(out) == []


def test_flops_may_be_off_by_the_larger_of_a_percent_and_a_step(out: Path) -> None:
    """A step of the larger ELECTRA run is less than 1 %."""
    spec = json.loads((out / "runs" / ELECTRA / "run.json").read_text())
    assert spec["flops_per_step"] < 0.01 * 1.2e12
    change(out, ELECTRA, "done.json", flops_counted=1.0099 * 1.2e12)
    assert broken(out) == []
    change(out, ELECTRA, "done.json", flops_counted=1.0101 * 1.2e12)
    assert [kind for kind, _ in broken(out)] == ["budget"]
    change(out, ELECTRA, "run.json", flops_per_step=0.011 * 1.2e12)
    assert "budget" not in [kind for kind, _ in broken(out)]


def test_a_generators_flops_left_out_are_found(out: Path) -> None:
    """What the discriminator costs alone, with as many more steps, would meet the budget all the same."""
    manifest = gather.read(out).manifest
    assert manifest is not None
    arm, model = ElectraArm(learning_rate=1.0), EncoderConfig.model_validate(fake_experiment.MODEL)
    counts = mean_counts(manifest, arm).scaled(64)
    alone = network_costs(arm, model)["discriminator"].train(counts)
    steps = round(1.2e12 / alone)
    schedule = {"kind": "linear", "warmup_steps": round(0.05 * steps), "decay_steps": 0}
    identity(out, ELECTRA, steps=steps, schedule=schedule)
    change(out, ELECTRA, "run.json", steps=steps, flops_per_step=alone)
    change(out, ELECTRA, "done.json", step=steps, flops_counted=steps * alone, position=64 * steps)
    ((kind, sentence),) = broken(out)
    assert kind == "generator"
    assert sentence.startswith(f"{ELECTRA} counts {alone:.4g} FLOPs a step, and with its generator ")


def test_mask_rates_and_parameters_that_differ_are_noted(out: Path) -> None:
    spec = json.loads((out / "runs" / ELECTRA / "run.json").read_text())
    for run in ("electra-4.00e+11-s0", ELECTRA):
        identity(out, run, arm=spec["identity"]["arm"] | {"mask_prob": 0.25})
        change(out, run, "done.json", parameters=2_000_000)
    said = [one.sentence for one in findings(out) if one.kind == "difference"]
    assert "Mask rates: electra 25%, bert 15% and roberta 15%." in said
    assert "Trained parameters: electra 2,000,000, bert 1,700,000 and roberta 1,700,000." in said


# --- the sweep --------------------------------------------------------------------------------------------------------

RATES = {"electra": [2e-4, 5e-4], "bert": [5e-4, 1e-3], "roberta": [5e-4, 1e-3]}


def choose(out: Path, **rates: float) -> None:
    """The record of a sweep that chose 5e-4, or what is said."""
    arms = {
        arm: {
            "rate": rates.get(arm, 5e-4), "end_of_grid": "highest" if arm == "electra" else None,
            "flops_counted": 2e11, "flops_spent": 3e11,
            "tries": [{"rate": rate, "value": 1.0, "runs": {f"{arm}{rate}": 1.0}} for rate in own],
        }
        for arm, own in RATES.items()
    }  # fmt: skip
    (out / "sweep").mkdir(exist_ok=True)
    (out / "sweep" / "chosen.json").write_text(json.dumps({"arms": arms}))


def of_sweep(out: Path) -> list[tuple[bool, str]]:
    return [(one.ok, one.sentence) for one in findings(out) if one.kind in ("sweep", "rate")]


def test_an_equal_sweep_and_its_flops_are_shown(out: Path) -> None:
    configure(out, sweep={"rates": RATES})
    choose(out)
    assert of_sweep(out) == [
        (True, "Every arm's learning rate is chosen from 2, the same number for all."),
        (
            True,
            "Model FLOPs counted (spent) in the sweep, in no arm's budget: electra 2e+11 (3e+11), bert 2e+11 (3e+11) "
            "and roberta 2e+11 (3e+11).",
        ),
        (True, "electra did best at 0.0005, the highest rate tried: its best may lie beyond."),
    ]


def test_rates_other_than_the_chosen_are_a_breach(out: Path) -> None:
    configure(out, sweep={"rates": RATES})
    choose(out, bert=1e-3)
    assert broken(out) == [
        ("sweep", "bert-4.00e+11-s0 was trained at 0.0005, and the sweep chose 0.001."),
        ("sweep", "bert-1.20e+12-s0 was trained at 0.0005, and the sweep chose 0.001."),
    ]


def test_a_choice_among_other_rates_than_the_files_is_a_breach(out: Path) -> None:
    """The grid was widened since: what was chosen says nothing of the file's."""
    configure(out, sweep={"rates": {**RATES, "bert": [5e-4, 2e-3]}})
    choose(out)
    assert broken(out) == [("sweep", "sweep/chosen.json is a choice among other rates than the file's for bert.")]
    (out / "sweep" / "chosen.json").write_text('{"arms": {}}')
    assert [kind for kind, _ in broken(out)] == ["sweep"]


def test_arms_of_one_objective_say_in_what_they_differ(out: Path) -> None:
    spec = json.loads((out / "runs" / BERT / "run.json").read_text())
    for run in ("bert-4.00e+11-s0", "bert-1.20e+12-s0"):
        identity(out, run, arm=spec["identity"]["arm"] | {"objective": "roberta"})
    said = differences(gather.read(out).runs)
    assert said[-1] == "bert and roberta have one objective and differ in mask_versions."


def test_runs_without_the_record_of_their_sweep_are_a_breach(out: Path) -> None:
    configure(out, sweep={"rates": RATES})
    assert [kind for kind, _ in broken(out)] == ["sweep"]


def test_a_declared_unequal_sweep_is_told_with_its_reason(out: Path) -> None:
    configure(out, sweep={"rates": {**RATES, "bert": [1e-3]}, "unequal": "no time."})
    choose(out)
    sentence = "Arms have unequal numbers of rates, as the file declares: electra 2, bert 1 and roberta 2 (no time)."
    assert of_sweep(out)[0] == (True, sentence)


def test_an_experiment_that_is_not_finished_is_held_to_its_plan(out: Path) -> None:
    (out / "runs" / ELECTRA / "done.json").unlink()
    found = findings(out)
    assert [one.sentence for one in found if not one.ok] == []
    assert found[-1].sentence == f"1 of 6 runs are not finished, and are held to their plan: {ELECTRA}."
    change(out, ELECTRA, "run.json", flops_per_step=1.0)
    assert {kind for kind, _ in broken(out)} == {"budget", "generator"}
