"""Reader of Hugging Face datasets: a folder made by `save_to_disk`, or whatever `load_dataset` streams.

A saved dataset is cut by rows. A streamed one is cut by its data files, each of which is read from its beginning: a
position inside a stream can only be reached by reading up to it. No code of a dataset is ever run.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from data_prep.errors import ConfigError, DataError, ElectraError, PreflightError
from data_prep.objects import input_version
from data_prep.readers_tables import batch_records
from data_prep.records import Damaged, Fields, InputFile, Records, Rejected
from data_prep.settings import fingerprint

_ROWS = 1000
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
    return _loading(dataset, lambda: _measure_saved(dataset) if dataset.saved else _measure_streamed(dataset))


def read_dataset(file: InputFile, dataset: Dataset, fields: Fields, start: int, stop: int | None) -> Records:
    """Rows [start, stop) of a saved dataset, or its data files [start, stop), whose rows are placed as FILE.ROW."""
    if dataset.saved:
        yield from _read_saved(file, dataset, fields, start, stop)
        return
    stream = _loading(dataset, lambda: _builder(dataset).as_streaming_dataset(split=dataset.split))
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
    except Exception:  # pyarrow has no one error for what is wrong with a file
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
        if _is_network(error):
            raise PreflightError(
                f"{dataset.path}: reading data file {shard} failed ({_short(error)}); run again."
            ) from None
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


def _measure_saved(dataset: Dataset) -> Extent:
    loaded = _load_saved(dataset)
    sizes = [(file["filename"], os.path.getsize(file["filename"])) for file in loaded.cache_files]
    versions = [input_version(path, size) for path, size in sizes]
    return Extent(sum(size for _, size in sizes), loaded.num_rows, fingerprint([loaded.num_rows, versions]))


def _measure_streamed(dataset: Dataset) -> Extent:
    builder = _builder(dataset)
    stream = builder.as_streaming_dataset(split=dataset.split)
    size, versions = 0, list[Any]()
    for name in (builder.config.data_files or {}).get(dataset.split, ()):
        if os.path.isfile(name):
            length = os.path.getsize(name)
            size += length
            versions.append([os.path.basename(name), input_version(name, length)])
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
