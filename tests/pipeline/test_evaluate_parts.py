"""The parts of an evaluation by themselves: what a path names, tables, calibration, a submission."""

import io
import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.errors import CheckpointError, ConfigError, DataError
from pipeline import evaluate_mistakes, evaluate_table, evaluate_work
from pipeline.calibration import calibration_error, confusion, reliability
from pipeline.console import Console
from pipeline.evaluate_data import Material, load_tests, materials
from pipeline.evaluate_submission import refuse_incomplete, submit
from pipeline.evaluate_targets import Model, experiment_of, is_model, model_at, refuse_unfit
from pipeline.evaluate_units import units
from pipeline.evaluate_work import work
from tests.pipeline import fake_experiment
from tests.pipeline.tiny_evaluation import config, write_blimp, write_glue, write_model, write_vocabulary
from tests.training.synthetic import VOCAB
from training import finetune, glue_submission
from training.finetune import Answered, FineTuned
from training.protocol import TASKS, EvaluationConfig
from training.tasks import Example, TaskData


def test_a_submission_takes_the_seed_that_did_best_on_dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_glue(tmp_path / "glue", "RTE")
    header = "index\tsentence1\tsentence2"
    (tmp_path / "glue" / "RTE" / "test.tsv").write_text(f"{header}\n7\tworda.\twordb.\n8\twordc.\twordd.\n")
    asked = config(tmp_path, suites=["glue"], squad_dir=None, blimp=None, tasks=["RTE"])
    with pytest.raises(ConfigError, match=r"needs every GLUE task, and CoLA, SST-2, MRPC, .* WNLI would not be"):
        refuse_incomplete(asked)
    evaluation = tmp_path / "evaluation"
    with pytest.raises(DataError, match="the test set of RTE has 2 examples and the official one 3000"):
        materials(asked, None, evaluation / "tasks", tests=True)  # before anything is fine-tuned
    monkeypatch.setattr(glue_submission, "SIZES", {"RTE": 2})
    found = materials(asked, None, evaluation / "tasks", tests=True)
    assert found[0].tests is not None
    assert [(one.name, one.index) for one in load_tests(found[0].tests)] == [("RTE", ("7", "8"))]
    np.savez(tmp_path / "evaluation" / "a.npz", **{"test/RTE": np.array([0, 0])})
    np.savez(tmp_path / "evaluation" / "b.npz", **{"test/RTE": np.array([1, 0])})
    rows = [
        {"task": "RTE", "score": score, "finetune_seed": seed, "predictions": name}
        for seed, (score, name) in enumerate([(0.5, "a.npz"), (0.6, "b.npz")])
    ]
    submit(evaluation, rows, found, tmp_path / "answers.zip")
    with zipfile.ZipFile(tmp_path / "answers.zip") as archive:
        assert archive.read("RTE.tsv") == b"index\tprediction\n7\tentailment\n8\tnot_entailment\n"


def nowhere(facts: dict[str, Any]) -> Model:
    """A model that is not there."""
    return Model(
        name="m", location="nowhere", sha256="1" * 64, tokenizer="nowhere", max_positions=128, judges=True, facts=facts
    )


# --- what a path names ------------------------------------------------------------------------------------------------


def test_a_hugging_face_folder_is_known_by_weights_and_tokenizer(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    found = model_at(folder, name="mine")
    assert (found.name, found.location, found.tokenizer) == ("mine", str(folder), str(folder))
    assert (found.facts["flops_counted"], found.facts["flops_declared"]) == (None, False)
    assert experiment_of(folder) is None
    assert (found.judges, found.max_positions) == (
        True,
        json.loads((folder / "config.json").read_text())["max_position_embeddings"],
    )
    with pytest.raises(ConfigError, match="a/b cannot be the name of a model"):
        model_at(folder, name="a/b")
    shutil.copytree(folder, tmp_path / "copy")
    assert model_at(tmp_path / "copy", name="mine").sha256 == found.sha256
    vocabulary = (folder / "vocab.txt").read_text().splitlines()
    (tmp_path / "copy" / "vocab.txt").write_text("\n".join([*vocabulary[:-1], "other"]) + "\n")
    assert model_at(tmp_path / "copy").sha256 != found.sha256
    (tmp_path / "copy" / "vocab.txt").write_text("\n".join([*vocabulary, "more"]) + "\n")
    with pytest.raises(DataError, match="its tokenizer knows 97 tokens and its network 96"):
        model_at(tmp_path / "copy")
    (tmp_path / "copy" / "vocab.txt").unlink()
    with pytest.raises(DataError, match=r"copy has no tokenizer: put tokenizer\.json or vocab\.txt or vocab\.json"):
        model_at(tmp_path / "copy")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"architectures": ["BertModel"]}))
    assert not model_at(folder).judges


def test_what_a_model_cannot_answer_is_told_before_anything_is_computed() -> None:
    model = nowhere({})
    refuse_unfit(
        [model], EvaluationConfig.model_validate({"suites": ["glue", "blimp"], "protocol": {"max_length": 128}})
    )
    mute = replace(model, judges=False)
    refuse_unfit([mute], EvaluationConfig(suites=["glue"]))
    with pytest.raises(ConfigError, match="m has no head that fills masks or detects replaced tokens"):
        refuse_unfit([model, mute], EvaluationConfig(suites=["glue", "blimp"]))
    for suite, key in (("glue", "protocol"), ("squad", "squad_protocol")):
        long = EvaluationConfig.model_validate({"suites": [suite], key: {"max_length": 129}})
        with pytest.raises(
            ConfigError, match=rf"evaluation\.{key}\.max_length 129 is longer than the 128 positions of m"
        ):
            refuse_unfit([model], long)


def test_what_is_no_model_is_told_apart(tmp_path: Path) -> None:
    out = fake_experiment.write(tmp_path / "out", steps_logged=2)
    run = out / "runs" / fake_experiment.run_name("bert", 4e11)
    assert is_model(run)
    assert experiment_of(run) == out
    assert not is_model(out)
    assert not is_model(tmp_path)
    (out / "corpus" / "tokenizer").mkdir()
    (out / "corpus" / "tokenizer" / "vocab.txt").touch()
    with pytest.raises(ConfigError, match="is one of our runs, whose name and FLOPs are known: leave out --flops"):
        model_at(run, flops=1e18)
    (run / "done.json").unlink()
    with pytest.raises(CheckpointError, match="is not finished: name one of its checkpoints"):
        model_at(run)


# --- tables -----------------------------------------------------------------------------------------------------------


def row(task: str, score: float, seed: int = 0, **more: Any) -> dict[str, Any]:
    facts = {"run": "m", "suite": "glue", "metric": "accuracy", "n_dev": 10, "subset": False, "degenerate": False}
    times = {"seconds": 2.0, "cpu_seconds": 1.5, "skipped": 0, "scorer": None}
    protocol = {"name": "electra_paper", "size": "base", "fingerprint": "0123456789abcdef"}
    return {**facts, **times, "task": task, "score": score, "finetune_seed": seed, "protocol": protocol, **more}


def test_a_line_is_the_median_with_its_spread() -> None:
    scores = [0.5, 0.9, 0.6, 0.8]
    found = evaluate_table.lines([row("RTE", score, i, degenerate=i == 0) for i, score in enumerate(scores)])
    (line,) = found
    assert (line.median, line.low, line.high) == (pytest.approx(0.7), 0.5, 0.9)
    assert line.iqr == pytest.approx(0.825 - 0.575)  # quartiles by linear interpolation
    assert (line.n, line.degenerate, line.seconds, line.cpu_seconds) == (4, 1, 8.0, 6.0)
    assert line.protocol == "electra_paper base 01234567"


def test_the_glue_mean_is_that_of_the_papers_eight_and_of_nothing_less() -> None:
    """Table 2 of Clark et al. 2020: ELECTRA-400K."""
    paper = {
        "CoLA": 69.3,
        "SST-2": 96.0,
        "MRPC": 90.6,
        "STS-B": 92.1,
        "QQP": 92.4,
        "MNLI": 90.5,
        "QNLI": 94.5,
        "RTE": 86.8,
    }
    rows = [row(task, score / 100) for task, score in paper.items()]
    outside = [row("WNLI", 0.1, in_mean=False), row("MNLI-mm", 0.2)]
    (mean,) = evaluate_table.means(evaluate_table.lines(rows + outside))
    assert mean.value is not None
    assert round(100 * mean.value, 1) == 89.0
    assert (mean.tasks, mean.subset) == (8, False)
    (lacking,) = evaluate_table.means(evaluate_table.lines(rows[1:] + outside))
    assert lacking.value is None
    cut = [row(task, score / 100, subset=task == "QNLI") for task, score in paper.items()]
    assert evaluate_table.means(evaluate_table.lines(cut))[0].subset


def test_the_blimp_mean_has_the_standard_error_of_its_paradigms() -> None:
    scores = {"a": 0.5, "b": 0.7, "c": 0.9}
    rows = [row(name, score, suite="blimp", scorer="rtd") for name, score in scores.items()]
    (mean,) = evaluate_table.means(evaluate_table.lines(rows))
    assert (mean.value, mean.scorer) == (pytest.approx(0.7), "rtd")
    assert mean.standard_error == pytest.approx(0.2 / 3**0.5)
    said = io.StringIO()
    evaluate_table.show(rows, Console(said, interactive=False))
    assert "70.0" in said.getvalue() and "11.5" in said.getvalue() and "scorer rtd" in said.getvalue()


# --- units ------------------------------------------------------------------------------------------------------------


def test_a_unit_that_ray_repeats_after_its_record_is_not_run_again(tmp_path: Path) -> None:
    """The worker died between its record and its answer to Ray. What the unit reads is not even there."""
    found = Material(suite="glue", task="RTE", kind="classes", path=tmp_path / "none.jsonl", sha256="0" * 64)
    model = Model(
        name="m", location="nowhere", sha256="1" * 64, tokenizer="nowhere", max_positions=128, judges=True, facts={}
    )
    (unit,) = units([model], [found], EvaluationConfig(), tmp_path)
    result = {"rows": [{"score": 0.5}], "files": ["predictions/a.npz"]}
    unit.folder.write_json(unit.record, {"identity": unit.identity, "result": result})
    with pytest.raises(DataError, match=r"none\.jsonl is not a readable task file"):
        work(unit.payload)  # its answers are gone
    (tmp_path / "predictions").mkdir()
    (tmp_path / "predictions" / "a.npz").touch()
    assert work(unit.payload) == result
    unit.folder.write_json(unit.record, {"identity": "another", "result": result})
    with pytest.raises(DataError):
        work(unit.payload)


@pytest.mark.parametrize(("limit", "cut"), [(None, False), (30, False), (29, True)])
def test_a_task_that_the_protocol_cuts_is_a_named_subset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None, cut: bool
) -> None:
    """Of 30 training examples; another number of them is another unit."""
    examples = [Example("a", "b", i % 2) for i in range(30)]
    data = TaskData(suite="glue", task="RTE", classes=("no", "yes"), train=examples, dev=examples)
    data.save(tmp_path / "tasks" / "rte.jsonl")
    found = Material(suite="glue", task="RTE", kind="classes", path=tmp_path / "tasks/rte.jsonl", sha256=data.sha256())
    model = Model(
        name="m",
        location="nowhere",
        sha256="1" * 64,
        tokenizer="nowhere",
        max_positions=128,
        judges=True,
        facts={"run": "m"},
    )
    limited = EvaluationConfig.model_validate({"protocol": {"max_train_examples": limit}})
    unit, whole = (units([model], [found], one, tmp_path)[0] for one in (limited, EvaluationConfig()))
    assert (unit.identity == whole.identity) == (limit is None)
    zeros = np.zeros(30, dtype=np.int64)
    side = Answered(
        task=TASKS["glue"]["RTE"], metrics={"accuracy": 0.5}, majority=0.5, degenerate=False, label=zeros,
        prediction=zeros, group=zeros, scores=np.zeros((30, 2), dtype=np.float32),
    )  # fmt: skip
    tuned = FineTuned(sides=(side,), tests={}, finite=True, n_train=limit or 30, seconds=0.0, cpu_seconds=0.0)
    monkeypatch.setattr(evaluate_work, "_backbone", lambda _: (None, None))
    monkeypatch.setattr(finetune, "finetune", lambda *_, **__: tuned)
    (row,) = work(unit.payload)["rows"]
    assert (row["subset"], row["n_train"]) == (cut, limit or 30)
    assert row["protocol"]["max_train_examples"] == limit


def test_hits_that_are_kept_are_those_of_the_score_however_sure_the_detector(tmp_path: Path) -> None:
    """Of a detector that calls everything original, sentences differ by less than a millionth of a nat."""
    import torch
    from transformers import ElectraConfig, ElectraForPreTraining

    size = {"embedding_size": 32, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    network = ElectraForPreTraining(ElectraConfig(vocab_size=VOCAB, intermediate_size=64, **size))
    torch.nn.init.constant_(network.discriminator_predictions.dense_prediction.bias, -15.0)
    network.save_pretrained(tmp_path / "sure")
    write_vocabulary(tmp_path / "sure" / "vocab.txt")
    write_blimp(tmp_path / "blimp.jsonl", paradigms=1, pairs=60)
    asked = config(tmp_path, suites=["blimp"], glue_dir=None, squad_dir=None, tasks=None)
    evaluation = tmp_path / "evaluation"
    found = materials(asked, None, evaluation / "tasks")
    (unit,) = units([model_at(tmp_path / "sure")], found, asked, evaluation)
    (row,) = work(unit.payload)["rows"]
    with np.load(evaluation / row["predictions"]) as arrays:
        margins = arrays["blimp/paradigm_0/margin"]
        assert (np.abs(margins) < 1e-6).mean() > 0.3  # the test is of something
        assert arrays["blimp/paradigm_0/hit"].mean() == row["score"] == (margins > 0).mean()
    assert 0.2 < row["score"] < 0.8


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 torn"])
def test_answers_that_cannot_be_read_are_named_with_the_way_out(tmp_path: Path, content: bytes | None) -> None:
    (tmp_path / "predictions").mkdir()
    if content is not None:
        (tmp_path / "predictions" / "m-glue.npz").write_bytes(content)
    with pytest.raises(
        DataError, match=r"m-glue\.npz is not readable .*; delete .*units/m-glue\.json and run `electra"
    ):
        evaluate_mistakes.arrays_of(tmp_path, row("RTE", 0.5, predictions="predictions/m-glue.npz"))


# --- calibration ------------------------------------------------------------------------------------------------------


def test_confusion_counts_gold_by_row_and_answer_by_column() -> None:
    found = confusion(np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1, 0, 2, 2]), 3)
    assert found.tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 2]]


def test_calibration_is_the_weighted_gap_between_confidence_and_accuracy() -> None:
    """Two answers of .95, one right; two of .61 and .69, both right: ½ |.5 − .95| + ½ |1 − .65|. Ends fall below."""
    bins = reliability(np.array([0.95, 0.95, 0.61, 0.69]), np.array([True, False, True, True]))
    assert [(one.low, one.n, one.accuracy) for one in bins] == [(0.6, 2, 1.0), (0.9, 2, 0.5)]
    assert calibration_error(bins) == pytest.approx(0.5 * 0.45 + 0.5 * 0.35)
    edges = reliability(np.array([0.0, 0.1, 1.0]), np.array([False, False, True]))
    assert [(one.high, one.n) for one in edges] == [(0.1, 2), (1.0, 1)]
