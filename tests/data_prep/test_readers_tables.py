"""Parquet, Arrow and Hugging Face datasets: every row comes out once, whole or in ranges, and damage is told."""

import errno
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter

from data_prep import readers_datasets
from data_prep.corpus import CorpusConfig
from data_prep.errors import ConfigError, DataError, PreflightError
from data_prep.extents import Extent, cut, measure
from data_prep.plan import obtain_plan
from data_prep.sources import Arrow, Document, HubDataset, Parquet, Rejected, Source, input_files, read

ADAPTER: TypeAdapter[Any] = TypeAdapter(Source)
TEXTS = [f"document {n}\u2028 é" for n in range(1000)]
COLUMNS = {"text": TEXTS, "key": [f"k{n}" for n in range(1000)], "about": [None, "x"] * 500}


def read_all(source: Any) -> list[Document | Rejected]:
    return list(read(source, input_files(source)))


def extent_of(source: Any) -> Extent:
    (extent,) = measure(source, input_files(source))
    return extent


def in_pieces(source: Any, unit_bytes: int) -> tuple[int, list[Document | Rejected]]:
    """How many pieces a single input is cut into, and what they hold one after the other."""
    (file,), (extent,) = input_files(source), measure(source, input_files(source))
    pieces = cut(source, file, extent, unit_bytes)
    assert sum(piece.bytes for piece in pieces) == extent.bytes or isinstance(source, Parquet) or not pieces
    return len(pieces), [record for piece in pieces for record in read(source, [file], piece.start, piece.stop)]


def test_parquet_by_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(COLUMNS), path, row_group_size=100)
    source = Parquet(kind="parquet", path=str(path), id_field="key", topic_field="about")
    found = read_all(source)
    assert found == [Document(f"k{n}", "x" if n % 2 else "a", text) for n, text in enumerate(TEXTS)]
    pieces, parts = in_pieces(source, path.stat().st_size // 5)
    assert 5 <= pieces <= 10 and parts == found
    assert read_all(Parquet(kind="parquet", path=str(path)))[-1] == Document("a.parquet:999", "a", TEXTS[-1])


def test_parquet_row_groups_are_not_held_whole(tmp_path: Path) -> None:
    """Pages are read as they are needed, and the rows of a batch are bounded by bytes."""
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["x" * 1_000_000 + str(n) for n in range(30)]})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_batch_size=1)
    del table
    source = Parquet(kind="parquet", path=str(path))
    before, highest = pa.total_allocated_bytes(), 0
    for record in read(source, input_files(source)):
        assert isinstance(record, Document)
        highest = max(highest, pa.total_allocated_bytes() - before)
    assert 0 < highest < 15_000_000


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
def test_arrow_files_by_batches_and_streams_whole(tmp_path: Path, new: Any) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table(COLUMNS)
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    source = Arrow(kind="arrow", path=str(path), topic_field="about")
    found = read_all(source)
    assert found == [
        Document(f"a.arrow:{n // 100}.{n % 100}", "x" if n % 2 else "a", text) for n, text in enumerate(TEXTS)
    ]
    pieces, parts = in_pieces(source, path.stat().st_size // 4)
    assert (pieces, parts) == ((5, found) if new is pa.ipc.new_file else (0, []))


@pytest.mark.parametrize("end", [-1, -8, -9, 5000])
def test_an_arrow_stream_without_its_end_was_cut(tmp_path: Path, end: int) -> None:
    """The format lets a writer leave the end mark out; then nobody could tell a whole stream from a cut one."""
    path = tmp_path / "a.arrow"
    table = pa.table(COLUMNS)
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    path.write_bytes(path.read_bytes()[:end])
    *documents, last = read_all(Arrow(kind="arrow", path=str(path)))
    assert last == Rejected("damaged_archive", f"a.arrow:{len(documents) // 100}")
    assert len(documents) == {-1: 1000, -8: 1000, -9: 900, 5000: 100}[end]
    assert [document.text for document in documents if isinstance(document, Document)] == TEXTS[: len(documents)]


def test_two_streams_in_one_file_are_not_taken_for_one(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"text": ["a"]})
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)
    path.write_bytes(path.read_bytes() * 2)
    assert read_all(Arrow(kind="arrow", path=str(path))) == [
        Document("a.arrow:0.0", "a", "a"),
        Rejected("damaged_archive", "a.arrow:1"),
    ]


@pytest.mark.parametrize("kind", ["parquet", "arrow file", "arrow stream"])
def test_damage_costs_its_group_or_batch_and_is_told(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.data"
    table = pa.table({"text": TEXTS})
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=100, write_page_checksum=True, compression="none")
    else:
        new = pa.ipc.new_file if kind == "arrow file" else pa.ipc.new_stream
        with new(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table, max_chunksize=100)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 50] = bytes(50)
    path.write_bytes(data)
    found = read_all(ADAPTER.validate_python({"kind": kind.split()[0], "path": str(path)}))
    (damage,) = (number for number, record in enumerate(found) if isinstance(record, Rejected))
    assert damage % 100 == 0 and 300 <= damage <= 500
    assert found[damage] == Rejected("damaged_archive", f"a.data:{damage if kind == 'parquet' else damage // 100}")
    after = [] if kind == "arrow stream" else TEXTS[damage + 100 :]
    assert [record[2] for record in found[:damage] + found[damage + 1 :]] == TEXTS[:damage] + after


def save(path: Path, *, split: str | None = None) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"text": TEXTS})
    if split is None:
        rows.save_to_disk(path, num_shards=3)
    else:
        datasets.DatasetDict({split: rows}).save_to_disk(path)


def test_a_saved_dataset_by_rows(tmp_path: Path) -> None:
    save(tmp_path / "news")
    source = HubDataset(kind="datasets", path=str(tmp_path / "news"))
    found = read_all(source)
    assert found == [Document(f"news:{n}", "news", text) for n, text in enumerate(TEXTS)]
    (extent,) = measure(source, input_files(source))
    assert extent.parts == 1000 and extent.bytes == sum(p.stat().st_size for p in tmp_path.rglob("*.arrow"))
    assert in_pieces(source, extent.bytes // 7 + 1) == (7, found)
    save(tmp_path / "dict", split="valid")
    inside = HubDataset(kind="datasets", path=str(tmp_path / "dict"), split="valid")
    assert [record[2] for record in read_all(inside)] == TEXTS
    with pytest.raises(ConfigError, match="has no split 'train'; it has valid"):
        extent_of(inside.model_copy(update={"split": "train"}))


def test_a_folder_of_data_files_is_streamed_by_file(tmp_path: Path) -> None:
    folder = tmp_path / "news"
    folder.mkdir()
    for number in range(4):
        pq.write_table(pa.table({"text": TEXTS[number * 250 : number * 250 + 250]}), folder / f"train-{number}.parquet")
    source = HubDataset(kind="datasets", path=str(folder))
    found = read_all(source)
    assert found == [Document(f"news:{n // 250}.{n % 250}", "news", text) for n, text in enumerate(TEXTS)]
    (extent,) = measure(source, input_files(source))
    assert extent.parts == 4
    assert in_pieces(source, extent.bytes // 2 + 1) == (2, found)
    (folder / "train-1.parquet").write_bytes(b"PAR1 and no more")
    broken = read_all(source)
    assert len(broken) == 751 and broken[250] == Rejected("damaged_archive", "news:1")
    assert measure(source, input_files(source))[0].version != extent.version


def test_files_are_found_from_another_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's is another one than the driver's, where relative paths are meant."""
    save(tmp_path / "news")
    monkeypatch.chdir(tmp_path)
    source = HubDataset(kind="datasets", path="news")
    files = input_files(source)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(list(read(source, files))) == len(TEXTS)


def test_what_cannot_be_loaded_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(PreflightError, match=r"no/such: the Hugging Face hub cannot be reached .*unset HF_HUB_OFFLINE"):
        extent_of(HubDataset(kind="datasets", path="no/such"))
    (tmp_path / "empty").mkdir()
    with pytest.raises((DataError, ConfigError), match=r"empty"):
        extent_of(HubDataset(kind="datasets", path=str(tmp_path / "empty")))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text(json.dumps({"text": "a"}) + "\n")
    source = HubDataset(kind="datasets", path=str(tmp_path / "data"), split="none")
    with pytest.raises(ConfigError, match=r"data cannot be loaded \(.*none.*\)"):
        extent_of(source)


class Builder:
    """A dataset of the hub as `datasets` has it after it asked there."""

    def __init__(self, asked: list[str | None], revision: str | None) -> None:
        from types import SimpleNamespace

        asked.append(revision)
        commit = revision or "c" * 40
        name = f"hf://datasets/some/news@{commit}/data/train-0.parquet"
        self.config = SimpleNamespace(data_files={"train": [name]})
        self.info = SimpleNamespace(splits=None)
        self.hash = commit

    def as_streaming_dataset(self, split: str) -> Any:
        import datasets

        return datasets.Dataset.from_dict({"text": TEXTS[:10]}).to_iterable_dataset(num_shards=1)


def test_a_dataset_of_the_hub_is_read_at_the_commit_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    monkeypatch.setattr(readers_datasets, "_builder", lambda dataset: Builder(asked, dataset.revision))
    config = CorpusConfig.model_validate({"sources": [{"kind": "datasets", "path": "some/news"}]})
    plan = obtain_plan(config, 0, tmp_path)
    assert asked == [None, "c" * 40]
    (file,) = plan.inputs(plan.units[0])
    assert (file.name, file.path) == ("news", f"some/news@{'c' * 40}")
    assert obtain_plan(config, 0, tmp_path) == plan
    assert [record[2] for record in read(config.sources[0], [file])] == TEXTS[:10]
    assert asked == [None] + ["c" * 40] * 3  # whatever the newest is by now


def test_damage_and_an_outage_are_told_apart_in_a_saved_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "news")
    source = HubDataset(kind="datasets", path=str(tmp_path / "news"))
    files = input_files(source)
    part = sorted((tmp_path / "news").glob("*.arrow"))[1]
    content = part.read_bytes()
    part.write_bytes(content[: len(content) // 2])
    assert list(read(source, files))[-1] == Rejected("damaged_archive", "news:0")
    part.unlink()
    with pytest.raises(FileNotFoundError) as caught:
        list(read(source, files))
    assert caught.value.filename == str(part)


@pytest.mark.parametrize(
    "error", [ConnectionResetError(errno.ECONNRESET, "reset"), TimeoutError("slow"), OSError(errno.EIO, "disk")]
)
def test_a_stream_that_is_interrupted_is_no_damage(
    tmp_path: Path, error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "train.parquet")
    source = HubDataset(kind="datasets", path=str(tmp_path))

    def fail(*_: Any) -> Any:
        raise RuntimeError("what a library says") from error

    monkeypatch.setattr(readers_datasets, "_batches", fail)
    with pytest.raises(OSError) as caught:
        list(read(source, input_files(source)))
    assert caught.value.errno == error.errno and caught.value.filename == str(tmp_path)
