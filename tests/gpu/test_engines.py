"""Every engine on one GPU over NCCL: against float64, in bf16 against fp32, compiled against eager, without waiting."""

import json
from pathlib import Path

import pytest
import torch.multiprocessing as multiprocessing

from tests.gpu.ranks import every_engine, without_waiting
from tests.training.engine_ranks import ENGINES
from tests.training.test_engine import reference

pytestmark = [pytest.mark.gpu, pytest.mark.multi]


def test_engines_on_a_gpu_agree_with_float64(corpus: Path, tmp_path: Path) -> None:
    """fp32 to 1e-4, bf16 under autocast to 3e-2, compiled or not; losses and norms of two steps."""
    multiprocessing.spawn(every_engine, (corpus, tmp_path, "cuda"), nprocs=1)
    found, exact = json.loads((tmp_path / "engines.json").read_text()), reference(corpus, steps=2)
    for name in ENGINES:
        for compiled in (False, True):
            fp32, auto = found[f"{name} fp32 {compiled}"], found[f"{name} auto {compiled}"]
            for key, expected in (("losses", exact.losses), ("norms", exact.norms)):
                assert fp32[key] == pytest.approx(expected, rel=1e-4), (name, compiled)
                assert auto[key] == pytest.approx(expected, rel=3e-2), (name, compiled)
                assert auto[key][0] != pytest.approx(expected[0], rel=1e-6), (name, compiled)  # bf16 indeed


def test_no_step_waits_for_the_gpu_but_to_read_the_gradient_norm(corpus: Path, tmp_path: Path) -> None:
    multiprocessing.spawn(without_waiting, (corpus, tmp_path, "cuda"), nprocs=1)
    assert (tmp_path / "unwaited").exists()
