"""The mirror against MLflow's own SQLite file, read back with plain SQL."""

import json
import shutil
import socket
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from data_prep.errors import DataError, PreflightError
from pipeline import tracking_cursor
from pipeline.mlflow_store import Store
from pipeline.tracking import sync
from tests.pipeline import fake_experiment
from training.arms import ElectraArm, NetworkGenerator

STEPS = round(fake_experiment.BUDGETS[0] / fake_experiment.FLOPS_PER_STEP["electra"])


class Warnings:
    """A console that keeps what it was told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated store without runs: making its tables takes seconds, copying it none."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    Store(f"sqlite:///{path}", "unrelated", path.parent / "files")
    return path


@pytest.fixture
def out(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment of one finished run with a fine-tuning, and a store."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "experiment"
    manifest = fake_experiment.write_corpus(folder)
    (folder / "config.yaml").write_text("name: tiny\narms: [{objective: electra}]\nbudgets: [4.0e+11]\n")
    fake_experiment.write_run(
        folder, "electra", 0, manifest.sha256, start=fake_experiment.START, steps_logged=20, done=True
    )
    result = fake_experiment.write_result(folder, "electra", 0, "probes", "sentence_order", 1440)
    fake_experiment.write_results_file(folder, [result])
    shutil.copy(empty_store, folder / "mlflow.db")
    return folder


def rows(out: Path, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(out / "mlflow.db") as database:
        return sorted(database.execute(query).fetchall())


def everything(out: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All that the store knows of runs."""
    return {
        "runs": rows(out, "select run_uuid, name, status, start_time, end_time from runs"),
        "metrics": rows(out, "select run_uuid, key, value, timestamp, step, is_nan from metrics"),
        "params": rows(out, "select run_uuid, key, value from params"),
        "tags": rows(out, "select run_uuid, key, value from tags"),
    }


def history(out: Path, key: str, kind: str = "training") -> list[tuple[Any, ...]]:
    """(step, value, timestamp) of a metric over all runs of a kind, in order."""
    return rows(
        out,
        f"select m.step, m.value, m.timestamp from metrics m join tags t on t.run_uuid = m.run_uuid "
        f"where m.key = '{key}' and t.key = 'electra.kind' and t.value = '{kind}'",
    )


def happened(run: Path, *events: tuple[str, int]) -> None:
    """Append events, each with the step that a restart would then resume at."""
    key = {"rollback": "to_step"}
    with open(run / "events.jsonl", "a", encoding="utf-8") as file:
        for name, step in events:
            file.write(json.dumps({"time": time.time(), "event": name, key.get(name, "step"): step}) + "\n")


def write_lines(run: Path, attempt: int, lines: list[dict[str, Any]]) -> None:
    (run / "metrics" / f"A-{attempt:05d}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def unfinished(out: Path, logged: int) -> tuple[Path, list[dict[str, Any]], str]:
    """The run, all its lines and its `done.json`, when it has logged so many lines of them."""
    run = out / "runs" / "electra-4.00e+11-s0"
    fake_experiment.write_results_file(out, [])
    done = (run / "done.json").read_text()
    (run / "done.json").unlink()
    lines = [json.loads(line) for line in (run / "metrics" / "A-00000.jsonl").read_text().splitlines()]
    write_lines(run, 0, lines[:logged])
    return run, lines, done


def status(out: Path, kind: str = "training") -> list[str]:
    return [
        row[0]
        for row in rows(
            out,
            "select r.status from runs r join tags t on t.run_uuid = r.run_uuid "
            f"where t.key = 'electra.kind' and t.value = '{kind}'",
        )
    ]


def of_parent(out: Path) -> list[str]:
    """Names of the metrics under which a training run carries its fine-tunings' scores."""
    return [name for (name,) in rows(out, "select distinct key from metrics where key like 'eval/%'")]


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
    assert params["identity.model.hidden_size"] == "128"
    assert params["placement.zero_stage"] == "1"
    assert params["budget"] == "400000000000.0"
    assert tags["electra.tokenizer_sha256"] == "f" * 64
    assert tags["electra.objective"] == "electra"
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
    assert sorted(path.name for path in out.glob("mlartifacts/*/artifacts/*")) == [
        "config.yaml",
        "manifest.json",
        "report.html",
    ]
    assert next(out.glob("mlartifacts/*/artifacts/report.html")).read_text() == "second"
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("forget", [False, True], ids=["cursor kept", "cursor deleted"])
def test_syncing_again_changes_nothing(out: Path, forget: bool) -> None:
    assert sync(out).points > 200
    before = everything(out)
    if forget:
        (out / tracking_cursor.FILE_NAME).unlink()
    assert sync(out).points == 0
    assert everything(out) == before


def test_mlflow_takes_a_replayed_batch_once(out: Path) -> None:
    """Without cursor and without asking what arrived: the promise rests on MLflow's own key."""
    sync(out)
    before = everything(out)
    (out / tracking_cursor.FILE_NAME).unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "sent", lambda self, key, name: set())
        patch.setattr(Store, "finished", lambda self, key: False)
        assert sync(out).points > 200
    assert everything(out) == before


@pytest.mark.parametrize("requests", [1, 2, 3])
def test_a_sync_that_was_cut_off_is_completed(out: Path, empty_store: Path, requests: int) -> None:
    """Killed after any of its requests, then done again: the same store, but for ids."""

    def without_ids(found: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[tuple[Any, ...]]]:
        return {
            name: sorted(row[1:] for row in table if row[1] not in ("mlflow.parentRunId",))
            for name, table in found.items()
        }

    class Killed(BaseException):
        pass

    count, send = 0, Store._send

    def cut_off(self: Store, key: str, points: Any) -> None:
        nonlocal count
        if count == requests:
            raise Killed
        count += 1
        send(self, key, points)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.mlflow_store._METRICS_PER_REQUEST", 100)
        patch.setattr(Store, "_send", cut_off)
        with pytest.raises(Killed):
            sync(out)
    sync(out)
    completed = without_ids(everything(out))
    whole = out.parent / "whole"
    shutil.copytree(out, whole, ignore=shutil.ignore_patterns("mlflow.db", tracking_cursor.FILE_NAME, "mlartifacts"))
    shutil.copy(empty_store, whole / "mlflow.db")
    sync(whole)
    assert completed == without_ids(everything(whole))


def test_a_run_a_dead_driver_left_is_closed_then_reopened_then_finished(out: Path) -> None:
    """Steps that a restart repeats are in the history once, as the attempt that survived wrote them."""
    run, lines, done = unfinished(out, 12)
    happened(run, ("started", 0), ("saved", lines[3]["step"]), ("saved", lines[7]["step"]), ("save_failed", 10**6))
    sync(out, training=True)
    assert status(out) == ["RUNNING"]
    assert [step for step, *_ in history(out, "flops")] == [line["step"] for line in lines[:8]]
    sync(out)
    assert status(out) == ["KILLED"]
    assert rows(out, "select end_time from runs where status = 'KILLED' and name like 'electra-%'") == [
        (round(lines[11]["time"] * 1000),)
    ]

    resumed = {"attempt": 1, "resumed_at": lines[7]["step"]}
    again = [{**line, **resumed, "time": line["time"] + 1000} for line in lines[8:]]
    happened(run, ("started", lines[7]["step"]))
    write_lines(run, 1, again[:2])
    sync(out, training=True)
    assert status(out) == ["RUNNING"]
    write_lines(run, 1, again)
    (run / "done.json").write_text(done)
    sync(out)
    assert status(out) == ["FINISHED"]
    survived = [*lines[:8], *again]
    assert history(out, "attempt") == [(line["step"], line["attempt"], round(line["time"] * 1000)) for line in survived]
    assert len(rows(out, "select run_uuid from runs where name like 'electra-%'")) == 1


@pytest.mark.parametrize("what", ["rollback", "started"], ids=["a rollback", "a restart from an older checkpoint"])
def test_lines_that_were_sent_and_then_lost_stay_with_a_superseded_run(out: Path, what: str) -> None:
    """No step has two values in the run that goes on, and the one that was left says so. Twice over."""
    run, lines, done = unfinished(out, 12)
    happened(run, ("started", 0), ("saved", lines[5]["step"]), ("saved", lines[9]["step"]))
    sync(out, training=True)
    held = [[line["step"] for line in lines[:10]]]
    survived = lines[:6]
    for attempt in (1, 2):
        happened(run, (what, lines[5]["step"]))
        sync(out, training=True)  # nothing new yet, nothing replaced yet
        resumed = {"attempt": attempt, "resumed_at": lines[5]["step"]}
        again = [{**line, **resumed, "time": line["time"] + 1000 * attempt} for line in lines[6:]]
        write_lines(run, attempt, again[:4])
        happened(run, ("saved", lines[8]["step"]))
        sync(out, training=True)
        held.append([line["step"] for line in lines[:9]])
        survived = [*lines[:6], *again]
    write_lines(run, 2, again)
    (run / "done.json").write_text(done)
    result = fake_experiment.write_result(out, "electra", 0, "probes", "sentence_order", 1440)
    fake_experiment.write_results_file(out, [result])
    sync(out)
    held[-1] = [line["step"] for line in lines]
    found = rows(
        out,
        "select t.value, r.status, r.run_uuid from runs r join tags t using (run_uuid) join tags k using (run_uuid) "
        "where t.key = 'electra.superseded' and k.key = 'electra.kind' and k.value = 'training'",
    )
    assert [one[:2] for one in found] == [("false", "FINISHED"), ("true", "KILLED"), ("true", "KILLED")]
    steps = [
        [step for (step,) in rows(out, f"select step from metrics where key = 'flops' and run_uuid = '{uuid}'")]
        for *_, uuid in found
    ]
    assert sorted(steps) == sorted(held)
    live = found[0][2]
    values = rows(out, f"select step, value, timestamp from metrics where key = 'attempt' and run_uuid = '{live}'")
    assert values == [(line["step"], line["attempt"], round(line["time"] * 1000)) for line in survived]
    assert rows(out, "select value from tags where key = 'mlflow.parentRunId'") == [(live,)]
    before = everything(out)
    (out / tracking_cursor.FILE_NAME).unlink()
    assert sync(out).points == 0
    assert everything(out) == before


def test_a_rollback_before_anything_beyond_it_was_sent_makes_no_other_run(out: Path) -> None:
    run, lines, _ = unfinished(out, 12)
    happened(run, ("started", 0), ("saved", lines[5]["step"]))
    sync(out, training=True)
    happened(run, ("rollback", lines[5]["step"]))
    write_lines(run, 1, [{**line, "attempt": 1, "resumed_at": lines[5]["step"]} for line in lines[6:9]])
    happened(run, ("saved", lines[8]["step"]))
    sync(out, training=True)
    assert [step for step, *_ in history(out, "flops")] == [line["step"] for line in lines[:9]]
    assert len(rows(out, "select run_uuid from runs where name like 'electra-%'")) == 1


def test_the_mirror_asks_no_store_of_checkpoints(out: Path) -> None:
    """It runs in the thread that shows progress: a store far away, or one that gives no answer, does not hold it up."""
    run, lines, _ = unfinished(out, 12)
    placement = {**json.loads((run / "run.json").read_text())["placement"], "checkpoints": {"to": "s3://127.0.0.1:1/x"}}
    fake_experiment.change(run / "run.json", placement=placement)
    happened(run, ("started", 0), ("saved", lines[7]["step"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.run_folder.store", lambda *_: pytest.fail("a store was opened"))
        sync(out, training=True)
    assert [step for step, *_ in history(out, "flops")] == [line["step"] for line in lines[:8]]


def test_a_placement_that_changed_is_kept_beside_the_first(out: Path) -> None:
    sync(out)
    path = out / "runs" / "electra-4.00e+11-s0" / "run.json"
    spec = json.loads(path.read_text())
    path.write_text(json.dumps({**spec, "placement": {"micro_batch": 8, "zero_stage": 1}}))
    sync(out)
    assert ("placement.micro_batch", "32") in rows(out, "select key, value from params")
    assert rows(out, "select value from tags where key = 'now.placement.micro_batch'") == [("8",)]


def test_an_evaluation_done_anew_supersedes_the_old_one(out: Path) -> None:
    sync(out)
    result = fake_experiment.write_result(out, "electra", 0, "probes", "sentence_order", 1500)
    fake_experiment.write_results_file(out, [{**result, "protocol": {"name": "other"}}])
    sync(out)
    children = "from tags where key = 'electra.kind' and value = 'fine-tuning'"
    assert rows(out, f"select count(*) {children}") == [(2,)]
    superseded = rows(out, "select run_uuid from tags where key = 'electra.superseded' and value = 'true'")
    assert len(superseded) == 1
    assert rows(out, f"select value from metrics where key = 'score' and run_uuid = '{superseded[0][0]}'") == [(0.6,)]


def test_going_back_to_the_first_protocol_makes_its_fine_tunings_current_again(out: Path) -> None:
    """A, B, A: the last A is sent already, and is what the results hold."""
    first = fake_experiment.read_results_file(out)
    second = fake_experiment.write_result(out, "electra", 0, "probes", "sentence_order", 1500)
    second["protocol"] = {"name": "plain", "fingerprint": "b" * 64}
    for results in (first, [second], first):
        fake_experiment.write_results_file(out, results)
        sync(out)
    query = (
        "select m.value, t.value from metrics m join tags t on t.run_uuid = m.run_uuid "
        "where m.key = 'score' and t.key = 'electra.superseded'"
    )
    assert rows(out, query) == [(1440 / 2400, "false"), (1500 / 2400, "true")]
    assert len(of_parent(out)) == 2  # each protocol has its own name: one value a step
    assert [len(history(out, name)) for name in of_parent(out)] == [1, 1]


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
    assert len(tracking_cursor.load(out, uri)) == 4  # a run, its fine-tuning, which ones are current, the experiment
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


def test_a_dead_server_costs_one_warning(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    console, started = Warnings(), time.monotonic()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://someone:secret@127.0.0.1:{port}")
    summary = sync(out, console=console)
    assert time.monotonic() - started < 10
    assert not summary.reachable
    assert len(console.texts) == 1
    assert f"http://127.0.0.1:{port} cannot be reached" in console.texts[0]
    assert "secret" not in console.texts[0] + summary.uri + (out / tracking_cursor.FILE_NAME).read_text()


def test_a_server_that_never_answers_costs_seconds(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        console, started = Warnings(), time.monotonic()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        summary = sync(out, console=console)
    assert time.monotonic() - started < 10
    assert not summary.reachable
    assert len(console.texts) == 1


def test_a_run_before_its_first_line_is_not_mirrored(out: Path) -> None:
    fake_experiment.write_results_file(out, [])
    shutil.rmtree(out / "runs" / "electra-4.00e+11-s0" / "metrics")
    (out / "runs" / "electra-4.00e+11-s0" / "done.json").unlink()
    assert sync(out).runs == 0
    assert rows(out, "select count(*) from runs") == [(0,)]
