"""Durable, atomic writes and the folders they go to, on a local disk or in an object store.

A reader sees a whole file or none. On a local disk every file that another process reads is written under a temporary
name in the same folder, flushed, fsynced and renamed, and the folder is fsynced after it; in an object store it is
written to a local temporary file and then put whole. Temporary names are unique, so two attempts at the same file never
share one; since a file's bytes are a function of its inputs, whichever comes last changes nothing. `Folder` is what the
rest of the package works on; how an object store is spoken to is in `data_prep.objects`.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import xxhash

from data_prep.errors import DataError, PreflightError

TEMPORARY_MARK = ".tmp-"
_TEMPORARY = re.compile(r".*\.tmp-\d+-[0-9a-f]{8}")  # as `atomic_writer` makes them, and nobody else
LOCK = ".lock"
LOCK_SECONDS = 1.0  # that a command waits for the lock
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def atomic_writer(path: Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """A binary file that appears under `path` only when the block ends without an exception; not `durable`: it may be
    cut or empty after the machine (not the process) died."""
    temporary = path.with_name(f"{path.name}{TEMPORARY_MARK}{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(temporary, "w+b") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _FULL:
            error.filename = str(path)  # the system names no file when a write fails
        raise
    if durable:
        sync_folder(path.parent)


def is_temporary(name: str) -> bool:
    """Whether a file is what an interrupted writer left."""
    return _TEMPORARY.fullmatch(name) is not None


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically and durably."""
    with atomic_writer(path) as file:
        file.write(data)


def write_json(path: Path, value: Any) -> None:
    """Write `json_bytes(value)`, atomically and durably."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Indented JSON with sorted keys, so that equal values are equal bytes."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def read_json(path: Path) -> Any:
    """Read a JSON file. DataError names the file when it is missing or not JSON."""
    return LocalFolder(path.parent).read_json(path.name)


def sha256_of(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_folder(path: Path) -> Path:
    """Create a folder that can be written to, or raise PreflightError with the system's reason."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe{TEMPORARY_MARK}{os.getpid()}-{secrets.token_hex(4)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise PreflightError(
            f"Cannot write to {path} ({reason}); choose another --out or change its permissions."
        ) from None
    return path


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folders(folder: Path, durable: bool) -> None:
    """Make a folder and those above it; `durable`: they are there after the machine died."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        _make_folders(folder.parent, durable)
    folder.mkdir(exist_ok=True)
    if durable:
        sync_folder(folder.parent)


def _unless_missing(function: Any, path: str, error: Any) -> None:
    """For `shutil.rmtree`: raise what it met, but for a file that somebody else has removed before."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]


class Folder(ABC):
    """Named files under one place. Names are relative, with "/" between parts; the object is small and picklable."""

    location: str
    is_local = False

    def __str__(self) -> str:
        return self.location

    @abstractmethod
    def prepare(self) -> None:
        """Make sure that it can be written to. PreflightError gives the reason why not."""

    @abstractmethod
    def writer(self, name: str, *, durable: bool = True) -> AbstractContextManager[IO[bytes]]:
        """A readable and writable binary file that appears as `name`, whole, when the block ends without exception.
        Not `durable`: a file whose hash is compared before it is ever trusted, which saves waiting for the disk."""

    @abstractmethod
    def open(self, name: str) -> Any:
        """The file for reading, seekable. FileNotFoundError when there is none."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Its bytes; None when there is no such file."""

    @abstractmethod
    def sizes(self, prefix: str = "") -> dict[str, int]:
        """All files below the folder `prefix` with their bytes, sorted by name."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""

    @abstractmethod
    def move(self, name: str, to: str) -> None:
        """Give a file another name, in place of a file of that name. FileNotFoundError when there is none."""

    @abstractmethod
    def sub(self, name: str) -> "Folder":
        """The folder `name` below this one; its `location` is also the address of a file of that name."""

    @abstractmethod
    def local(self, name: str, *, sha256: str | None = None) -> Path:
        """A path on this machine with the file's content. From an object store it is a copy, fetched once where
        `sha256` is given, anew otherwise, and compared with `sha256` when it arrives: DataError names it."""

    @abstractmethod
    def remove_temporaries(self) -> None:
        """Delete what interrupted writers left. Call when no writer is at work."""

    @abstractmethod
    def held(self) -> AbstractContextManager[None]:
        """Hold the folder against other processes. The kernel lets go when the process ends, however it ends; no stale
        lock can remain. PreflightError: another process holds it. An object store has no locks: nothing is held."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Room left for files; None where nobody knows, as in an object store."""

    def names(self, prefix: str = "") -> list[str]:
        """All files below the folder `prefix`, sorted."""
        return list(self.sizes(prefix))

    def remove(self, prefix: str) -> None:
        """Remove all files below the folder `prefix`, and on a disk the folder itself; none there is no error."""
        for name in self.names(prefix):
            self.delete(name)

    def read_bytes(self, name: str) -> bytes:
        """The content of a file."""
        with self.open(name) as file:
            return bytes(file.read())

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write a file, atomically and durably."""
        with self.writer(name) as file:
            file.write(data)

    def write_json(self, name: str, value: Any) -> None:
        """Write `json_bytes(value)`, atomically and durably."""
        self.write_bytes(name, json_bytes(value))

    def read_json(self, name: str) -> Any:
        """Read a JSON file. DataError names it when it is missing or not JSON."""
        try:
            return json.loads(self.read_bytes(name))
        except FileNotFoundError:
            raise DataError(f"{self.location}/{name} does not exist.") from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise DataError(
                f"{self.location}/{name} is not valid JSON ({error}); restore it, or delete its folder and prepare "
                "again."
            ) from None

    def sha256(self, name: str) -> str:
        """SHA-256 (hex) of a file's bytes."""
        return self._digest(name, hashlib.sha256())

    def listed(self, names: Sequence[str]) -> list[list[Any]]:
        """[name, bytes, XXH3-128] of files that were just written, as the records of finished work hold them."""
        return [[name, self.size(name), self._digest(name, xxhash.xxh3_128())] for name in names]

    def holds(self, listed: Sequence[Any]) -> bool:
        """Whether a file is what `listed` said of it: by its content on a disk; in an object store, which guards it,
        by its size."""
        name, size, digest = listed
        return self.size(name) == size and (not self.is_local or self._digest(name, xxhash.xxh3_128()) == digest)

    def _digest(self, name: str, digest: Any) -> str:
        with self.open(name) as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return str(digest.hexdigest())


class LocalFolder(Folder):
    """A folder on a disk of this machine, or a file system every machine has mounted."""

    is_local = True

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self.location = str(self.path)

    def prepare(self) -> None:
        make_folder(self.path)

    def writer(self, name: str, *, durable: bool = True) -> AbstractContextManager[IO[bytes]]:
        path = self.path / name
        _make_folders(path.parent, durable)
        return atomic_writer(path, durable=durable)

    def open(self, name: str) -> Any:
        try:
            return open(self.path / name, "rb")
        except NotADirectoryError as error:  # a file stands where a folder should: the file asked for is not there
            raise FileNotFoundError(error.errno, error.strerror, error.filename) from None

    def size(self, name: str) -> int | None:
        path = self.path / name
        return path.stat().st_size if path.is_file() else None

    def sizes(self, prefix: str = "") -> dict[str, int]:
        found = {}
        for path in (self.path / prefix).rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # gone while the others were looked at
                if path.is_file():
                    found[path.relative_to(self.path).as_posix()] = path.stat().st_size
        return dict(sorted(found.items()))

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def move(self, name: str, to: str) -> None:
        path = self.path / to
        _make_folders(path.parent, durable=True)
        os.replace(self.path / name, path)
        sync_folder(path.parent)

    def sub(self, name: str) -> "LocalFolder":
        return LocalFolder(self.path / name)

    def remove(self, prefix: str) -> None:
        shutil.rmtree(self.path / prefix, onerror=_unless_missing)

    def local(self, name: str, *, sha256: str | None = None) -> Path:
        return self.path / name

    def remove_temporaries(self) -> None:
        for path in self.path.rglob(f"*{TEMPORARY_MARK}*"):
            if path.is_file() and is_temporary(path.name):
                path.unlink(missing_ok=True)

    def free_bytes(self) -> int | None:
        place = self.path
        while not place.exists():  # not made yet
            place = place.parent
        return shutil.disk_usage(place).free

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        make_folder(self.path)
        with contextlib.ExitStack() as stack:
            try:
                handle = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
                stack.callback(os.close, handle)
                _lock(handle)
            except BlockingIOError:
                raise PreflightError(
                    f"{self.path}: another electra process is working in this folder; wait for it, or choose another "
                    "folder"
                ) from None
            except OSError as error:  # a file system without locks, or a lock file of another user
                raise PreflightError(
                    f"{self.path / LOCK}: cannot be locked ({error.strerror or error}); choose a folder on a file "
                    "system with locks, or make the file writable"
                ) from None
            yield


def _lock(handle: int) -> None:
    """Take the lock; BlockingIOError where somebody has it for longer than it takes to look whether it is taken."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
            time.sleep(LOCK_SECONDS / 20)


Location = Folder | Path | str


def folder(location: Location) -> Folder:
    """The folder at a local path or an s3:// or gs:// address."""
    if isinstance(location, Folder):
        return location
    if isinstance(location, str) and "://" in location:
        from data_prep.objects import ObjectFolder

        return ObjectFolder(location)
    return LocalFolder(Path(location).expanduser())
