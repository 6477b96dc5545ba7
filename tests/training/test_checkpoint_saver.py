"""Saving beside training: what is copied, what is committed, and what is left where a disk or a store fails."""

import errno
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from data_prep import storage
from data_prep.errors import PreflightError
from data_prep.storage import LocalFolder
from tests.training.saved import at, engine, fill, local, saver, take, values
from training import checkpoints
from training.checkpoints import Progress
from training.engine import Engine

pytestmark = pytest.mark.usefixtures("process_group")


@pytest.fixture(scope="module")
def one(process_group: None) -> Iterator[Engine]:
    with engine() as built:
        yield built


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_part_is_a_safetensors_file_of_this_ranks_slices(one: Engine, corpus: Path, tmp_path: Path) -> None:
    fill(one, 3.0)
    outcome = take(saver(local(tmp_path), one, corpus), 7, heldout_loss=1.5)
    folder = tmp_path / "checkpoints" / "step-00000007"
    assert files(folder) == ["manifest.json", "part-00000.safetensors"]
    part = folder / "part-00000.safetensors"
    assert (outcome.step, outcome.saved, outcome.reason, outcome.pruned) == (7, True, None, [])
    assert outcome.bytes == part.stat().st_size
    expected = {
        f"{kind}/{piece.name}@{piece.start}": tensor for piece in one.slices() for kind, tensor in piece.tensors.items()
    }
    with safe_open(part, "pt") as file:
        assert set(file.keys()) == set(expected)
        assert all(torch.equal(file.get_tensor(key), tensor) for key, tensor in expected.items())
    found = at(local(tmp_path), 7)
    assert (found.name, found.progress) == ("step-00000007", Progress(step=7, tokens=70))
    assert found.manifest["parts"] == [
        {"name": part.name, "bytes": part.stat().st_size, "sha256": storage.sha256_of(part)}
    ]
    kept = ("heldout_loss", "next_rows", "world_size", "version", "identity")
    identity = found.spec.identity.fingerprint()
    assert [found.manifest[name] for name in kept] == [1.5, "rows 7", 1, 3, identity]


def test_what_is_saved_is_what_was_there_when_it_started(one: Engine, corpus: Path, tmp_path: Path) -> None:
    halfway, go_on = threading.Event(), threading.Event()

    def wait(step: int) -> None:
        halfway.set()
        go_on.wait(30)

    fill(one, 1.0)
    saving = saver(local(tmp_path), one, corpus, while_writing=wait)
    assert not saving.pending and not saving.busy
    saving.start(Progress(step=1), heldout_loss=None, next_rows="")
    fill(one, 2.0)  # training goes on
    assert halfway.wait(30) and saving.busy and saving.pending
    assert files(tmp_path / "checkpoints") != [] and checkpoints.newest(local(tmp_path))[0] is None
    go_on.set()
    second = saving.start(Progress(step=2), heldout_loss=None, next_rows="")  # waits for the first
    assert second is not None and (second.step, second.saved) == (1, True)
    assert values(at(local(tmp_path), 1)) == {1.0, 1.25, 1.5}
    assert saving.settle().step == 2 and not saving.pending and not saving.busy
    assert values(at(local(tmp_path), 2)) == {2.0, 2.25, 2.5}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_error_of_the_disk_is_an_outcome_and_leaves_nothing(
    number: int, one: Engine, corpus: Path, tmp_path: Path
) -> None:
    def fail(step: int) -> None:
        if step == 2:
            raise OSError(number, os.strerror(number), "/somewhere")

    saving = saver(local(tmp_path), one, corpus, while_writing=fail)
    assert take(saving, 1).saved
    before = files(tmp_path)
    outcome = take(saving, 2)
    where = "/somewhere"
    if number == errno.ENOSPC:  # the system names no file, so the writer does
        where = str(tmp_path / "checkpoints" / "step-00000002" / "part-00000.safetensors")
    assert (outcome.saved, outcome.reason) == (False, f"{where}: {os.strerror(number)}")
    assert files(tmp_path) == before and not saving.pending
    assert take(saving, 3).saved and at(local(tmp_path), 3).progress.step == 3


def test_a_part_that_rank_0_does_not_see_is_not_saved(one: Engine, corpus: Path, tmp_path: Path) -> None:
    """As where ranks do not share the disk."""
    saving = saver(local(tmp_path), one, corpus)
    assert take(saving, 1).saved
    saving.start(Progress(step=2), heldout_loss=None, next_rows="")
    while saving.busy:
        time.sleep(0.01)
    (tmp_path / "checkpoints" / "step-00000002" / "part-00000.safetensors").unlink()
    outcome = saving.settle()
    assert not outcome.saved and outcome.reason is not None
    assert "step-00000002/part-00000.safetensors: rank 0 does not see, or not whole, what rank 0" in outcome.reason
    assert [entry.step for entry in checkpoints.listing(local(tmp_path))] == [1]


def test_any_other_error_is_raised_when_it_is_settled(one: Engine, corpus: Path, tmp_path: Path) -> None:
    def fail(step: int) -> None:
        raise ZeroDivisionError

    saving = saver(local(tmp_path), one, corpus, while_writing=fail)
    with pytest.raises(ZeroDivisionError):
        take(saving, 1)
    assert files(tmp_path) == []


@pytest.mark.parametrize("arrived", [False, True])
def test_a_commit_without_an_answer_is_taken_back(
    arrived: bool, one: Engine, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may have taken the manifest although it answered with an error."""
    write_json = LocalFolder.write_json

    def fail(self: LocalFolder, name: str, value: Any) -> None:
        if arrived:
            write_json(self, name, value)
        raise OSError(errno.EIO, "no answer", name)

    saving = saver(local(tmp_path), one, corpus)
    monkeypatch.setattr(LocalFolder, "write_json", fail)
    outcome = take(saving, 1)
    assert (outcome.saved, outcome.reason) == (False, "manifest.json: no answer")
    assert files(tmp_path) == []


# --- a step that is there already -------------------------------------------------------------------------------------


def test_an_older_checkpoint_of_the_step_is_whole_until_the_new_one_is(
    one: Engine, corpus: Path, tmp_path: Path
) -> None:
    seen = []
    fill(one, 1.0)
    take(saver(local(tmp_path), one, corpus), 5)
    fill(one, 2.0)
    take(
        saver(local(tmp_path), one, corpus, while_writing=lambda step: seen.append(values(at(local(tmp_path), step)))),
        5,
    )
    assert seen == [{1.0, 1.25, 1.5}]
    assert values(at(local(tmp_path), 5)) == {2.0, 2.25, 2.5}
    assert files(tmp_path / "checkpoints" / "step-00000005") == ["manifest.json", "part-00000.1.safetensors"]


def test_what_a_killed_saving_left_is_in_nobodys_way(one: Engine, corpus: Path, tmp_path: Path) -> None:
    """Killed between the part and the manifest, at another world size; the step comes again."""
    fill(one, 1.0)
    take(saver(local(tmp_path), one, corpus), 4)
    folder = tmp_path / "checkpoints" / "step-00000005"
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"part-{rank:05d}.safetensors").write_bytes(b"of another attempt")
    found, passed_over = checkpoints.newest(local(tmp_path))
    assert found is not None and found.progress.step == 4
    assert passed_over == [f"{folder} holds no manifest.json: it is not a finished checkpoint; choose another."]
    take(saver(local(tmp_path), one, corpus), 5)
    assert values(at(local(tmp_path), 5)) == {1.0, 1.25, 1.5}
    assert files(folder) == ["manifest.json", "part-00000.1.safetensors"]


def test_a_rollback_leaves_later_checkpoints_behind(one: Engine, corpus: Path, tmp_path: Path) -> None:
    store = local(tmp_path)
    saving = saver(store, one, corpus)
    for step, value in ((1, 1.0), (2, 2.0), (3, 3.0)):
        fill(one, value)
        take(saving, step)
    checkpoints.set_aside(store, after=1)
    found, passed_over = checkpoints.newest(store)
    assert found is not None and found.progress.step == 1
    assert passed_over == [
        f"{store}/step-0000000{n} was left behind by a rollback: choose another checkpoint." for n in (3, 2)
    ]
    fill(one, 4.0)
    take(saving, 2)
    assert values(at(store, 2)) == {4.0, 4.25, 4.5}
    assert [entry.state for entry in checkpoints.listing(store)] == ["valid", "valid", "unfinished"]
    take(saving, 4)  # past all of them
    assert [entry.step for entry in checkpoints.listing(store)] == [1, 2, 4]


def test_retention_works_when_the_new_one_is_there(one: Engine, corpus: Path, tmp_path: Path) -> None:
    saving = saver(local(tmp_path), one, corpus, keep_last=2, keep_every=4, keep_best=False)
    pruned = [take(saving, step).pruned for step in range(1, 9)]
    names = [[f"step-{step:08d}" for step in steps] for steps in ([], [], [1], [2], [3], [], [5], [6])]
    assert pruned == names
    assert [entry.step for entry in checkpoints.listing(local(tmp_path))] == [4, 7, 8]


# --- real disks -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for 3 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", path], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"a tmpfs needs the privilege to mount: {made.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def test_a_full_disk_costs_one_saving_and_no_checkpoint(one: Engine, corpus: Path, small_disk: Path) -> None:
    saving = saver(local(small_disk), one, corpus)
    assert take(saving, 1).saved
    (small_disk / "ballast").write_bytes(
        bytes(os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize - 50_000)
    )
    before = files(small_disk)
    outcome = take(saving, 2)
    assert not outcome.saved and outcome.reason is not None and outcome.reason.endswith("No space left on device")
    assert "step-00000002/part-00000.safetensors" in outcome.reason
    assert files(small_disk) == before
    assert at(local(small_disk), 1).progress.step == 1
    (small_disk / "ballast").unlink()
    assert take(saving, 3).saved


def test_a_disk_that_cannot_be_written_to_is_said_so(one: Engine, corpus: Path, small_disk: Path) -> None:
    saving = saver(local(small_disk), one, corpus)
    assert take(saving, 1).saved
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    outcome = take(saving, 2)
    assert not outcome.saved and outcome.reason is not None and "Read-only file system" in outcome.reason
    found, passed_over = checkpoints.choose(local(small_disk))
    assert found is not None and (found.progress.step, passed_over) == (1, [])
    with pytest.raises(PreflightError, match=r"Cannot write to .*checkpoints \(Read-only file system\)"):
        checkpoints.preflight(local(small_disk), one.objective, found.spec)
