"""A reader sees a whole file or none."""

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from data_prep import storage
from data_prep.errors import DataError, PreflightError


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    storage.write_json(path, {"b": 1, "a": "é"})
    assert path.read_text(encoding="utf-8") == '{\n "a": "é",\n "b": 1\n}\n'
    with pytest.raises(RuntimeError), storage.atomic_writer(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert storage.read_json(path) == {"a": "é", "b": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_a_full_disk_is_told_with_the_files_name(tmp_path: Path) -> None:
    with pytest.raises(OSError) as error, storage.atomic_writer(tmp_path / "x"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert error.value.filename == str(tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_nothing_appears_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with storage.atomic_writer(path) as file:
        file.write(b"1")
        assert not path.exists()
    assert path.read_bytes() == b"1"


def test_left_temporaries_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.tar.tmp-12-0123abcd").touch()
    (tmp_path / "a.tar").touch()
    (tmp_path / "notes.tmp-1").touch()  # not ours
    storage.LocalFolder(tmp_path).remove_temporaries()
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["a.tar", "notes.tmp-1"]


def test_a_folder_that_cannot_be_made_is_a_preflight_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PreflightError, match=r"file/corpus .*--out"):
        storage.make_folder(tmp_path / "file" / "corpus")


def test_missing_and_broken_json_are_data_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        storage.read_json(tmp_path / "none.json")
    (tmp_path / "bad.json").write_bytes(b"\xff{")
    with pytest.raises(DataError, match=r"bad\.json is not valid JSON"):
        storage.read_json(tmp_path / "bad.json")


def test_sha256_of_a_known_text(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")  # FIPS 180-2, appendix B.1
    assert storage.sha256_of(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_folder_that_is_only_looked_at_can_be_held(tmp_path: Path) -> None:
    """A shared lock for a tenth of a second is waited for; a second holder is refused."""
    folder = storage.LocalFolder(tmp_path)
    looking = open(tmp_path / storage.LOCK, "wb")  # noqa: SIM115
    fcntl.flock(looking, fcntl.LOCK_SH)
    threading.Timer(0.1, looking.close).start()
    with folder.held(), pytest.raises(PreflightError, match="another electra process"), folder.held():
        pass
