"""What a model card says, number by number, in its text, its metadata and the files that the Hub reads scores from; and
the check of it that needs no network. Beside our own reading stands huggingface_hub's."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries

from data_prep import manifest as manifests
from data_prep.errors import CheckError, ConfigError
from data_prep.manifest import SourceStats
from pipeline import card_metadata, card_scores
from pipeline.gather import read_done, read_results
from pipeline.model_card import Provenance, for_repository, write
from tests.conftest import Road
from tests.pipeline import fake_experiment
from tests.pipeline.hub_exports import metadata, write_model

RUN = "electra-4.00e+11-s0"


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    return fake_experiment.write(tmp_path / "out", suites=("probes", "glue"), steps_logged=2)


def provenance(out: Path, run: str = RUN) -> Provenance:
    run_dir = out / "runs" / run
    return Provenance.collect(out, run_dir, read_done(run_dir), manifests.load(out / "corpus"))


def written(out: Path, folder: Path, kind: str = "discriminator", **more: Any) -> str:
    folder.mkdir(exist_ok=True)
    architecture = "ElectraForMaskedLM" if kind == "generator" else "ElectraForPreTraining"
    write(folder, kind, architecture, replace(provenance(out), **more))
    return (folder / "README.md").read_text()


def test_scores_have_the_interval_of_their_examples(glue: Path) -> None:
    """1440 of 2400 right: 0.6, and 1.96 standard errors of a proportion on either side."""
    results = [one for one in read_results(glue) if one["run"] == RUN]
    found = {one.task: one for one in card_scores.scores(glue, results)}
    assert set(found) == {"sentence_order", "source_topic", "bigram_shift", "CoLA", "MRPC", "RTE"}
    order = found["sentence_order"]
    assert order.value == 0.6 and order.finetunings == 1
    assert order.interval is not None
    wide = 1.96 * (0.6 * 0.4 / 2400) ** 0.5
    assert order.interval == pytest.approx((0.6 - wide, 0.6 + wide), abs=0.003)
    assert found["CoLA"].metric == "matthews"


def test_without_the_answers_there_is_a_score_and_no_interval(glue: Path, tmp_path: Path) -> None:
    for path in (glue / "evaluation" / "predictions").glob(f"{RUN}-RTE-*"):
        path.unlink()
    text = written(glue, tmp_path / "card")
    assert "| glue | RTE | accuracy | 0.534 | unknown |" in text  # 148 of 277
    assert "| glue | MRPC | accuracy | 0.686 | 0." in text  # 280 of 408


def test_the_mean_is_over_fine_tunings(glue: Path, tmp_path: Path) -> None:
    results = fake_experiment.read_results_file(glue)
    more = fake_experiment.write_result(glue, "electra", 0, "glue", "RTE", 160, finetune_seed=1)
    fake_experiment.write_results_file(glue, [*results, more])
    text = written(glue, tmp_path / "card")
    row = next(line for line in text.splitlines() if line.startswith("| glue | RTE |"))
    assert row.split(" | ")[3] == f"{(148 + 160) / 2 / 277:.3f}"
    assert row.endswith("| 277 | 2 |")


def test_scores_are_metadata_and_files_that_huggingface_hub_reads(glue: Path, tmp_path: Path) -> None:
    text = written(glue, tmp_path / "card")
    data = ModelCard(text).data
    assert (data.library_name, data.license, data.tags) == (
        "transformers", "other", ["electra", "discriminator", "pretraining"],
    )  # fmt: skip
    assert data.model_name == "out-discriminator"
    index = {(one.dataset_type, one.dataset_config): one for one in data.eval_results or []}
    assert len(index) == 6
    mrpc = index["nyu-mll/glue", "mrpc"]
    assert (mrpc.metric_type, mrpc.metric_value) == ("accuracy", round(280 / 408, 6))
    assert (mrpc.dataset_split, mrpc.task_type) == ("validation", "text-classification")
    assert index["electra-probes", "sentence_order"].metric_value == 0.6
    (path,) = (tmp_path / "card" / ".eval_results").iterdir()
    assert path.name == "glue.yaml"  # the probes are no data set of the Hub
    entries = {one.task_id: one for one in parse_eval_result_entries(yaml.safe_load(path.read_text()))}
    assert set(entries) == {"cola", "mrpc", "rte"}
    assert {one.dataset_id for one in entries.values()} == {"nyu-mll/glue"}
    assert entries["rte"].value == round(148 / 277, 6)
    assert entries["rte"].notes is not None
    assert entries["rte"].notes.startswith("accuracy; development set, 277 examples; 95 % interval 0.4")
    card_metadata.check_card(tmp_path / "card")


def test_the_generator_has_none_of_the_main_networks_scores(glue: Path, tmp_path: Path) -> None:
    written(glue, tmp_path / "card")
    text = written(glue, tmp_path / "card", kind="generator")  # over the other's, whose files go
    assert "## Evaluation" not in text and "model-index" not in text
    assert not (tmp_path / "card" / ".eval_results").exists()
    assert "\npipeline_tag: fill-mask\n" in text
    card_metadata.check_card(tmp_path / "card")


def test_how_it_was_trained(glue: Path, tmp_path: Path) -> None:
    """Two hours on eight H100 of 700 W: 16 device-hours, 11.2 kWh."""
    found = provenance(glue)
    done = {
        **found.done, "tokens": 3_000_000_000, "flops_counted": 6.4e17, "flops_paper": 5.0e17, "budget": 6.4e17,
        "seconds": 7200.0, "world_size": 8, "hardware": "8 × NVIDIA H100 80GB HBM3",
    }  # fmt: skip
    text = written(glue, tmp_path / "card", done=done)
    for row in (
        f"| steps × global batch × row length | {found.done['step']} × 64 × 128 |",
        "| tokens | 3,000,000,000 |",
        "| training FLOPs (matmuls, everything included) | 6.400e+17 of a budget of 6.400e+17 |",
        "| training FLOPs (the ELECTRA paper's convention) | 5.000e+17 |",
        "| hardware | 8 × NVIDIA H100 80GB HBM3, 7200 s |",
        "| device-hours (processes × hours) | 16 |",
        "| energy, hours × rated power (700 W; not measured, boards alone) | 11.2 kWh |",
    ):
        assert f"\n{row}\n" in text, row
    for hardware in ("2 CPU process(es) on x86_64", "8 × NVIDIA H100 PCIe", "8 × NVIDIA B300"):
        text = written(glue, tmp_path / "card", done={**done, "hardware": hardware})
        assert "\n| energy | unknown: the device's rated power is not in our table |\n" in text


def test_the_data_with_its_licences_and_no_paths(glue: Path, tmp_path: Path) -> None:
    found = provenance(glue)
    kinds = ("wikipedia", "jsonl", "datasets", "datasets")
    stats = [
        SourceStats(kind=kind, weight=None, units=1, train=found.manifest.train, heldout=found.manifest.heldout)
        for kind in kinds
    ]
    sources = [
        {"kind": "wikipedia", "path": "/home/somebody/enwiki-20260101-pages-articles.xml.bz2"},
        {"kind": "jsonl", "path": "s3://bucket/secret/books.jsonl", "licence": "CC0-1.0"},
        {"kind": "datasets", "path": "owner/stories", "revision": "ab" * 20},
        {"kind": "datasets", "path": "data/folder"},
    ]
    manifest = found.manifest.model_copy(update={"sources": stats})
    text = written(glue, tmp_path / "card", manifest=manifest, sources=sources)
    for row in (
        "| wikipedia `enwiki-20260101-pages-articles.xml.bz2` | 3,037,200 | CC BY-SA (4.0; dumps of before June 2023: "
        "3.0) |",
        "| jsonl `books.jsonl` | 3,037,200 | CC0-1.0 |",
        "| datasets `stories` | 3,037,200 | not recorded |",
    ):
        assert f"\n{row}\n" in text, row
    assert manifest.sha256 in text and manifest.inputs_sha256 in text
    assert "somebody" not in text and "bucket" not in text
    assert ModelCard(text).data.datasets == ["owner/stories"]


def test_what_is_said_of_limits_licence_and_source(glue: Path, tmp_path: Path) -> None:
    text = written(glue, tmp_path / "card")
    for words in (
        "## Intended use and limits",
        "`not-stated` there means that nobody has given one",
        "@inproceedings{clark2020electra,",
        "International Conference on Learning Representations",
        "do not cover another seed of pre-training",
    ):
        assert words in " ".join(text.split()), words


# --- the check --------------------------------------------------------------------------------------------------------


def index(**result: Any) -> dict[str, Any]:
    whole = {
        "task": {"type": "text-classification"},
        "dataset": {"type": "nyu-mll/glue", "name": "glue CoLA", "config": "cola"},
        "metrics": [{"type": "matthews", "value": 0.5}],
    }
    return {"model-index": [{"name": "small", "results": [whole | result]}]}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no licence": ({"license": None}, "`license` is missing"),
    "an unknown licence": ({"license": "free"}, "`license: free` is no licence the Hub knows"),
    "a licence without a name": ({"license_name": ""}, "`license: other` needs a `license_name`"),
    "a pipeline": ({"pipeline_tag": "writing"}, "`pipeline_tag: writing` is none of"),
    "tags": ({"tags": "electra"}, "`tags` is no list of words"),
    "data sets": ({"datasets": ["/data/books"]}, "`datasets` is no list of names on the Hub"),
    "a score that is no number": (
        index(metrics=[{"type": "f1", "value": float("nan")}]), "a score on glue CoLA is no number",
    ),
    "a configuration that is no text": (
        index(dataset={"type": "a/b", "name": "b", "config": 1}), "the configuration 1 of b is no text",
    ),
    "no task": (index(task={}), "a result without a type of task"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_metadata_that_the_hub_refuses_is_found_before(case: str, tmp_path: Path) -> None:
    change, words = WRONG[case]
    folder = write_model(tmp_path / "model")
    card_metadata.check_card(folder)
    found = {key: value for key, value in (metadata() | change).items() if value is not None}
    (folder / "README.md").write_text(card_metadata.front(found) + "\n# small\n")
    with pytest.raises(CheckError) as caught:
        card_metadata.check_card(folder)
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(folder / "README.md"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("- {value: 0.5}", "result 1 names no data set of the Hub"),
        ("- {dataset: {id: nyu-mll/glue}, value: 0.5}", "result 1 has no task_id, or no number as its value"),
        ("- {dataset: {id: nyu-mll/glue, task_id: cola}, value: .inf}", "or no number as its value"),
        ("{}", "no list of results"),
        ("- {a: [", "not YAML"),
    ],
)
def test_files_of_scores_that_the_hub_refuses_are_found(content: str, words: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / ".eval_results").mkdir()
    (folder / ".eval_results" / "glue.yaml").write_text(content)
    with pytest.raises(CheckError, match=words):
        card_metadata.check_card(folder)


def test_a_card_that_is_none(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    for content, words in (
        (b"# small", "does not begin with a block of metadata"),
        (b"---\nlicense: mit\ntags: [a\nb: c\n---\n", r"README.md:\d: the metadata is not YAML"),
        (b"---\n- a\n---\n", "the metadata is no mapping"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ):
        (folder / "README.md").write_bytes(content)
        with pytest.raises(CheckError, match=words):
            card_metadata.check_card(folder)
    (folder / "README.md").unlink()
    with pytest.raises(CheckError, match="a model without a card is not published"):
        card_metadata.check_card(folder)


def test_another_licence_changes_nothing_else(tmp_path: Path) -> None:
    text = (write_model(tmp_path / "model") / "README.md").read_text()
    changed = card_metadata.with_licence(text, "cc-by-sa-4.0")
    assert changed == text.replace("license: other\nlicense_name: not-stated\n", "license: cc-by-sa-4.0\n")
    with pytest.raises(ConfigError, match="--license: 'free' is no licence the Hub knows"):
        card_metadata.with_licence(text, "free")


# --- as a reader takes it ---------------------------------------------------------------------------------------------


def code_of(card: Path) -> str:
    """The block that a reader copies."""
    (_, after) = card.read_text().split("```python\n")
    return after.split("```")[0]


@pytest.mark.slow
@pytest.mark.multi
def test_following_the_card_runs_the_exported_discriminator(road: Road, tmp_path: Path) -> None:
    """As a new user: a copy of the folder, another working directory, Python and transformers, nothing of ours."""
    subprocess.run(["cp", "-r", road.out / "export" / "discriminator", tmp_path], check=True)
    code = code_of(tmp_path / "discriminator" / "README.md")
    (tmp_path / "follow.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "follow.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    assert (lines[0][1], lines[-1][1]) == ("[CLS]", "[SEP]")
    assert "".join(piece.removeprefix("##") for _, piece in lines[1:-1]) == "thechefatethemeal"
    assert all(0.0 <= float(p) <= 1.0 for p, _ in lines)
    assert for_repository(code, "me/small") == code.replace(
        'name = "discriminator"  # the folder that this card lies in', 'name = "me/small"'
    )
