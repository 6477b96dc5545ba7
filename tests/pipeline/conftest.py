"""What the tests of the report share; a file of other tests has an `out` of its own."""

from pathlib import Path

import pytest

from pipeline import figures
from tests.pipeline import fake_experiment


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A finished experiment on the probes, without a report."""
    return fake_experiment.write(tmp_path / "out", steps_logged=8)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty drawings, for tests of everything else: drawing takes seconds."""
    for name in ("curve", "small_multiples", "losses"):
        monkeypatch.setattr(figures, name, lambda *_: "<svg></svg>")
