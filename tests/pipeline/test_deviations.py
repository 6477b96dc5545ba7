"""What a report states of how an experiment departs from the protocol."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from data_prep.errors import DataError
from pipeline import gather, report
from pipeline.analysis import analyse
from pipeline.deviations import deviations
from pipeline.gather import Contents
from pipeline.matching import Finding
from pipeline.suites import Suite
from tests.pipeline import fake_experiment
from tests.pipeline.report_page import json_of, page_of


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    out = fake_experiment.write(tmp_path_factory.mktemp("deviations") / "out", suites=("glue",), steps_logged=4)
    return gather.read(out)


@pytest.fixture(scope="module")
def glue(contents: Contents) -> Suite:
    (suite,) = analyse(contents).suites
    return suite


def said(contents: Contents, suite: Suite, findings: Sequence[Finding] = (), **config: Any) -> list[str]:
    changed = dataclasses.replace(contents, config={**contents.config, **config})
    found = deviations(changed, [suite], findings)
    return [f"{one.subject}: {one.sentence}" for one in found]


def write_choice(contents: Contents, ends: dict[str, str | None], budgets: list[str]) -> None:
    """A sweep's record, by arm: which end of its grid the chosen rate is."""
    tries = [{"rate": 5e-4, "value": 3.5, "runs": {}}, {"rate": 1e-3, "value": 3.25, "runs": {}}]
    flops = {"flops_counted": 8e11, "flops_spent": 8.5e11}
    arms = {arm: {"rate": 1e-3, "end_of_grid": end, "tries": tries, **flops} for arm, end in ends.items()}
    record = {"choose_by": "heldout_loss", "best": "lowest", "budgets": budgets, "seeds": 1, "arms": arms}
    (contents.out / "sweep").mkdir(exist_ok=True)
    (contents.out / "sweep" / "chosen.json").write_text(json.dumps(record))


def test_a_small_experiment_states_what_it_could_not_have(contents: Contents, glue: Suite) -> None:
    assert [line.partition(":")[0] for line in said(contents, glue)] == [
        "corpus",
        "learning rates",
        "seeds",
        "seeds",
        "GLUE tasks",
        "GLUE tasks",
    ]
    told = " ".join(said(contents, glue))
    assert "None was searched for" in told
    assert "One pre-training seed an arm and budget, where the protocol asks for at least 3." in told
    assert "One fine-tuning of a run on a task, where the protocol asks for at least 5." in told
    assert "The mean is over 3 of the paper's 8 tasks." in told
    assert "Fine-tuning follows the protocol plain, not the paper's" in told


def test_an_experiment_by_the_protocol_states_nothing(contents: Contents, glue: Suite) -> None:
    cells = [dataclasses.replace(cell, seeds=3, finetune_seeds=(5, 5)) for cell in glue.cells]
    tasks = [dataclasses.replace(glue.tasks[0], name=f"task {i}") for i in range(8)]
    whole = dataclasses.replace(glue, cells=cells, tasks=tasks, protocol={"name": "electra_paper"})
    write_choice(contents, {"electra": None, "bert": None, "roberta": None}, budgets=["4.00e+11", "1.20e+12"])
    assert said(contents, whole, corpus={"decontamination": {"sets": []}}, sweep={"rates": {}}) == []


def test_what_is_cut_degenerate_or_unequal_is_named(contents: Contents, glue: Suite) -> None:
    cells = [dataclasses.replace(glue.cells[0], degenerate=1), *glue.cells[1:]]
    tasks = [dataclasses.replace(glue.tasks[0], subset=True), *glue.tasks[1:]]
    suite = dataclasses.replace(glue, cells=cells, tasks=tasks)
    write_choice(contents, {"electra": "highest", "bert": None}, budgets=["4.00e+11"])
    findings = [
        Finding("rate", True, "electra did best at the end."),
        Finding("budget", False, "bert is 3 % short."),
        Finding("rows", True, "All is well."),
    ]
    told = said(contents, suite, findings, sweep={"rates": {}, "unequal": "bert diverges above 1e-3"})
    assert told[0] == "budgets: bert is 3 % short."
    assert "learning rates: electra did best at the end." in told
    assert "All is well." not in " ".join(told)
    assert any("chosen at 4 × 10¹¹ model FLOPs alone and are used at every budget" in line for line in told)
    assert "None was searched for" not in " ".join(told)
    assert "learning rates: The arms' sweeps are of unequal size: bert diverges above 1e-3." in told
    assert f"GLUE tasks: Of {tasks[0].name} a declared subset of the data was used." in told
    assert "GLUE tasks: Degenerate fine-tunings of electra are in the means; none was repeated or dropped." in told


def test_decay_branches_are_declared(contents: Contents, glue: Suite) -> None:
    first = contents.runs[0]
    branch = dataclasses.replace(first, done={**(first.done or {}), "shared": {"run": "ab", "step": 9}})
    told = said(dataclasses.replace(contents, runs=[branch, *contents.runs[1:]]), glue)
    assert any(line.startswith("schedules: 1 of 6 runs are decay branches off the run") for line in told)


def test_minimal_pairs_have_no_fine_tunings_to_repeat(contents: Contents, glue: Suite) -> None:
    cells = [dataclasses.replace(cell, seeds=3, degenerate=1) for cell in glue.cells]
    assert not [
        line for line in said(contents, dataclasses.replace(glue, name="blimp", cells=cells)) if "tuning" in line
    ]


def test_a_broken_record_of_a_sweep_is_named(contents: Contents, glue: Suite) -> None:
    (contents.out / "sweep").mkdir(exist_ok=True)
    (contents.out / "sweep" / "chosen.json").write_text('{"arms": {"electra": {}}}')
    with pytest.raises(DataError, match=r"chosen\.json is no record of a sweep .* run `electra experiment run` again"):
        said(contents, glue, sweep={"rates": {}})


def test_the_page_tells_of_the_sweep(out: Path, undrawn: None) -> None:
    config = yaml.safe_load((out / "config.yaml").read_text())
    rates = {arm: [5e-4, 1e-3] for arm in fake_experiment.ARMS}
    (out / "config.yaml").write_text(yaml.safe_dump(config | {"sweep": {"rates": rates}}))
    write_choice(gather.read(out), {"electra": "highest", "bert": None, "roberta": None}, budgets=["4.00e+11"])
    report.write(out)
    page = page_of(out)
    assert "chosen among 2 by the lowest held-out loss of pre-training at 4 × 10¹¹ model FLOPs" in page.text
    assert "The sweep took 2.4 × 10¹² model FLOPs of its own" in page.text
    table = next(t for t in page.tables if t[0][1].startswith("rate"))
    assert [[cell.strip() for cell in row[:4]] for row in table[1:3]] == [
        ["electra", "0.0005", "3.5000", ""],
        ["electra", "0.001", "3.2500", "chosen, the highest of its grid"],
    ]
    assert json_of(out)["sweep"]["arms"][0]["rate"] == 1e-3
    assert "learning rate 0.001" in page.text.partition("arm electra")[2].partition("arm bert")[0]


def test_a_rate_that_diverged_is_told_as_that(out: Path, undrawn: None) -> None:
    """The record of the sweep holds no value for it (`pipeline.sweep`)."""
    config = yaml.safe_load((out / "config.yaml").read_text())
    rates = {arm: [5e-4, 1e-3] for arm in fake_experiment.ARMS}
    (out / "config.yaml").write_text(yaml.safe_dump(config | {"sweep": {"rates": rates}}))
    write_choice(gather.read(out), {"electra": "highest", "bert": None, "roberta": None}, budgets=["4.00e+11"])
    path = out / "sweep" / "chosen.json"
    record = json.loads(path.read_text())
    record["arms"]["electra"]["tries"][0] |= {"value": None, "diverged": "loss is not a number"}
    path.write_text(json.dumps(record))
    report.write(out)
    page = page_of(out)
    table = next(t for t in page.tables if t[0][1].startswith("rate"))
    assert [[cell.strip() for cell in row[:3]] for row in table[1:3]] == [
        ["electra", "0.0005", "diverged"],
        ["electra", "0.001", "3.2500"],
    ]
    assert "Diverged in the sweep, and out of the choice: electra 0.0005." in page.text
    assert json_of(out)["sweep"]["arms"][0]["tries"][0] == {"rate": 5e-4, "value": None}


def test_rates_chosen_by_reported_scores_are_stated(contents: Contents, glue: Suite) -> None:
    ends: dict[str, str | None] = dict.fromkeys(fake_experiment.ARMS)
    write_choice(contents, ends, budgets=["4.00e+11"])
    path = contents.out / "sweep" / "chosen.json"
    told = "chosen by glue scores on the evaluation sets that scores are reported on"
    assert told not in " ".join(said(contents, glue, sweep={"rates": {}}))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"choose_by": "glue"}))
    assert told in " ".join(said(contents, glue, sweep={"rates": {}}))


def test_the_page_states_them(out: Path, undrawn: None) -> None:
    fake_experiment.change(out / "runs" / "bert-1.20e+12-s0" / "done.json", flops_counted=1.1e12)
    report.write(out)
    assert json_of(out)["deviations"][0]["subject"] == "budgets"
    table = next(t for t in page_of(out).tables if t[0][0].startswith("checked"))
    marks = {row[0].strip(): row[1].strip() for row in table[1:]}
    assert (marks["budgets"], marks["rows"], marks["differences of the arms"]) == ("does not hold", "holds", "to know")
    found = json_of(out)["deviations"]
    text = page_of(out).text
    assert found and all(f"{one['subject']}: {one['sentence']}" in text for one in found)
