"""Whose a store is: another run's is refused, and a run does not begin anew because its store has another name."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_prep import storage
from data_prep.errors import ConfigError
from data_prep.storage import Folder
from tests.training.runs import ELECTRA, spec_for
from tests.training.saved import engine, local, saver, take
from training import checkpoints, run_folder
from training.settings import CheckpointConfig

pytestmark = pytest.mark.usefixtures("process_group")


@pytest.fixture(scope="module")
def saved(corpus: Path, process_group: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store that holds step 1; not to be changed."""
    folder = tmp_path_factory.mktemp("saved")
    with engine() as built:
        take(saver(local(folder), built, corpus), 1)
    yield folder / "checkpoints"


def runs_store(run_dir: Path, to: Path) -> Folder:
    run_dir.mkdir(parents=True, exist_ok=True)
    return checkpoints.store(run_dir, CheckpointConfig(to=str(to)))


def test_two_runs_of_one_name_do_not_share_a_store(saved: Path, tmp_path: Path) -> None:
    mine, other = tmp_path / "one" / "runs" / "bert-s0", tmp_path / "two" / "runs" / "bert-s0"
    store = runs_store(mine, tmp_path / "to")
    checkpoints.claim(store, mine)
    shutil.copytree(saved, Path(store.location), dirs_exist_ok=True)
    checkpoints.claim(store, mine)  # as at every attempt
    assert runs_store(other, tmp_path / "to").location == store.location
    with pytest.raises(ConfigError) as caught:
        checkpoints.claim(store, other)
    assert f"{store} holds the checkpoints of another run than {other}" in str(caught.value)
    assert not (other / "owner.json").exists()
    shutil.copy(Path(store.location) / "owner.json", other)  # as it says, where the run's folder was lost
    checkpoints.claim(store, other)


def test_a_run_does_not_begin_anew_because_its_store_has_another_name(
    saved: Path, corpus: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    store = runs_store(run_dir, tmp_path / "to")
    checkpoints.claim(store, run_dir)  # nothing was saved anywhere yet
    run_folder.write_run_record(run_dir, spec_for(ELECTRA, corpus, checkpoints={"to": str(tmp_path / "to")}))
    elsewhere = [runs_store(run_dir, tmp_path / "new"), storage.folder(run_dir / "checkpoints")]
    for place in elsewhere:
        checkpoints.claim(place, run_dir)
    shutil.copytree(saved, Path(store.location), dirs_exist_ok=True)
    for place in elsewhere:
        with pytest.raises(ConfigError, match=rf"run has its checkpoints in {store}, and there are none in {place}"):
            checkpoints.claim(place, run_dir)
    for place in elsewhere:
        shutil.copytree(saved, Path(place.location), dirs_exist_ok=True)
        checkpoints.claim(place, run_dir)


def test_a_store_in_the_runs_own_folder_needs_no_owner(tmp_path: Path) -> None:
    checkpoints.claim(local(tmp_path), tmp_path)
    assert list(tmp_path.iterdir()) == []
