"""The files of a run's folder: torn lines, attempts, and what is said of another identity."""

import json
from pathlib import Path

import pytest

from data_prep.errors import ConfigError, DataError
from data_prep.manifest import load
from tests.training.synthetic import MODEL
from training import run_folder
from training.arms import MlmArm
from training.run import plan_runs
from training.settings import RunSpec, TrainingConfig


@pytest.fixture
def spec(corpus: Path) -> RunSpec:
    training = TrainingConfig(global_batch=12, micro_batch=12)
    arm = MlmArm(learning_rate=1e-3)
    (found,) = plan_runs(arm=arm, model=MODEL, training=training, manifest=load(corpus), seed=0, steps=3)
    return found


def test_a_torn_line_of_events_costs_itself_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert run_folder.last_events(tmp_path) == []
    run_folder.append_events(tmp_path, [{"event": "started", "step": 0}, {"event": "weights", "network": "a"}])
    path.write_bytes(path.read_bytes() + b'{"time": 1, "event": "wei')
    assert [event["event"] for event in run_folder.last_events(tmp_path)] == ["started", "weights"]
    run_folder.append_events(tmp_path, [{"event": "degenerate"}])
    assert [event["event"] for event in run_folder.last_events(tmp_path)] == ["started", "weights", "degenerate"]
    lines = path.read_bytes().split(b"\n")
    assert len(lines) == 5 and lines[-1] == b"" and json.loads(lines[3])["event"] == "degenerate"


def test_events_are_those_of_the_last_attempt(tmp_path: Path) -> None:
    for number in (1, 2):
        run_folder.append_events(tmp_path, [{"event": "started", "step": 0}, {"event": "weights", "network": number}])
    assert [event.get("network") for event in run_folder.last_events(tmp_path)] == [None, 2]
    run_folder.append_events(tmp_path, [{"event": "started", "step": 5}])
    assert [event["step"] for event in run_folder.last_events(tmp_path)] == [5]


def test_a_record_is_read_as_it_was_written(spec: RunSpec, tmp_path: Path) -> None:
    assert run_folder.read_run_record(tmp_path) is None
    run_folder.write_run_record(tmp_path, spec)
    assert run_folder.read_run_record(tmp_path) == spec
    (tmp_path / "run.json").write_text("{}")
    assert run_folder.read_run_record(tmp_path) is None


def test_a_finished_run_is_done_if_it_is_the_same(spec: RunSpec, tmp_path: Path) -> None:
    run_folder.write_run_record(tmp_path, spec)
    assert not run_folder.is_done(tmp_path, spec)
    (tmp_path / "done.json").write_text("{}")
    assert run_folder.is_done(tmp_path, spec)
    other = {"seed": 1, "steps": 4}
    changed = spec.model_copy(update={"identity": spec.identity.model_copy(update=other)})
    with pytest.raises(ConfigError, match="was trained with another seed, steps; choose another --out, or remove this"):
        run_folder.is_done(tmp_path, changed)
    elsewhere = changed.placement.checkpoints.model_copy(update={"to": "s3://bucket/all"})
    changed = changed.model_copy(update={"placement": changed.placement.model_copy(update={"checkpoints": elsewhere})})
    with pytest.raises(ConfigError, match=rf"choose .* or remove this folder and s3://bucket/all/{tmp_path.name}$"):
        run_folder.is_done(tmp_path, changed)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(DataError, match=r"run\.json: holds no record of a run"):
        run_folder.is_done(tmp_path, spec)


def test_other_first_weights_are_mended_at_their_source_and_not_by_removing_the_run(
    spec: RunSpec, tmp_path: Path
) -> None:
    """Which is what a run goes on from; it may have taken months."""

    def beginning_with(*names: str) -> RunSpec:
        init = {"weights": [*names], "generator": [*names]}
        return spec.model_copy(update={"identity": spec.identity.model_copy(update={"init": init})})

    before = beginning_with("0123456789abcdef@300").identity.model_dump(mode="json")
    with pytest.raises(ConfigError) as caught:
        run_folder.refuse_changes(tmp_path, before, beginning_with("fedcba9876543210@400"))
    assert str(caught.value) == (
        f"{tmp_path}: began with 0123456789ab…@300, and init_from now names fedcba987654…@400; restore that folder, "
        "name that checkpoint itself in init_from, or choose another --out"
    )
