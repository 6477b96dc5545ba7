"""Mirroring again, after kills, rollbacks and restarts: nothing doubled, nothing lost, no step with two values."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from pipeline import tracking_cursor
from pipeline.mlflow_store import RUN_KEY, Store
from pipeline.tracking import sync
from tests.pipeline import fake_experiment
from tests.pipeline.mlflow_rows import everything, happened, history, of_parent, rows, status, unfinished, write_lines


@pytest.fixture
def out(tracked: Path) -> Path:
    return tracked


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


def test_the_empty_twin_that_a_late_answer_made_is_removed(out: Path) -> None:
    """The server makes the run, the answer is lost, and it is made once more: twice, with older and newer twins."""
    sync(out)
    before = everything(out)
    client = MlflowClient(f"sqlite:///{out / 'mlflow.db'}")
    (experiment,) = [one for one in client.search_experiments() if one.name == "tiny"]
    for made in client.search_runs([experiment.experiment_id]):
        if made.data.tags["electra.kind"] in ("training", "fine-tuning"):
            for start in (made.info.start_time - 1, made.info.start_time + 1):
                tags = {RUN_KEY: made.data.tags[RUN_KEY]}
                client.create_run(experiment.experiment_id, start_time=start, tags=tags)
    sync(out, thorough=True)
    active = {uuid for (uuid,) in rows(out, "select run_uuid from runs where lifecycle_stage = 'active'")}
    assert active == {row[0] for row in before["runs"]}
    assert {name: [row for row in table if row[0] in active] for name, table in everything(out).items()} == before


def test_what_was_removed_from_the_store_by_hand_is_sent_again(out: Path) -> None:
    sync(out)
    client = MlflowClient(f"sqlite:///{out / 'mlflow.db'}")
    for (uuid,) in rows(out, "select run_uuid from runs"):
        client.delete_run(uuid)
    assert sync(out).points == 0  # it trusts its note of what was sent
    assert sync(out, thorough=True).points > 200
    assert sync(out, thorough=True).points == 0
    assert rows(out, "select count(*) from runs where lifecycle_stage = 'active'") == [(3,)]
