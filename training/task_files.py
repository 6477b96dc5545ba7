"""Evaluation data as one file of JSON lines, whatever the suite: the same data always gives the same bytes and hash.

A task's data is written once, under a name made of its hash, and every unit of an evaluation reads that file.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from data_prep import storage


class TaskFile(ABC):
    """Data that says which lines it is."""

    __slots__ = ()

    @abstractmethod
    def lines(self) -> Iterator[str]:
        """The JSON lines of the file, without line breaks."""

    def sha256(self) -> str:
        """SHA-256 (hex) of the file `save` writes."""
        digest = hashlib.sha256()
        for line in self.lines():
            digest.update(line.encode() + b"\n")
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write the file, atomically and durably."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with storage.atomic_writer(path) as file:
            file.writelines(line.encode() + b"\n" for line in self.lines())
