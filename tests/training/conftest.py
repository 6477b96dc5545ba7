"""A small synthetic corpus, shared by the training tests."""

from pathlib import Path

import pytest

from tests.training.synthetic import write_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of layout `segments`."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder
