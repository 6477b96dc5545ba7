"""What the tests of the report share, those of the mirror, and those of a hub; a file of other tests has an `out` or a
`hub` of its own."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import figures, figures_reference, figures_training
from pipeline.mlflow_store import Store
from tests.pipeline import fake_experiment
from tests.pipeline.hub_server import Hub, connected


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A finished experiment on the probes, without a report."""
    return fake_experiment.write(tmp_path / "out", steps_logged=8)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty drawings, for tests of everything else: drawing takes seconds."""
    drawn = {
        figures: ("curve", "further_axes", "small_multiples", "frontier"),
        figures_reference: ("reference",),
        figures_training: ("losses", "labels"),
    }
    for module, names in drawn.items():
        for name in names:
            monkeypatch.setattr(module, name, lambda *_: "<svg></svg>")


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated MLflow store without runs: making its tables takes seconds, copying it none."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    Store(f"sqlite:///{path}", "unrelated", path.parent / "files")
    return path


@pytest.fixture
def tracked(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment of one finished run with a fine-tuning, and an empty store."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "experiment"
    manifest = fake_experiment.write_corpus(folder)
    (folder / "config.yaml").write_text("name: tiny\narms: [{objective: electra}]\nbudgets: [4.0e+11]\n")
    fake_experiment.write_run(
        folder, "electra", 0, manifest.sha256, start=fake_experiment.START, steps_logged=20, done=True
    )
    result = fake_experiment.write_result(folder, "electra", 0, "probes", "sentence_order", 1440)
    fake_experiment.write_results_file(folder, [result])
    shutil.copy(empty_store, folder / "mlflow.db")
    return folder


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Nobody waits; for how long they would have."""
    found: list[float] = []
    monkeypatch.setattr("time.sleep", found.append)
    return found


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, waits: list[float]) -> Iterator[Hub]:
    with connected(monkeypatch) as hub:
        yield hub
