"""Plans: units natural to their input, and a changed corpus refused with the key that changed."""

import gzip
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from data_prep.corpus import CorpusConfig
from data_prep.errors import ConfigError, DataError
from data_prep.plan import Plan, make_plan, obtain_plan
from data_prep.sources import InputFile, read


def config(folder: Path, **changes: Any) -> CorpusConfig:
    values: dict[str, Any] = {"sources": [{"kind": "jsonl", "path": str(folder / "*.jsonl*")}], "unit_bytes": 10_000}
    return CorpusConfig.model_validate(values | changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Small files, a large plain one, a large compressed one."""
    sizes = {"a.jsonl": 3_000, "b.jsonl": 6_000, "c.jsonl": 4_000, "d.jsonl": 35_000, "f.jsonl": 100}
    data = tmp_path / "data"
    data.mkdir()
    for name, size in sizes.items():
        (data / name).write_bytes((name[0] * 99 + "\n").encode() * (size // 100))
    (data / "e.jsonl.gz").write_bytes(gzip.compress(json.dumps(list(range(20_000))).encode(), mtime=0))
    return data


def slices(plan: Plan) -> list[tuple[list[str], int, int | None]]:
    return [([file.name for file in plan.files[u.first : u.last]], u.start, u.stop) for u in plan.units]


def test_units_are_groups_of_small_files_ranges_of_plain_ones_and_whole_archives(folder: Path) -> None:
    plan = make_plan(config(folder), seed=0)
    assert (folder / "e.jsonl.gz").stat().st_size > 10_000
    assert slices(plan) == [
        (["a.jsonl", "b.jsonl"], 0, None),
        (["c.jsonl"], 0, None),
        (["d.jsonl"], 0, 8_750),
        (["d.jsonl"], 8_750, 17_500),
        (["d.jsonl"], 17_500, 26_250),
        (["d.jsonl"], 26_250, 35_000),
        (["e.jsonl.gz"], 0, None),
        (["f.jsonl"], 0, None),
    ]
    assert [unit.unit for unit in plan.units] == list(range(8))
    assert sum(unit.bytes for unit in plan.units) == sum(path.stat().st_size for path in folder.iterdir())


def test_a_plan_is_made_once_and_confirmed_afterwards(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    made = obtain_plan(config(folder), 0, out)
    stored = (out / "plan.json").read_bytes()
    assert obtain_plan(config(folder), 0, out) == made
    assert (out / "plan.json").read_bytes() == stored


def test_identities_do_not_depend_on_where_the_files_lie(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "elsewhere")
    here, there = make_plan(config(folder), 0), make_plan(config(tmp_path / "elsewhere"), 0)
    assert here.inputs_sha256() == there.inputs_sha256()
    assert here.config == there.config
    assert [here.unit_identity(unit) for unit in here.units] == [there.unit_identity(unit) for unit in there.units]
    assert len({json.dumps(here.unit_identity(unit)) for unit in here.units}) == len(here.units)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"seq_len": 64}, r"corpus\.seq_len = 128, now it is 64"),
        ({"cleaning": {"min_chars": 3}}, r"corpus\.cleaning\.min_chars = 200, now it is 3"),
        ({"tokenizer": {"vocab_size": 999}}, r"corpus\.tokenizer\.vocab_size = 30522, now it is 999"),
        ({"unit_bytes": 20_000}, r"corpus\.unit_bytes = 10000, now it is 20000"),
    ],
)
def test_changed_settings_are_refused_by_key_with_the_way_out(
    folder: Path, tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    obtain_plan(config(folder), 0, tmp_path)
    with pytest.raises(ConfigError, match=rf"{key}; use another --out, or delete"):
        obtain_plan(config(folder, **changes), 0, tmp_path)


def test_a_changed_text_field_and_seed_are_refused(folder: Path, tmp_path: Path) -> None:
    obtain_plan(config(folder), 0, tmp_path)
    with pytest.raises(ConfigError, match="seed 0, now it is 1"):
        obtain_plan(config(folder), 1, tmp_path)
    sources = [{"kind": "jsonl", "path": str(folder / "*.jsonl*"), "text_field": "body"}]
    with pytest.raises(ConfigError, match=r"corpus\.sources\[0\]\.text_field = text, now it is body"):
        obtain_plan(config(folder, sources=sources), 0, tmp_path)


def test_changed_inputs_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    obtain_plan(config(folder), 0, tmp_path)
    original = (folder / "b.jsonl").read_bytes()
    (folder / "b.jsonl").write_bytes(original.replace(b"b", b"x", 1))
    with pytest.raises(ConfigError, match=r"corpus\.sources\[0\]: .*b\.jsonl has changed"):
        obtain_plan(config(folder), 0, tmp_path)
    (folder / "b.jsonl").write_bytes(original)
    (folder / "new.jsonl").write_bytes(b"{}\n")
    with pytest.raises(ConfigError, match=r"corpus\.sources\[0\]\.path .* means other files"):
        obtain_plan(config(folder), 0, tmp_path)
    (folder / "new.jsonl").unlink()
    obtain_plan(config(folder), 0, tmp_path)


def test_large_files_are_told_apart_by_size_and_by_samples_of_their_content(folder: Path, tmp_path: Path) -> None:
    large = folder / "large.jsonl"
    large.write_bytes(b"x" * 3_000_000)
    obtain_plan(config(folder), 0, tmp_path)
    for changed in (b"y" + b"x" * 2_999_999, b"x" * 2_999_999 + b"y", b"x" * 2_999_999, b"y" * 3_000_000):
        large.write_bytes(changed)
        with pytest.raises(ConfigError, match=r"large\.jsonl has changed"):
            obtain_plan(config(folder), 0, tmp_path)
    large.write_bytes(b"x" * 3_000_000)
    obtain_plan(config(folder), 0, tmp_path)


def test_what_may_change_between_two_calls_is_no_part_of_the_plan(folder: Path, tmp_path: Path) -> None:
    obtain_plan(config(folder), 0, tmp_path)
    source = {"kind": "jsonl", "path": str(folder / "*.jsonl*"), "weight": 3, "max_bad_fraction": 0.5}
    obtain_plan(config(folder, sources=[source]), 0, tmp_path)


def planned(source: dict[str, Any], **changes: Any) -> list[tuple[list[str], int, int | None, int]]:
    plan = make_plan(CorpusConfig.model_validate({"sources": [source], "unit_bytes": 10_000} | changes), 0)
    assert [unit.unit for unit in plan.units] == list(range(len(plan.units)))
    return [([f.name for f in plan.files[u.first : u.last]], u.start, u.stop, u.bytes) for u in plan.units]


def test_plain_text_is_cut_unless_a_document_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"word\n\n" * 5_000)
    source = {"kind": "text", "path": str(tmp_path / "a.txt")}
    assert planned(source) == [(["a.txt"], k * 10_000, (k + 1) * 10_000, 10_000) for k in range(3)]
    assert planned(source | {"separator": "file"}) == [(["a.txt"], 0, None, 30_000)]


def test_parquet_is_cut_at_row_groups_and_arrow_at_batches(tmp_path: Path) -> None:
    table = pa.table({"text": [random.Random(n).randbytes(500).hex() for n in range(100)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=8, compression="none", use_dictionary=False)
    found = planned({"kind": "parquet", "path": str(tmp_path / "a.parquet")})
    edges = [(start, stop) for _, start, stop, _ in found]
    assert edges == [(k, k + 1) for k in range(13)]  # a group of 8 rows has 8 kB, two would have 16
    assert 100_000 < sum(size for *_, size in found) <= (tmp_path / "a.parquet").stat().st_size
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    found = planned({"kind": "arrow", "path": str(tmp_path / "a.arrow")})
    size = (tmp_path / "a.arrow").stat().st_size
    pieces = -(-size // 10_000)
    assert [(start, stop) for _, start, stop, _ in found] == [
        (20 * k // pieces, 20 * (k + 1) // pieces) for k in range(pieces)
    ]
    assert sum(bytes_ for *_, bytes_ in found) == size


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_broken_table_is_planned_whole(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").write_bytes(b"ARROW1" + bytes(30_000))
    assert planned({"kind": kind, "path": str(tmp_path / "a")}) == [(["a"], 0, None, 30_006)]


def test_ranges_are_read_to_the_documents_of_the_whole(tmp_path: Path) -> None:
    """Reading the units of a plan one by one gives what reading its files gives."""
    for n in range(4):
        lines = [json.dumps({"text": f"text {n} {k} " + "x" * (37 * k % 91)}) for k in range(400)]
        (tmp_path / f"{n}.jsonl").write_text("\n".join(lines[: 400 if n % 2 else 7]))
    source = {"kind": "jsonl", "path": str(tmp_path / "*.jsonl")}
    plan = make_plan(CorpusConfig.model_validate({"sources": [source], "unit_bytes": 5_000}), 0)
    settings = CorpusConfig.model_validate({"sources": [source]}).sources[0]
    files = [InputFile(file.name, file.path) for file in plan.files]
    parts = [list(read(settings, files[u.first : u.last], u.start, u.stop)) for u in plan.units]
    assert len(plan.units) > 10
    assert [record for part in parts for record in part] == list(read(settings, files))


def test_many_tiny_files_make_few_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(2_500):
        (tmp_path / f"{n:05d}.txt").touch()
    source = {"kind": "text", "path": str(tmp_path / "*.txt"), "separator": "file"}
    assert [len(names) for names, *_ in planned(source)] == [2_500]
    monkeypatch.setattr("data_prep.plan.MAX_FILES", 1_000)
    assert [len(names) for names, *_ in planned(source)] == [1_000, 1_000, 500]


def test_a_stored_file_is_one_short_list(folder: Path, tmp_path: Path) -> None:
    obtain_plan(config(folder), 0, tmp_path)
    stored = json.loads((tmp_path / "plan.json").read_text())["files"]
    assert stored[0][:5] == [0, "a.jsonl", str(folder / "a.jsonl"), "", 3_000] and len(stored[0][5]) == 32


def test_a_folder_named_like_a_file_is_planned_and_still_counted(folder: Path, tmp_path: Path) -> None:
    (folder / "g.jsonl").mkdir()
    plan = obtain_plan(config(folder), 0, tmp_path)
    assert plan.files[-1][1:] == ("g.jsonl", str(folder / "g.jsonl"), "", 0, "unreadable")
    assert obtain_plan(config(folder), 0, tmp_path) == plan


def test_installed_documentation_is_capped_before_it_is_read() -> None:
    source = {"kind": "installed_docs", "packages": ["networkx"], "max_bytes": 100_000}
    plan = make_plan(CorpusConfig.model_validate({"sources": [source]}), 0)
    assert 300_000 < sum(file.bytes for file in plan.files) <= 500_000


def test_a_vocabulary_that_is_none_is_told_before_any_work(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"a tokenizer": "it is not"}')
    with pytest.raises(DataError, match=rf"{path} is not a tokenizer\.json that can be read"):
        obtain_plan(config(folder, tokenizer={"path": str(path)}), 0, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_unit_knows_its_inputs_as_they_were_planned(folder: Path) -> None:
    plan = make_plan(config(folder), 0)
    found = [file for unit in plan.units for file in plan.inputs(unit)]
    assert [file.name.removesuffix(".gz") for file in found] == [
        f"{name}.jsonl" for name in ("a", "b", "c", *"dddd", "e", "f")
    ]
    assert found[1] == InputFile("b.jsonl", str(folder / "b.jsonl"), "", 6_000, plan.files[1].version)


def test_a_broken_plan_is_a_data_error(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(DataError, match="not a plan of this version"):
        obtain_plan(config(folder), 0, tmp_path)


@pytest.mark.parametrize(
    "changes",
    [{"sources": []}, {"rows_per_shard": 100}, {"seq_len": 4}, {"heldout_fraction": 1.0}, {"heldout_fraction": 0.0},
     {"unknown": 1},
     {"sources": [{"kind": "jsonl"}]}, {"sources": [{"kind": "none", "path": "x"}]}],
)  # fmt: skip
def test_settings_out_of_range_are_refused(folder: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config(folder, **changes)
