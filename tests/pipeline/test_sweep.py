"""The learning-rate sweep: what it is told, the experiment it becomes, and what it chooses."""

import io
import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from data_prep import storage
from data_prep.errors import ConfigError, DataError, DivergedError, StoppedError
from pipeline import stages, sweep, sweep_stage
from pipeline.config import dump
from pipeline.console import Console
from pipeline.corpora import MAIN, prepared
from pipeline.experiment import Experiment
from pipeline.folder import Folder
from pipeline.place import Place
from pipeline.stop import stop
from pipeline.sweep_config import rate_name
from tests.pipeline.test_experiment import experiment
from tests.training.synthetic import write_corpus
from training import requests
from training.run_folder import append_events, write_run_record

ARMS = "arms=[{objective: electra, learning_rate: 1e-3}, {objective: roberta, learning_rate: 1e-3}]"
RATES = "rates: {electra: [5e-4, 1e-3], roberta: [1e-3, 2.5e-3]}"
SMALL = (
    "corpus.seq_len=32",
    "model={embedding_size: 8, hidden_size: 8, num_layers: 1, num_heads: 1, intermediate_size: 8, max_positions: 32}",
    "budgets=[1e7, 2e7]",
    "training.global_batch=4",
    "training.micro_batch=4",
    ARMS,
)


def swept(settings: str = "", *overrides: str) -> Experiment:
    return experiment(*SMALL, f"sweep={{{RATES}{settings}}}", *overrides)


# --- what it is told --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("sweep={rates: {electra: [1e-3]}}", "sweep.rates needs a list for every arm and for nothing else; look at ro"),
        ("sweep.rates.bart=[1e-3, 2e-3]", "for nothing else; look at bart"),
        (
            "sweep.rates.electra=[1e-3]",
            "sweep: arms have different numbers of rates; give each as many, or say under u",
        ),
        (
            "sweep.rates.electra=[2e-3, 1e-3]",
            "the rates of 'electra' must rise, and differ in their first three digits",
        ),
        ("sweep.rates.electra=[1e-3, 1.0001e-3]", "the rates of 'electra' must rise, and differ"),
        ("sweep.rates.electra=[]", "at least 1 item"),
        ("sweep.budgets=[3e7]", "sweep.budgets has 3e+07, which is none of budgets; choose among 1.00e+07, 2.00e+07"),
        ("sweep.choose_by=glue", "sweep.choose_by is glue, which evaluation.suites does not name; add it there"),
    ],
)
def test_a_sweep_that_cannot_choose_is_refused(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        swept("", override)
    assert sentence in str(caught.value)


def test_a_sweep_is_for_budgets() -> None:
    with pytest.raises(ConfigError, match="sweep is for budgets; give budgets, or leave it out"):
        experiment(
            "arms=[{objective: electra, learning_rate: 1}]",
            "sweep={rates: {electra: [1e-3]}}",
            "budgets=null",
            "steps=9",
        )


def test_unequal_grids_need_a_reason() -> None:
    unequal = swept(", unequal: bert diverges above 1e-3", "sweep.rates.electra=[1e-3]")
    assert unequal.sweep is not None
    assert unequal.sweep.unequal == "bert diverges above 1e-3"


@pytest.mark.parametrize(("rate", "name"), [(5e-4, "5e-4"), (2.5e-4, "2_5e-4"), (1e-3, "1e-3"), (1.25e-3, "1_25e-3")])
def test_rates_name_arms(rate: float, name: str) -> None:
    assert rate_name(rate) == name


# --- the sweep as an experiment ---------------------------------------------------------------------------------------


def test_it_tries_every_arm_at_every_rate_on_the_same_corpus_with_seeds_of_its_own() -> None:
    one = sweep.as_experiment(swept(", seeds: 2", "seed=3", "seeds=5"), Path("/main"))
    assert [(arm.label, arm.objective, arm.learning_rate) for arm in one.arms] == [
        ("electra-lr5e-4", "electra", 5e-4),
        ("electra-lr1e-3", "electra", 1e-3),
        ("roberta-lr1e-3", "roberta", 1e-3),
        ("roberta-lr2_5e-3", "roberta", 2.5e-3),
    ]
    assert (one.budgets, one.seed, one.seeds) == ([1e7], 1003, 2)  # the smallest budget; results have seeds 3 to 7
    assert (one.corpus.location, one.sweep) == ("/main/corpus", None)
    main = swept("", "seed=3", "seeds=5")
    assert one.corpus.identity() == main.corpus.identity()
    assert (one.model, one.training.optimizer) == (main.model, main.training.optimizer)


def test_it_evaluates_the_suite_that_decides_and_no_other() -> None:
    given = ("evaluation={suites: [glue, blimp], glue_dir: g, blimp: b, seeds: 4, protocol: {epochs: 7}}",)
    by_blimp = sweep.as_experiment(swept(", choose_by: blimp", *given), Path("c")).evaluation
    assert (by_blimp.suites, by_blimp.glue_dir, str(by_blimp.blimp)) == (["blimp"], None, "b")
    by_glue = sweep.as_experiment(swept(", choose_by: glue", *given), Path("c")).evaluation
    assert (by_glue.suites, by_glue.seeds, by_glue.protocol.epochs, by_glue.blimp) == (["glue"], 4, 7, None)


def test_a_budget_alone_is_no_trunk_and_several_are_as_in_the_experiment() -> None:
    branches = "training.schedule={kind: wsd, branches: true, decay_fraction: 0.5}"
    assert not sweep.as_experiment(swept("", branches), Path("c")).training.schedule.branches
    assert sweep.as_experiment(swept(", budgets: [1e7, 2e7]", branches), Path("c")).training.schedule.branches


# --- what it chooses --------------------------------------------------------------------------------------------------


@pytest.fixture
def out(tmp_path: Path) -> Path:
    write_corpus(tmp_path / "out" / "corpus", rows=40)
    return tmp_path / "out"


def finish(out: Path, config: Experiment, losses: Mapping[str, float], *, spent: float = 2.0) -> list[str]:
    """Finished runs of the sweep by arm and rate, with these held-out losses; their names."""
    one = sweep.as_experiment(config, out)
    folder = out / "sweep"
    (folder / "runs").mkdir(parents=True)
    (folder / "config.yaml").write_text(dump(one))
    (out / "config.yaml").write_text(dump(config))
    names = []
    for spec in one.runs(prepared({MAIN: storage.folder(out / "corpus")})):
        label = spec.identity.arm.label
        if label not in losses:
            continue
        run = folder / "runs" / spec.name
        run.mkdir()
        write_run_record(run, spec)
        done = {
            "flops_counted": 1.0, "flops_spent": spent, "seconds": 1.0, "tokens_per_second": 1.0, "budget": 1.0,
            "step": spec.steps, "tokens": 1, "parameters": 1, "world_size": 1, "checkpoint": "c", "hardware": "h",
            "heldout": {"heldout/loss": losses[label]},
        }  # fmt: skip
        (run / "done.json").write_text(json.dumps(done))
        names.append(spec.name)
    return names


LOSSES = {"electra-lr5e-4": 9.0, "electra-lr1e-3": 8.0, "roberta-lr1e-3": 5.0, "roberta-lr2_5e-3": 5.0}


def test_the_lowest_loss_is_chosen_and_of_equal_ones_the_lower_rate(out: Path) -> None:
    names = finish(out, swept(), LOSSES, spent=3.0)
    record = sweep.choose(swept(), out, {})
    assert sweep.rates_of(record) == {"electra": 1e-3, "roberta": 1e-3}
    assert (record["best"], record["budgets"], record["seeds"]) == ("lowest", ["1.00e+07"], 1)
    electra = record["arms"]["electra"]
    assert electra["tries"][1] == {"rate": 1e-3, "value": 8.0, "runs": {names[1]: 8.0}}
    assert electra["end_of_grid"] == "highest"
    assert record["arms"]["roberta"]["end_of_grid"] == "lowest"
    assert (electra["flops_counted"], electra["flops_spent"]) == (2.0, 6.0)  # of two runs
    assert record == json.loads((out / "sweep" / "chosen.json").read_text())


def test_a_rate_amid_the_grid_is_at_no_end_of_it(out: Path) -> None:
    three = swept("", "sweep.rates={electra: [5e-4, 1e-3, 2e-3], roberta: [1e-3, 2e-3, 4e-3]}")
    finish(out, three, {sweep.label_of(arm, rate): abs(rate - 1.1e-3) for arm, rate in (
        ("electra", 5e-4), ("electra", 1e-3), ("electra", 2e-3), ("roberta", 1e-3), ("roberta", 2e-3), ("roberta", 4e-3)
    )})  # fmt: skip
    arms = sweep.choose(three, out, {})["arms"]
    assert (arms["electra"]["rate"], arms["electra"]["end_of_grid"]) == (1e-3, None)
    assert arms["roberta"]["end_of_grid"] == "lowest"


def test_the_highest_mean_of_the_suites_tasks_is_chosen(out: Path) -> None:
    """A task's score is the mean of its fine-tunings; the suite's the mean of the tasks in it."""
    config = swept(", choose_by: glue", "evaluation={suites: [glue], glue_dir: g}")
    names = finish(out, config, LOSSES)
    scores: dict[str, tuple[tuple[str, bool, float], ...]] = {
        names[0]: (("RTE", True, 0.6), ("RTE", True, 0.8), ("CoLA", True, 0.1)),  # (.7 + .1) / 2
        names[1]: (("RTE", True, 0.5), ("CoLA", True, 0.2), ("WNLI", False, 1.0)),  # .35
        names[2]: (("RTE", True, 0.5), ("CoLA", True, 0.0)),
        names[3]: (("RTE", True, 0.5), ("CoLA", True, 0.1)),
    }
    rows = [result(run, *row) for run, own in scores.items() for row in own]
    rows.append({**result(names[1], "x", True, 9.0), "suite": "blimp"})
    (out / "sweep" / "evaluation").mkdir()
    (out / "sweep" / "evaluation" / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = sweep.choose(config, out, {})
    assert sweep.rates_of(record) == {"electra": 5e-4, "roberta": 2.5e-3}
    assert record["arms"]["electra"]["tries"][0]["value"] == pytest.approx(0.4)
    assert record["best"] == "highest"


def result(run: str, task: str, in_mean: bool, score: float) -> dict[str, Any]:
    words = dict.fromkeys(("arm", "objective", "metric", "predictions"), "x")
    numbers = dict.fromkeys(("seed", "step", "finetune_seed", "n_train", "n_dev", "majority", "seconds", "budget"), 0)
    flags = {"in_mean": in_mean, "degenerate": False, "subset": False, "metrics": {}, "protocol": {}}
    return {**words, **numbers, **flags, "run": run, "suite": "glue", "task": task, "score": score}


def test_a_run_without_a_score_or_a_rate_without_a_run_chooses_nothing(out: Path) -> None:
    finish(out, swept(), {key: loss for key, loss in LOSSES.items() if key != "roberta-lr1e-3"})
    with pytest.raises(DataError, match=r"0 of 1 runs of roberta at rate 0\.001 are finished"):
        sweep.choose(swept(), out, {})
    with pytest.raises(DataError, match="has no score"):
        sweep.choose(swept(", choose_by: probes"), out, {})


def test_a_rate_with_fewer_runs_than_planned_chooses_nothing(out: Path) -> None:
    """A mean over the seeds that happen to be finished would be another quantity."""
    two = swept(", seeds: 2")
    names = finish(out, two, LOSSES)
    (out / "sweep" / "runs" / names[0] / "done.json").unlink()
    with pytest.raises(DataError, match=r"1 of 2 runs of electra at rate 0\.0005 are finished"):
        sweep.choose(two, out, {})


def test_losses_on_different_rows_are_not_compared(out: Path) -> None:
    """The grid was widened after the number of held-out rows was changed, which makes no run another."""
    names = finish(out, swept(), LOSSES)
    path = out / "sweep" / "runs" / names[0] / "run.json"
    record = json.loads(path.read_text())
    record["placement"]["eval_rows"] *= 2
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"rates of electra were judged on different numbers of held-out rows"):
        sweep.choose(swept(), out, {})


def test_a_rate_that_diverged_is_never_chosen(out: Path) -> None:
    finish(out, swept(), {key: loss for key, loss in LOSSES.items() if key != "electra-lr1e-3"})
    record = sweep.choose(swept(), out, {"electra-lr1e-3": "not a number"})
    assert sweep.rates_of(record)["electra"] == 5e-4
    assert record["arms"]["electra"]["tries"][1]["diverged"] == "not a number"
    with pytest.raises(DivergedError, match=r"sweep: electra diverged at every rate of its grid; give sweep\.rates"):
        sweep.choose(swept(), out, {"electra-lr1e-3": "", "electra-lr5e-4": ""})


def test_runs_are_planned_at_the_chosen_rates_and_not_before(out: Path) -> None:
    with pytest.raises(ConfigError, match="holds no choice of learning rates for this experiment yet; run `electra ex"):
        sweep.rated(swept(), out)
    finish(out, swept(), {**LOSSES, "roberta-lr2_5e-3": 1.0})
    sweep.choose(swept(), out, {})
    assert [arm.learning_rate for arm in sweep.rated(swept(), out).arms] == [1e-3, 2.5e-3]
    assert sweep.rated(swept("", "training.log_every=7"), out).arms[0].learning_rate == 1e-3  # placement


@pytest.mark.parametrize(
    "override",
    ["sweep.rates.electra=[5e-4, 2e-3]", "sweep.seeds=2", "training.global_batch=2", "sweep.choose_by=probes"],
)
def test_the_choice_of_another_sweep_is_none(out: Path, override: str) -> None:
    finish(out, swept(), LOSSES)
    sweep.choose(swept(), out, {})
    assert sweep.chosen(swept(), out) is not None
    assert sweep.chosen(swept("", override), out) is None


def test_without_a_sweep_arms_keep_their_own_rates(out: Path) -> None:
    plain = experiment(*SMALL)
    assert sweep.rated(plain, out) is plain


# --- the stage --------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(out: Path) -> Place:
    console = Console(io.StringIO(), interactive=False)
    return Place(
        experiment=swept(),
        folder=Folder(out, {MAIN: storage.folder(out / "corpus")}),
        console=console,
        stack=ExitStack(),
    )


def test_a_grid_may_be_too_wide(place: Place, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that diverges ends training; the others are trained all the same, and one of theirs is chosen."""
    calls: list[list[str]] = []

    def train(within: Place) -> dict[str, Any]:
        calls.append([arm.label for arm in within.experiment.arms])
        if len(calls) == 1:
            names = finish(out, place.experiment, {"electra-lr1e-3": 1.0})
            folder = out / "sweep" / "runs" / names[0]
            (folder / "done.json").unlink()
            append_events(folder, [{"event": "failed", "step": 1, "reason": "x-s0: at step 1 loss is not a number"}])
            raise DivergedError("x-s0: at step 1 loss is not a number")
        left = {key: loss for key, loss in LOSSES.items() if key != "electra-lr1e-3"}
        (out / "sweep" / "runs").rename(out / "sweep" / "old")
        finish(out, place.experiment, left)
        return {}

    monkeypatch.setattr(sweep_stage, "train", train)
    monkeypatch.setattr(stages, "evaluate", lambda *_, **__: pytest.fail("nothing is evaluated"))
    record = sweep_stage.run_sweep(place)
    assert [len(labels) for labels in calls] == [4, 3]
    assert "electra-lr1e-3" not in calls[1]
    assert sweep.rates_of(record) == {"electra": 5e-4, "roberta": 1e-3}
    again = sweep_stage.run_sweep(place)
    assert (again, len(calls)) == (record, 2)  # it is done
    told = place.console.stream.getvalue()  # type: ignore[attr-defined]
    assert "the rate is out of the choice" in told
    assert "sweep: electra did best at 0.0005, the lowest rate tried: its best may lie beyond" in told


def test_a_divergence_that_no_run_tells_of_ends_the_sweep(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(within: Place) -> dict[str, Any]:
        raise DivergedError("elsewhere")

    monkeypatch.setattr(sweep_stage, "train", train)
    with pytest.raises(DivergedError, match="elsewhere"):
        sweep_stage.run_sweep(place)


def test_a_first_stage_that_diverges_puts_its_arm_out(place: Place, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first stage's own label is no arm's."""
    two = "arms=[{objective: electra_two_stage, learning_rate: 1e-3}, {objective: roberta, learning_rate: 1e-3}]"
    place.experiment = experiment(*SMALL[:-1], two, "sweep={rates: {electra_two_stage: [5e-4, 1e-3], roberta: [1, 2]}}")
    calls: list[list[str]] = []

    def train(within: Place) -> dict[str, Any]:
        calls.append([arm.label for arm in within.experiment.arms])
        assert len(calls) < 3, "the same arm is tried again and again"
        if len(calls) == 2:
            raise StoppedError("seen")
        specs = within.experiment.runs(prepared({MAIN: storage.folder(out / "corpus")}))
        first = next(spec for spec in specs if spec.part_of is not None)
        folder = within.folder.runs / first.name
        folder.mkdir(parents=True)
        write_run_record(folder, first)
        append_events(folder, [{"event": "failed", "step": 1, "reason": f"{first.name}: at step 1 no number"}])
        raise DivergedError(f"{first.name}: at step 1 no number")

    monkeypatch.setattr(sweep_stage, "train", train)
    with pytest.raises(StoppedError, match="seen"):
        sweep_stage.run_sweep(place)
    assert calls[1] == [label for label in calls[0] if label != "electra_two_stage-lr5e-4"]
    assert len(calls[0]) == 4


def test_a_stop_asked_of_an_experiment_reaches_its_sweep(out: Path) -> None:
    """While a command works in it; afterwards it reaches the experiment's own runs."""
    console = Console(io.StringIO(), interactive=False)
    finish(out, swept(), LOSSES)
    run = out / "runs" / "electra"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    with storage.LocalFolder(out / "sweep").held():
        stop(out, console, reason="noon")
    assert requests.read(out / "runs") is None
    asked = requests.read(out / "sweep" / "runs")
    assert asked is not None
    assert (asked.what, asked.reason) == ("stop", "noon")
    stop(out, console, reason="one")
    assert requests.read(out / "runs") is not None


def test_a_stop_that_comes_while_the_sweep_is_evaluated_ends_it_there(
    place: Place, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.experiment = swept(", choose_by: probes")

    def evaluate(within: Place, **_: object) -> dict[str, Any]:
        requests.ask(within.folder.runs, "stop", "noon")
        return {}

    monkeypatch.setattr(sweep_stage, "train", lambda within: within.folder.runs.mkdir() or {})
    monkeypatch.setattr(stages, "evaluate", evaluate)
    with pytest.raises(StoppedError, match="noon"):
        sweep_stage.run_sweep(place)
    assert not (out / "sweep" / "chosen.json").exists()
