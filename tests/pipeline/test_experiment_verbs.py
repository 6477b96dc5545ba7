"""`electra experiment run|check`: the plan and the records of a small experiment, what a dry run adds up, the road."""

import io
import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from data_prep import storage
from pipeline import experiment_run, gather, quickstart
from pipeline.config import dump
from pipeline.console import Console
from pipeline.corpora import MAIN, prepared
from pipeline.folder import Folder
from pipeline.place import Place
from tests.conftest import lay_out
from tests.pipeline import fake_experiment
from tests.pipeline.test_cli import electra, refused
from tests.pipeline.test_sweep import LOSSES, finish, swept
from tests.training.synthetic import write_corpus
from training.run_folder import write_run_record


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A prepared corpus, and the file of an experiment beside it."""
    write_corpus(tmp_path / "out" / "corpus", rows=40)
    (tmp_path / "file.yaml").write_text(dump(swept()))
    return tmp_path / "out"


def check(out: Path, *overrides: str) -> dict[str, Any]:
    done = electra("experiment", "check", out.parent / "file.yaml", *overrides, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_plan_is_checked_before_anything_is_trained(out: Path) -> None:
    before = sorted(out.rglob("*"))
    found = {one["kind"]: one["sentence"] for one in check(out)["findings"]}
    assert found["budget"].startswith("Model FLOPs of all 4 runs are within max(1 %, one step) of their budgets")
    assert found["unfinished"].startswith("4 of 4 runs are not finished, and are held to their plan: ")
    assert "Learning rates" not in str(found)  # none is chosen
    assert sorted(out.rglob("*")) == before


def test_rates_are_told_once_they_are_chosen(out: Path) -> None:
    from pipeline import sweep

    finish(out, swept(), LOSSES)
    sweep.choose(swept(), out, {})
    sentences = [one["sentence"] for one in check(out)["findings"]]
    assert "Learning rates: electra 0.001 and roberta 0.001." in sentences


def test_a_run_that_was_begun_as_another_is_exit_9(out: Path) -> None:
    first = swept().runs(prepared({MAIN: storage.folder(out / "corpus")}))[0]
    identity = first.identity.model_copy(update={"start_position": 8})
    write_run_record(_made(out / "runs" / first.name), first.model_copy(update={"identity": identity}))
    (out / "config.yaml").write_text(dump(swept()))
    sentence = refused_by_check(out)
    assert sentence.endswith(
        f"is no matched comparison: {first.name} was begun as another run than the file plans now."
    )


def refused_by_check(out: Path) -> str:
    done = electra("experiment", "check", out.parent / "file.yaml", "--out", out)
    assert done.exit_code == 9, done.output
    assert "BROKEN" in done.stdout
    return done.stderr.strip()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_reasons_are_said_three_at_most(out: Path) -> None:
    (out / "config.yaml").write_text(dump(swept()))
    for spec in swept().runs(prepared({MAIN: storage.folder(out / "corpus")})):
        write_run_record(_made(out / "runs" / spec.name), spec.model_copy(update={"flops_per_step": 1.0}))
    assert refused_by_check(out).endswith("more above.)")


def test_a_corpus_that_is_gone_is_said(out: Path) -> None:
    (out / "config.yaml").write_text(dump(swept()))
    spec = swept().runs(prepared({MAIN: storage.folder(out / "corpus")}))[0]
    write_run_record(_made(out / "runs" / spec.name), spec)
    (out / "corpus" / "manifest.json").unlink()
    said = refused(4, "experiment", "check", out.parent / "file.yaml", "--out", out)
    assert said.endswith("a corpus is gone, from which runs are planned; run `electra prepare` again.")


# --- the dry run ------------------------------------------------------------------------------------------------------


def test_a_dry_run_adds_up_the_sweep_and_the_experiment_and_writes_nothing(tmp_path: Path) -> None:
    """On stated devices: FLOPs ÷ (peak × MFU × devices), and the price of those hours."""
    out = tmp_path / "out"  # nothing is prepared
    (tmp_path / "file.yaml").write_text(dump(swept("", "budgets=[1e9, 2e9]", "evaluation.protocol={max_length: 32}")))
    stated = ("--device", "h100", "--mfu", "0.5", "--price", "3.6")
    done = electra("experiment", "run", out.parent / "file.yaml", "--out", out, "--dry-run", "--json", *stated)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert not out.exists()
    assert [len(found["stages"][name]["runs"]) for name in ("sweep", "main")] == [4, 4]
    assert found["stages"]["sweep"]["evaluations"] == []  # a loss decides
    runs = [run for stage in found["stages"].values() for run in stage["runs"]]
    assert found["flops"] == pytest.approx(sum(run["flops"] for run in runs))
    assert found["flops"] == pytest.approx(4 * 1e9 + 2 * 1e9 + 2 * 2e9, rel=0.01)
    assert runs[0]["cost"] == pytest.approx(runs[0]["seconds"] * 2 * 3.6 / 3600)  # two workers
    assert found["seconds"] >= sum(run["seconds"] for run in runs)


def test_a_sweep_that_has_chosen_is_not_left_to_do(out: Path) -> None:
    """Not the rate that diverged either, which has no finished run; and the main runs are looked for at the chosen."""
    from pipeline import sweep

    stated = ("--device", "h100", "--dry-run", "--json")

    def left() -> list[bool]:
        done = electra("experiment", "run", out.parent / "file.yaml", "--out", out, *stated)
        assert done.exit_code == 0, done.output
        return [run["done"] for run in json.loads(done.stdout)["stages"]["sweep"]["runs"]]

    blimp = out.parent / "blimp"
    blimp.mkdir()
    pair = {"UID": "a", "linguistics_term": "t", "sentence_good": "the cat sits", "sentence_bad": "the cat sit"}
    (blimp / "a.jsonl").write_text(json.dumps(pair) + "\n")
    own = f"evaluation={{suites: [blimp], blimp: {blimp}}}"
    (out.parent / "file.yaml").write_text(dump(swept("", own)))
    finish(out, swept(), {key: loss for key, loss in LOSSES.items() if key != "electra-lr1e-3"})
    assert left() == [True, False, True, True]
    sweep.choose(swept(), out, {"electra-lr1e-3": "not a number"})
    assert left() == [True] * 4
    other = swept("", "sweep.rates.electra=[5e-4, 2e-3]", own)
    (out.parent / "file.yaml").write_text(dump(other))
    assert left() == [True, False, True, True]  # the choice is of another sweep


def test_a_choice_of_another_sweep_is_told_and_breaks_what_goes_by_it(out: Path) -> None:
    from pipeline import sweep

    finish(out, swept(), LOSSES)
    sweep.choose(swept(), out, {})
    (out.parent / "file.yaml").write_text(dump(swept(", choose_by: probes")))
    sentence = "sweep/chosen.json is the choice of another sweep than the file's; `electra experiment run` sweeps anew."
    assert [one["ok"] for one in check(out)["findings"] if one["sentence"] == sentence] == [True]
    spec = swept().runs(prepared({MAIN: storage.folder(out / "corpus")}))[0]
    write_run_record(_made(out / "runs" / spec.name), spec)
    assert sentence in refused_by_check(out)


# --- the road ---------------------------------------------------------------------------------------------------------


def test_what_of_the_comparison_does_not_hold_is_told_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = fake_experiment.write(tmp_path / "out", steps_logged=4)
    monkeypatch.setattr(experiment_run, "ROAD", {})
    monkeypatch.setattr(quickstart, "summary", lambda *_: [])
    console = Console(io.StringIO(), interactive=False)
    place = Place(
        experiment=swept(),
        folder=Folder(out, {MAIN: storage.folder(out / "corpus")}),
        console=console,
        stack=ExitStack(),
    )
    fake_experiment.change(out / "runs" / "bert-4.00e+11-s0" / "done.json", step=7)
    experiment_run.run(place)
    told = console.stream.getvalue()  # type: ignore[attr-defined]
    assert "no matched comparison: bert-4.00e+11-s0 ended at step 7 of the " in told


@pytest.mark.long
@pytest.mark.multi
def test_the_road_sweeps_trains_checks_and_resumes(tmp_path: Path) -> None:
    """For real and tiny: both arms at two rates by the probes' scores, then two budgets; again, and after a run is
    removed; the records match."""
    road = lay_out(tmp_path)
    tree = yaml.safe_load(road.config.read_text())
    rates = {"electra": [5e-4, 1e-3], "bert": [5e-4, 1e-3]}
    tree |= {"name": "swept", "sweep": {"rates": rates, "choose_by": "probes"}}
    file = road.config.with_name("swept.yaml")
    file.write_text(yaml.safe_dump(tree))
    done = road.electra("experiment", "run", file, "--json")
    result = json.loads(done.stdout)
    assert list(result["stages"]) == ["prepare", "sweep", "train", "evaluate", "report", "track"]
    out = tmp_path / "runs" / "swept"
    record = json.loads((out / "sweep" / "chosen.json").read_text())
    assert len(gather.read(out / "sweep").finished) == 4
    assert not (out / "sweep" / "corpus").exists()
    for run in gather.read(out).finished:
        assert run.identity["arm"]["learning_rate"] == record["arms"][run.arm]["rate"]
    assert json.loads(road.electra("experiment", "check", out, "--json").stdout)["exit_code"] == 0

    again = road.electra("experiment", "run", out, "--json")
    assert "Everything was done already" in again.stderr
    removed = next((out / "runs").glob("bert-9*"))
    shutil.rmtree(removed)
    third = json.loads(road.electra("experiment", "run", out, "--json").stdout)
    assert third["stages"]["train"]["trained"] == 1
    assert json.loads((out / "sweep" / "chosen.json").read_text()) == record


def test_texts_longer_than_the_positions_are_told_before_any_work(out: Path) -> None:
    (out.parent / "long.yaml").write_text(dump(swept("", "evaluation.protocol={max_length: 33}")))
    said = refused(2, "experiment", "run", out.parent / "long.yaml", "--out", out.parent / "new")
    assert "evaluation.protocol.max_length 33 is longer than the 32 positions of model.max_positions: lower it" in said
    assert not (out.parent / "new").exists()
