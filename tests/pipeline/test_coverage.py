"""The stored coverage is what simulation gives, and is near what an interval of 95 % promises."""

import pytest

from pipeline import coverage
from tests.pipeline import simulated

KINDS = ("score", "difference", "multiplier")


@pytest.mark.parametrize("kind", KINDS)
def test_ten_seeds_cover_what_they_promise(kind: coverage.Kind) -> None:
    found = coverage.of(10)
    assert found is not None
    assert 0.92 <= found.share(kind) <= 0.98


def test_other_counts_take_the_next_fewer_and_one_seed_claims_nothing() -> None:
    assert coverage.of(1) is None
    for seeds, simulated_with in ((2, 2), (3, 3), (4, 3), (7, 5), (10, 10), (30, 10)):
        found = coverage.of(seeds)
        assert found is not None
        assert found.seeds == simulated_with


@pytest.mark.slow
def test_the_table_is_what_simulation_gives() -> None:
    """60 experiments: within four binomial errors of the share in the table, on either side (.84 to 1 for .95)."""
    experiments = 60
    found = simulated.coverage(3, experiments, replicates=500)
    stored = coverage.of(3)
    assert stored is not None
    for kind in KINDS:
        share = stored.share(kind)
        error = (share * (1 - share) / experiments) ** 0.5
        assert found[kind] == pytest.approx(share, abs=4 * error), kind


@pytest.mark.slow
def test_one_seed_does_not_cover_what_seeds_do() -> None:
    """Examples alone miss what another pre-training seed would have moved: far below .95, and so not claimed."""
    assert simulated.coverage(1, 60, replicates=500)["multiplier"] < 0.9
