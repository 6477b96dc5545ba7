"""What was mirrored to which tracking server: `.tracking.json` in the experiment's directory.

It only saves time: without it everything is compared anew. Addresses are kept as hashes, because one may hold a
password. Knows neither MLflow nor what is mirrored (`pipeline.tracking`).
"""

import hashlib
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from data_prep import storage

FILE_NAME = ".tracking.json"


def load(out: Path, uri: str) -> dict[str, str]:
    """What was sent to this address, as item key → version; empty when its SQLite file is gone."""
    path = out / FILE_NAME
    database = Path(uri.removeprefix("sqlite:///"))
    if not path.exists() or (uri.startswith("sqlite:") and not database.exists()):
        return {}
    return dict(storage.read_json(path).get(_address(uri), {}))


def save(out: Path, uri: str, cursor: dict[str, str]) -> None:
    """Keep `cursor` for this address beside those of others."""
    path = out / FILE_NAME
    everything = storage.read_json(path) if path.exists() else {}
    storage.write_json(path, {**everything, _address(uri): cursor})


def public(uri: str) -> str:
    """The address without user name and password."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in parts.netloc else uri


def _address(uri: str) -> str:
    return hashlib.sha256(uri.encode()).hexdigest()[:16]
