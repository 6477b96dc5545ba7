"""What the train stage says of first weights, and when."""

import io
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import cluster.trainer
from pipeline import train_stage
from pipeline.console import Console
from pipeline.folder import Folder
from pipeline.place import Place
from tests.pipeline.test_experiment import experiment
from tests.training.synthetic import write_corpus
from training.metrics import MetricWriter
from training.run_folder import append_events, write_run_record
from training.settings import RunSpec

SMALL = (
    "corpus.seq_len=32",
    "model={embedding_size: 8, hidden_size: 8, num_layers: 1, num_heads: 1, intermediate_size: 8, max_positions: 32}",
    "budgets=[1e9]",
    "arms=[{objective: electra, learning_rate: 1}]",
)
GAVE: dict[str, Any] = {"identity": "sha256:0", "flops": None, "differs": []}


def weights(network: str, *given: dict[str, Any], lacked: Sequence[str] = ()) -> dict[str, Any]:
    return {"event": "weights", "network": network, "from": list(given), "lacked": [*lacked]}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """An experiment of one run whose corpus is prepared; no Ray is started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Place, "start_ray", lambda _: None)
    write_corpus(tmp_path / "out" / "corpus", rows=40)
    console = Console(io.StringIO(), interactive=False)
    return Place(
        experiment=experiment(*SMALL), folder=Folder(tmp_path / "out", None), console=console, stack=ExitStack()
    )


def said(place: Place) -> list[str]:
    text = place.console.stream.getvalue()  # type: ignore[attr-defined]
    return [line.partition("-s0: ")[2] for line in text.splitlines() if "began with" in line]


def attempt(run_dir: Path, *events: dict[str, Any], resumed_at: int = 0, line: bool = True) -> dict[str, Any]:
    """As the loop writes: what the attempt began with, then a first line of figures."""
    run_dir.mkdir(parents=True, exist_ok=True)
    append_events(run_dir, [{"event": "started", "step": resumed_at}, *events])
    with MetricWriter(run_dir, resumed_at) as writer:
        if line:
            writer.write(resumed_at + 1, {"train/loss": 1.0})
        return {"attempt": writer.attempt, "step": resumed_at + 1, "values": {}}


def train(place: Place, monkeypatch: pytest.MonkeyPatch, work: Callable[[Path], list[dict[str, Any]]]) -> list[str]:
    """Run the stage around a group of workers that does `work` and reports its lines; what was said while it ran."""
    seen: list[str] = []

    def train_runs(
        specs: Sequence[RunSpec], corpus: Any, runs_dir: Path, config: Any, on_progress: Callable[..., None], *_: Any
    ) -> None:
        (spec,) = specs
        for line in work(runs_dir / spec.name):
            on_progress(spec, line)
        seen.extend(said(place))

    monkeypatch.setattr(cluster.trainer, "train_runs", train_runs)
    monkeypatch.setattr(train_stage, "_warn_degenerate", lambda *_: None)
    train_stage.train(place)
    return seen


def test_first_weights_are_told_once_when_the_run_has_begun(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    hf, run = place.folder.path / "hf", place.folder.path / "runs" / "x"
    told = [
        weights("discriminator", {**GAVE, "folder": str(run), "vocabulary": True}),
        weights("generator", lacked=["encoder", "heads.mlm"]),
        weights(
            "both", {**GAVE, "folder": str(run), "vocabulary": True}, {**GAVE, "folder": str(hf), "vocabulary": False}
        ),
    ]
    seen = train(place, monkeypatch, lambda run_dir: [attempt(run_dir, *told)] * 3)
    assert (
        seen
        == said(place)
        == [
            "its discriminator began with out/runs/x",
            "its generator began with no weights of its own; random: encoder, heads.mlm",
            "its both began with out/runs/x and out/hf (its vocabulary is not known beyond its size)",
        ]
    )


def test_an_attempt_that_failed_before_its_first_checkpoint_is_not_told_of_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(run_dir: Path) -> list[dict[str, Any]]:
        before = attempt(run_dir, weights("old", lacked=["encoder"]), line=False)
        with (run_dir / "events.jsonl").open("a") as file:
            file.write('{"event": "torn')
        assert before["attempt"] == 0
        return [attempt(run_dir, weights("new", lacked=["encoder"]))]

    assert train(place, monkeypatch, work) == ["its new began with no weights of its own; random: encoder"]


def test_a_resumed_run_began_with_nothing_now(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its old line is the first that the stage reads, before the new attempt has written any."""
    (spec,) = place.experiment.runs(train_stage.manifests.load(place.folder.corpus), place.folder.corpus)
    old = attempt(place.folder.runs / spec.name, weights("old", lacked=["encoder"]))
    assert train(place, monkeypatch, lambda run_dir: [old, attempt(run_dir, resumed_at=1)]) == []


def test_a_finished_run_needs_what_it_began_with_no_more(place: Place) -> None:
    folder, gone = place.folder, place.folder.path / "gone"
    (spec,) = place.experiment.runs(train_stage.manifests.load(folder.corpus), folder.corpus)
    init, folders = {"weights": ["0123456789ab@4"]}, {"weights": [str(gone)]}
    identity, placement = (
        part.model_copy(update={"init": value}) for part, value in ((spec.identity, init), (spec.placement, folders))
    )
    run_dir = folder.runs / spec.name
    run_dir.mkdir(parents=True)
    write_run_record(run_dir, spec.model_copy(update={"identity": identity, "placement": placement}))
    (run_dir / "done.json").write_text("{}")
    arms = f"arms=[{{objective: electra, learning_rate: 1, init_from: {gone}}}]"
    place.experiment = experiment(*SMALL[:-1], arms)
    assert train_stage.train(place) == {"runs": [spec.name], "trained": 0}
