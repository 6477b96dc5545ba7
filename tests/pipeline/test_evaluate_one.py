"""One model on every kind of task: what is recorded of it, and what is made of that."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from pipeline import gather
from pipeline.console import Console
from pipeline.evaluate import evaluate_model
from pipeline.evaluate_targets import Model, model_at
from pipeline.resampling import resampled_scores
from tests.pipeline.report_page import Page
from tests.pipeline.tiny_evaluation import WORDS, config, write_all, write_model

pytestmark = [pytest.mark.slow, pytest.mark.multi]

Rows = list[dict[str, Any]]


def console() -> Console:
    return Console(io.StringIO(), interactive=False)


def no_ray() -> None:
    raise AssertionError("Ray was asked for although nothing was left to run")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_all(tmp_path_factory.mktemp("one"))
    write_model(folder / "tiny-bert")
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return model_at(folder / "tiny-bert", flops=1.8e19)


@pytest.fixture(scope="module")
def rows(folder: Path, model: Model, ray_session: None) -> Rows:
    return evaluate_model(folder / "out", config(folder), model, corpus=None, console=console())


def of(rows: Rows, suite: str, task: str, seed: int = 0) -> dict[str, Any]:
    (row,) = [r for r in rows if (r["suite"], r["task"], r["finetune_seed"]) == (suite, task, seed)]
    return row


def test_every_side_and_paradigm_is_a_row_that_says_what_it_is(folder: Path, rows: Rows) -> None:
    tuned = [("glue", "MNLI"), ("glue", "MNLI-mm"), ("glue", "STS-B"), ("squad", "SQuAD2.0")]
    judged = [("blimp", f"paradigm_{p}") for p in range(3)]
    assert sorted({(r["suite"], r["task"]) for r in rows}) == sorted(tuned + judged)
    assert len(rows) == 2 * len(tuned) + len(judged)
    lines = (folder / "out" / "evaluation" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows
    for row in rows:
        assert (row["run"], row["arm"], row["objective"]) == ("tiny-bert", "tiny-bert", "BertForMaskedLM")
        assert (row["flops_counted"], row["flops_declared"], row["budget"]) == (1.8e19, True, None)
        assert row["in_mean"] == (row["task"] not in ("MNLI-mm", "SQuAD2.0"))
        assert row["scorer"] == ("pll" if row["suite"] == "blimp" else None)
        assert row["protocol"]["name"] == ("zero_shot" if row["suite"] == "blimp" else "plain")
        assert row["cpu_seconds"] >= 0 < row["seconds"]
    assert of(rows, "glue", "MNLI")["unit"] == of(rows, "glue", "MNLI-mm")["unit"]
    assert of(rows, "squad", "SQuAD2.0")["metric"] == "best_f1"
    assert of(rows, "blimp", "paradigm_0")["subset"] is True


def test_the_answers_kept_give_the_scores(folder: Path, rows: Rows) -> None:
    for row in rows:
        fit = gather.fit_of(folder / "out", row)
        assert len(fit.label) == row["n_dev"]
        assert resampled_scores([fit], 0, 0)[0].value == pytest.approx(row["score"], abs=1e-9), row["task"]
    values = gather.fit_of(folder / "out", of(rows, "glue", "STS-B"))
    assert values.label.dtype == np.float64
    assert spearmanr(values.label, values.prediction).statistic == pytest.approx(of(rows, "glue", "STS-B")["score"])


def test_again_nothing_runs_and_nothing_changes(folder: Path, model: Model, rows: Rows) -> None:
    before = {p: p.read_bytes() for p in (folder / "out" / "evaluation").rglob("*") if p.is_file()}
    again = evaluate_model(folder / "out", config(folder), model, corpus=None, console=console(), before_work=no_ray)
    assert again == rows
    assert {p: p.read_bytes() for p in before} == before


def test_the_page_has_what_was_mistaken_and_how_sure(folder: Path, rows: Rows) -> None:
    page = Page((folder / "out" / "evaluation" / "report.html").read_text())
    assert page.open == []
    head = ["gold ", "contradiction ", "entailment ", "neutral "]
    matched, mismatched = (table for table in page.tables if table[0] == head)
    for table in (matched, mismatched):
        assert sum(int(cell) for row in table[1:] for cell in row[1:]) == 120  # two seeds of sixty
    said = [gather.fit_of(folder / "out", of(rows, "glue", "MNLI", seed)) for seed in (0, 1)]
    right = sum(int((fit.label == fit.prediction).sum()) for fit in said)
    assert sum(int(matched[i][i]) for i in (1, 2, 3)) == right
    assert page.text.count("Expected calibration error") == 3  # MNLI's sides and SQuAD


def test_mistakes_can_be_read(folder: Path, rows: Rows) -> None:
    mistakes = folder / "out" / "evaluation" / "mistakes"
    head, *lines = (mistakes / "tiny-bert-glue-MNLI-mm.tsv").read_text().splitlines()
    assert head.split("\t") == ["example", "wrong", "gold", "predicted", "confidence", "text a", "text b"]
    cells = [line.split("\t") for line in lines]
    wrong = sum(int(row[1].split()[0]) for row in cells)
    score = sum(of(rows, "glue", "MNLI-mm", seed)["score"] for seed in (0, 1))
    assert wrong == round(120 - 60 * score)
    assert [row[1] for row in cells] == sorted((row[1] for row in cells), reverse=True)
    assert all(row[2] != row[3] and 1 / 3 <= float(row[4]) <= 1 for row in cells)
    assert all(word in WORDS for row in cells for word in f"{row[5]} {row[6]}".split())
    spans = [row.split("\t") for row in (mistakes / "tiny-bert-squad-SQuAD2.0.tsv").read_text().splitlines()[1:]]
    exact = sum(of(rows, "squad", "SQuAD2.0", seed)["metrics"]["best_exact"] for seed in (0, 1))
    assert sum(int(row[1].split()[0]) for row in spans) == round(24 - 12 * exact)
    assert all((row[3] == "(no answer)") == (float(row[4]) == 0) for row in spans)
    pairs = (mistakes / "tiny-bert-blimp-BLiMP.tsv").read_text().splitlines()
    hits = sum(8 * of(rows, "blimp", f"paradigm_{p}")["score"] for p in range(3))
    assert len(pairs) == 1 + 24 - hits
