"""A run's checkpoints on a local hub, from the run's folder to a model that another program loads by its name."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from data_prep.errors import CheckpointError
from pipeline import proof
from pipeline.console import Console
from pipeline.hub_push import push_folder
from tests.pipeline import exported
from tests.pipeline.hub_server import TOKEN, Hub, connected
from tests.pipeline.test_model_card import code_of
from tests.pipeline.test_proof import ELECTRA, examined_here
from training import run_folder

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("process_group")]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with connected(monkeypatch) as hub:
        yield hub


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with whole checkpoints of the steps 3 and 9, and a damaged one between."""
    monkeypatch.setattr(proof, "_examined", examined_here)  # no process of its own
    run_dir = exported.begun_run(exported.experiment(tmp_path / "out"), ELECTRA, steps=(3, 6, 9))
    part = next((run_dir / "checkpoints" / run_folder.checkpoint_name(6)).glob("*.safetensors"))
    part.write_bytes(part.read_bytes()[:-1])
    return run_dir


def weights(folder: str | Path) -> dict[str, torch.Tensor]:
    model, info = transformers.AutoModelForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert type(model).__name__ == "ElectraForPreTraining" and not any(info.values())
    return dict(model.state_dict())


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def test_every_whole_checkpoint_goes_to_its_branch_and_comes_back(
    hub: Hub, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loaded by another process, by name, following the card that lies there."""
    from huggingface_hub import snapshot_download

    push_folder(run, "me/tiny", Console(), every=True)
    assert f"{run_folder.checkpoint_name(6)} is passed over" in capsys.readouterr().out
    repository = hub.store.repositories["me/tiny-discriminator"]
    branches = json.loads(hub.store.read("me/tiny-discriminator", "revisions.json"))
    assert [one["step"] for one in branches.values()] == [3, 9]
    assert {"main", *branches} == set(repository.branches)
    came = {}
    for revision, step in zip((*branches, "main"), (3, 9, 9), strict=True):
        folder = tmp_path / revision
        snapshot_download("me/tiny-discriminator", revision=revision, local_dir=folder, token=TOKEN)
        there = run.parents[1] / "export" / run.name / run_folder.checkpoint_name(step) / "discriminator"
        came[revision] = weights(folder)
        assert same(came[revision], weights(there))
    first, last = branches
    assert same(came[last], came["main"]) and not same(came[first], came["main"])
    (tmp_path / "follow.py").write_text(code_of(tmp_path / "main" / "README.md"))
    shutil.rmtree(tmp_path / "main")
    told = subprocess.run(
        [sys.executable, "follow.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env={
            **os.environ, "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "home"),
        },
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines()[0].endswith(" [CLS]")


def test_a_run_without_a_whole_checkpoint_sends_nothing(hub: Hub, run: Path) -> None:
    for folder in (run / "checkpoints").glob("step-*"):
        for part in folder.glob("*.safetensors"):
            part.write_bytes(b"")
    with pytest.raises(CheckpointError, match="holds no whole checkpoint; run `electra train` again"):
        push_folder(run, "me/tiny", Console(), every=True)
    assert hub.asked == []
