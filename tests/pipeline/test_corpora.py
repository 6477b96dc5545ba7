"""Several corpora in one experiment: who reads which, where they lie, what runs on each cost, what must be alike."""

import io
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from data_prep.errors import CheckError, ConfigError
from data_prep.manifest import Manifest
from data_prep.manifest import load as load_manifest
from data_prep.manifest import save as save_manifest
from data_prep.storage import folder
from pipeline import corpora, matching, rows_read, stages
from pipeline import matching_streams as streams
from pipeline.assumed import assumed_manifest
from pipeline.config import dump, load
from pipeline.console import Console
from pipeline.corpora import MAIN, Reading
from pipeline.experiment import Experiment
from pipeline.folder import Folder, changes
from pipeline.gather import Contents, Run
from pipeline.place import Place
from pipeline.sweep import as_experiment
from tests.conftest import ROOT
from tests.training.synthetic import write_corpus

TEXT = """
name: two
corpus:
  sources: [{kind: installed_docs}]
  tokenizer: {vocab_size: 2000}
  discard_overflow: true
  seq_len: 64
corpora:
  bytes: {arms: [roberta], tokenizer: {kind: bpe, lowercase: false, vocab_size: 1000}, layout: packed}
model: {size: tiny, max_positions: 64}
training: {global_batch: 16, micro_batch: 8}
cluster: {num_workers: 1}
evaluation: {suites: [probes]}
arms:
  - {objective: electra, learning_rate: 1.0e-3}
  - {objective: bert, learning_rate: 1.0e-3}
  - {objective: roberta, learning_rate: 1.0e-3}
budgets: [1.0e+11]
"""


def experiment(tmp_path: Path, *overrides: str) -> Experiment:
    path = tmp_path / "two.yaml"
    path.write_text(TEXT)
    return load(path, overrides, Experiment)


def test_a_corpus_takes_over_all_but_tokenizer_and_layout(tmp_path: Path) -> None:
    one = experiment(tmp_path)
    main, other = one.corpus_configs().values()
    assert main == one.corpus
    assert (other.tokenizer.kind, other.layout, other.discard_overflow) == ("bpe", "packed", False)
    same = {"tokenizer": None, "layout": None, "discard_overflow": None}
    assert main.identity() | same == other.identity() | same
    assert [one.corpus_of(arm.label) for arm in one.arms] == [MAIN, MAIN, "bytes"]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("corpora.bytes.arms=[robert]", "robert is no arm here"),
        ("corpora.bytes={arms: [bert], layout: segments}", "corpora.bytes: is corpus over again"),
        (
            "corpora.more={arms: [bert], tokenizer: {kind: bpe, lowercase: false, vocab_size: 1000}, layout: packed}",
            "corpora.more: is corpora.bytes over again",
        ),
        ("corpora.other={arms: [roberta], layout: packed}", "roberta is named twice here"),
        ("corpora.bytes.arms=[electra, bert, roberta]", "no arm is left to read `corpus` itself"),
        ("corpora.bytes={arms: [roberta]}", "give it a tokenizer or a layout of its own"),
        ("corpora.bytes.arms=[]", "corpora.bytes.arms"),
    ],
)
def test_what_names_no_arm_or_says_nothing_is_refused(override: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        experiment(tmp_path, override)


def test_each_lies_in_a_folder_of_its_own_or_where_it_says(tmp_path: Path) -> None:
    one, out = experiment(tmp_path), tmp_path / "out"
    assert {name: place.location for name, place in corpora.places(one, out).items()} == {
        MAIN: str(out / "corpus"),
        "bytes": str(out / "corpora" / "bytes"),
    }
    stored = experiment(tmp_path, f"corpora.bytes.location={tmp_path}/else").model_dump(mode="json")
    arms = {arm: corpora.stored_name(stored, arm) for arm in (None, "electra", "roberta", "roberta-first")}
    assert arms == {None: MAIN, "electra": MAIN, "roberta": "bytes", "roberta-first": "bytes"}
    assert corpora.stored_place(stored, "bytes", out).location == str(tmp_path / "else")
    assert corpora.stored_place(stored, MAIN, out).location == str(out / "corpus")


def test_a_sweep_reads_the_same_corpora(tmp_path: Path) -> None:
    rates = "sweep={rates: {electra: [1e-3, 2e-3], bert: [1e-3, 2e-3], roberta: [1e-3, 5e-4]}}"
    swept = as_experiment(experiment(tmp_path, rates.replace("[1e-3, 5e-4]", "[5e-4, 1e-3]")), tmp_path / "out")
    assert swept.corpora["bytes"].arms == ["roberta-lr5e-4", "roberta-lr1e-3"]
    assert swept.corpora["bytes"].location == str(tmp_path / "out" / "corpora" / "bytes")


def test_an_arm_may_come_with_a_corpus_and_may_not_change_to_another(tmp_path: Path) -> None:
    before = experiment(tmp_path)
    arms = [f"{{objective: {arm}, learning_rate: 1.0e-3}}" for arm in ("electra", "bert", "roberta", "mlm")]
    more = f"arms=[{', '.join(arms)}]"
    assert changes(before, experiment(tmp_path, more, "corpora.packed={arms: [mlm], layout: packed}")) == []
    assert changes(before, experiment(tmp_path, more, "corpora.bytes.arms=[roberta, mlm]")) == []
    assert changes(before, experiment(tmp_path, "corpora.bytes.location=elsewhere")) == []
    moved = experiment(tmp_path, "corpora.bytes.arms=[bert]")
    assert changes(before, moved) == ["arms.bert.corpus", "arms.roberta.corpus"]
    assert changes(before, experiment(tmp_path, "corpora.bytes.layout=segments")) != []


def test_steps_follow_from_the_vocabulary_that_an_arm_reads_with(tmp_path: Path) -> None:
    """FLOPs of a row of 64 tokens, E = D = 128, F = 512, 2 layers, int(.155 × 64) = 9 of its words masked."""
    one = experiment(tmp_path)
    runs = {run.identity.arm.label: run for run in one.runs(corpora.assumed(one))}
    body = 64 * 2 * 2 * (4 * 128**2 + 2 * 128 * 512) + 2 * 4 * 128 * 64**2
    for arm, words in (("roberta", 1000), ("bert", 2000)):
        head = 9 * 2 * 128 * (128 + words)
        following = 2 * (128 * 128 + 2 * 128) if arm == "bert" else 0  # the next-sentence head, of every row
        flops = 3 * (body + head + following) * 16
        assert runs[arm].flops_per_step == pytest.approx(flops, rel=2e-4), arm
        assert runs[arm].identity.model.vocab_size == words
    of_corpus = {run: name for run, name in one.corpus_by_run(list(runs.values())).items() if name}
    assert of_corpus == {"roberta-1.00e+11-s0": "bytes"}


def test_a_first_stage_reads_what_its_second_reads(tmp_path: Path) -> None:
    arms = "arms=[{objective: bert, learning_rate: 1}, {objective: electra_two_stage, learning_rate: 1, name: two}]"
    one = experiment(tmp_path, arms, "corpora={packed: {arms: [two], layout: packed}}")
    names = one.corpus_by_run(one.runs(corpora.assumed(one)))
    assert names == {
        "bert-1.00e+11-s0": MAIN, "two-first-1.00e+11-s0": "packed", "two-1.00e+11-s0": "packed",
    }  # fmt: skip


# --- what must be alike -----------------------------------------------------------------------------------------------


def contents(one: Experiment, readings: corpora.Readings, **done: Any) -> Contents:
    """The experiment's runs as they are planned, finished where `done` says what they read."""
    runs = [
        Run(
            folder=Path(spec.name),
            name=spec.name,
            arm=spec.identity.arm.label,
            objective=spec.identity.arm.objective,
            budget=spec.budget,
            seed=0,
            steps=spec.steps,
            identity=spec.identity.model_dump(mode="json"),
            placement=spec.placement.model_dump(mode="json"),
            flops_per_step=spec.flops_per_step,
            inherited=0.0,
            part_of=None,
            done=done or None,
            lines=[],
        )
        for spec in one.runs(readings)
    ]
    manifests = {name: reading.manifest for name, reading in readings.items()}
    tree = one.model_dump(mode="json")
    return Contents(
        out=Path("out"), name="two", config=tree, runs=runs, first_stages=[], results=[], manifests=manifests
    )


def readings(one: Experiment, **of_bytes: Any) -> dict[str, Reading]:
    """Of corpora that are prepared, the further one otherwise than the first in `of_bytes`."""
    main, other = (assumed_manifest(config) for config in one.corpus_configs().values())
    made: dict[str, Any] = {"inputs_sha256": "made"}
    return {
        MAIN: Reading(main.model_copy(update=made)),
        "bytes": Reading(other.model_copy(update={**made, **of_bytes})),
    }


def documents(manifest: Manifest, **changed: int) -> dict[str, Any]:
    return {"documents": manifest.documents.model_copy(update=changed)}


def test_arms_on_a_declared_corpus_are_matched_and_the_difference_is_told(tmp_path: Path) -> None:
    one = experiment(tmp_path)
    found = matching.check(contents(one, readings(one)))
    assert [finding.sentence for finding in found if not finding.ok] == []
    (told,) = [finding.sentence for finding in found if "corpora.bytes" in finding.sentence]
    assert "1,000 words in layout packed, and the others with 2,000 words in layout segments" in told


def test_other_documents_are_a_breach(tmp_path: Path) -> None:
    one = experiment(tmp_path)
    (main, _) = one.corpus_configs().values()
    other = readings(one, **documents(assumed_manifest(main), train=7))
    assert streams.broken(contents(one, other)) == [
        "corpora.bytes was not made of the documents of corpus, or holds others of them out."
    ]


def test_an_arm_that_read_another_corpus_than_it_is_said_to_is_a_breach(tmp_path: Path) -> None:
    """Runs of one corpus with two manifests and two vocabularies, as where an entry of `corpora` was taken out."""
    one = experiment(tmp_path)
    found = contents(one, readings(one))
    found.config.pop("corpora")
    told = [finding.sentence for finding in matching.check(found) if not finding.ok]
    assert [sentence.split(":")[0] for sentence in told] == [
        "Runs differ in their corpus",
        "Runs differ in model.vocab_size",
    ]


def test_positions_are_compared_within_a_corpus(tmp_path: Path) -> None:
    one = experiment(tmp_path)
    found = contents(one, readings(one), start_position=0, position=160, skipped=[])
    assert [(group.corpus, group.runs) for group in rows_read.alike(found)] == [
        (MAIN, ["electra-1.00e+11-s0", "bert-1.00e+11-s0"]),
        ("bytes", ["roberta-1.00e+11-s0"]),
    ]
    assert rows_read.sentences(found) == [
        "All runs of a seed that read one corpus read the same rows in the same order, as far as each goes."
    ]


def test_an_arm_that_is_called_like_a_first_stage_reads_its_own_corpus() -> None:
    """`two-first` is the first stage of `two` where no arm has that name."""
    config = {"arms": [{"name": "two"}], "corpora": {"bytes": {"arms": ["two"]}}}
    assert [corpora.stored_name(config, arm) for arm in ("two", "two-first", None)] == ["bytes", "bytes", MAIN]
    config["arms"] = [{"name": "two"}, {"name": "two-first"}]
    assert [corpora.stored_name(config, arm) for arm in ("two", "two-first")] == ["bytes", MAIN]


def test_what_is_stored_reads_back(tmp_path: Path) -> None:
    one = experiment(tmp_path)
    (tmp_path / "stored.yaml").write_text(dump(one))
    assert load(tmp_path / "stored.yaml", (), Experiment) == one


def test_corpora_of_other_documents_end_the_preparation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found before anything is trained on them. Two corpora are there, of 20 and of 30 rows that documents are made to
    account for."""
    one, out = experiment(tmp_path), tmp_path / "out"
    for name, rows in (("corpus", 20), ("corpora/bytes", 30)):
        write_corpus(out / name, rows=rows)
        changed = load_manifest(out / name).model_copy(update=documents(load_manifest(out / name), train=rows))
        save_manifest(changed, folder(out / name))
    place = Place(
        experiment=one,
        folder=Folder(out, corpora.places(one, out)),
        console=Console(io.StringIO(), interactive=False),
        stack=ExitStack(),
    )
    monkeypatch.setattr(stages, "_prepare", lambda place, name: {})
    with pytest.raises(CheckError, match=r"corpora\.bytes was not made of the documents of corpus.* run `electra prep"):
        stages.prepare(place)


ROAD = """
name: road
corpus:
  sources: [{kind: installed_docs, max_bytes: 1500000}]
  tokenizer: {vocab_size: 2048, sample_bytes: 1000000}
  seq_len: 64
  heldout_fraction: 0.1
corpora:
  bytes: {arms: [roberta], tokenizer: {kind: bpe, lowercase: false, vocab_size: 1500}, layout: packed}
model: {size: tiny, max_positions: 64, dropout: 0.0, attention_dropout: 0.0}
training: {global_batch: 16, micro_batch: 8, eval_rows: 64}
arms:
  - {objective: electra, learning_rate: 5.0e-4, generator: {width: 0.5}}
  - {objective: roberta, learning_rate: 1.0e-3}
budgets: [3.0e+10, 6.0e+10]
cluster: {num_workers: 1}
evaluation:
  suites: [probes]
  protocol: {epochs: 1, max_length: 64}
  probes: {train_examples: 200, dev_examples: 100}
"""


@pytest.mark.long
def test_the_road_with_two_tokenizers(tmp_path: Path) -> None:
    """Prepared, trained, evaluated, reported and checked: each run with the vocabulary of its own corpus."""
    (tmp_path / "road.yaml").write_text(ROAD)

    def electra(*words: str) -> str:
        command = [sys.executable, "-m", "pipeline.cli", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    electra("experiment", "run", "road.yaml", "--out", "out")
    assert "all rules hold for 4 finished of 4 runs" in electra("experiment", "check", "road.yaml", "--out", "out")
    electra("report", "--check", "out")
    assert electra("verify", "out").count(" is sound (every byte)") == 2
    for arm, place in (("electra", "corpus"), ("roberta", "corpora/bytes")):
        manifest = load_manifest(tmp_path / "out" / place)
        identity = json.loads((tmp_path / "out" / "runs" / f"{arm}-6.00e+10-s0" / "run.json").read_text())["identity"]
        assert identity["manifest_sha256"] == manifest.sha256
        assert identity["model"]["vocab_size"] == manifest.vocab_size
    electra("export", "out/runs/roberta-6.00e+10-s0", "--out", "to")
    assert json.loads((tmp_path / "to" / "encoder" / "config.json").read_text())["vocab_size"] == 1500
