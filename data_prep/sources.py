"""Where documents come from: source settings, the input files behind them, and which reader reads them.

`read` turns one slice of a source (a group of files, or a range of one) into documents and rejections; every record of
the slice becomes exactly one of the two, whatever its bytes are. Light on purpose: readers and their libraries are
loaded when something is read.
"""

import glob
import os
from collections.abc import Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, PositiveInt

from data_prep import installed_docs
from data_prep.errors import DataError, PreflightError
from data_prep.objects import WEB, list_inputs, scheme_of
from data_prep.records import (
    BAD,
    Damaged,
    Document,
    Fields,
    InputFile,
    Records,
    Rejected,
    check_unchanged,
    is_compressed,
    open_file,
    transport,
)
from data_prep.settings import Settings

__all__ = [
    "BAD", "NOT_IDENTITY", "READ_FACTOR", "Document", "InputFile", "InstalledDocs", "Rejected", "Source", "input_files",
    "is_compressed", "read",
]  # fmt: skip

# Settings of a source that do not change what is read from it.
NOT_IDENTITY = ("weight", "max_bad_fraction", "path", "licence")


# `installed_docs` yields about a fifth of what it reads; reading stops at this multiple of max_bytes.
READ_FACTOR = 5


class _Source(Settings):
    weight: PositiveInt | None = None  # this source's share of training rows, as a ratio of whole numbers
    max_bytes: PositiveInt | None = None  # UTF-8 bytes of clean text kept
    max_bad_fraction: Annotated[float, Field(ge=0.0, le=1.0)] = 0.01  # of malformed records; above it, an error
    licence: str | None = None  # of its text, for the card of what is trained on it


class _Files(_Source):
    path: str = Field(description="a file or a glob: local, s3://, gs://, or one https:// address")


class InstalledDocs(_Source):
    """Docstrings and descriptions of the installed packages; see `data_prep.installed_docs`."""

    kind: Literal["installed_docs"] = "installed_docs"
    packages: tuple[str, ...] | None = None  # import names, "stdlib", "descriptions"; None: the measured default list
    max_bytes: PositiveInt | None = None  # UTF-8 bytes of clean text kept; each package is cut in proportion


class PlainText(_Files):
    """Plain text, plain or compressed (.gz, .zst, .bz2, .xz)."""

    kind: Literal["text"]
    separator: Literal["blank_line", "file"] = "blank_line"  # what ends a document


class _Records(_Files):
    text_field: str = "text"
    id_field: str | None = None  # where there is none, or null in it, the file's name and the place in it
    topic_field: str | None = None  # where there is none, or null in it, the file's name is the topic

    @property
    def fields(self) -> Fields:
        """The three fields together."""
        return Fields(self.text_field, self.id_field, self.topic_field)


class Jsonl(_Records):
    """One JSON object a line, plain or compressed (.gz, .zst, .bz2, .xz)."""

    kind: Literal["jsonl"]


class Parquet(_Records):
    """Parquet files."""

    kind: Literal["parquet"]


class Arrow(_Records):
    """Arrow IPC files and streams (.arrow, .feather)."""

    kind: Literal["arrow"]


class HubDataset(_Records):
    """A Hugging Face dataset; see `data_prep.readers_datasets`."""

    kind: Literal["datasets"]
    path: str = Field(description="a name on the hub, a folder made by save_to_disk, or a folder of data files")
    config: str | None = None  # the configuration, where the dataset has several
    split: str = "train"
    revision: str | None = None  # a commit of the hub, so that the dataset stays what it is


class WebDatasetTars(_Records):
    """WebDataset tars of text. A field is a member's extension, or `json:KEY` for a key of its JSON object."""

    kind: Literal["webdataset"]
    text_field: str = "txt"


class Wikipedia(_Files):
    """Wikipedia XML dumps (pages-articles, usually .bz2); see `data_prep.wikipedia`."""

    kind: Literal["wikipedia"]


Source = Annotated[
    InstalledDocs | PlainText | Jsonl | Parquet | Arrow | HubDataset | WebDatasetTars | Wikipedia,
    Field(discriminator="kind"),
]


def read(source: Source, files: Sequence[InputFile], start: int = 0, stop: int | None = None) -> Records:
    """The records of `files` in order; with a range, of bytes, row groups, batches or rows, those of a single file.

    DataError when a file is not the one that was planned, or changes its size meanwhile; OSError when it cannot be
    opened or read although it could when the plan was made.
    """
    for file in files:
        _check(source, file)
        try:
            yield from _read_file(source, file, start, stop)
        except Damaged as damage:
            yield Rejected(damage.reason, f"{file.name}:{damage.place}")
        _check(source, file, sizes_only=True)


def _check(source: Source, file: InputFile, *, sizes_only: bool = False) -> None:
    if isinstance(source, HubDataset):
        from data_prep import readers_datasets

        readers_datasets.check_unchanged(file, dataset_of(source, file))
    else:
        check_unchanged(file, sizes_only=sizes_only)


def _read_file(source: Source, file: InputFile, start: int, stop: int | None) -> Records:
    if isinstance(source, Jsonl):
        from data_prep.readers_text import read_jsonl

        return read_jsonl(file, source.fields, start, stop)
    if isinstance(source, PlainText):
        from data_prep.readers_text import read_blank_lines, read_whole_text

        return read_blank_lines(file, start, stop) if source.separator == "blank_line" else read_whole_text(file)
    if isinstance(source, (Parquet, Arrow)):
        from data_prep.readers_tables import read_arrow, read_parquet

        reader = read_parquet if isinstance(source, Parquet) else read_arrow
        return reader(file, source.fields, start, stop)
    if isinstance(source, HubDataset):
        from data_prep.readers_datasets import read_dataset

        return read_dataset(file, dataset_of(source, file), source.fields, start, stop)
    if isinstance(source, WebDatasetTars):
        from data_prep.readers_tar import read_tar

        return read_tar(file, source.fields)
    if isinstance(source, Wikipedia):
        from data_prep.wikipedia import read_wikipedia

        return read_wikipedia(file)
    return _read_documentation(file)


def _read_documentation(file: InputFile) -> Records:
    with open_file(file) as stream:
        content = stream.read()
    try:
        found = list(installed_docs.documents(file.package, file.name, content))
    except ValueError:
        raise Damaged("unparsable", 0) from None
    for identifier, topic, text in found:
        yield Document(identifier, topic, text)


def dataset_of(source: HubDataset, file: InputFile) -> Any:
    """The `readers_datasets.Dataset` that a source means; its folder is where `file` says, on every machine."""
    from data_prep.readers_datasets import Dataset

    path, _, commit = (file.path, "", "") if os.path.isabs(file.path) else file.path.partition("@")
    return Dataset(path, source.config, source.split, commit or source.revision)


def input_files(source: Source) -> list[InputFile]:
    """The files behind a source, in the order of the corpus. DataError when there are none."""
    if isinstance(source, InstalledDocs):
        return [
            InputFile(file.name, str(file.path), file.package) for file in installed_docs.list_files(source.packages)
        ]
    if isinstance(source, HubDataset):
        path = os.path.expanduser(source.path)
        path = os.path.abspath(path) if os.path.exists(path) else path  # a name on the hub stays one
        return [InputFile(os.path.basename(path.rstrip("/")), path)]
    pattern = os.path.expanduser(source.path.removeprefix("file://"))
    return _remote_files(pattern) if scheme_of(pattern) else _local_files(source.path, pattern)


def _remote_files(pattern: str) -> list[InputFile]:
    try:
        with transport(pattern):
            found = list_inputs(pattern)
    except OSError as error:
        raise PreflightError(
            f"corpus.sources path {pattern} cannot be listed ({error.strerror}); check the address, your access to it "
            "and the network."
        ) from None
    if not found:
        raise DataError(f"corpus.sources path {pattern} matches no file; check the address and your access to it.")
    if scheme_of(pattern) in WEB:
        return [InputFile(os.path.basename(urlsplit(pattern).path) or "index", pattern)]
    base, _, query = pattern.rpartition("?")
    options = f"?{query}" if base and "=" in query else ""  # of the store, as in s3://bucket/name?region=eu-west-1
    root = _fixed_folder(pattern.removesuffix(options))
    return [InputFile(address.removesuffix(options).removeprefix(root), address) for address in found]


def _local_files(written: str, pattern: str) -> list[InputFile]:
    is_glob = glob.has_magic(pattern) and not os.path.exists(pattern)
    found = sorted(glob.glob(pattern, recursive=True)) if is_glob else [pattern]
    # A folder that a pattern such as *.jsonl names is taken for a file, and found to be none when it is read; one that
    # merely lies under `**` is a folder.
    takes_folders = is_glob and "." in os.path.basename(pattern)
    files = [path for path in found if os.path.isfile(path) or (takes_folders and os.path.isdir(path))]
    if not files:
        what = "is a folder; add a pattern such as /*.jsonl" if os.path.isdir(pattern) else "does not exist"
        where = "" if os.path.isabs(pattern) else f" in {os.getcwd()}, where relative paths are looked for"
        raise DataError(f"corpus.sources path {written} {'matches no file' if is_glob else what}{where}.")
    for path in files:
        try:
            path.encode()
        except UnicodeEncodeError:
            raise DataError(f"corpus.sources: the name of the file {path!a} is not UTF-8; rename it.") from None
    root = _fixed_folder(pattern) if is_glob else pattern[: pattern.rfind("/") + 1]
    return [InputFile(path.removeprefix(root), os.path.join(os.getcwd(), path)) for path in files]


def _fixed_folder(pattern: str) -> str:
    """The part of a glob that holds no wildcard, up to its last "/"."""
    fixed = pattern[: min((pattern.find(sign) for sign in "*?[" if sign in pattern), default=len(pattern))]
    return fixed[: fixed.rfind("/") + 1]
