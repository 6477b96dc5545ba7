"""It learns, on real text, in twenty CPU minutes."""

import os
from pathlib import Path

import pytest

from tests.training.learning import RATE, STEPS, check, learn

DATA = os.environ.get("ELECTRA_TEST_DATA") or None  # set but empty: the Makefile found no such folder


@pytest.mark.long
@pytest.mark.skipif(DATA is None, reason="ELECTRA_TEST_DATA names no folder with corpus/novels98.jsonl.zst")
@pytest.mark.usefixtures("process_group")
def test_generator_and_discriminator_learn_to_use_context(tmp_path: Path) -> None:
    check(*learn(Path(DATA or ""), tmp_path, STEPS, RATE))
