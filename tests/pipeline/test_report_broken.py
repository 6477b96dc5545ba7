"""The report of an experiment that is not finished, or whose records are broken."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from data_prep.errors import DataError
from pipeline import report
from tests.pipeline import fake_experiment
from tests.pipeline.report_page import json_of, page_of, suite_of


def test_an_incomplete_experiment_says_what_is_missing(out: Path) -> None:
    (out / "runs" / "bert-1.20e+12-s0" / "done.json").unlink()
    shutil.rmtree(out / "runs" / "roberta-1.20e+12-s0")
    kept = [
        result
        for result in fake_experiment.read_results_file(out)
        if (result["run"], result["task"]) != ("electra-4.00e+11-s0", "source_topic")
    ]
    fake_experiment.write_results_file(out, kept)
    report.write(out)
    assert json_of(out)["missing"] == [
        "Run bert-1.20e+12-s0 stopped after step 789 of 789.",
        "Run roberta-1.20e+12-s0 was not started.",
        "electra-4.00e+11-s0 was not evaluated on source_topic (probes); it is left out there.",
    ]
    cells = suite_of(json_of(out), "probes")["cells"]
    assert [(c["arm"], c["budget"]) for c in cells] == [("bert", 4e11), ("roberta", 4e11), ("electra", 1.2e12)]
    assert "This experiment is incomplete" in page_of(out).text


def test_trained_but_not_evaluated(out: Path) -> None:
    shutil.rmtree(out / "evaluation")
    report.write(out)
    assert json_of(out)["suites"] == []
    assert any("No checkpoint was evaluated yet" in sentence for sentence in json_of(out)["missing"])
    assert "Held-out figures at the last step." in page_of(out).text


def test_without_corpus_and_configuration(out: Path, undrawn: None) -> None:
    shutil.rmtree(out / "corpus")
    (out / "config.yaml").unlink()
    report.write(out)
    assert json_of(out)["corpus"] is None
    assert json_of(out)["missing"] == []


def test_without_a_finished_run_there_is_no_report(out: Path) -> None:
    for done in out.glob("runs/*/done.json"):
        done.unlink()
    with pytest.raises(DataError, match="no finished run"):
        report.write(out)


def test_answers_that_do_not_give_the_recorded_score_are_refused(out: Path) -> None:
    results = fake_experiment.read_results_file(out)
    results[0]["score"] += 0.01
    fake_experiment.write_results_file(out, results)
    with pytest.raises(DataError, match=r"gives sentence_order 0\.6000 where results\.jsonl says 0\.6100"):
        report.write(out)


def test_missing_answers_are_named(out: Path) -> None:
    (out / "evaluation" / "predictions" / "electra-4.00e+11-s0-sentence_order-0.npz").unlink()
    with pytest.raises(
        DataError,
        match=r"sentence_order-0\.npz is not readable .*units/electra-4\.00e\+11-s0-sentence_order-0\.json and",
    ):
        report.write(out)


def test_a_torn_result_line_is_named(out: Path) -> None:
    with (out / "evaluation" / "results.jsonl").open("a") as file:
        file.write('{"run": "ele')
    with pytest.raises(DataError, match=r"results\.jsonl:19: not a JSON line"):
        report.write(out)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("runs/electra-4.00e+11-s0/done.json", "{}", "done.json: has no 'flops_counted'; restore it, or remove "),
        ("runs/electra-4.00e+11-s0/done.json", "[]", "done.json: holds no record; restore it, or remove "),
        ("runs/electra-4.00e+11-s0/run.json", '{"name": ', "run.json is not valid JSON"),
        ("runs/electra-4.00e+11-s0/run.json", "{}", "run.json: has no 'name'; restore it, or remove "),
        ("evaluation/results.jsonl", '{"run": 1}\n', "results.jsonl:1: 'run' cannot be '1'; run `electra evaluate` to"),
        ("evaluation/results.jsonl", "{}\n", "results.jsonl:1: has no 'run'; run `electra evaluate` to"),
        ("config.yaml", "a: [", "config.yaml:1: "),
    ],
)
def test_a_broken_record_is_named_with_the_way_out(out: Path, name: str, content: str, sentence: str) -> None:
    (out / name).write_text(content)
    with pytest.raises(DataError) as caught:
        report.write(out)
    assert caught.value.exit_code == 4
    assert f"{out / Path(name).parent}/{sentence}" in str(caught.value)
    assert "prepare" not in str(caught.value)
    if name.startswith("runs/"):
        assert f"remove {out / name}".removesuffix(f"/{Path(name).name}") in str(caught.value)
        assert "run `electra train` again" in str(caught.value)


def test_answers_of_one_document_make_wider_intervals_and_are_said_to(out: Path, undrawn: None) -> None:
    """2,400 answers in 600 documents of four that are right or wrong together: twice the width."""
    result = next(r for r in fake_experiment.read_results_file(out) if r["task"] == "sentence_order")
    path = out / "evaluation" / result["predictions"]
    label = np.zeros(2400, dtype=np.int64)
    group = np.repeat(np.arange(600), 4)
    prediction = (group >= 360).astype(np.int64)  # .6 right, as the result says
    np.savez(path, label=label, prediction=prediction, score=np.zeros((2400, 2), np.float32), group=group)
    report.write(out)
    cell = next(c for c in suite_of(json_of(out), "probes")["cells"] if c["budget"] == 4e11 and c["arm"] == "electra")
    figure = cell["tasks"]["sentence_order"]
    assert figure["high"] - figure["low"] == pytest.approx(2 * 1.96 * (0.6 * 0.4 / 600) ** 0.5, rel=0.08)
    assert "intervals over documents (all examples of a document together)" in page_of(out).text
