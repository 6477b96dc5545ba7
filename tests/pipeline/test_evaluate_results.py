"""What may stand side by side in results.jsonl: one protocol a suite, one set of data a task, one model a name."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.tasks import Unit
from pipeline.console import Console
from pipeline.evaluate_data import Kind, Material
from pipeline.evaluate_results import write_grids, write_results
from pipeline.evaluate_targets import Model
from pipeline.evaluate_units import units
from training.protocol import EvaluationConfig, Protocol

GLUE = EvaluationConfig(suites=["glue"])
SLOWER = EvaluationConfig(suites=["glue"], protocol=Protocol(learning_rate=1e-5))
BLIMP = EvaluationConfig(suites=["blimp"])
RTE = ("glue", "RTE", "classes", "data-a")
OTHER_RTE = ("glue", "RTE", "classes", "data-b")
PAIRS = ("blimp", "BLiMP", "pairs", "data-c")

Data = tuple[str, str, Kind, str]


def model(name: str, weights: str = "w", flops: float | None = None) -> Model:
    facts = {"run": name, "arm": name, "budget": None, "seed": 0, "step": 0, "flops_counted": flops}
    return Model(name=name, location="", sha256=weights, tokenizer="", max_positions=128, judges=True, facts=facts)


def done(evaluation: Path, models: list[Model], data: Data, config: EvaluationConfig) -> list[Unit]:
    """The units, with a record of those that have none yet."""
    suite, task, kind, sha256 = data
    path = evaluation / "tasks" / f"{suite}-{task}-{sha256}.jsonl"
    material = Material(suite=suite, task=task, kind=kind, path=path, sha256=sha256)
    made = units(models, [material], config, evaluation)
    for unit in made:
        answers = f"predictions/{unit.name}.npz"
        facts = {"suite": suite, "task": task, "finetune_seed": unit.payload["seed"], "unit": unit.name}
        if not (evaluation / answers).exists():
            unit.folder.write_bytes(answers, b"")
            result = {"rows": [{**unit.payload["facts"], **facts}], "files": [answers]}
            unit.folder.write_json(unit.record, {"identity": unit.identity, "result": result})
    return made


class Folder:
    """An evaluation folder; each call is a command."""

    def __init__(self, place: Path, runs: tuple[Model, ...] = ()) -> None:
        self.evaluation, self.runs, self.said = place / "evaluation", list(runs), ""

    def evaluate(self, single: Model | None, data: Data, config: EvaluationConfig) -> list[tuple[str, str]]:
        """Model and task of every row in results.jsonl afterwards."""
        made = done(self.evaluation, self.runs if single is None else [single], data, config)
        said = io.StringIO()
        write_grids(self.evaluation, made, config, None if single is None else single.name)
        write_results(self.evaluation, config, self.runs, Console(said, interactive=False))
        self.said = " ".join(said.getvalue().split())
        return [(row["run"], row["task"]) for row in self.rows()]

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.evaluation / "results.jsonl").read_text().splitlines()]


def test_what_is_said_of_a_model_last_holds_for_everything_of_it(tmp_path: Path) -> None:
    """Nothing is fine-tuned again because somebody found out what the model had cost."""
    folder = Folder(tmp_path)
    folder.evaluate(model("m"), RTE, GLUE)
    assert [row["flops_counted"] for row in folder.rows()] == [None]
    folder.evaluate(model("m", flops=1e18), PAIRS, BLIMP)
    assert [(row["task"], row["flops_counted"]) for row in folder.rows()] == [("BLiMP", 1e18), ("RTE", 1e18)]
    assert len(list((tmp_path / "evaluation" / "units").iterdir())) == 2
    assert folder.said == ""


def test_a_name_is_one_model(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.evaluate(model("m", "old"), RTE, GLUE)
    assert folder.evaluate(model("m", "new"), PAIRS, BLIMP) == [("m", "BLiMP")]
    assert "glue: m was evaluated with other weights than what stands in results.jsonl" in folder.said
    assert folder.evaluate(model("m", "new"), RTE, GLUE) == [("m", "BLiMP"), ("m", "RTE")]
    assert folder.said == ""


def test_a_task_is_one_set_of_data_and_the_experiments_decides(tmp_path: Path) -> None:
    run = model("run")
    folder = Folder(tmp_path, (run,))
    assert folder.evaluate(model("m"), OTHER_RTE, GLUE) == [("m", "RTE")]
    assert folder.evaluate(model("n"), RTE, GLUE) == [("n", "RTE")]  # the newest, where there is no other
    assert "glue: m was evaluated on other data" in folder.said
    assert folder.evaluate(None, OTHER_RTE, GLUE) == [("m", "RTE"), ("run", "RTE")]
    assert "glue: n was evaluated on other data" in folder.said
    assert folder.evaluate(run, RTE, GLUE) == [("m", "RTE"), ("run", "RTE")]
    assert {row["data_sha256"] for row in folder.rows()} == {"data-b"}


def test_a_suite_that_is_not_evaluated_keeps_its_protocol(tmp_path: Path) -> None:
    folder = Folder(tmp_path, (model("run"),))
    assert folder.evaluate(None, RTE, SLOWER) == [("run", "RTE")]
    assert folder.evaluate(None, PAIRS, BLIMP) == [("run", "BLiMP"), ("run", "RTE")]
    assert folder.evaluate(model("m"), RTE, GLUE) == [("run", "BLiMP"), ("m", "RTE")]
    assert "glue: run was evaluated under another protocol" in folder.said


def test_a_fine_tuning_stands_there_once_however_often_it_was_done(tmp_path: Path) -> None:
    """With test sets to answer, the units of a run are others, and their dev scores the same."""
    run = model("run")
    folder = Folder(tmp_path, (run,))
    folder.evaluate(None, RTE, GLUE)
    asked = done(folder.evaluation, [run], RTE, GLUE.model_copy(update={"seeds": 2}))
    twin = replace(asked[0], record="units/twin.json")
    twin.folder.write_json(twin.record, json.loads((folder.evaluation / asked[0].record).read_text()))
    write_grids(folder.evaluation, [twin, asked[1]], GLUE, "run")
    write_results(folder.evaluation, GLUE, [run], Console(io.StringIO(), interactive=False))
    assert [(row["run"], row["finetune_seed"]) for row in folder.rows()] == [("run", 0), ("run", 1)]


def test_a_run_that_is_gone_and_lost_answers_are_left_out(tmp_path: Path) -> None:
    folder = Folder(tmp_path, (model("a"), model("b")))
    folder.evaluate(None, RTE, GLUE)
    next(folder.evaluation.glob("predictions/b-*")).unlink()
    assert folder.evaluate(model("m"), PAIRS, BLIMP) == [("m", "BLiMP"), ("a", "RTE")]
    assert "or its answers are, so the results of the runs on glue are shown without it" in folder.said
    folder.runs = [model("b")]
    assert folder.evaluate(model("m"), PAIRS, BLIMP) == [("m", "BLiMP")]


@pytest.mark.parametrize("torn", ["", "[1]", '{"suite": "glue"}'])
def test_a_torn_grid_is_named(tmp_path: Path, torn: str) -> None:
    folder = Folder(tmp_path)
    folder.evaluate(model("m"), RTE, GLUE)
    (folder.evaluation / "grids" / "glue@m.json").write_text(torn)
    assert folder.evaluate(model("n"), PAIRS, BLIMP) == [("n", "BLiMP")]
    assert "glue@m.json: not readable, so the results it names are left out" in folder.said


def test_the_same_command_again_changes_no_file(tmp_path: Path) -> None:
    folder = Folder(tmp_path, (model("run"),))
    folder.evaluate(model("m"), RTE, GLUE)
    folder.evaluate(None, RTE, GLUE)
    before = {path: path.read_bytes() for path in folder.evaluation.rglob("*") if path.is_file()}
    folder.evaluate(None, RTE, GLUE)
    assert {path: path.read_bytes() for path in folder.evaluation.rglob("*") if path.is_file()} == before
