"""`electra prepare --dry-run` and `electra verify` as a person runs them."""

import json
import shutil
from pathlib import Path

import pytest

from data_prep import manifest as manifests
from tests.conftest import Road

pytestmark = pytest.mark.multi


def test_a_dry_run_says_what_would_happen_and_leaves_nothing(road: Road) -> None:
    before = sorted(road.folder.rglob("*"))
    done = road.electra("prepare", road.config, "--dry-run", "--out", road.folder / "never", "--json")
    found = json.loads(done.stdout)
    manifest = manifests.load(road.out / "corpus")
    assert (found["exit_code"], found["dry_run"], found["units"]) == (0, True, manifest.units)
    # of so small a corpus the first unit is most of the sample: rows and text are those of the real one, about
    rows = manifest.train.rows + manifest.heldout.rows
    assert 0.7 * rows < found["rows"] < 1.3 * rows
    assert 0.7 < found["text_bytes"] / manifest.documents.text_bytes < 1.3
    assert found["seconds"] > 0 and found["cores"] >= 1 and found["documents_mb_per_second"] > 0
    for words in ("source", "units", "tokenizing and packing", "time on"):
        assert words in done.stderr
    assert sorted(road.folder.rglob("*")) == before


def test_a_dry_run_finds_what_is_wrong_with_the_inputs(road: Road) -> None:
    done = road.electra(
        "prepare", road.config, "corpus.sources=[{kind: jsonl, path: none/*.jsonl}]", "--dry-run", check=False
    )
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1 and "none/*.jsonl matches no file" in done.stderr


def test_verify_takes_an_experiment_or_a_corpus(road: Road, tmp_path: Path) -> None:
    for place in (road.out, road.out / "corpus"):
        done = road.electra("verify", place, "--json")
        assert json.loads(done.stdout)["manifest_sha256"] == manifests.load(road.out / "corpus").sha256
        assert "is sound (every byte)" in done.stderr
    assert "(names, sizes and counts)" in road.electra("verify", road.out, "--quick").stdout

    copy = tmp_path / "corpus"
    shutil.copytree(road.out / "corpus", copy)
    victims = sorted(copy.glob("train/*.tar"))
    victims[0].unlink()
    content = bytearray(victims[1].read_bytes())
    content[1000] ^= 1
    victims[1].write_bytes(content)
    done = road.electra("verify", copy, check=False)
    assert done.returncode == 4
    assert f"verify: train/{victims[0].name} is missing" in done.stdout
    assert f"verify: train/{victims[1].name} was altered (its sha256 differs)" in done.stdout
    assert "2 of its files are not what the manifest says" in done.stderr and "Traceback" not in done.stderr


def test_verify_of_what_is_no_corpus_is_one_sentence(road: Road, tmp_path: Path) -> None:
    for place, words in ((tmp_path / "none", "no such folder"), (tmp_path, "does not exist")):
        done = road.electra("verify", place, check=False)
        assert done.returncode == 4 and words in done.stderr and done.stderr.count("\n") == 1
