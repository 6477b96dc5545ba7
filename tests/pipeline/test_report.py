"""The report of a written-out experiment: its numbers, its honesty, and that it stands by itself."""

import csv
import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import matthews_corrcoef

from pipeline import analysis, descriptions, drawings, figures, figures_training, gather, report, suites
from tests.pipeline import fake_experiment
from tests.pipeline.report_page import json_of, page_of, suite_of


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished experiment with both suites, and its report."""
    out = fake_experiment.write(
        tmp_path_factory.mktemp("experiment") / "out", suites=("probes", "glue"), steps_logged=8
    )
    assert report.write(out) == out / "report" / "report.html"
    return out


def test_the_mean_is_over_the_tasks_of_the_mean_only(written: Path) -> None:
    cells = {(c["arm"], c["budget"]): c for c in suite_of(json_of(written), "probes")["cells"]}
    electra = cells[("electra", 1.2e12)]
    assert electra["mean"]["value"] == pytest.approx((1608 / 2400 + 825 / 1500) / 2)
    assert electra["tasks"]["bigram_shift"]["value"] == pytest.approx(1800 / 2400)
    assert len(cells) == 6


def test_intervals_have_the_size_of_the_binomial_error(written: Path) -> None:
    cell = suite_of(json_of(written), "probes")["cells"][0]
    assert (cell["arm"], cell["budget"]) == ("electra", 4e11)
    one, two = 0.6 * 0.4 / 2400, 0.4 * 0.6 / 1500
    for figure, variance in (
        (cell["tasks"]["sentence_order"], one),
        (cell["tasks"]["source_topic"], two),
        (cell["mean"], (one + two) / 4),
    ):
        width = figure["high"] - figure["low"]
        assert width == pytest.approx(2 * 1.96 * variance**0.5, rel=0.08)


def test_differences_are_paired_and_against_bert(written: Path) -> None:
    found = suite_of(json_of(written), "probes")
    assert found["baseline"] == "bert"
    differences = {(d["arm"], d["budget"]): d["difference"] for d in found["differences"]}
    assert differences[("electra", 1.2e12)]["value"] == pytest.approx((1608 - 1512) / 4800 + (825 - 720) / 3000)
    assert set(differences) == {(arm, budget) for arm in ("electra", "roberta") for budget in fake_experiment.BUDGETS}


def test_matthews_is_recomputed_from_the_answers(written: Path) -> None:
    cell = suite_of(json_of(written), "glue")["cells"][0]
    with np.load(written / "evaluation" / "predictions" / "electra-4.00e+11-s0-CoLA-0.npz") as arrays:
        expected = matthews_corrcoef(arrays["label"], arrays["prediction"])
    assert cell["tasks"]["CoLA"]["value"] == pytest.approx(expected, abs=1e-9)


def test_the_tables_show_what_the_json_holds(written: Path) -> None:
    page, found = page_of(written), json_of(written)
    cells = suite_of(found, "probes")["cells"]
    table = next(t for t in page.tables if t[0][2].startswith("mean") and "sentence_order" in " ".join(t[0]))
    header = " ".join(table[0])
    assert "n = 2,400" in header and "n = 1,500" in header and "bigram_shift" not in header
    assert "majority 50." in header
    assert len(table) == 1 + len(cells)
    for row, cell in zip(table[1:], cells, strict=True):
        assert " ".join(row).startswith(cell["arm"])
        assert row[2].startswith(f"{100 * cell['mean']['value']:.1f}")
    ledgers = next(t for t in page.tables if "spent FLOPs" in " ".join(t[0]))
    for row, run in zip(ledgers[1:], found["runs"], strict=True):
        assert row[0].strip() == run["name"]
        assert row[1].strip() == f"{run['done']['tokens']:,.0f}"
        assert f"{100 * run['done']['flops_counted'] / run['budget']:.2f} %" in row[2]
        assert "1.000 ×" in row[3]


def test_bigram_shift_stands_apart_with_the_reason(written: Path) -> None:
    text = page_of(written).text
    assert "Outside the mean: bigram_shift" in text
    assert "it is not in any mean" in text


def test_glue_is_named_by_its_tasks_and_never_as_the_score(written: Path) -> None:
    page = page_of(written)
    assert "GLUE tasks: mean of CoLA, MRPC and RTE" in page.text
    assert "not the GLUE score" in page.text
    assert "They are not GLUE" in page.text  # the probes
    assert not re.search(r"(?<!not the )GLUE score(?!s)", page.text)


def test_the_page_needs_nothing_from_outside(written: Path) -> None:
    page = page_of(written)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "img", "object", "embed"})
    for tag, attributes in page.tags:
        for name in ("href", "xlink:href", "src", "srcset", "action", "data"):
            target = attributes.get(name) or "#"
            assert target.startswith("#"), (tag, target)
    style = re.search(r"<style>(.*?)</style>", (written / "report" / "report.html").read_text(), re.DOTALL)
    assert style is not None and "url(" not in style[1] and "@import" not in style[1]


def test_ids_are_unique_and_references_resolve(written: Path) -> None:
    page = page_of(written)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    html = (written / "report" / "report.html").read_text()
    used = re.findall(r'href="#([^"]+)"', html) + re.findall(r"url\(#([^)]+)\)", html)
    assert used and set(used) <= set(ids)


def test_every_figure_is_described_and_has_its_data(written: Path) -> None:
    page = page_of(written)
    drawings = [attributes for tag, attributes in page.tags if tag == "svg"]
    # of a suite: curve, tokens and hours, tasks, frontier; and the losses
    assert len(drawings) == 2 * 4 + 1
    assert all(a.get("role") == "img" and len(a.get("aria-label") or "") > 80 for a in drawings)
    label = next(
        a["aria-label"]
        for a in drawings
        if "source_topic" not in (a["aria-label"] or "") and "61.0" in (a["aria-label"] or "")
    )
    assert label is not None and "electra: 50.0" in label
    assert page.text.count("Data of this figure") == len(drawings)


def test_the_losses_are_said_not_to_be_comparable(written: Path) -> None:
    page = page_of(written)
    assert "Losses of different objectives are not comparable" in page.text
    table = next(t for t in page.tables if "RTD AUC " in t[0])
    electra = dict(zip(table[0], table[1], strict=True))
    lines = fake_experiment.metric_lines("electra", 305, fake_experiment.START, 8)
    assert float(electra["RTD AUC "]) == pytest.approx(lines[-1]["values"]["heldout/rtd_auc"], abs=5e-5)
    bert = dict(zip(table[0], table[2], strict=True))
    assert bert["RTD AUC "].strip() == "–"
    assert float(bert["NSP accuracy "]) == pytest.approx(0.58)


def test_what_was_run_is_there(written: Path) -> None:
    text = page_of(written).text
    for part in (
        "41,210",
        "too short 6,120",
        "duplicate 1,803",
        "f" * 64,
        "Python",
        "deepspeed",
        "learning rate 0.0005",
    ):
        assert part in text, part
    assert json_of(written)["corpus"]["sha256"] in text


def rows_of(out: Path, name: str) -> list[dict[str, str]]:
    with (out / "report" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_csv_files_hold_what_the_json_and_the_records_hold(written: Path) -> None:
    suites = {suite["name"]: suite for suite in json_of(written)["suites"]}
    scores = rows_of(written, "scores.csv")
    assert len(scores) == 6 * (1 + 3) * 2  # cells × (mean and tasks) × suites
    for row in scores:
        cells = suites[row["suite"]]["cells"]
        cell = next(c for c in cells if c["arm"] == row["arm"] and c["budget"] == float(row["budget"]))
        figure = cell["mean"] if row["task"] == "mean" else cell["tasks"][row["task"]]
        assert [float(row[end]) for end in ("score", "low", "high")] == [figure[k] for k in ("value", "low", "high")]
        assert (float(row["tokens"]), row["flops_paper"]) == (cell["tokens"], "")  # not recorded in these runs
    runs = rows_of(written, "runs.csv")
    assert [row["run"] for row in runs] == [run["name"] for run in json_of(written)["runs"]]
    assert float(runs[0]["device_hours"]) == pytest.approx(0.05 * 305 * 2 / 3600)
    lines = [row for row in rows_of(written, "curves.csv") if row["run"] == "electra-4.00e+11-s0"]
    expected = fake_experiment.metric_lines("electra", 305, fake_experiment.START, 8)
    auc = [(float(row["flops"]), float(row["value"])) for row in lines if row["quantity"] == "heldout/rtd_auc"]
    values = [line["values"] for line in expected if "heldout/rtd_auc" in line["values"]]
    assert auc == [(one["flops"], one["heldout/rtd_auc"]) for one in values]


def test_the_learning_signal_is_told_with_the_paper_s_figures(written: Path) -> None:
    page = page_of(written)
    for part in (
        "learns from 76 positions and replaced-token detection from all 512: 6.7 times as many",
        "at most 1,132 (76 × log₂ 30,522) against at most 512 (0.45 times as many)",
        "0.33 bit at 6 % replaced",
    ):
        assert part in page.text, part
    table = next(t for t in page.tables if t[1][0].startswith("MLM, 15 %"))
    assert [cell.strip() for cell in table[4][:5]] == ["bert", "4 × 10¹¹", "120.0", "18.0", "234.0"]


def test_blimp_is_drawn_beside_the_first_suite_that_is_told_task_by_task(written: Path) -> None:
    probes, glue = analysis.analyse(gather.read(written)).suites[::-1]
    blimp = dataclasses.replace(glue, name="blimp", tasks=[glue.tasks[0]] * 13)
    assert drawings.beside(glue, [glue, probes, blimp]) == [blimp]
    assert drawings.beside(probes, [glue, probes, blimp]) == []
    assert drawings.beside(blimp, [blimp]) == []
    text = descriptions.multiples_text(glue, [blimp])
    assert "BLiMP: electra" in text and text.startswith("4 line charts")


def test_a_floor_far_below_the_scores_is_not_drawn() -> None:
    close = [suites.Figure(value=0.55, low=0.5, high=0.6)]
    assert figures.floor_is_drawn(0.41, close)
    assert not figures.floor_is_drawn(0.39, close)


def test_a_long_line_is_drawn_through_the_means_of_its_stretches() -> None:
    points = [(float(x), float(x % 2)) for x in range(1, 401)]
    assert figures_training.stretches(points, 400) == points
    assert figures_training.stretches(points, 100) == [(4.0 * (i + 1), 0.5) for i in range(100)]


def test_the_main_figure_is_also_a_file(written: Path) -> None:
    svg = (written / "report" / "curve.svg").read_text()
    assert svg.startswith("<svg") and "xmlns=" in svg
    assert re.search(r'width="[\d.]+pt" height="[\d.]+pt"', svg)


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes(out: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(out, again)
    for one in (out, again):
        report.write(one)
    for name in ("report.html", "report.json", "scores.csv", "runs.csv", "curves.csv", "curve.svg"):
        assert (out / "report" / name).read_bytes() == (again / "report" / name).read_bytes()


def test_text_from_outside_is_escaped(out: Path, undrawn: None) -> None:
    config = (out / "config.yaml").read_text()
    (out / "config.yaml").write_text(config.replace("name: quickstart", 'name: "<b>&amp;"', 1))
    report.write(out)
    assert "&lt;b&gt;&amp;amp;: score" in (out / "report" / "report.html").read_text()


def test_the_summary_names_no_winner_with_one_seed(written: Path) -> None:
    text = page_of(written).text
    assert "no arm is declared better here" in text
    assert not re.search(r"\b(winner|wins|outperform|best arm|better than|superior)\b", text)


# --- matching ---------------------------------------------------------------------------------------------------------


def matched(runs: list[gather.Run]) -> analysis.Matching:
    """Runs that all read `corpus:`."""
    return analysis.matching(runs, dict.fromkeys((run.name for run in runs), ""))


def set_counted(out: Path, name: str, share: float) -> None:
    path = out / "runs" / name / "done.json"
    done = json.loads(path.read_text())
    path.write_text(json.dumps({**done, "flops_counted": share * done["budget"]}))


def test_a_run_within_one_percent_is_matched(out: Path) -> None:
    set_counted(out, "bert-1.20e+12-s0", 1.0095)
    found = matched(gather.read(out).finished)
    assert (found.worst_run, found.outside) == ("bert-1.20e+12-s0", {})
    assert found.worst_deviation == pytest.approx(0.0095)


def test_a_run_beyond_its_tolerance_is_named(out: Path, undrawn: None) -> None:
    set_counted(out, "bert-1.20e+12-s0", 0.985)
    report.write(out)
    assert json_of(out)["matching"]["outside"] == {"bert-1.20e+12-s0": pytest.approx(-0.015)}
    assert "in bert-1.20e+12-s0 (−1.50 %): at equal compute" in page_of(out).text


def test_one_step_is_tolerated_where_it_is_more_than_one_percent(out: Path) -> None:
    run = next(run for run in gather.read(out).finished if run.name == "bert-1.20e+12-s0")
    assert run.done is not None
    short = dataclasses.replace(
        run, flops_per_step=0.05 * run.budget, done={**run.done, "flops_counted": 0.96 * run.budget}
    )
    assert matched([short]).outside == {}
    assert matched([dataclasses.replace(short, flops_per_step=0.03 * run.budget)]).outside == {
        run.name: pytest.approx(-0.04)
    }


def test_runs_of_two_corpora_are_not_called_the_same_rows(out: Path, undrawn: None) -> None:
    path = out / "runs" / "bert-1.20e+12-s0" / "run.json"
    spec = json.loads(path.read_text())
    spec["identity"]["manifest_sha256"] = "0" * 64
    path.write_text(json.dumps(spec))
    assert not matched(gather.read(out).finished).same_rows
    report.write(out)
    assert "did not read the same rows" in page_of(out).text
