"""`electra init`: a file that loads, says what each of its lines is for, and names no number of its own making."""

import json
import re
from pathlib import Path

import pytest
import yaml

from data_prep.errors import DataError
from pipeline import config, place
from pipeline.experiment import Experiment
from pipeline.starter import starter
from tests.conftest import ROOT
from tests.pipeline.test_cli import electra, refused
from training.sizes import SIZES


@pytest.mark.parametrize("size", SIZES)
def test_every_size_loads_and_every_line_is_explained(size: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    done = electra("init", file, "--size", size)
    assert (done.exit_code, done.stdout) == (
        0,
        f"{file}: written. Next: electra plan {file}; electra experiment run {file} --dry-run\n",
    )
    found = config.load(file, model=Experiment)
    assert found.name == "mine"
    assert found.model.model_dump() | SIZES[size] == found.model.model_dump()
    assert [arm.objective for arm in found.arms] == ["electra", "bert", "roberta"]
    assert electra("config", "validate", file).exit_code == 0
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line]
    assert max(map(len, lines)) <= 120
    assert [line for line in lines if not re.search(r"(^|  )# \S", line)] == []


def test_what_is_commented_out_loads_too(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    electra("init", file)
    text = re.sub(r"^  # (?=submit|  )", "  ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    file.write_text(text, encoding="utf-8")
    submit = config.load(file, model=Experiment).cluster.submit
    assert (submit.backend, submit.shared.path, submit.secrets) == ("ray", "/shared", ["HF_TOKEN"])


@pytest.mark.parametrize(("size", "recipe"), [("tiny", "quickstart"), ("small", "small-comparison")])
def test_numbers_are_those_of_the_recipes(size: str, recipe: str) -> None:
    made = yaml.safe_load(starter("x", None, size))
    known = place.read_experiment(ROOT / "configs" / f"{recipe}.yaml", [])
    assert made["training"]["global_batch"] == known.training.global_batch
    assert made["corpus"]["tokenizer"]["vocab_size"] == known.corpus.tokenizer.vocab_size
    rates = {arm.label: arm.learning_rate for arm in known.arms}
    assert {arm["objective"]: float(arm["learning_rate"]) for arm in made["arms"]}.items() >= {
        ("electra", rates["electra"]),
        ("bert", rates["bert"]),
    }


@pytest.mark.parametrize("size", ["base", "large"])
def test_larger_sizes_take_their_papers_numbers(size: str) -> None:
    made = yaml.safe_load(starter("x", None, size))
    known = place.read_experiment(ROOT / "configs" / f"electra-{size}.yaml", [])
    assert made["training"]["global_batch"] == known.training.global_batch
    assert float(made["arms"][0]["learning_rate"]) == known.arms[0].learning_rate


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.jsonl", "jsonl"),
        ("a.jsonl.zst", "jsonl"),
        ("a.b.txt.gz", "text"),
        ("a.parquet", "parquet"),
        ("it's: #1.txt", "text"),
    ],
)
def test_the_kind_of_a_text_is_read_off_its_name(name: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    assert electra("init", tmp_path / "x.yaml", "--text", tmp_path / name).exit_code == 0
    (source,) = config.load(tmp_path / "x.yaml", model=Experiment).corpus.sources
    assert (source.kind, str(getattr(source, "path", ""))) == (kind, str(tmp_path / name))


@pytest.mark.parametrize(
    ("stem", "name"), [("a b", "a-b"), ("-x", "x"), ("ß", "experiment"), ("v1.2_final", "v1.2_final")]
)
def test_the_name_is_the_files_as_far_as_a_folder_may_be_called_so(stem: str, name: str) -> None:
    assert yaml.safe_load(starter(stem, None, "small"))["name"] == name


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.doc").touch()
    file = tmp_path / "x.yaml"
    assert refused(2, "init", file, "--size", "huge") == "--size: no size is called 'huge'; there are " + ", ".join(
        SIZES
    )
    assert refused(2, "init", tmp_path / "x") == f"{tmp_path}/x: an experiment file ends with .yaml"
    assert refused(4, "init", file, "--text", tmp_path / "none.txt").startswith(f"{tmp_path}/none.txt: no such file")
    assert refused(4, "init", file, "--text", tmp_path / "x.doc").startswith(f"{tmp_path}/x.doc: of no kind that is")
    with pytest.raises(DataError):
        starter("x", tmp_path / "x.doc", "small")
    assert not file.exists()


def test_a_file_that_is_there_is_kept_unless_it_is_forced(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("mine", encoding="utf-8")
    assert refused(2, "init", file).startswith(f"{file}: is there already; ")
    assert file.read_text(encoding="utf-8") == "mine"
    done = electra("init", file, "--force", "--json")
    assert json.loads(done.stdout) == {"verb": "init", "exit_code": 0, "file": str(file)}
    assert config.load(file, model=Experiment).name == "x"


def test_what_is_next_runs(tmp_path: Path) -> None:
    electra("init", tmp_path / "x.yaml", "--size", "tiny")
    done = electra("plan", tmp_path / "x.yaml")
    assert done.exit_code == 0, done.output
