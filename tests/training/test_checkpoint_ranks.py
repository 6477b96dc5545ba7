"""Two ranks, each with its own disk and its own memory: they save, fail, choose and prove together."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.training.engine_ranks import run_group
from tests.training.saving_ranks import work

pytestmark = [pytest.mark.multi, pytest.mark.slow]


@pytest.fixture(scope="module")
def saw(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks has seen."""
    folder = tmp_path_factory.mktemp("ranks")
    run_group(2, corpus, folder, work)
    return [json.loads((folder / f"saw-{rank}.json").read_text()) for rank in range(2)]


def test_what_one_rank_fails_at_has_failed_on_all_and_is_gone(saw: list[dict[str, Any]]) -> None:
    first, failed, third = saw[0]["outcomes"]
    assert saw[1]["outcomes"] == saw[0]["outcomes"]
    assert (first["saved"], third["saved"]) == (True, True)
    assert (failed["saved"], failed["reason"]) == (False, "rank 1's disk: Input/output error")
    parts = ["part-00000.safetensors", "part-00001.safetensors"]
    for seen in saw:
        assert seen["files"] == ["manifest.json", *parts, "saved.json", "step-00000001"]
        assert seen["best"] == ["step-00000003", 2, parts]


def test_a_bit_of_one_ranks_copy_is_named_with_the_rank(saw: list[dict[str, Any]]) -> None:
    """Every rank holds everything here, and rank 0 alone saves this element: its own copy is fine."""
    for seen in saw:
        assert "what was restored from it is not what was saved (exp_avg (rank 1)); try again" in seen["proof"]


def test_all_ranks_choose_alike_whoever_finds_the_damage(saw: list[dict[str, Any]]) -> None:
    for seen in saw:
        name, (sentence,) = seen["earlier"]
        assert name == "step-00000001" and "step-00000003/part-00001.safetensors was cut or altered" in sentence
        assert "disk-0/checkpoints: rank 0 does not see what rank 1 writes there" in saw[0]["shared"] == seen["shared"]
        (refused,) = seen["refusals"]
        assert refused.startswith("CheckpointError: ") and "no valid checkpoint is left" in refused
