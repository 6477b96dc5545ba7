"""A one-process group and a small synthetic corpus, shared by the training tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.training.synthetic import write_corpus


@pytest.fixture(scope="session")
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A gloo group of this process alone."""
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = "0"
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of layout `segments`."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder
