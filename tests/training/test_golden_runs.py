"""Fifty steps of every objective, held to the losses that are kept in the repository."""

from pathlib import Path

import pytest

from tests.training.cases import ARMS
from tests.training.golden import COMMAND, PACKED, STEPS, losses, planned, stored, write_corpora

MOVED = f"the losses of this run moved; where that is meant, say why in the commit and run `{COMMAND}`"

pytestmark = pytest.mark.usefixtures("process_group")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    return write_corpora(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("name", ARMS)
def test_the_losses_of_a_run_are_what_they_were(name: str, corpora: dict[bool, Path], tmp_path: Path) -> None:
    """The first ten within a thousandth, the fiftieth within three percent (a policy's loss crosses zero: as much of
    one nat). And they fell."""
    kept, corpus = stored(name)["losses"], corpora[name in PACKED]
    found = losses(planned(name, corpus), corpus, tmp_path)
    assert found.keys() == kept.keys()
    for term, values in kept.items():
        assert len(found[term]) == len(values) == STEPS
        close = pytest.approx(values[:10], rel=1e-3, abs=1e-3 if term == "policy_loss" else 0)
        assert found[term][:10] == close, f"{term}: {MOVED}"
        close = pytest.approx(values[-1], rel=0.03, abs=0.03 if term == "policy_loss" else 0)
        assert found[term][-1] == close, f"{term}: {MOVED}"
    assert sum(kept["loss"][-5:]) < sum(kept["loss"][:5])
