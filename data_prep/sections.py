"""Files of fixed-size records in numbered sections, so that a reader fetches the sections it needs and nothing else.

A file is the running end of each section (64-bit, counted in records) and then the records, section after section. The
number of sections is the reader's knowledge, not the file's. Readers seek, they never hold more than they asked for.
Damage shows as a DataError where bytes are missing; altered bytes are for the caller's checksums to find.
"""

from collections.abc import Iterable
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import DataError
from data_prep.storage import Folder

_END = np.dtype("<i8")


def write(corpus: Folder, name: str, parts: Iterable[NDArray[Any]], sections: int) -> None:
    """Write one section after another; `parts` yields exactly `sections` arrays of the same type."""
    ends = np.zeros(sections, dtype=_END)
    written = 0
    with corpus.writer(name) as file:
        file.write(ends.tobytes())
        for number, part in enumerate(parts):
            file.write(np.ascontiguousarray(part).tobytes())
            written += len(part)
            ends[number] = written
        file.seek(0)
        file.write(ends.tobytes())


def write_sorted(corpus: Folder, name: str, records: NDArray[Any], section: NDArray[np.int64], sections: int) -> None:
    """Write records whose section numbers ascend."""
    stops = np.searchsorted(section, np.arange(sections), side="right").tolist()
    write(corpus, name, (records[a:b] for a, b in zip([0, *stops[:-1]], stops, strict=True)), sections)


class SectionReader:
    """The sections of one open file."""

    def __init__(self, file: IO[bytes], name: str, dtype: Any, sections: int) -> None:
        self._file, self._name, self._dtype, self._sections = file, name, np.dtype(dtype), sections

    def sizes(self) -> NDArray[np.int64]:
        """`[sections]`: records in each."""
        self._file.seek(0)
        return np.diff(self._read(self._sections, _END), prepend=0)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The records of the sections from `start` up to `stop`."""
        before = max(start - 1, 0)
        self._file.seek(before * _END.itemsize)
        ends = self._read(stop - before, _END)
        first = int(ends[0]) if start else 0
        self._file.seek(self._sections * _END.itemsize + first * self._dtype.itemsize)
        return self._read(int(ends[-1]) - first, self._dtype)

    def _read(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        data = self._file.read(count * dtype.itemsize)
        if len(data) != count * dtype.itemsize:
            raise DataError(f"{self._name} ends early: delete it and run `electra prepare` again to make it anew.")
        return np.frombuffer(data, dtype=dtype)


def read(corpus: Folder, name: str, dtype: Any, sections: int, start: int, stop: int) -> NDArray[Any]:
    """The records of some sections of one file. DataError: it is missing or cut."""
    try:
        with corpus.open(name) as file:
            return SectionReader(file, f"{corpus}/{name}", dtype, sections).read(start, stop)
    except FileNotFoundError:
        raise DataError(f"{corpus}/{name} is missing: run `electra prepare` again to make it anew.") from None
