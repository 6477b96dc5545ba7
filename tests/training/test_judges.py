"""Which networks of a folder judge sentences, and by which scorer."""

from pathlib import Path

import pytest
import torch

from data_prep.errors import ConfigError
from tests.training.hf_models import saved
from tests.training.origins import GENERATOR, RATE, plan, run_of, tensors_of, trained
from training import checkpoints
from training.arms import ReplaceMlmArm
from training.judges import load_judges

LAST = Path("checkpoints") / "step-00000004"


def kinds(folder: Path) -> list[tuple[str, str]]:
    return [(judge.name, judge.scorer) for judge in load_judges(folder)]


def test_an_electra_checkpoint_gives_two_and_a_bert_one(experiment: Path) -> None:
    electra = run_of(experiment, "electra") / LAST
    assert kinds(electra) == [("discriminator", "rtd"), ("generator", "pll")]
    networks = checkpoints.load_objective(electra)[0].networks()
    for judge in load_judges(electra):
        tensors = tensors_of(networks[judge.name])
        assert all(torch.equal(tensor, tensors[name]) for name, tensor in tensors_of(judge.network).items())
    assert kinds(run_of(experiment, "bert") / LAST) == [("encoder", "pll")]


def test_a_head_that_never_saw_a_mask_judges_nothing(corpus: Path, process_group: None, tmp_path: Path) -> None:
    (run,) = trained(plan(ReplaceMlmArm(learning_rate=RATE, generator=GENERATOR), corpus), corpus, tmp_path)
    assert kinds(run / LAST) == [("generator", "pll")]


def test_a_hugging_face_folder_judges_by_its_heads(tmp_path: Path) -> None:
    for case, expected in (
        ("discriminator", ("discriminator", "rtd")),
        ("generator", ("generator", "pll")),
        ("bert", ("encoder", "pll")),
    ):
        saved(case, tmp_path / case)
        assert kinds(tmp_path / case) == [expected]
    saved("bert", tmp_path / "body", base=True)
    with pytest.raises(ConfigError, match="has no head that fills masks or detects replaced tokens"):
        load_judges(tmp_path / "body")
