"""Durable, atomic writes: a reader sees a whole file or none.

Every file that another process reads is written under a temporary name in the same folder, flushed, fsynced and
renamed, and the folder is fsynced after it. Temporary names are unique, so two attempts at the same file never share
one; since a file's bytes are a function of its inputs, whichever rename comes last changes nothing. Local file systems
only.
"""

import contextlib
import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from data_prep.errors import DataError, PreflightError

TEMPORARY_MARK = ".tmp-"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def atomic_writer(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that appears under `path` only when the block ends without an exception."""
    temporary = path.with_name(f"{path.name}{TEMPORARY_MARK}{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _FULL:
            error.filename = str(path)  # the system names no file when a write fails
        raise
    sync_folder(path.parent)


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
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path} does not exist.") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(
            f"{path} is not valid JSON ({error}); restore it or delete its folder and prepare again."
        ) from None


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


def remove_temporaries(folder: Path) -> int:
    """Delete what interrupted writers left under `folder`; returns how many files. Call when no writer is at work."""
    left = [path for path in folder.rglob(f"*{TEMPORARY_MARK}*") if path.is_file()]
    for path in left:
        path.unlink(missing_ok=True)
    return len(left)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
