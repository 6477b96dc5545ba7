"""Which checkpoint a run resumes from: damaged ones are passed over by name, and what to do when none is left."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from data_prep.errors import CheckpointError, StoreError
from data_prep.storage import LocalFolder
from tests.training.saved import at, engine, fill, local, saver, take, values
from training import checkpoints

pytestmark = pytest.mark.usefixtures("process_group")


@pytest.fixture(scope="module")
def saved(corpus: Path, process_group: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run's folder with checkpoints of steps 1, 2 and 3; not to be changed."""
    folder = tmp_path_factory.mktemp("saved")
    with engine() as built:
        saving = saver(local(folder), built, corpus)
        for step in (1, 2, 3):
            fill(built, float(step))
            take(saving, step)
    yield folder


@pytest.fixture
def run_dir(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "run")


def change(folder: Path, **values: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def flip(folder: Path) -> None:
    part = folder / "part-00000.safetensors"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)


def cut(folder: Path) -> None:
    part = folder / "part-00000.safetensors"
    part.write_bytes(part.read_bytes()[:-1])


def name_a_missing_part(folder: Path) -> None:
    parts = json.loads((folder / "manifest.json").read_text())["parts"]
    change(folder, parts=[*parts, {"name": "part-00001.safetensors", "bytes": 1, "sha256": "00"}])


def drop_checksums(folder: Path) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["proof"]
    path.write_text(json.dumps(manifest))


DAMAGE: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "a flipped byte": (flip, "broken", "part-00000.safetensors was cut or altered (size or sha256 differs)"),
    "a cut part": (cut, "broken", "part-00000.safetensors was cut or altered (size or sha256 differs)"),
    "no part": (
        lambda folder: (folder / "part-00000.safetensors").unlink(),
        "broken",
        "part-00000.safetensors is missing",
    ),
    "a part that is named and not there": (name_a_missing_part, "broken", "part-00001.safetensors is missing"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "unfinished", "holds no manifest.json"),
    "a torn manifest": (
        lambda folder: (folder / "manifest.json").write_text('{"version": 3, "par'),
        "broken",
        "manifest.json is not a checkpoint manifest",
    ),
    "another version": (
        lambda folder: change(folder, version=2),
        "old version",
        "manifest.json is of version 2 and not 3",
    ),
    "no parts": (lambda folder: change(folder, parts=[]), "broken", "manifest.json lists no parts"),
    "no checksums": (drop_checksums, "broken", "is not a checkpoint manifest"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_one_is_passed_over_by_name_and_set_aside(name: str, run_dir: Path) -> None:
    damage, state, sentence = DAMAGE[name]
    store, folder = local(run_dir), run_dir / "checkpoints" / "step-00000003"
    damage(folder)
    (entry,) = [entry for entry in checkpoints.listing(store, verify=True) if entry.step == 3]
    assert entry.state == state and entry.reason is not None and sentence in entry.reason
    found, passed_over = checkpoints.choose(store)
    assert found is not None and found.progress.step == 2
    assert len(passed_over) == 1 and str(folder) in passed_over[0] and sentence in passed_over[0]
    assert values(found) == {2.0, 2.25, 2.5}
    # kept for whoever wants to look, out of the way of the step that comes again; one of another version is as good as
    # it was, for the release that wrote it
    aside = [path for path in (run_dir / "checkpoints").glob("step-00000003.broken-*")]
    assert len(aside) == (state == "broken") and folder.exists() == (state != "broken")
    left = [entry for entry in checkpoints.listing(store) if entry.step == 3]
    assert [(entry.state, entry.reason) for entry in left] == [(state, passed_over[0])]
    assert checkpoints.choose(store)[1] == ([] if aside else passed_over)


def test_where_none_is_left_it_says_so_and_touches_nothing(run_dir: Path) -> None:
    folders = sorted((run_dir / "checkpoints").glob("step-*"))
    for folder in folders:
        flip(folder)
    with pytest.raises(
        CheckpointError, match=r"no valid checkpoint is left .*step-00000003/part-00000.*; restore one"
    ) as caught:
        checkpoints.choose(local(run_dir))
    assert caught.value.exit_code == 5
    assert sorted((run_dir / "checkpoints").glob("step-*")) == folders
    for folder in folders:  # the manifests are lost: they were there once
        (folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"holds no manifest\.json"):
        checkpoints.choose(local(run_dir))
    for folder in folders:
        shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match="all are gone"):
        checkpoints.choose(local(run_dir))


def test_a_run_that_was_killed_in_its_first_saving_begins_anew(tmp_path: Path) -> None:
    assert checkpoints.choose(local(tmp_path)) == (None, [])
    folder = tmp_path / "checkpoints" / "step-00000006"
    folder.mkdir(parents=True)
    (folder / "part-00000.safetensors").write_bytes(b"whole or not")
    (folder / "part-00001.safetensors.tmp-12-0123abcd").write_bytes(b"torn")
    found, passed_over = checkpoints.choose(local(tmp_path))
    assert found is None and len(passed_over) == 1 and "holds no manifest.json" in passed_over[0]
    assert [path.name for path in folder.iterdir()] == ["part-00000.safetensors"]


def test_a_store_that_does_not_answer_says_nothing_of_its_checkpoints(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than begin anew, or from an older one; what a disk cannot read twice is damage."""
    names, whole = sorted(path.name for path in (run_dir / "checkpoints").iterdir()), LocalFolder.sha256
    for number in (errno.ESTALE, errno.EACCES, errno.EMFILE, errno.ETIMEDOUT):
        monkeypatch.setattr(LocalFolder, "sha256", refuse(OSError(number, os.strerror(number))))
        with pytest.raises(StoreError, match=rf"cannot be read \({os.strerror(number)}\); put that right"):
            checkpoints.choose(local(run_dir))
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == names
    monkeypatch.setattr(LocalFolder, "sha256", once(OSError(errno.EIO, "Input/output error"), whole))
    found, passed_over = checkpoints.choose(local(run_dir))
    assert found is not None and (found.progress.step, passed_over) == (3, [])
    monkeypatch.setattr(LocalFolder, "sha256", refuse(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(CheckpointError, match=r"no valid .*part-00000\.safetensors cannot be read \(Input/output"):
        checkpoints.choose(local(run_dir))
    monkeypatch.setattr(LocalFolder, "sizes", refuse(OSError(errno.EIO, "Input/output error")))
    for look in (checkpoints.choose, checkpoints.listing, checkpoints.newest):
        with pytest.raises(StoreError, match=r"cannot be read \(Input/output error\); put that right"):
            look(local(run_dir))


def refuse(error: OSError) -> Callable[..., str]:
    def act(*arguments: object) -> str:
        raise error

    return act


def once(error: OSError, act: Callable[..., str]) -> Callable[..., str]:
    errors = [error]

    def acts(*arguments: object) -> str:
        if errors:
            raise errors.pop()
        return act(*arguments)

    return acts


def test_what_a_rollback_left_behind_is_not_there(run_dir: Path) -> None:
    """Neither to resume from nor to be told of or set aside, whole or not."""
    cut(run_dir / "checkpoints" / "step-00000003")
    before = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    found, passed_over = checkpoints.choose(local(run_dir), left_behind=lambda progress: progress.step > 1)
    assert found is not None and (found.progress.step, passed_over) == (1, [])
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == before


def test_a_rollback_chooses_among_earlier_ones(run_dir: Path) -> None:
    flip(run_dir / "checkpoints" / "step-00000002")
    found, passed_over = checkpoints.choose(local(run_dir), at_most=2)
    assert found is not None and found.progress.step == 1
    assert len(passed_over) == 1 and "step-00000002" in passed_over[0]
    assert at(local(run_dir), 3).progress.step == 3
    assert checkpoints.choose(local(run_dir / "elsewhere"), at_most=2) == (None, [])


def test_a_checkpoint_may_be_moved_and_named_by_its_path(run_dir: Path, tmp_path: Path) -> None:
    moved = (run_dir / "checkpoints" / "step-00000002").rename(tmp_path / "mine")
    found = checkpoints.verify(moved)
    assert (found.name, str(found)) == ("step-00000002", str(moved))
    assert found.sha256 == checkpoints.read(str(moved)).sha256
    with pytest.raises(CheckpointError, match="it is not a finished checkpoint"):
        checkpoints.read(tmp_path / "nowhere")


# --- what is in a part ------------------------------------------------------------------------------------------------


def corrupt_header(part: Path) -> None:
    data = bytearray(part.read_bytes())
    data[8] = ord("?")
    part.write_bytes(data)


def far_too_long_header(part: Path) -> None:
    data = bytearray(part.read_bytes())
    data[:8] = (1 << 60).to_bytes(8, "little")
    part.write_bytes(data)


def same_slice_twice(part: Path) -> None:
    shutil.copy(part, part.with_name("part-00001.safetensors"))
    parts = json.loads((part.parent / "manifest.json").read_text())["parts"]
    change(part.parent, parts=[*parts, {**parts[0], "name": "part-00001.safetensors"}])


def lost_slice(part: Path) -> None:
    length = int.from_bytes(part.read_bytes()[:8], "little")
    header = json.loads(part.read_bytes()[8 : 8 + length])
    del header["exp_avg/embeddings.word.weight@0"]
    text = json.dumps(header, separators=(",", ":")).encode().ljust(length)
    part.write_bytes(part.read_bytes()[:8] + text + part.read_bytes()[8 + length :])


def half_floats(part: Path) -> None:
    part.write_bytes(part.read_bytes().replace(b'"F32"', b'"F16"', 1))


CONTENT: list[tuple[Callable[[Path], None], str]] = [
    (corrupt_header, r"part-00000\.safetensors cannot be read"),
    (far_too_long_header, r"part-00000\.safetensors cannot be read \(its header is longer than it\)"),
    (same_slice_twice, "slices of .* do not fit together"),
    (lost_slice, r"slices of exp_avg/embeddings\.word\.weight do not fit together"),
    (half_floats, "is not fp32"),
    (
        lambda part: part.write_bytes(part.read_bytes()[:-8]),
        r"part-00000\.safetensors ends before what its header says",
    ),
]


@pytest.mark.parametrize(("damage", "sentence"), CONTENT, ids=lambda value: getattr(value, "__name__", ""))
def test_a_part_that_is_no_part_is_refused_in_a_sentence(
    damage: Callable[[Path], None], sentence: str, run_dir: Path
) -> None:
    """Also where nobody has compared its hash."""
    folder = run_dir / "checkpoints" / "step-00000001"
    found = checkpoints.read(folder)
    damage(folder / "part-00000.safetensors")
    found = checkpoints.read(folder) if damage is same_slice_twice else found
    with engine() as built, pytest.raises(CheckpointError, match=sentence):
        checkpoints.restore(built, found)
