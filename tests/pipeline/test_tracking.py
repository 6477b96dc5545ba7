"""What the mirror says of runs, fine-tunings and the experiment: MLflow's own SQLite file, read back with plain SQL."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from data_prep import manifest as manifests
from data_prep.errors import DataError, PreflightError
from pipeline import tracking_cursor, tracking_records
from pipeline.tracking import sync
from tests.pipeline import fake_experiment
from tests.pipeline.mlflow_rows import everything, history, of_parent, rows, status
from training.arms import ElectraArm, NetworkGenerator

STEPS = round(fake_experiment.BUDGETS[0] / fake_experiment.FLOPS_PER_STEP["electra"])


@pytest.fixture
def out(tracked: Path) -> Path:
    return tracked


def test_every_line_arrives_with_its_own_step_time_and_value(out: Path) -> None:
    summary = sync(out)
    assert (summary.runs, summary.finetunings, summary.reachable) == (1, 1, True)
    lines = fake_experiment.metric_lines("electra", STEPS, fake_experiment.START, 20)
    for name in ("train/rtd_loss", "flops", "tokens", "seconds"):
        expected = [(line["step"], line["values"][name], round(line["time"] * 1000)) for line in lines]
        assert history(out, name) == expected
    heldout = [line["step"] for line in lines if "heldout/rtd_auc" in line["values"]]
    assert [step for step, *_ in history(out, "heldout/rtd_auc")] == heldout
    assert len(heldout) == 4


def test_a_run_tells_what_it_is(out: Path) -> None:
    sync(out)
    params = dict(rows(out, "select key, value from params"))
    tags = dict(rows(out, "select key, value from tags"))
    assert params["identity.model.hidden_size"] == "16"
    assert params["placement.zero_stage"] == "1"
    assert params["budget"] == "400000000000.0"
    assert tags["electra.tokenizer_sha256"] == "f" * 64
    assert tags["electra.objective"] == "electra"
    assert (tags["electra.budget"], tags["electra.seed"], tags["electra.stage"]) == ("4e+11", "0", "main")
    assert tags["electra.code"] == tracking_records.code_version()["electra.code"]
    assert (
        tags["electra.manifest_sha256"]
        == json.loads((out / "runs" / "electra-4.00e+11-s0" / "run.json").read_text())["identity"]["manifest_sha256"]
    )
    assert status(out) == ["FINISHED"]
    last = fake_experiment.metric_lines("electra", STEPS, fake_experiment.START, 20)[-1]
    assert history(out, "done/tokens") == [(STEPS, last["values"]["tokens"], round(last["time"] * 1000))]


def test_a_first_stage_is_a_run_of_its_own_kind_and_a_degenerate_run_says_so(out: Path) -> None:
    run = out / "runs" / "electra-4.00e+11-s0"
    shutil.copytree(run, run.with_name("electra-first"))
    fake_experiment.change(run.with_name("electra-first") / "run.json", name="electra-first", part_of=run.name)
    fake_experiment.change(run / "done.json", degenerate="it learned nothing")
    assert sync(out).runs == 2
    tags = rows(out, "select r.name, t.key, t.value from runs r join tags t using (run_uuid)")
    assert ("electra-first", "electra.kind", "first stage") in tags
    assert ("electra-first", "electra.part_of", run.name) in tags
    assert [name for name, key, _ in tags if key == "electra.arm"] == [run.name, "sentence_order 0 · " + run.name]
    assert (run.name, "electra.degenerate", "it learned nothing") in tags


def test_the_parameters_of_a_planned_arm_are_dotted(out: Path) -> None:
    arm = ElectraArm(learning_rate=5e-4, generator=NetworkGenerator(width=0.5)).model_dump(mode="json")
    run = out / "runs" / "electra-4.00e+11-s0" / "run.json"
    identity = json.loads(run.read_text())["identity"]
    fake_experiment.change(run, identity={**identity, "arm": arm, "init": {"weights": ["a@1", "b@2"]}}, inherited=1e9)
    sync(out)
    params = dict(rows(out, "select key, value from params"))
    found = {name: value for name, value in params.items() if name.startswith("identity.arm.generator.")}
    assert found == {
        "identity.arm.generator.kind": "network",
        "identity.arm.generator.width": "0.5",
        "identity.arm.generator.depth": "1.0",
        "identity.arm.generator.tying": "token",
        "identity.arm.generator.temperature": "1.0",
        "identity.arm.generator.disallow_correct": "False",
    }
    assert (params["identity.init.weights"], params["inherited"]) == ("['a@1', 'b@2']", "1000000000.0")


def test_a_fine_tuning_is_a_child_with_score_and_protocol(out: Path) -> None:
    sync(out)
    parent = rows(out, "select run_uuid from tags where key = 'electra.kind' and value = 'training'")
    child = rows(out, "select run_uuid from tags where key = 'electra.kind' and value = 'fine-tuning'")
    assert rows(out, "select run_uuid, value from tags where key = 'mlflow.parentRunId'") == [(*child[0], *parent[0])]
    assert [value for _, value, _ in history(out, "score", "fine-tuning")] == [1440 / 2400]
    assert [point[:2] for name in of_parent(out) for point in history(out, name)] == [(STEPS, 1440 / 2400)]
    params = dict(rows(out, f"select key, value from params where run_uuid = '{child[0][0]}'"))
    assert (params["protocol.name"], params["task"], params["n_dev"]) == ("plain", "sentence_order", "2400")
    assert status(out, "fine-tuning") == ["FINISHED"]


def test_configuration_and_report_are_artifacts_under_the_experiment(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (out / "report").mkdir()
    (out / "report" / "report.html").write_text("first")
    sync(out)
    (out / "report" / "report.html").write_text("second")
    sync(out)
    attached = sorted(path.name for path in out.glob("mlartifacts/*/artifacts/*"))
    assert attached == ["config.yaml", "done.json", "manifest.json", "report.html", "run.json"]
    assert next(out.glob("mlartifacts/*/artifacts/report.html")).read_text() == "second"
    assert list(elsewhere.iterdir()) == []


def test_a_placement_that_changed_is_kept_beside_the_first(out: Path) -> None:
    sync(out)
    path = out / "runs" / "electra-4.00e+11-s0" / "run.json"
    spec = json.loads(path.read_text())
    path.write_text(json.dumps({**spec, "placement": {"micro_batch": 8, "zero_stage": 1}}))
    sync(out)
    assert ("placement.micro_batch", "32") in rows(out, "select key, value from params")
    assert rows(out, "select value from tags where key = 'now.placement.micro_batch'") == [("8",)]


def test_the_environment_names_the_store(out: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = out.parent / "elsewhere.db"
    shutil.copy(empty_store, elsewhere)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{elsewhere}")
    assert sync(out).uri == f"sqlite:///{elsewhere}"
    assert rows(out, "select count(*) from runs") == [(0,)]
    with sqlite3.connect(elsewhere) as database:
        assert database.execute("select count(*) from runs").fetchall() == [(3,)]


def test_a_directory_that_was_moved_keeps_its_history(out: Path, tmp_path: Path) -> None:
    sync(out)
    before = everything(out)
    moved = tmp_path / "moved"
    out.rename(moved)
    assert sync(moved).points == 0
    assert everything(moved) == before
    assert not out.exists()


def test_the_cursor_does_not_outlive_the_store_it_speaks_of(out: Path) -> None:
    sync(out)
    uri = f"sqlite:///{out / 'mlflow.db'}"
    assert len(tracking_cursor.load(out, uri)) == 5  # a run, its fine-tuning, which are current, files
    (out / "mlflow.db").unlink()
    assert tracking_cursor.load(out, uri) == {}


def test_an_unusable_store_is_said(out: Path) -> None:
    (out / "mlflow.db").write_bytes(b"this is not a database, it only has its name" * 100)
    with pytest.raises(PreflightError, match=r"mlflow\.db cannot be used .* not a database"):
        sync(out)


def test_a_missing_experiment_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere does not exist"):
        sync(tmp_path / "nowhere")


def test_predictions_that_are_gone_are_said(out: Path) -> None:
    next((out / "evaluation" / "predictions").iterdir()).unlink()
    with pytest.raises(DataError, match=r"electra-4.00e\+11-s0-sentence_order-0.npz is missing"):
        sync(out)


def test_a_run_before_its_first_line_is_not_mirrored(out: Path) -> None:
    fake_experiment.write_results_file(out, [])
    shutil.rmtree(out / "runs" / "electra-4.00e+11-s0" / "metrics")
    (out / "runs" / "electra-4.00e+11-s0" / "done.json").unlink()
    assert sync(out).runs == 0
    assert rows(out, "select count(*) from runs") == [(0,)]


def test_the_corpus_is_a_data_set_that_two_runs_share(out: Path) -> None:
    manifest = manifests.load(out / "corpus")
    fake_experiment.write_run(out, "bert", 0, manifest.sha256, start=fake_experiment.START + 9, steps_logged=4)
    source = {"kind": "text", "path": "https://someone:secret@example.org/a.txt"}
    (out / "config.yaml").write_text(json.dumps({"name": "tiny", "arms": [], "corpus": {"sources": [source]}}))
    sync(out)
    ((name, digest, kind, described, profile),) = rows(
        out, "select name, digest, dataset_source_type, dataset_source, dataset_profile from datasets"
    )
    assert (name, digest, kind) == ("tiny", manifest.sha256[:36], "local")
    assert json.loads(described) == {
        "uri": (out / "corpus").as_uri(),
        "manifest_sha256": manifest.sha256,
        "sources": [{"kind": "text", "path": "https://example.org/a.txt"}],
    }
    facts = json.loads(profile)
    assert (facts["train_rows"], facts["train_tokens"], facts["heldout_rows"]) == (25_310, 120 * 25_310, 2_740)
    found = rows(out, "select r.name from inputs i join runs r on r.run_uuid = i.destination_id")
    assert found == [("bert-4.00e+11-s0",), ("electra-4.00e+11-s0",)]


def test_a_copy_without_history_names_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_git(*_: object) -> str:
        raise OSError("no git")

    monkeypatch.setattr(tracking_records, "_git", no_git)
    monkeypatch.setattr("importlib.metadata.version", lambda name: {"electra-pretraining": "1.2.3"}[name])
    assert tracking_records.code_version.__wrapped__() == {"electra.code": "1.2.3"}


def test_a_sweep_is_in_the_experiment_it_belongs_to_and_says_so(out: Path) -> None:
    shutil.copytree(out / "runs", out / "sweep" / "runs")
    run = out / "sweep" / "runs" / "electra-4.00e+11-s0"
    fake_experiment.change(run / "run.json", seed=1000)
    (out / "sweep" / "config.yaml").write_text("name: other\narms: [{objective: electra}]\nbudgets: [4.0e+11]\n")
    (out / "sweep" / "chosen.json").write_text("{}")
    summary = sync(out)
    assert (summary.runs, summary.finetunings) == (2, 1)
    found = rows(
        out,
        "select s.value, n.value from tags s join tags n using (run_uuid) join tags k using (run_uuid) "
        "where s.key = 'electra.stage' and n.key = 'electra.seed' and k.key = 'electra.kind' and k.value = 'training'",
    )
    assert found == [("main", "0"), ("sweep", "1000")]
    assert rows(out, "select name from experiments where name not in ('Default', 'unrelated')") == [("tiny",)]
    assert [path.name for path in out.glob("mlartifacts/*/artifacts/chosen.json")] == ["chosen.json"]
    before = everything(out)
    assert sync(out / "sweep").points == 0
    assert everything(out) == before
    assert not list((out / "sweep").glob("mlflow.db")) + list((out / "sweep").glob(tracking_cursor.FILE_NAME))


def test_one_run_can_be_mirrored_alone(out: Path) -> None:
    manifest = manifests.load(out / "corpus")
    fake_experiment.write_run(out, "bert", 0, manifest.sha256, start=fake_experiment.START + 9, steps_logged=4)
    assert sync(out, only="electra-4.00e+11-s0").runs == 1
    names = "select name from runs where name not in ('sentence_order 0 · electra-4.00e+11-s0')"
    assert rows(out, names) == [("electra-4.00e+11-s0",)]
    assert sync(out).runs == 2
    assert rows(out, names) == [("bert-4.00e+11-s0",), ("electra-4.00e+11-s0",), ("tiny",)]


def test_after_its_seconds_nothing_more_is_begun(out: Path) -> None:
    assert sync(out, seconds=-1.0).points == 0
    assert rows(out, "select count(*) from runs") == [(0,)]
    assert sync(out).points > 200
