"""Which checkpoint a path names, and what is known of it."""

import json
import shutil
from pathlib import Path

import pytest

from data_prep import storage
from data_prep.errors import CheckpointError, ConfigError
from data_prep.storage import sha256_of
from tests.training.origins import ENCODER, RATE, find, hugging_face, plan, run_of, stored
from tests.training.runs import cut_back, done
from tests.training.synthetic import VOCAB
from training.arms import BertArm
from training.checkpoints import Progress
from training.ledgers import Ledger


def test_a_checkpoint_a_run_and_an_experiment_name_the_same(experiment: Path, corpus: Path) -> None:
    run = run_of(experiment, "bert")
    last = run / "checkpoints" / "step-00000004"
    (spec,) = plan(BertArm(learning_rate=RATE), corpus)
    for path in (last, run, experiment):
        found = find(path)
        assert (found.folder, found.identity) == (last, f"{spec.identity.fingerprint()}@4")
        assert found.main == found.masked == ENCODER and found.generator is None
        (ledger,) = found.ledgers.values()
        assert [*found.ledgers] == [spec.identity.fingerprint()]
        assert (ledger.step, ledger.planned, ledger.flops_counted) == (4, spec.budget, done(run)["flops_counted"])
    assert find(run / "checkpoints" / "step-00000002").identity == f"{spec.identity.fingerprint()}@2"


def test_an_unfinished_run_gives_nothing_but_the_checkpoint_that_is_named(experiment: Path, tmp_path: Path) -> None:
    run = shutil.copytree(run_of(experiment, "bert"), tmp_path / "run")
    cut_back(run, 2)
    (run / "checkpoints" / "step-00000003").mkdir()  # without a manifest it does not exist
    newest = run / "checkpoints" / "step-00000002"
    with pytest.raises(CheckpointError) as caught:
        find(run)
    assert (
        "is not finished; train it to its end, or name a checkpoint that its retention keeps for good: it has"
        in str(caught.value)
    )
    manifest = storage.read_json(newest / "manifest.json")
    manifest["spec"]["placement"]["checkpoints"]["keep_every"] = 2  # it will still be there when it is begun with
    storage.write_json(newest / "manifest.json", manifest)
    with pytest.raises(CheckpointError, match=r"keeps for good, .*step-00000002$"):
        find(run)
    assert find(newest).identity.endswith("@2")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(CheckpointError, match="has no checkpoint; train it first"):
        find(run)


def test_an_experiment_gives_the_run_that_is_asked_for_as_far_as_needed(experiment: Path, tmp_path: Path) -> None:
    assert find(experiment, "electra", "electra").folder.parents[1] == run_of(experiment, "electra")
    assert find(experiment, "mine", "bert").folder.parents[1] == run_of(experiment, "bert")
    with pytest.raises(ConfigError) as caught:
        find(experiment, "mlm", "mlm")
    message = str(caught.value)
    assert all(run_of(experiment, label).name in message for label in ("bert", "electra"))
    assert "holds several runs that it may mean" in message and message.endswith("name the folder of one of them")
    with pytest.raises(ConfigError, match=r"holds no run with seed 7; .* name the folder of one run \(bert-.*electra-"):
        find(experiment, "electra", "electra", seed=7)
    assert find(run_of(experiment, "bert"), seed=7).folder.parents[1] == run_of(experiment, "bert")  # said outright

    alone = tmp_path / "alone"
    (alone / "runs").mkdir(parents=True)
    with pytest.raises(ConfigError, match="holds no run yet; train it first"):
        find(alone)
    shutil.copytree(run_of(experiment, "bert"), alone / "runs" / "bert")
    first = shutil.copytree(run_of(experiment, "electra"), alone / "runs" / "first")
    record = json.loads((first / "run.json").read_text())
    storage.write_json(first / "run.json", {**record, "part_of": "another"})
    assert find(alone, "electra", "electra").folder.parents[1].name == "bert"  # a first stage is named by its folder


def test_networks_of_an_origin_go_by_what_they_are_for(experiment: Path, tmp_path: Path) -> None:
    electra = find(run_of(experiment, "electra"))
    assert electra.main == ENCODER
    assert electra.generator == electra.masked == ENCODER.scaled(0.5, 1.0)
    for architecture, main, generator, masked in (
        ("ElectraForPreTraining", True, False, False),
        ("ElectraForMaskedLM", False, True, True),
    ):
        folder = tmp_path / architecture
        hugging_face(folder, architecture)
        found = find(folder)
        assert found.identity == f"sha256:{sha256_of(folder / 'model.safetensors')}"
        assert (found.main is not None, found.generator is not None, found.masked is not None) == (
            main,
            generator,
            masked,
        )
        assert found.vocab_size == VOCAB and found.ledgers == {}


@pytest.mark.parametrize("made", [False, True], ids=["nothing", "an empty folder"])
def test_a_path_that_names_nothing_is_refused(made: bool, tmp_path: Path) -> None:
    if made:
        (tmp_path / "x").mkdir()
    with pytest.raises(CheckpointError if made else ConfigError, match=r"init_from: .*/x "):
        find(tmp_path / "x")


def test_a_checkpoint_tells_its_own_ledger_from_those_it_inherited(experiment: Path, tmp_path: Path) -> None:
    """7 of 10 are its own; half of its steps are half of what its budget leaves."""
    like = run_of(experiment, "bert") / "checkpoints" / "step-00000002"
    begun = Ledger(step=9, planned=2.0, flops_counted=3.0, flops_spent=4.0, tokens=30, seconds=1.0)
    progress = Progress(step=2, flops_counted=10.0, flops_spent=12.0, tokens=50, seconds=5.0, inherited={"a": begun})
    folder = stored(tmp_path / "b", like, "b", progress, budget=12.0, inherited_budget=2.0)
    assert find(folder).ledgers == {
        "a": begun,
        "b": Ledger(step=2, planned=5.0, flops_counted=7.0, flops_spent=8.0, tokens=20, seconds=4.0),
    }


def test_a_hugging_face_folder_is_hashed_once_as_long_as_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hugging_face(tmp_path / "hf", "ElectraForMaskedLM")
    hashed: list[str] = []
    sha256_of = storage.sha256_of
    monkeypatch.setattr(storage, "sha256_of", lambda path: hashed.append(path.name) or sha256_of(path))
    one = find(tmp_path / "hf")
    assert find(tmp_path / "hf", "mlm", "mlm", seed=3) == one and hashed == ["model.safetensors"]
    shutil.rmtree(tmp_path / "hf")
    hugging_face(tmp_path / "hf", "ElectraForMaskedLM", seed=8)
    assert find(tmp_path / "hf").identity != one.identity and len(hashed) == 2
