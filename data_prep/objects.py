"""Addresses beyond the local disk: corpora in object stores, and input files anywhere.

Corpora live in S3 or Google Cloud Storage, spoken to through pyarrow; inputs may also lie behind https, read through
fsspec with range requests (http only within a machine: anybody on the way could read and alter it). Credentials come
from the environment, as every tool of these stores expects, and are refused in an address, because addresses are stored
and printed. A put object is there whole or not at all; a whole file that is fetched is compared with the hash its
manifest holds. Nothing is evicted from the cache of fetched files.
"""

import contextlib
import functools
import glob
import hashlib
import io
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from fnmatch import translate
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from data_prep import storage
from data_prep.errors import ConfigError, DataError, PreflightError, StoreError
from data_prep.storage import TEMPORARY_MARK, Folder

STORES = ("s3", "gs")
WEB = ("http", "https")
# An input is told from another one by its size and this much of its content: hashing terabytes before the first unit
# would take longer than the work.
_SAMPLES, _SAMPLE_BYTES = 16, 1 << 16
_BLOCK = 8 << 20
_BUFFER = 1 << 16  # bytes of an object that are asked for at least
_TRIES, _PAUSE = 4, 0.2  # of a read, and seconds after the first; doubled every time
# Names of options of an address that hold a secret, as stores and signed links have them.
_SECRET = re.compile(
    r"secret|token$|signature|credential|passw|access_?key|api_?key|googleaccessid|^(sig|key|auth|jwt)$"
)


def cache_folder() -> Path:
    """Where fetched files are kept: $ELECTRA_CACHE, or the user's cache folder."""
    configured = os.environ.get("ELECTRA_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(configured) if configured else base / "electra"


def scheme_of(address: str) -> str:
    """ "" for a local path, else s3, gs, https, or http within this machine. ConfigError for others and for credentials
    in the address, which are not repeated."""
    if "://" not in address:
        return ""
    scheme = address.split("://", 1)[0].lower()
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
    except ValueError:
        raise ConfigError(f"{scheme}://…: this is not an address; check its host and its brackets.") from None
    held = _secret_in(scheme, parts.netloc, address)
    # A key with a "/" in it ends what is taken for the host, and the rest of it would be the path.
    shown = f"{scheme}://{host}{parts.path}" if scheme in WEB or ":" not in parts.netloc else f"{scheme}://…"
    if held:
        raise ConfigError(
            f"{shown}: put the credentials in the environment, not in the address, which is stored and printed "
            f"({held}){'; download what needs a signed address first' if scheme in WEB else ''}."
        )
    if scheme not in (*STORES, *WEB) or (scheme == "http" and not _is_loopback(host)):
        raise ConfigError(f"{shown}: only local paths and s3://, gs:// and https:// addresses are read.")
    return scheme


def _secret_in(scheme: str, netloc: str, address: str) -> str:
    """What in an address is a secret; "" where nothing is."""
    if "@" in netloc or (scheme in STORES and ":" in netloc):
        return "a user's name or key before the host"
    for part in re.split(r"[?&;#]", address)[1:]:
        name, _, value = part.partition("=")
        name = unquote(name)
        if value and _SECRET.search(name.lower().replace("-", "_")):
            return f"its option {name}"
        if name == "endpoint_override" and "@" in unquote(value):
            return "a user's name or key in endpoint_override"
    return ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@functools.cache
def _store(scheme: str, bucket: str, query: str) -> Any:
    from pyarrow import fs

    return fs.FileSystem.from_uri(f"{scheme}://{bucket}/{'?' + query if query else ''}")[0]


def _resolve(address: str) -> tuple[Any, str]:
    """(pyarrow file system, "bucket/key") of an object-store address."""
    base, query = _without_query(address)
    key = base.split("://", 1)[1].rstrip("/")
    return _store(scheme_of(address), key.split("/", 1)[0], query), key


def _without_query(address: str) -> tuple[str, str]:
    """An address and its options, as `?endpoint_override=HOST:PORT&scheme=http`; a "?" without "=" is of a glob."""
    base, _, query = address.rpartition("?")
    return (base, query) if base and "=" in query else (address, "")


class _PatientReader(io.RawIOBase):
    """An object, whose ranges are asked for again where the store is too busy: pyarrow does so for most requests, but
    takes a refusal that is longer than the range asked for, as a failure of this machine."""

    def __init__(self, file: Any) -> None:
        self._file, self._place = file, 0

    def readinto(self, buffer: Any) -> int:
        for attempt in range(_TRIES):
            try:
                self._file.seek(self._place)
                count = int(self._file.readinto(buffer))
                break
            except OSError:
                if attempt == _TRIES - 1:
                    raise
                time.sleep(_PAUSE * 2**attempt)
        self._place += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._file.size()}[whence]
        self._place = start + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()


class ObjectFolder(Folder):
    """Objects under one prefix of a bucket."""

    def __init__(self, location: str) -> None:
        if scheme_of(location) not in STORES:
            raise ConfigError(f"{location}: a corpus is kept in a local folder or at an s3:// or gs:// address.")
        self.location = location.rstrip("/")

    def prepare(self) -> None:
        probe = f".probe{TEMPORARY_MARK}{os.getpid()}-{secrets.token_hex(4)}"
        try:
            self.write_bytes(probe, b"electra")
            self.delete(probe)
        except OSError as error:
            reason = " ".join(str(error).split())
            raise PreflightError(
                f"Cannot write to {self.location} ({reason}); check the bucket's name and the credentials in the "
                "environment."
            ) from None

    @contextlib.contextmanager
    def writer(self, name: str, *, durable: bool = True) -> Iterator[IO[bytes]]:
        with tempfile.TemporaryFile(prefix="electra-") as file:
            yield file
            file.flush()
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            store, path = self._at(name)
            stream = store.open_output_stream(path)
            try:
                shutil.copyfileobj(file, stream, _BLOCK)
            except BaseException:
                self._take_back(name, stream)
                raise
            stream.close()
        if self.size(name) != size:
            raise StoreError(f"{self.location}/{name} did not arrive whole; run again: finished units are kept.")

    def _take_back(self, name: str, stream: Any) -> None:
        """pyarrow cannot abort: a stream that is closed, or forgotten, completes its object, cut."""
        with contextlib.suppress(OSError):
            stream.close()
            self.delete(name)

    def open(self, name: str) -> Any:
        store, path = self._at(name)
        return io.BufferedReader(_PatientReader(store.open_input_file(path)), _BUFFER)

    def size(self, name: str) -> int | None:
        store, path = self._at(name)
        (info,) = store.get_file_info([path])
        return int(info.size) if info.is_file else None

    def sizes(self, prefix: str = "") -> dict[str, int]:
        from pyarrow import fs

        store, root = self._at("")
        selector = fs.FileSelector(f"{root}/{prefix}".rstrip("/"), recursive=True, allow_not_found=True)
        files = [info for info in store.get_file_info(selector) if info.is_file]
        return dict(sorted((info.path[len(root) + 1 :], int(info.size)) for info in files))

    def delete(self, name: str) -> None:
        if self.size(name) is not None:
            store, path = self._at(name)
            store.delete_file(path)

    def move(self, name: str, to: str) -> None:
        if self.size(name) is None:
            raise FileNotFoundError(f"{self.sub(name)} does not exist.")
        (store, path), (_, target) = self._at(name), self._at(to)
        store.move(path, target)

    def sub(self, name: str) -> "ObjectFolder":
        base, query = _without_query(self.location)
        return ObjectFolder(f"{base.rstrip('/')}/{name}" + (f"?{query}" if query else ""))

    def local(self, name: str, *, sha256: str | None = None) -> Path:
        place = hashlib.sha256(self.location.encode()).hexdigest()[:16]
        path = cache_folder() / place / name
        if sha256 is not None and path.is_file() and storage.sha256_of(path) == sha256:
            return path
        storage.make_folder(path.parent)
        with storage.atomic_writer(path) as file, self.open(name) as stream:
            shutil.copyfileobj(stream, file, _BLOCK)
            file.seek(0)
            if sha256 is not None and hashlib.file_digest(file, "sha256").hexdigest() != sha256:  # type: ignore[arg-type]
                raise DataError(
                    f"{self.location}/{name} was altered (its sha256 differs); delete it and run `electra prepare` "
                    "again to restore it."
                )
        return path

    def remove_temporaries(self) -> None:
        """Nothing is left: an object that was not put whole does not exist."""

    def held(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def free_bytes(self) -> int | None:
        return None

    def _at(self, name: str) -> tuple[Any, str]:
        store, root = _resolve(self.location)
        return store, f"{root}/{name}" if name else root


def open_input(address: str) -> Any:
    """A seekable binary stream of a local path, an object or a web page, as stored: nothing is decompressed."""
    scheme = scheme_of(address)
    if not scheme:
        return open(address, "rb", buffering=1 << 20)
    if scheme in STORES:
        store, path = _resolve(address)
        return store.open_input_file(path)
    return _web().open(address, "rb", block_size=_BLOCK)


def input_size(address: str) -> int | None:
    """Bytes of an input; None when there is no such file."""
    scheme = scheme_of(address)
    if not scheme:
        return os.path.getsize(address) if os.path.isfile(address) else None
    if scheme in STORES:
        store, path = _resolve(address)
        (info,) = store.get_file_info([path])
        return int(info.size) if info.is_file else None
    try:
        return int(_web().info(address)["size"])
    except FileNotFoundError as error:
        if not is_absent(error):
            raise
        return None
    except (KeyError, TypeError):
        raise DataError(f"{address}: the server does not say how large the file is; download it first.") from None


def is_absent(error: OSError) -> bool:
    """Whether a file does not exist: fsspec says so of every server that gives no answer, or another one."""
    return isinstance(error, FileNotFoundError) and (
        error.__cause__ is None or getattr(error.__cause__, "status", None) in (404, 410)
    )


def list_inputs(pattern: str) -> list[str]:
    """The files an address or glob stands for, sorted. A web address stands for itself."""
    scheme = scheme_of(pattern)
    if not scheme:
        pattern = os.path.expanduser(pattern)
        is_glob = glob.has_magic(pattern) and not os.path.exists(pattern)
        found = glob.glob(pattern, recursive=True) if is_glob else [pattern]
        return sorted(path for path in found if os.path.isfile(path))
    if scheme in WEB or not glob.has_magic(_without_query(pattern)[0]):
        return [pattern] if input_size(pattern) is not None else []
    return _matching_objects(pattern)


def _matching_objects(pattern: str) -> list[str]:
    from pyarrow import fs

    base, query = _without_query(pattern)
    scheme = scheme_of(pattern)
    store, _ = _resolve(pattern)
    key = base.split("://", 1)[1]
    fixed = key[: min(key.find(sign) for sign in "*?[" if sign in key)].rpartition("/")[0]
    matches = re.compile(_glob_expression(key)).fullmatch
    infos = store.get_file_info(fs.FileSelector(fixed, recursive=True, allow_not_found=True))
    suffix = f"?{query}" if query else ""
    return sorted(f"{scheme}://{info.path}{suffix}" for info in infos if info.is_file and matches(info.path))


def _glob_expression(pattern: str) -> str:
    """A glob as `glob.glob(recursive=True)` reads it: `*` stays within a folder, `**/` crosses any number of them."""
    parts = pattern.split("/")
    expression = ""
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            expression += ".*" if last else "(?:.*/)?"
            continue
        inner = translate(part)[4:-3] if translate(part).startswith("(?s:") else translate(part)
        expression += re.sub(r"(?<!\\)\.", "[^/]", inner) + ("" if last else "/")
    return expression


def input_version(address: str, size: int) -> str:
    """What tells an input from another one: a hash of its size and of samples spread over its content (all of it where
    it is small). An edit that keeps the size and falls between the samples goes unnoticed."""
    digest = hashlib.sha256(str(size).encode())
    with open_input(address) as stream:
        if size <= _SAMPLES * _SAMPLE_BYTES:
            digest.update(stream.read())
        else:
            for sample in range(_SAMPLES):
                stream.seek((size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


@functools.cache
def _web() -> Any:
    import fsspec

    return fsspec.filesystem("https")
