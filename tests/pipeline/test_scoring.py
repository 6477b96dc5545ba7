"""What of a suite's figures depends on more than its answers: whose seeds vary alike, and files read once."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import gather, scoring
from pipeline.resampling import Estimate, Fit
from pipeline.statistics import bootstrap

Pool = Callable[[Any], Any]


@pytest.mark.parametrize(("shared", "pools"), [(None, 3), ({"run": "ab", "step": 9}, 6)])
def test_budgets_that_share_a_trunk_are_no_further_sample_of_seeds(
    out: Path, monkeypatch: pytest.MonkeyPatch, shared: dict[str, Any] | None, pools: int
) -> None:
    """Three arms at two budgets: an arm's cells tell of its seeds together, but for branches, each for itself."""
    found: set[Any] = set()

    def watched(cells: Mapping[Any, Sequence[Fit]], *, pool: Pool) -> dict[Any, dict[str, Estimate]]:
        found.update(pool(cell) for cell in cells)
        return bootstrap(cells, pool=pool, replicates=50)

    monkeypatch.setattr(scoring, "bootstrap", watched)
    contents = gather.read(out)
    first = dataclasses.replace(contents.runs[0], done={**(contents.runs[0].done or {}), "shared": shared})
    contents = dataclasses.replace(contents, runs=[first, *contents.runs[1:]])
    suite, missing = scoring.analyse_suite(contents, "probes", contents.results)
    assert (suite is not None, missing, len(found)) == (True, [], pools)


def test_a_file_of_answers_is_read_once_until_it_changes(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of minimal pairs 67 results are of one file."""
    result = gather.read(out).results[0]
    path, load, calls = out / "evaluation" / result["predictions"], np.load, []

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return load(*args, **options)

    monkeypatch.setattr(np, "load", counted)
    before = [gather.fit_of(out, result).label.sum() for _ in range(3)]
    assert (len(set(before)), len(calls)) == (1, 1)
    label = gather.fit_of(out, result).label
    np.savez(path, label=1 - label, prediction=label, score=np.zeros((len(label), 2)))
    assert gather.fit_of(out, result).label.sum() == len(label) - before[0]
    assert len(calls) == 2
