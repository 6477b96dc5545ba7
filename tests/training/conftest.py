"""A small synthetic corpus and two small runs on it, shared by the training tests."""

from pathlib import Path

import pytest

from tests.training.synthetic import write_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of layout `segments`."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


@pytest.fixture(scope="session")
def experiment(corpus: Path, process_group: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment's folder with a run of `electra` and one of `bert`, four steps each; not to be changed."""
    from tests.training.origins import ELECTRA, RATE, plan, trained
    from training.arms import BertArm

    folder = tmp_path_factory.mktemp("experiment")
    trained([*plan(ELECTRA, corpus), *plan(BertArm(learning_rate=RATE), corpus)], corpus, folder / "runs")
    return folder
