"""The report of a written-out experiment: its numbers, its honesty, and that it stands by itself."""

import dataclasses
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from sklearn.metrics import matthews_corrcoef

from data_prep.errors import DataError
from pipeline import analysis, figures, gather, report
from tests.pipeline import fake_experiment


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished experiment with both suites, and its report."""
    out = fake_experiment.write(
        tmp_path_factory.mktemp("experiment") / "out", suites=("probes", "glue"), steps_logged=8
    )
    assert report.write(out) == out / "report" / "report.html"
    return out


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A finished experiment on the probes, without a report."""
    return fake_experiment.write(tmp_path / "out", steps_logged=8)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty drawings, for tests of everything else: drawing takes seconds."""
    for name in ("curve", "small_multiples", "losses"):
        monkeypatch.setattr(figures, name, lambda *_: "<svg></svg>")


class Page(HTMLParser):
    """Text, tables and tags of a page; fails on a tag that is closed in the wrong order."""

    void = frozenset({"meta", "br", "link", "img", "input", "hr"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.text += data
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += f"{data} "


def page_of(out: Path) -> Page:
    page = Page((out / "report" / "report.html").read_text(encoding="utf-8"))
    assert page.open == []
    return page


def json_of(out: Path) -> dict[str, Any]:
    return json.loads((out / "report" / "report.json").read_text(encoding="utf-8"))


def suite_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(suite for suite in found["suites"] if suite["name"] == name)


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


def test_the_table_shows_what_the_json_holds(written: Path) -> None:
    page, cells = page_of(written), suite_of(json_of(written), "probes")["cells"]
    table = next(t for t in page.tables if "spent FLOPs" in " ".join(t[0]) and "sentence_order" in " ".join(t[0]))
    header = " ".join(table[0])
    assert "n = 2,400" in header and "n = 1,500" in header and "bigram_shift" not in header
    assert "majority 50." in header
    assert len(table) == 1 + len(cells)
    for row, cell in zip(table[1:], cells, strict=True):
        text = " ".join(" ".join(row).split())
        assert text.startswith(cell["arm"])
        assert f"{100 * cell['mean']['value']:.1f}" in text
        assert f"{100 * cell['flops_counted'] / cell['budget']:.2f} %" in text
        assert f"{cell['tokens']:,.0f}" in text


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
    assert len(drawings) == 5  # two a suite, and the losses
    assert all(a.get("role") == "img" and len(a.get("aria-label") or "") > 80 for a in drawings)
    label = next(
        a["aria-label"]
        for a in drawings
        if "source_topic" not in (a["aria-label"] or "") and "61.0" in (a["aria-label"] or "")
    )
    assert label is not None and "electra: 50.0" in label
    assert sum(tag == "details" for tag, _ in page.tags) == 3


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


def test_the_main_figure_is_also_a_file(written: Path) -> None:
    svg = (written / "report" / "curve.svg").read_text()
    assert svg.startswith("<svg") and "xmlns=" in svg
    assert re.search(r'width="[\d.]+pt" height="[\d.]+pt"', svg)


def test_the_same_records_give_the_same_bytes(out: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(out, again)
    for one in (out, again):
        report.write(one)
    for name in ("report.html", "report.json", "curve.svg"):
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


def set_counted(out: Path, name: str, share: float) -> None:
    path = out / "runs" / name / "done.json"
    done = json.loads(path.read_text())
    path.write_text(json.dumps({**done, "flops_counted": share * done["budget"]}))


def test_a_run_within_one_percent_is_matched(out: Path) -> None:
    set_counted(out, "bert-1.20e+12-s0", 1.0095)
    found = analysis.matching(gather.read(out).finished)
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
    assert analysis.matching([short]).outside == {}
    assert analysis.matching([dataclasses.replace(short, flops_per_step=0.03 * run.budget)]).outside == {
        run.name: pytest.approx(-0.04)
    }


def test_runs_of_two_corpora_are_not_called_the_same_rows(out: Path, undrawn: None) -> None:
    path = out / "runs" / "bert-1.20e+12-s0" / "run.json"
    spec = json.loads(path.read_text())
    spec["identity"]["manifest_sha256"] = "0" * 64
    path.write_text(json.dumps(spec))
    assert not analysis.matching(gather.read(out).finished).same_rows
    report.write(out)
    assert "did not read the same rows" in page_of(out).text


# --- incomplete and broken --------------------------------------------------------------------------------------------


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
    assert "Held-out losses" in page_of(out).text


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
    assert "bootstrap intervals over documents (all examples of a document together)" in page_of(out).text


# --- objectives beyond the three --------------------------------------------------------------------------------------


def test_a_first_stage_is_no_arm_and_its_cost_is_told_of(out: Path, undrawn: None) -> None:
    first, second = fake_experiment.make_two_stage(out)
    report.write(out)
    found, page = json_of(out), page_of(out)
    assert [run["name"] for run in found["first_stages"]] == [first]
    assert first not in [run["name"] for run in found["runs"]]
    assert {cell["arm"] for cell in suite_of(found, "probes")["cells"]} == {"electra", "bert", "roberta"}
    assert page.text.count(first) == 1
    steps = round(fake_experiment.BUDGETS[1] / fake_experiment.FLOPS_PER_STEP["roberta"])
    assert (
        f"{second} began with the weights of {first} (mlm, step {steps:,}). Its FLOPs, tokens and seconds, not its "
        "steps, contain theirs as far as their own records go: 6 × 10¹¹ model FLOPs, 50 % of all."
    ) in page.text
    assert "read the same rows of one corpus in the same order. " not in page.text  # nothing to add: the stream goes on
    assert "not at equal" not in page.text
    assert found["missing"] == []


def test_every_origin_is_named_and_what_it_cost_or_that_nobody_knows(out: Path, undrawn: None) -> None:
    """One run of another experiment, one folder without a ledger, and a frozen generator."""
    name = "electra-4.00e+11-s0"
    begun = {"/a/runs/mlm-s0/checkpoints/step-00001500": f"{'ab' * 32}@1500", "/b/downloaded": "sha256:cd"}
    fake_experiment.begin_with(out / "runs" / name, begun, flops=1e11)
    sampler = {"/a/runs/tiny-s0/checkpoints/step-00000200": f"{'ef' * 32}@200"}
    fake_experiment.begin_with(out / "runs" / name, sampler, purpose="generator")
    fake_experiment.change(out / "runs" / name / "done.json", flops_counted=4e11)
    report.write(out)
    text = page_of(out).text
    runs = "mlm-s0 (step 1,500)", "tiny-s0 (step 200, for the generator)"
    assert (
        f"{name} began with the weights of {runs[0]}, downloaded (Hugging Face folder) and {runs[1]}. Its FLOPs, "
        f"tokens and seconds, not its steps, contain those of {runs[0]} and {runs[1]} as far as their own records go: "
        "10¹¹ model FLOPs, 25 % of all. What downloaded (Hugging Face folder) cost is not known and is in none of its "
        "figures."
    ) in text
    assert (f"in the same order. What {name} began with had read rows before, which are not compared here.") in text
    assert f"{name} began with weights whose cost is not known: no comparison with them is at equal compute." in text
    began = next(run for run in json_of(out)["runs"] if run["name"] == name)["began_with"]
    assert [(one["name"], one["step"], one["generator_only"]) for one in began] == [
        ("mlm-s0", 1500, False),
        ("downloaded", None, False),
        ("tiny-s0", 200, True),
    ]


def test_throughput_is_a_run_s_own(out: Path, undrawn: None) -> None:
    """What it began with ran elsewhere, perhaps on other machines."""
    run = out / "runs" / "bert-4.00e+11-s0"
    fake_experiment.begin_with(run, {"/a/runs/first/checkpoints/step-00000009": "ab@9"}, flops=1e11)
    fake_experiment.change(run / "done.json", flops_counted=4e11, seconds=40.0, tokens_per_second=123.0)
    report.write(out)
    table = next(t for t in page_of(out).tables if "trained on " in t[0])
    row = next(row for row in table if row[0].startswith("bert-4.00e+11-s0"))
    assert [cell.strip() for cell in row[2:5]] == ["30.0", "123", "10¹⁰"]


def test_the_page_says_when_a_detector_is_called_degenerate(written: Path) -> None:
    from training.detection import LITTLE_INFORMATION, LITTLE_ORDER

    rule = f"less than {100 * LITTLE_INFORMATION:.0f} % of that entropy explained, and an AUC below {LITTLE_ORDER:.2f}"
    assert rule in page_of(written).text


def test_a_run_that_waits_for_its_first_stage_says_how_far_that_is(out: Path, undrawn: None) -> None:
    _, second = fake_experiment.make_two_stage(out)
    shutil.rmtree(out / "runs" / second)
    report.write(out)
    steps = round(fake_experiment.BUDGETS[1] / fake_experiment.FLOPS_PER_STEP["roberta"])
    assert f"Run {second} was not started (its first stage is at step {steps} of {steps})." in json_of(out)["missing"]


def test_an_experiment_by_steps_misses_the_runs_of_so_many_steps(out: Path, undrawn: None) -> None:
    config = yaml.safe_load((out / "config.yaml").read_text())
    config |= {"budgets": None, "steps": 300, "seeds": 2, "arms": config["arms"][:2]}
    (out / "config.yaml").write_text(yaml.safe_dump(config))
    report.write(out)
    wanted = [f"{arm}-300steps-s{seed}" for arm in ("electra", "bert") for seed in (0, 1)]
    assert json_of(out)["missing"] == [f"Run {name} was not started." for name in wanted]


def test_a_degenerate_run_is_said_at_the_top_and_beside_its_figures(out: Path, undrawn: None) -> None:
    name = "electra-4.00e+11-s0"
    sentence = "the discriminator calls every token original & does no better than the base rate"
    fake_experiment.change(out / "runs" / name / "done.json", degenerate=sentence)
    report.write(out)
    page = page_of(out)
    assert f"{name}: {sentence}." in page.text.partition("Built-in probes")[0]
    heldout = next(table for table in page.tables if table[0][1].startswith("MLM loss"))
    assert [row[0] for row in heldout if "degenerate" in row[0]] == [f"{name} degenerate "]


@pytest.mark.parametrize(
    ("objectives", "baseline"),
    [
        (("mlm", "roberta", "bert"), "c"),
        (("electra", "mlm", "roberta"), "c"),
        (("electra", "replace_mlm", "mlm"), "c"),
        (("electra_15", "all_tokens_mlm", "electra"), "a"),
    ],
)
def test_the_baseline_has_no_generator_if_any_arm_has_none(
    out: Path, objectives: tuple[str, ...], baseline: str
) -> None:
    run = gather.read(out).runs[0]
    runs = [dataclasses.replace(run, arm=arm, objective=o) for arm, o in zip("abc", objectives, strict=True)]
    assert analysis.choose_baseline(runs) == baseline


def test_the_arms_of_the_paper_have_readable_names(out: Path, undrawn: None) -> None:
    """In tables and sentences; runs keep theirs, which are folders."""
    for path in out.glob("runs/electra-*/run.json"):
        fake_experiment.change(path, arm="electra_two_stage")
    results = fake_experiment.read_results_file(out)
    renamed = [result | ({"arm": "electra_two_stage"} if result["arm"] == "electra" else {}) for result in results]
    fake_experiment.write_results_file(out, renamed)
    report.write(out)
    html = (out / "report" / "report.html").read_text(encoding="utf-8")
    assert '<th scope="row" class="text">ELECTRA two-stage</th>' in html
    assert "ELECTRA two-stage − bert" in html
    assert "ELECTRA two-stage scored" in " ".join(json_of(out)["summary"]["probes"])
    assert "electra_two_stage" not in html.partition("<h3>Configuration</h3>")[0]


def test_nine_arms_differ_in_colour_marker_and_dash() -> None:
    for marks in (figures._COLOURS, figures._MARKERS, figures._DASHES):
        assert len(set(marks)) == 9
