"""`electra checkpoints` on what a run of five savings left: listed, verified, pruned by the rules and not beyond."""

import fcntl
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.test_cli import electra, refused

NAME = "roberta-20steps-s3"
STEPS = {4: "step-00000004", 8: "step-00000008", 12: "step-00000012", 16: "step-00000016", 20: "step-00000020"}


def trained(folder: Path, **checkpoints: Any) -> Path:
    """A run of twenty steps, all of whose checkpoints are kept; its experiment's folder."""
    import torch

    from data_prep.manifest import load
    from tests.training.synthetic import MODEL, write_corpus
    from training.arms import RobertaArm
    from training.loop import train
    from training.run import plan_run
    from training.settings import TrainingConfig

    write_corpus(folder / "corpus", rows=200)
    config = TrainingConfig.model_validate(
        {
            "global_batch": 8,
            "micro_batch": 8,
            "engine": "ddp",
            "eval_rows": 16,
            "eval_every": 8,
            "checkpoints": {"every": 4, "keep_last": 99, **checkpoints},
        }
    )
    arm, manifest = RobertaArm(learning_rate=1e-3), load(folder / "corpus")
    spec = plan_run(arm=arm, model=MODEL, training=config, manifest=manifest, steps=20, seed=3)
    assert spec.name == NAME
    train(spec, folder / "corpus", folder / "out" / "runs" / NAME, torch.device("cpu"))
    return folder / "out"


@pytest.fixture(scope="module")
def original(process_group: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def out(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "out")


def listed(out: Path, *options: str) -> list[dict[str, Any]]:
    done = electra("checkpoints", out, "--json", *options)
    assert done.exit_code == 0, done.output
    (run,) = json.loads(done.stdout)["runs"]
    found: list[dict[str, Any]] = run["checkpoints"]
    return found


def store(out: Path) -> Path:
    return out / "runs" / NAME / "checkpoints"


def test_what_is_there_with_its_figures_and_what_keeps_it(out: Path) -> None:
    found = listed(out, "--verify")
    assert [(one["name"], one["state"]) for one in found] == [(name, "valid") for name in STEPS.values()]
    assert [one["heldout_loss"] is not None for one in found] == [False, True, False, True, True]
    best = min((one for one in found if one["heldout_loss"] is not None), key=lambda one: one["heldout_loss"])
    assert [one["name"] for one in found if "best" in one["kept_by"]] == [best["name"]]
    assert found[-1]["kept_by"][:2] == ["newest", "last 99"]
    done = json.loads((out / "runs" / NAME / "done.json").read_text())
    assert (found[-1]["flops_counted"], found[-1]["tokens"]) == (done["flops_counted"], done["tokens"])
    files = [path for path in (store(out) / STEPS[20]).iterdir() if path.is_file()]
    assert found[-1]["bytes"] == sum(path.stat().st_size for path in files)


def test_the_table_is_one_line_each(out: Path) -> None:
    lines = electra("checkpoints", out / "runs" / NAME).stdout.splitlines()
    assert lines[0] == f"{NAME} ({store(out)}), by manifests and sizes"
    assert [line.split()[:2] for line in lines[3:]] == [[name, "valid"] for name in STEPS.values()]


def test_a_flipped_byte_is_found_by_hash_and_said(out: Path) -> None:
    part = store(out) / STEPS[12] / "part-00000.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    assert [one["state"] for one in listed(out)] == ["valid"] * 5  # of the right size
    assert [one["state"] for one in listed(out, "--verify")] == ["valid", "valid", "broken", "valid", "valid"]
    warned = [line for line in electra("checkpoints", out, "--verify").stdout.splitlines() if "warning" in line]
    assert len(warned) == 1
    assert warned[0].startswith(f"warning: {STEPS[12]}: {part} was cut or altered")


def test_a_missing_manifest_is_an_unfinished_one(out: Path) -> None:
    (store(out) / STEPS[16] / "manifest.json").unlink()
    assert [one["state"] for one in listed(out)] == ["valid", "valid", "valid", "unfinished", "valid"]


def test_pruning_is_by_the_run_s_own_rules_unless_told_otherwise(out: Path) -> None:
    before = listed(out)
    assert listed(out, "--prune") == before  # keep_last is 99
    best = next(one["name"] for one in before if "best" in one["kept_by"])
    found = electra("checkpoints", out, "--prune", "--keep-last", "2", "--json")
    (run,) = json.loads(found.stdout)["runs"]
    left = {STEPS[16], STEPS[20], best}
    assert {one["name"] for one in run["checkpoints"]} == {path.name for path in store(out).glob("step-*")} == left
    assert run["removed"] == [name for name in STEPS.values() if name not in left]


def test_pruning_leaves_the_newest_valid_one_and_takes_broken_ones_only_when_told(out: Path) -> None:
    part = store(out) / STEPS[20] / "part-00000.safetensors"
    part.write_bytes(part.read_bytes()[:-1])
    left = {one["name"] for one in listed(out, "--prune", "--keep-last", "1")}
    assert {STEPS[16], STEPS[20]} <= left
    left = {one["name"] for one in listed(out, "--prune", "--keep-last", "1", "--broken")}
    assert STEPS[16] in left and STEPS[20] not in left


def test_pruning_a_folder_in_use_is_exit_3(out: Path) -> None:
    with open(out / ".lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another electra process is working in this folder" in refused(3, "checkpoints", out, "--prune")
        assert len(listed(out)) == 5  # looking is free


def test_options_of_pruning_without_it_are_exit_2(out: Path) -> None:
    for option in (("--keep-last", "1"), ("--broken",)):
        assert refused(2, "checkpoints", out, *option).endswith("add --prune")
    assert len(listed(out)) == 5


def test_an_object_store_is_listed_and_pruned_alike(object_store: str, process_group: None, tmp_path: Path) -> None:
    out = trained(tmp_path, to=f"{object_store}/console")
    assert not store(out).exists()
    done = electra("checkpoints", out, "--verify")
    assert f"{NAME} ({object_store}/console/{NAME}), verified by hash" in done.stdout
    assert [one["state"] for one in listed(out)] == ["valid"] * 5
    left = [one["name"] for one in listed(out, "--prune", "--keep-last", "1")]
    assert left[-1] == STEPS[20] and len(left) <= 2
