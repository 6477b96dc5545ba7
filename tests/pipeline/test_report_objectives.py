"""The report of the paper's other objectives: first stages, first weights, degenerate runs, nine arms side by side."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import yaml

from pipeline import figure_parts, gather, report, scoring
from pipeline.origins import origins
from tests.pipeline import fake_experiment
from tests.pipeline.report_page import json_of, page_of, suite_of
from tests.pipeline.stories import Told


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
    assert "read the same rows of one corpus in the same order, as far as each goes." in page.text  # the stream goes on
    assert "had read rows before" not in page.text
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
    assert (
        f"in the same order, as far as each goes. What {name} began with had read rows before, which are not compared "
        "here."
    ) in text
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
    assert [cell.strip() for cell in (row[2], *row[4:6])] == ["30.0", "123", "10¹⁰"]


def test_the_page_says_when_a_detector_is_called_degenerate(out: Path, undrawn: None) -> None:
    from training.detection import LITTLE_INFORMATION, LITTLE_ORDER

    rule = f"less than {100 * LITTLE_INFORMATION:.0f} % of that entropy explained, and an AUC below {LITTLE_ORDER:.2f}"
    report.write(out)
    assert rule in page_of(out).text


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
    assert scoring.choose_baseline(runs) == baseline


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
    assert "electra_two_stage" not in html.partition("<h2>Deviations")[0]


def test_nine_arms_differ_in_colour_marker_and_dash() -> None:
    for marks in (figure_parts.COLOURS, figure_parts.MARKERS, figure_parts.DASHES):
        assert len(set(marks)) == 9


def test_what_restarts_and_rollbacks_did_stands_beside_the_figures(out: Path, undrawn: None) -> None:
    """The rows that a rollback skipped are not those that the other arms read, and the time that was lost is told."""
    run = out / "runs" / "bert-4.00e+11-s0"
    story = Told().start().train(10).save().train(5).wait(60).start(10).train(10).event("finished", step=20)
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in story.events))
    (run / "metrics" / "A-00000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in story.lines))
    fake_experiment.change(run / "done.json", rollbacks=2, rows_skipped=1280)
    report.write(out)
    page = page_of(out)
    table = next(t for t in page.tables if "trained on " in t[0])
    cells = {row[0].strip(): " ".join(row[3].split()) for row in table[1:]}
    assert cells["bert-4.00e+11-s0"] == "27.3 % 2"  # of 110 s 30 s, in two attempts
    assert cells["electra-4.00e+11-s0"] == "–"
    assert (
        "bert-4.00e+11-s0 left the road and went back to a checkpoint 2 times; 1,280 rows that it had read since are "
        "left out of what counts, and others read them."
    ) in page.text


def test_a_rollback_of_a_first_stage_is_told_and_its_rows_are_not_those_of_the_others(out: Path, undrawn: None) -> None:
    first, second = fake_experiment.make_two_stage(out)
    fake_experiment.change(
        out / "runs" / first / "done.json", rollbacks=1, rows_skipped=640, skipped=[[1280, 1920]]
    )  # fmt: skip
    report.write(out)
    text = page_of(out).text
    assert f"{first}, the first stage of {second}, left the road and went back to a checkpoint 1 time; 640 rows" in text
    end = json.loads((out / "runs" / second / "done.json").read_text())["position"]
    assert "Not all runs of seed 0 read the same rows in the same order: " in text
    assert f"as far as each goes; {second} read positions 0 to 1,280 and 1,920 to {end:,}." in text


def test_faults_that_were_injected_are_told(out: Path, undrawn: None) -> None:
    run = out / "runs" / "bert-4.00e+11-s0"
    story = Told().start().train(5)
    for rank in (0, 1):
        story.event("fault", kind="nan", step=5, rank=rank)
    story.event("fault", kind="nan", step=6, rank=0).event("fault", kind="kill_in_save", step=10, rank=1)
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in story.events))
    report.write(out)
    text = page_of(out).text
    assert (
        f"Faults were injected into {run.name} on purpose (training.faults): nan at steps 5 and 6 and kill in save at "
        "step 10."
    ) in text
    assert text.count("Faults were injected") == 1


def test_a_first_run_in_an_object_store_is_named_by_its_run() -> None:
    identity = {"init": {"weights": ["ab@9", "cd@9", "ef@9"]}}
    folders = ["s3://bucket/all/mlm-s0/step-00000009", "/a/runs/bert-s0/checkpoints/step-00000009", "/moved/here"]
    found = origins(identity, {"init": {"weights": folders}})
    assert [one.name for one in found] == ["mlm-s0", "bert-s0", "here"]
