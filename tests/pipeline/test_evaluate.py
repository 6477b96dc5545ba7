"""The evaluation grid on real, tiny checkpoints: what is recorded, what is redone, and what is never mixed."""

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from cluster.session import session
from data_prep import tokenizer as tokenizers
from data_prep.errors import CheckpointError, ConfigError, DataError, PreflightError
from data_prep.manifest import Manifest
from pipeline.console import Console
from pipeline.evaluate import evaluate, evaluate_model
from pipeline.evaluate_data import check
from pipeline.evaluate_targets import model_at
from pipeline.scoring import told
from tests.pipeline.tiny_evaluation import PROTOCOL, WORDS, write_blimp, write_vocabulary
from tests.training.synthetic import write_corpus
from training.arms import ArmConfig, BertArm, ElectraArm
from training.loop import train
from training.probes import ProbesConfig
from training.protocol import EvaluationConfig, Protocol
from training.run import plan_run
from training.settings import TrainingConfig
from training.sizes import ModelConfig

pytestmark = [pytest.mark.slow, pytest.mark.multi]

CONFIG = EvaluationConfig(protocol=PROTOCOL, probes=ProbesConfig(train_examples=96, dev_examples=40, topics=3))
RTE = "index\tsentence1\tsentence2\tlabel\n" + "".join(
    f"{i}\t{WORDS[i]} {WORDS[i + 1]}.\t{WORDS[i + 2]}.\t{'entailment' if i % 3 else 'not_entailment'}\n"
    for i in range(60)
)


def console() -> Console:
    return Console(io.StringIO(), interactive=False)


def make_corpus(folder: Path) -> Manifest:
    """Synthetic rows, a tokenizer over the same ids, and held-out documents in its words."""
    manifest = write_corpus(folder)
    vocabulary = folder / "vocab.txt"
    write_vocabulary(vocabulary)
    tokenizers.load(vocabulary).save(folder / "tokenizer")
    rng = np.random.default_rng(0)
    documents = []
    for i in range(150):
        sentences = [" ".join(rng.choice(WORDS, 6)).capitalize() + "." for _ in range(6)]
        documents.append({"id": f"doc{i}", "topic": ("numpy", "ray", "torch")[i % 3], "text": " ".join(sentences)})
    (folder / "heldout_documents").mkdir()
    pq.write_table(pa.Table.from_pylist(documents), folder / "heldout_documents" / "00000.parquet")
    return manifest


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, process_group: None) -> Path:
    """An experiment with two finished runs, and one that was interrupted."""
    out = tmp_path_factory.mktemp("experiment")
    manifest = make_corpus(out / "corpus")
    model = ModelConfig(embedding_size=16, hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64)
    settings = TrainingConfig(global_batch=8, micro_batch=8, eval_rows=8)
    arms: list[ArmConfig] = [ElectraArm(learning_rate=1e-3), BertArm(learning_rate=1e-3)]
    for arm in arms:
        plan: dict[str, Any] = {"arm": arm, "model": model, "training": settings, "manifest": manifest, "seed": 0}
        two_steps = 2 * plan_run(**plan, budget=1e12).flops_per_step
        spec = plan_run(**plan, budget=two_steps)
        train(spec, out / "corpus", out / "runs" / spec.name, torch.device("cpu"))
    (out / "runs" / "interrupted").mkdir()
    (out / "runs" / "interrupted" / "run.json").write_text("{}")
    return out


@pytest.fixture(scope="module")
def first(out: Path) -> Iterator[list[dict[str, Any]]]:
    """The whole probe suite, once; Ray stays for the other tests."""
    with session(num_cpus=2):
        yield evaluate(out, CONFIG, console=console())


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "evaluation" / "results.jsonl").read_text().splitlines()]


def arrays(out: Path, result: dict[str, Any]) -> dict[str, np.ndarray]:
    with np.load(out / "evaluation" / result["predictions"], allow_pickle=False) as file:
        return dict(file)


def timeless(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in ("seconds", "cpu_seconds")}


def no_ray() -> None:
    raise AssertionError("Ray was asked for although nothing was left to run")


def test_every_finished_run_meets_every_task_and_says_on_what(out: Path, first: list[dict[str, Any]]) -> None:
    runs = sorted(path.parent.name for path in out.glob("runs/*/done.json"))
    tasks = ["bigram_shift", "sentence_order", "source_topic"]
    assert len(runs) == 2
    assert [(r["task"], r["run"]) for r in first] == [(task, run) for task in tasks for run in sorted(runs)]
    assert lines(out) == first
    for result in first:
        done = json.loads((out / "runs" / result["run"] / "done.json").read_text())
        assert result["step"] == done["step"] == 2
        assert result["flops_counted"] == done["flops_counted"]
        assert result["arm"] == result["objective"] == result["run"].split("-")[0]
        assert result["budget"] == done["budget"]
        assert (result["seed"], result["finetune_seed"]) == (0, 0)
        assert (result["suite"], result["subset"]) == ("probes", False)
        assert result["in_mean"] == (result["task"] != "bigram_shift")
        assert result["protocol"]["name"] == "plain"
        assert result["protocol"]["fingerprint"] == PROTOCOL.fingerprint()
        assert result["protocol"]["learning_rate"] == 1e-3
        assert 20 <= result["n_train"] <= 96
        assert 20 <= result["n_dev"] <= 40


def test_scores_follow_from_the_stored_predictions(out: Path, first: list[dict[str, Any]]) -> None:
    for result in first:
        stored = arrays(out, result)
        assert result["score"] == result["metrics"]["accuracy"] == np.mean(stored["label"] == stored["prediction"])
        assert result["majority"] == np.bincount(stored["label"]).max() / result["n_dev"]
        assert result["degenerate"] == (len(np.unique(stored["prediction"])) == 1)
        assert stored["score"].dtype == np.float32
        assert stored["score"].shape == (result["n_dev"], 3 if result["task"] == "source_topic" else 2)
        assert np.array_equal(stored["score"].argmax(axis=1), stored["prediction"])
        assert stored["group"].shape == stored["label"].shape
        largest = np.unique(stored["group"], return_counts=True)[1].max()
        assert 1 < largest <= CONFIG.probes.per_document  # one number a document


def test_the_same_command_again_runs_nothing(out: Path, first: list[dict[str, Any]]) -> None:
    path = out / "evaluation" / "results.jsonl"
    before = path.read_bytes()
    assert evaluate(out, CONFIG, console=console(), before_work=no_ray) == first
    assert path.read_bytes() == before


def test_what_is_missing_is_redone_to_the_same_predictions(out: Path, first: list[dict[str, Any]]) -> None:
    lost, unfinished = first[0], first[3]
    expected = arrays(out, lost), arrays(out, unfinished)
    (out / "evaluation" / lost["predictions"]).unlink()
    (out / "evaluation" / "units" / f"{Path(unfinished['predictions']).stem}.json").unlink()
    kept = {path: path.stat().st_mtime_ns for path in (out / "evaluation" / "units").glob("*.json")}
    again = evaluate(out, CONFIG, console=console())
    for result, arrays_before in zip((again[0], again[3]), expected, strict=True):
        arrays_now = arrays(out, result)
        assert all(np.array_equal(arrays_now[name], arrays_before[name]) for name in ("label", "prediction", "score"))
    assert [timeless(r) for r in again] == [timeless(r) for r in first]
    rewritten = [path for path, time in kept.items() if path.stat().st_mtime_ns != time]
    assert [path.stem for path in rewritten] == [Path(lost["predictions"]).stem]


def test_another_protocol_is_another_result_and_the_old_records_stay(out: Path, first: list[dict[str, Any]]) -> None:
    protocol = PROTOCOL.model_copy(update={"learning_rate": 2e-3})
    config = CONFIG.model_copy(update={"protocol": protocol, "tasks": ["sentence_order"], "seeds": 2})
    results = evaluate(out, config, console=console())
    assert [r["finetune_seed"] for r in results] == [0, 1, 0, 1]
    assert {r["protocol"]["fingerprint"] for r in lines(out)} == {protocol.fingerprint()}
    assert lines(out) == results
    assert len(list((out / "evaluation" / "units").glob("*.json"))) == len(first) + 4
    assert evaluate(out, CONFIG, console=console(), before_work=no_ray)  # the first grid is still there, whole
    assert {r["protocol"]["fingerprint"] for r in lines(out)} == {PROTOCOL.fingerprint()}
    assert len(lines(out)) == len(first)


def test_a_checkpoint_on_the_way_stands_beside_the_runs_and_is_none_of_them(
    out: Path, first: list[dict[str, Any]]
) -> None:
    run = next(path.parent for path in sorted(out.glob("runs/*/done.json")))
    model = model_at(next(run.glob("checkpoints/step-*")))
    config = CONFIG.model_copy(update={"tasks": ["sentence_order"]})
    (row,) = evaluate_model(out, config, model, corpus=out / "corpus", console=console())
    done = json.loads((run / "done.json").read_text())
    assert (row["run"], row["arm"], row["step"]) == (f"{run.name}@2", run.name.split("-")[0], 2)
    assert (row["flops_counted"], row["flops_declared"]) == (done["flops_counted"], False)
    same = next(r for r in first if (r["run"], r["task"]) == (run.name, "sentence_order"))
    assert row["metrics"] == same["metrics"]  # it is the run's last
    assert [timeless(r) for r in lines(out) if r["run"] != row["run"]] == [timeless(r) for r in first]
    whole = model_at(run)
    assert (whole.name, whole.facts["step"]) == (run.name, 2)
    again = evaluate_model(out, config, whole, corpus=out / "corpus", console=console(), before_work=no_ray)
    assert [timeless(r) for r in again] == [timeless(same)]
    assert len(lines(out)) == len(first) + 1  # nothing stands there twice
    (out / "evaluation" / "grids" / f"probes@{model.name}.json").unlink()
    namesake = replace(model, name=run.name, sha256="0" * 64)
    with pytest.raises(ConfigError, match=r"has a run called bert-.* already: give this model another name"):
        evaluate_model(out, config, namesake, corpus=out / "corpus", console=console(), before_work=no_ray)


def test_glue_stands_beside_the_probes_and_a_subset_is_named(
    out: Path, first: list[dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "RTE").mkdir()
    (tmp_path / "RTE" / "train.subset.tsv").write_text(RTE)
    (tmp_path / "RTE" / "dev.tsv").write_text(RTE)
    config = CONFIG.model_copy(update={"suites": ["glue"], "glue_dir": tmp_path, "tasks": ["RTE"]})
    results = evaluate(out, config, console=console())
    assert [(r["suite"], r["task"], r["subset"]) for r in results] == [("glue", "RTE", True)] * 2
    assert [r["suite"] for r in lines(out)] == ["glue"] * 2 + ["probes"] * len(first)
    assert results[0]["majority"] == pytest.approx(40 / 60)
    assert (results[0]["n_train"], results[0]["n_dev"]) == (60, 60)

    # a record of the other suite that is gone: its results are shown without it, and the path is named
    lost = out / "evaluation" / "units" / f"{Path(first[0]['predictions']).stem}.json"
    content, said = lost.read_bytes(), io.StringIO()
    lost.unlink()
    assert evaluate(out, config, console=Console(said, interactive=False), before_work=no_ray) == results
    assert len(lines(out)) == 2 + len(first) - 1
    assert str(lost) in said.getvalue()
    lost.write_bytes(content)

    # a checkpoint that changed since: its old results are not shown beside new ones
    retrained = results[0]["run"]
    manifest = next((out / "runs" / retrained / "checkpoints").glob("*/manifest.json"))
    manifest.write_bytes(manifest.read_bytes() + b"\n")
    again = evaluate(out, config, console=console())
    assert len(again) == 2
    assert {r["run"] for r in lines(out) if r["suite"] == "probes"} == {r["run"] for r in first} - {retrained}


def test_minimal_pairs_keep_generators_apart_from_main_networks(
    out: Path, first: list[dict[str, Any]], tmp_path: Path
) -> None:
    file = write_blimp(tmp_path / "blimp.jsonl", paradigms=2, pairs=5)
    config = CONFIG.model_copy(update={"suites": ["blimp"], "blimp": file, "pairs": 4})
    results = evaluate(out, config, console=console())
    judged = [(r["suite"], r["objective"], r["scorer"]) for r in results if r["task"] == "paradigm_0"]
    assert judged == [
        ("blimp", "bert", "pll"),
        ("blimp", "electra", "rtd"),
        ("blimp_generator", "electra", "pll"),
    ]
    assert len(results) == 6
    assert {(r["n_dev"], r["n_train"], r["majority"], r["in_mean"]) for r in results} == {(4, 0, 0.5, True)}
    with np.load(out / "evaluation" / results[0]["predictions"]) as file_:
        assert np.mean(file_["blimp/paradigm_0/margin"] > 1e-4) == results[0]["score"]
    assert {name for name in told(lines(out)) if name.startswith("blimp")} == {"blimp", "blimp_generator"}


def test_a_gpu_that_is_not_there_is_not_waited_for(out: Path, first: list[dict[str, Any]]) -> None:
    config = CONFIG.model_copy(update={"gpus_per_unit": 0.5, "seeds": 2})
    with pytest.raises(PreflightError, match=r"gpus_per_unit is 0\.5 and Ray has 0 GPUs: set it to 0"):
        evaluate(out, config, console=console())


def test_user_errors_come_before_any_work(out: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no finished run: run `electra train` first"):
        evaluate(tmp_path, CONFIG, console=console(), before_work=no_ray)
    glue = {"suites": ["glue"], "glue_dir": tmp_path}
    for changes, error, sentence in (
        ({**glue, "glue_dir": tmp_path / "nowhere"}, DataError, "nowhere is not a folder"),
        (glue, DataError, "CoLA is not a folder"),
        ({**glue, "tasks": ["source_topic"]}, ConfigError, "source_topic is no task of glue"),
        ({"suites": ["glue"]}, ConfigError, "suites has glue but nothing says where it is"),
    ):
        config = CONFIG.model_copy(update=changes)
        with pytest.raises(error, match=sentence):
            evaluate(out, config, console=console(), before_work=no_ray)
        with pytest.raises(error, match=sentence):
            check(config)
    check(CONFIG)


def test_a_users_error_in_a_unit_comes_out_as_itself(out: Path, first: list[dict[str, Any]]) -> None:
    """The task's file is torn, which a unit finds when it reads it."""
    (data,) = (out / "evaluation" / "tasks").glob("probes-sentence_order-*.jsonl")
    whole = data.read_bytes()
    data.write_bytes(whole[: len(whole) // 2])
    other = CONFIG.model_copy(update={"protocol": Protocol(learning_rate=3e-4, epochs=1), "tasks": ["sentence_order"]})
    try:
        with pytest.raises(
            DataError, match=rf"{data.name} is not a readable task file .* delete it and evaluate again"
        ):
            evaluate(out, other, console=console())
    finally:
        data.write_bytes(whole)
