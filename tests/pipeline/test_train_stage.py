"""What the train stage says of first weights and resumptions, when, and what it says at its end."""

import errno
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cluster.trainer
from data_prep import storage
from data_prep.errors import StoppedError
from pipeline import stages, tracking, tracking_live, train_stage
from pipeline.console import Console
from pipeline.corpora import MAIN, prepared
from pipeline.folder import Folder
from pipeline.place import Place
from tests.pipeline.stories import Told
from tests.pipeline.test_cli import QUICKSTART, electra, refused
from tests.pipeline.test_experiment import experiment
from tests.training.synthetic import write_corpus
from training import requests
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
        experiment=experiment(*SMALL),
        folder=Folder(tmp_path / "out", {MAIN: storage.folder(tmp_path / "out" / "corpus")}),
        console=console,
        stack=ExitStack(),
    )


def output(place: Place) -> list[str]:
    found: list[str] = place.console.stream.getvalue().splitlines()  # type: ignore[attr-defined]
    return found


def said(place: Place) -> list[str]:
    return [line.partition("-s0: ")[2] for line in output(place) if "began with" in line]


def attempt(run_dir: Path, *events: dict[str, Any], resumed_at: int = 0, line: bool = True) -> dict[str, Any]:
    """As the loop writes: what the attempt began with, then a first line of figures."""
    run_dir.mkdir(parents=True, exist_ok=True)
    append_events(run_dir, [{"event": "started", "step": resumed_at}, *events])
    with MetricWriter(run_dir, resumed_at) as writer:
        if line:
            writer.write(resumed_at + 1, {"train/loss": 1.0, "flops": 1.0, "flops_spent": 1.0, "step_seconds": 0.0})
        return {"attempt": writer.attempt, "step": resumed_at + 1, "values": {}}


def train(place: Place, monkeypatch: pytest.MonkeyPatch, work: Callable[[Path], Iterable[dict[str, Any]]]) -> list[str]:
    """Run the stage around a group of workers that does `work` and reports its lines; what was said of first weights
    by its end."""

    def train_runs(
        specs: Sequence[RunSpec], corpus: Any, runs_dir: Path, config: Any, on_progress: Callable[..., None], *_: Any
    ) -> None:
        (spec,) = specs
        for line in work(runs_dir / spec.name):
            on_progress(spec, line)

    monkeypatch.setattr(cluster.trainer, "train_runs", train_runs)
    monkeypatch.setattr(train_stage, "_warn_degenerate", lambda *_: None)
    train_stage.train(place)
    return said(place)


def test_first_weights_are_told_once_when_the_run_has_begun(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    hf, run = place.folder.path / "hf", place.folder.path / "runs" / "x"
    told = [
        weights("discriminator", {**GAVE, "folder": str(run), "vocabulary": True}),
        weights("generator", lacked=["encoder", "heads.mlm"]),
        weights(
            "both", {**GAVE, "folder": str(run), "vocabulary": True}, {**GAVE, "folder": str(hf), "vocabulary": False}
        ),
    ]
    assert train(place, monkeypatch, lambda run_dir: [attempt(run_dir, *told)] * 3) == [
        "its discriminator began with out/runs/x",
        "its generator began with no weights of its own; random: encoder, heads.mlm",
        "its both began with out/runs/x and out/hf (its vocabulary is not known beyond its size)",
    ]


def test_an_attempt_after_one_that_failed_before_its_first_checkpoint_begins_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(run_dir: Path) -> list[dict[str, Any]]:
        before = attempt(run_dir, weights("old", lacked=["encoder"]), line=False)
        with (run_dir / "events.jsonl").open("a") as file:
            file.write('{"event": "torn')
        assert before["attempt"] == 0
        return [attempt(run_dir, weights("new", lacked=["encoder"]))]

    assert train(place, monkeypatch, work) == [
        "its old began with no weights of its own; random: encoder",
        "its new began with no weights of its own; random: encoder",
    ]


def test_a_resumed_run_began_with_nothing_now(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its old line is the first that the stage reads, before the new attempt has written any."""
    (spec,) = place.experiment.runs(prepared(place.folder.corpora))
    old = attempt(place.folder.runs / spec.name, weights("old", lacked=["encoder"]))
    assert train(place, monkeypatch, lambda run_dir: [old, attempt(run_dir, resumed_at=1)]) == []


def test_a_finished_run_needs_what_it_began_with_no_more(place: Place) -> None:
    folder, gone = place.folder, place.folder.path / "gone"
    (spec,) = place.experiment.runs(prepared(folder.corpora))
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


def test_a_resumption_is_told_and_at_the_end_the_goodput_and_what_was_lost(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(run_dir: Path) -> list[dict[str, Any]]:
        run = Told().start().train(10).save().train(5).wait(60)
        run.start(10, passed_over=["part-00000 was cut."]).train(10).save().event("finished", step=20)
        run.write(run_dir)
        return []

    train(place, monkeypatch, work)
    (spec,) = place.experiment.runs(prepared(place.folder.corpora))
    told = [line for line in output(place) if not line.startswith(("train: started", "train: done"))]
    assert told == [
        f"warning: train: {spec.name}: passed over: part-00000 was cut.",
        f"train: {spec.name}: resumes at step 10 from step-00000010",
        # 20 steps of 1.5 s; 30 s, 60 s of nobody and 20 s
        "train: goodput 27.3% (30 s of useful steps in 1 min 50 s); 1 resumption and 0 rollbacks, 5 steps lost: see "
        "electra events out",
    ]


def test_a_request_to_stop_is_exit_75(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the loop raises it on every rank: the sentence alone, and the code, whatever the output."""
    sentence = "electra-s0: stopped at step 5 of 9 (SIGTERM), saved; the same command again resumes"

    def stopped(*_: object, **__: object) -> None:
        raise StoppedError(sentence)

    monkeypatch.setattr(stages, "run", stopped)
    assert refused(75, "train", QUICKSTART, "--out", place.folder.path) == sentence
    done = electra("train", QUICKSTART, "--out", place.folder.path, "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (75, {"exit_code": 75, "error": sentence})


def test_a_run_that_was_asked_to_stop_is_no_longer_running_for_mlflow(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    def sync(*_: object, training: bool, **__: object) -> SimpleNamespace:
        told.append(training)
        return SimpleNamespace(reachable=True)

    def work(run_dir: Path) -> Iterator[dict[str, Any]]:
        yield attempt(run_dir)
        raise StoppedError("stopped")

    monkeypatch.setattr(tracking, "sync", sync)
    monkeypatch.setattr(tracking_live, "MIRROR_SECONDS", 0.0)
    with pytest.raises(StoppedError):
        train(place, monkeypatch, work)
    assert told == [True, False]


def test_a_stop_that_comes_too_late_for_any_run_ends_the_command_before_what_follows(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(run_dir: Path) -> Iterator[dict[str, Any]]:
        yield attempt(run_dir)
        requests.ask(run_dir.parent, "stop", "maintenance")

    with pytest.raises(StoppedError, match=r"^stopped when all runs were trained \(maintenance\); the same command"):
        train(place, monkeypatch, work)
    requests.ask(place.folder.runs, "save", "no stop")
    (place.folder.runs / "request-stop.json").unlink()
    train(place, monkeypatch, lambda run_dir: [attempt(run_dir)])


def test_a_file_that_cannot_be_read_for_a_moment_does_not_end_the_mirror(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def sync(*_: object, **__: object) -> SimpleNamespace:
        tried.append(1)
        if len(tried) == 1:
            raise OSError(errno.EIO, "Input/output error")
        return SimpleNamespace(reachable=True)

    monkeypatch.setattr(tracking, "sync", sync)
    monkeypatch.setattr(tracking_live, "MIRROR_SECONDS", 0.0)
    train(place, monkeypatch, lambda run_dir: [attempt(run_dir) for _ in range(3)])
    assert len(tried) == 3
