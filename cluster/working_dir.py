"""What a job's working directory holds: measured before it is sent, and refused where Ray would not take it.

Ray Jobs take one upload of at most 100 MiB and answer a larger one with a status code, after it was packed and sent.
What is sent is Ray's own choice (`.gitignore`, `.rayignore`, excludes), so that its own walk is used, and the package
is a zip without compression, so that its size is known without making it: exactly, up to 4 GiB. Version control,
caches, runs, shards and weights are never sent. Nothing here reads a file's content, and nothing looks for secrets:
keep them out of the directory.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.submit_config import ALWAYS_EXCLUDED
from data_prep.errors import ConfigError

# Ray's DASHBOARD_CLIENT_MAX_SIZE, of one request
LIMIT_BYTES = 100 * 1024**2
# Shards and weights are on the shared volume; .env is where people keep tokens
NEVER_SENT = (*ALWAYS_EXCLUDED, ".env", ".netrc", "*.tar", "*.safetensors")
_NAMED = 10
# Of a zip: a local header and an entry of the directory for each file, with its name in both, and the end
_HEADERS, _END = 30 + 46, 22


@dataclass(frozen=True, slots=True)
class WorkingDir:
    """A directory to send: its files with their bytes, by their paths within it."""

    path: Path
    excludes: tuple[str, ...]
    files: dict[str, int]

    @property
    def package_bytes(self) -> int:
        """Of the zip that Ray makes of it."""
        return _END + sum(size + _HEADERS + 2 * len(name.encode()) for name, size in self.files.items())

    def holds(self, path: Path) -> bool:
        """Whether this file will be there."""
        return path.is_relative_to(self.path) and str(path.relative_to(self.path)) in self.files


def measure(path: Path, excludes: Sequence[str]) -> WorkingDir:
    """What of `path` would be sent with these excludes (as in .gitignore) beside those that always hold. ConfigError
    where it is no directory, or too large: the biggest paths are named."""
    from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

    if not path.is_dir():
        raise ConfigError(f"{path}: no such folder; --working-dir names the one that the job is to run in")
    path, patterns, files = path.absolute(), (*NEVER_SENT, *excludes), dict[str, int]()

    def note(one: Path) -> None:
        if one.is_file():
            files[str(one.relative_to(path))] = one.stat().st_size
        elif one.is_dir() and not any(one.iterdir()):
            files[f"{one.relative_to(path)}/"] = 0

    respected = os.environ.get("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "0") != "1"
    quiet = logging.getLogger(__name__)  # Ray's own tells of every ignore file
    _dir_travel(path, [_get_excludes(path, list(patterns))], note, include_gitignore=respected, logger=quiet)
    found = WorkingDir(path, patterns, files)
    _check(found)
    return found


def _check(found: WorkingDir) -> None:
    if found.package_bytes <= LIMIT_BYTES:
        return
    largest = sorted(found.files.items(), key=lambda item: (-item[1], item[0]))[:_NAMED]
    named = ", ".join(f"{name} ({_mib(size)})" for name, size in largest)
    raise ConfigError(
        f"{found.path}: the working directory comes to {_mib(found.package_bytes)}, and Ray takes "
        f"{_mib(LIMIT_BYTES)}; move data to the shared volume, or list paths in cluster.submit.excludes; "
        f"the biggest: {named}"
    )


def _mib(size: int) -> str:
    return f"{size / 1024**2:.1f} MiB"
