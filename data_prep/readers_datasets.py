"""Reader of Hugging Face datasets: a folder made by `save_to_disk`, or whatever `load_dataset` streams.

A saved dataset is cut by rows. A streamed one is cut by its data files, each of which is read from its beginning: a
position inside a stream can only be reached by reading up to it. No code of a dataset is ever run. What cannot be
opened or read, although it could when the plan was made, is an OSError and never damage.
"""

import errno
import functools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from data_prep.errors import ConfigError, DataError, ElectraError, PreflightError
from data_prep.readers_tables import batch_records
from data_prep.records import VERSION_CHARS, Damaged, Fields, InputFile, Records, Rejected, changed, version_of
from data_prep.settings import fingerprint

_ROWS = 1000
_COMMIT = re.compile(r"^hf://datasets/[^@]*@([0-9a-f]{40})/")
_T = TypeVar("_T")


class Dataset(NamedTuple):
    """Which dataset is meant: a folder or a name on the hub, with the configuration, split and revision of it."""

    path: str
    config: str | None
    split: str
    revision: str | None

    @property
    def saved(self) -> bool:
        """Whether it is a folder made by `save_to_disk`."""
        return any((Path(self.path) / name).is_file() for name in ("state.json", "dataset_dict.json"))


class Extent(NamedTuple):
    """How much a dataset is: its bytes (0: unknown), its rows or data files, and what tells it from another."""

    bytes: int
    pieces: int
    version: str


def measure(dataset: Dataset) -> Extent:
    """The extent of a dataset. ConfigError, DataError or PreflightError when it cannot be had."""
    return _loading(dataset, lambda: _measure(dataset))


def commit_of(dataset: Dataset) -> str:
    """The commit of a dataset on the hub; "" where it lies on a disk, or the hub was not reached."""
    if dataset.saved or os.path.exists(dataset.path):
        return ""
    builder = _loading(dataset, lambda: _builder(dataset))
    names = (str(name) for listed in (builder.config.data_files or {}).values() for name in listed)
    commits = {found[1] for found in map(_COMMIT.match, names) if found}
    return commits.pop() if len(commits) == 1 else ""


def check_unchanged(file: InputFile, dataset: Dataset) -> None:
    """DataError when a dataset on a disk is not the one that was planned. One of the hub is read at its commit."""
    at_commit = "@" in file.path and not os.path.isabs(file.path)
    if file.version and not at_commit:
        _require(dataset)
        found = _in_worker(dataset, lambda: _measure(dataset))
        if (found.bytes, found.version) != (file.bytes, file.version):
            raise changed(file)


def read_dataset(file: InputFile, dataset: Dataset, fields: Fields, start: int, stop: int | None) -> Records:
    """Rows [start, stop) of a saved dataset, or its data files [start, stop), whose rows are placed as FILE.ROW."""
    _require(dataset)
    if dataset.saved:
        yield from _read_saved(file, dataset, fields, start, stop)
        return
    stream = _in_worker(dataset, lambda: _builder(dataset).as_streaming_dataset(split=dataset.split))
    for shard in range(start, stream.num_shards if stop is None else min(stop, stream.num_shards)):
        yield from _read_shard(file, dataset, fields, stream, shard)


def _read_saved(file: InputFile, dataset: Dataset, fields: Fields, start: int, stop: int | None) -> Records:
    row = start
    try:
        rows = _load_saved(dataset).with_format("arrow")
        end = rows.num_rows if stop is None else min(stop, rows.num_rows)
        for row in range(start, end, _ROWS):
            first = row
            for batch in rows[row : min(row + _ROWS, end)].to_batches():
                yield from batch_records(batch, fields, file, first)
                first += batch.num_rows
    except ElectraError:
        raise
    except Exception as error:  # pyarrow has no one error for what is wrong with a file
        _raise_outage(dataset, error)
        raise Damaged("damaged_archive", row) from None


def _read_shard(file: InputFile, dataset: Dataset, fields: Fields, stream: Any, shard: int) -> Records:
    row = 0
    try:
        rows = stream.shard(num_shards=stream.num_shards, index=shard).with_format("arrow")
        for batch in _batches(rows.iter(batch_size=_ROWS)):
            yield from batch_records(batch, fields, file, row, f"{shard}.")
            row += batch.num_rows
    except ElectraError:
        raise
    except Exception as error:
        _raise_outage(dataset, error)
        yield Rejected("damaged_archive", f"{file.name}:{shard}")


def _batches(tables: Iterator[Any]) -> Iterator[Any]:
    for table in tables:
        yield from table.to_batches()


def _load_saved(dataset: Dataset) -> Any:
    import datasets

    loaded = datasets.load_from_disk(dataset.path)
    if not isinstance(loaded, datasets.DatasetDict):
        return loaded
    if dataset.split not in loaded:
        raise ConfigError(
            f"corpus.sources: {dataset.path} has no split {dataset.split!r}; it has {', '.join(sorted(loaded))}."
        )
    return loaded[dataset.split]


def _measure(dataset: Dataset) -> Extent:
    found = _measure_saved(dataset) if dataset.saved else _measure_streamed(dataset)
    return found._replace(version=found.version[:VERSION_CHARS])


def _measure_saved(dataset: Dataset) -> Extent:
    loaded = _load_saved(dataset)
    found = [_file(file["filename"]) for file in loaded.cache_files]
    rows = loaded.num_rows
    return Extent(sum(size for size, _ in found), rows, fingerprint([rows, [version for _, version in found]]))


def _file(path: str) -> tuple[int, str]:
    """(bytes, version) of a file of a dataset, of which every unit reads a part and checks the whole."""
    status = os.stat(path)
    return status.st_size, _version(path, status.st_size, status.st_mtime_ns, status.st_ino)


@functools.lru_cache(maxsize=1 << 16)
def _version(path: str, size: int, *_changes: int) -> str:
    return version_of(path, size)


def _measure_streamed(dataset: Dataset) -> Extent:
    builder = _builder(dataset)
    stream = builder.as_streaming_dataset(split=dataset.split)
    size, versions = 0, list[Any]()
    for name in (builder.config.data_files or {}).get(dataset.split, ()):
        if os.path.isfile(name):
            length, version = _file(name)
            size += length
            versions.append([os.path.basename(name), version])
        else:
            versions.append(name)  # the address of a file on the hub holds its revision
    info = (builder.info.splits or {}).get(dataset.split)
    return Extent(
        size or int(getattr(info, "num_bytes", 0) or 0),
        stream.num_shards,
        fingerprint([stream.num_shards, versions or builder.hash]),
    )


def _builder(dataset: Dataset) -> Any:
    import datasets

    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)
    return datasets.load_dataset_builder(dataset.path, dataset.config, revision=dataset.revision)


def _loading(dataset: Dataset, load: Callable[[], _T]) -> _T:
    """What `load` gives, with the errors of the library in one sentence each."""
    try:
        return load()
    except ElectraError:
        raise
    except FileNotFoundError as error:  # DatasetNotFoundError is one
        raise DataError(
            f"corpus.sources path {dataset.path} is neither a folder with data nor a dataset on the hub "
            f"({_short(error)}); check its name."
        ) from None
    except Exception as error:
        if _is_network(error):
            raise PreflightError(
                f"corpus.sources path {dataset.path}: the Hugging Face hub cannot be reached ({_short(error)}); unset "
                "HF_HUB_OFFLINE, or give a local folder."
            ) from None
        raise ConfigError(f"corpus.sources path {dataset.path} cannot be loaded ({_short(error)}).") from None


def _require(dataset: Dataset) -> None:
    """OSError when a folder is gone, which `datasets` would look for on the hub."""
    if os.path.isabs(dataset.path) and not os.path.exists(dataset.path):
        raise FileNotFoundError(errno.ENOENT, "No such folder", dataset.path)


def _in_worker(dataset: Dataset, load: Callable[[], _T]) -> _T:
    """What `load` gives. OSError: another attempt may succeed."""
    try:
        return load()
    except ElectraError:
        raise
    except Exception as error:
        _raise_outage(dataset, error)
        raise DataError(f"{dataset.path} cannot be loaded any more ({_short(error)}); put back what it was.") from None


def _raise_outage(dataset: Dataset, error: BaseException) -> None:
    """Raise an OSError where an error comes from the disk, the store or the network, and not from the bytes."""
    cause: BaseException | None = error
    while cause is not None:
        # pyarrow gives what it finds wrong with the content as an OSError too, without a number; a broken file may
        # name a place that does not exist, which is EINVAL.
        missing = isinstance(cause, (FileNotFoundError, PermissionError))
        if isinstance(cause, OSError) and (missing or cause.errno not in (None, errno.EINVAL)):
            number = cause.errno or errno.ENOENT
            raise OSError(number, cause.strerror or _short(cause), cause.filename or dataset.path) from None
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    if _is_network(error):
        raise OSError(None, _short(error), dataset.path) from None


def _is_network(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is of the network."""
    while error is not None:
        if isinstance(error, (ConnectionError, TimeoutError)) or type(error).__module__.split(".")[0] in (
            "aiohttp",
            "httpx",
            "requests",
            "huggingface_hub",
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
