"""Tests that need a CUDA device: `make test-gpu`. Without one they skip."""

from pathlib import Path

import pytest
import torch

from tests.training.synthetic import write_corpus


@pytest.fixture(scope="session", autouse=True)
def gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda", 0)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of layout `segments`."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder
