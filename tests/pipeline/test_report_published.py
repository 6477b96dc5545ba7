"""What may stand beside GLUE and the probes in a report: models that are no arms, tasks without a mean, BLiMP."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import analysis, figures_reference, gather, report, wording
from pipeline import published as published_models
from tests.pipeline import fake_experiment
from tests.pipeline.report_page import Page


def published(out: Path, name: str, flops: float | None, right: dict[str, int]) -> list[dict[str, Any]]:
    """Results of a model that has these many right answers."""
    rows = []
    for seed, (task, count) in enumerate(right.items(), start=900):
        row = fake_experiment.write_result(out, "bert", 0, "glue", task, count, seed)
        row |= {"run": name, "arm": name, "objective": "BertForMaskedLM", "budget": None, "step": 0}
        rows.append(row | {"flops_counted": flops, "flops_declared": flops is not None})
    return rows


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An experiment on GLUE, a published model with declared FLOPs, and one of which less is known."""
    out = fake_experiment.write(tmp_path / "out", suites=("glue",), steps_logged=4)
    rows = fake_experiment.read_results_file(out)
    rows += published(out, "published-bert", 1.8e19, {"CoLA": 800, "MRPC": 340, "RTE": 200})
    rows += published(out, "half-known", None, {"MRPC": 300, "RTE": 190})
    fake_experiment.write_results_file(out, rows)
    return out


def test_they_are_told_with_their_flops_and_compared_with_nothing(out: Path) -> None:
    alone = fake_experiment.write(out.parent / "alone", suites=("glue",), steps_logged=4)
    (before,) = analysis.analyse(gather.read(alone)).suites
    (suite,) = analysis.analyse(gather.read(out)).suites
    assert (suite.cells, suite.differences, suite.multipliers) == (
        before.cells,
        before.differences,
        before.multipliers,
    )
    known, half = suite.published
    assert (known.name, known.flops, known.declared) == ("published-bert", 1.8e19, True)
    assert known.tasks["MRPC"].value == 340 / 408
    assert known.mean is not None
    assert known.mean.value == pytest.approx(sum(figure.value for figure in known.tasks.values()) / 3)
    assert known.mean.low < known.mean.value < known.mean.high
    assert (half.flops, half.declared, half.mean, set(half.tasks)) == (None, False, None, {"MRPC", "RTE"})


def test_the_page_says_whose_word_the_flops_are(out: Path, undrawn: None) -> None:
    report.write(out)
    page = Page((out / "report" / "report.html").read_text())
    (table,) = [table for table in page.tables if table[1][0].startswith("published-bert")]
    assert table[1][1] == "1.8 × 10¹⁹ declared "
    assert table[2][1] == "not known "
    assert table[2][2].startswith("–")  # CoLA, and so no mean
    assert table[2][-1].startswith("–")
    found = json.loads((out / "report" / "report.json").read_text())
    assert [one["name"] for one in found["suites"][0]["published"]] == ["published-bert", "half-known"]


@pytest.mark.slow
def test_the_figure_names_it(out: Path) -> None:
    report.write(out)
    drawn = (out / "report" / "curve.svg").read_text()
    assert "published-bert (declared FLOPs)" in drawn
    assert "half-known" not in drawn


def test_the_paper_s_models_stand_beside_glue_under_its_own_count(out: Path, undrawn: None) -> None:
    for path in out.glob("runs/*/done.json"):
        fake_experiment.change(path, flops_paper=3e12)
    report.write(out)
    page = Page((out / "report" / "report.html").read_text())
    (table,) = [table for table in page.tables if table[1][0].startswith("ELMo")]
    rows = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in table[1:]}
    assert rows["ELECTRA-Small"][:5] == ["14M", "1.294 × 10¹⁸", "1.4 × 10¹⁸", "79.9", "–"]
    # of CoLA, MRPC and RTE, which this experiment has: (69.1 + 90.8 + 88.0) / 3
    assert rows["ELECTRA-1.75M"][:5] == ["335M", "3.114 × 10²¹", "3.1 × 10²¹", "89.5", "82.6"]
    assert rows["electra"][1] == "3.000 × 10¹²"
    found = json.loads((out / "report" / "report.json").read_text())
    assert found["suites"][0]["cells"][0]["flops_paper"] == 3e12
    assert len(found["reference"]) == len(published_models.MODELS)


def test_without_flops_by_the_paper_s_count_nothing_is_laid_beside_it(out: Path) -> None:
    (suite,) = analysis.analyse(gather.read(out)).suites
    assert {cell.flops_paper for cell in suite.cells} == {None}
    assert figures_reference.reference(suite, published_models.MODELS) is None


@pytest.mark.slow
def test_the_reference_names_every_model_and_breaks_the_axis_where_they_are_far(out: Path) -> None:
    (suite,) = analysis.analyse(gather.read(out)).suites
    for flops, panels in ((3e12, 2), (3e17, 1)):
        cells = [dataclasses.replace(cell, flops_paper=flops * (1 + index)) for index, cell in enumerate(suite.cells)]
        drawn = figures_reference.reference(dataclasses.replace(suite, cells=cells), published_models.MODELS)
        assert drawn is not None
        assert all(f"{model.name}  {model.glue}" in drawn for model in published_models.MODELS)
        assert drawn.count("clipPath id") == panels


def test_tasks_outside_every_mean_are_told_of_one_by_one(out: Path) -> None:
    """A score of two quantities would be none."""
    rows = [row for row in fake_experiment.read_results_file(out) if row["budget"] is not None]
    renamed = {"CoLA": "MNLI-mm", "MRPC": "WNLI"}
    rows = [row | {"task": renamed[row["task"]], "in_mean": False} for row in rows if row["task"] in renamed]
    fake_experiment.write_results_file(out, rows)
    suites = analysis.analyse(gather.read(out)).suites
    assert [suite.name for suite in suites] == ["MNLI-mm", "WNLI"]
    assert all([task.name for task in suite.in_mean] == [suite.name] for suite in suites)


PARADIGMS = [f"paradigm_{p:02}" for p in range(14)]


def judged(out: Path, suite: str, arm: str, index: int, scorer: str) -> list[dict[str, Any]]:
    """BLiMP's rows of a run: hits are drawn, more of them at the larger budget."""
    row = fake_experiment.write_result(out, arm, index, "glue", "RTE", 140, 1)
    rng = np.random.default_rng([len(arm), len(suite), index])
    hits = {name: rng.random(50) < 0.55 + 0.2 * index for name in PARADIGMS}
    path = out / "evaluation" / "predictions" / f"{row['run']}-{suite}.npz"
    np.savez(path, **{f"{suite}/{name}/hit": hit for name, hit in hits.items()})
    facts = {"suite": suite, "metric": "accuracy", "in_mean": True, "scorer": scorer, "n_train": 0, "n_dev": 50}
    facts |= {"majority": 0.5, "subset": True, "finetune_seed": 0, "predictions": f"predictions/{path.name}"}
    return [
        {**row, **facts, "task": name, "score": float(hit.mean()), "metrics": {"accuracy": float(hit.mean())}}
        for name, hit in hits.items()
    ]


def test_minimal_pairs_are_told_by_their_mean_and_scorer(tmp_path: Path, undrawn: None) -> None:
    out = fake_experiment.write(tmp_path / "out", suites=("glue",), steps_logged=4)
    rows = fake_experiment.read_results_file(out)
    for index in (0, 1):
        rows += judged(out, "blimp", "bert", index, "pll") + judged(out, "blimp", "roberta", index, "pll")
        rows += judged(out, "blimp", "electra", index, "rtd") + judged(out, "blimp_generator", "electra", index, "pll")
    fake_experiment.write_results_file(out, rows)
    found = analysis.analyse(gather.read(out))
    assert found.missing == []  # an arm without a generator lacks nothing
    glue, blimp, generators = found.suites
    assert (glue.name, blimp.name, generators.name) == ("glue", "blimp", "blimp_generator")
    assert {cell.arm for cell in blimp.cells} == {"bert", "roberta", "electra"}
    assert {cell.arm for cell in generators.cells} == {"electra"}
    cell = next(cell for cell in blimp.cells if (cell.arm, cell.budget) == ("electra", 4e11))
    own = [r["score"] for r in rows if r["suite"] == "blimp" and r["arm"] == "electra" and r["budget"] == 4e11]
    assert cell.mean.value == pytest.approx(np.mean(own))
    assert blimp.scorers == ["pll", "rtd"]
    assert "by pseudo-log-likelihood (pll)" in wording.suite_note(blimp)
    assert wording.suite_title(blimp) == "BLiMP: mean of 14 paradigms"
    report.write(out)
    page = Page((out / "report" / "report.html").read_text())
    tables = [table for table in page.tables if table[0][2].startswith("mean") and len(table[0]) == 4]
    assert [len(table) for table in tables] == [1 + 6, 1 + 2]  # no column a paradigm
    whole = gather.condensed(rows)
    assert len(whole) == len(rows) - 8 * 14 + 8
    one = next(r for r in whole if (r["suite"], r["arm"], r["budget"]) == ("blimp", "electra", 4e11))
    assert (one["task"], one["n_dev"], one["score"]) == ("BLiMP", 700, pytest.approx(np.mean(own)))
    assert set(one["metrics"]) == set(PARADIGMS)
