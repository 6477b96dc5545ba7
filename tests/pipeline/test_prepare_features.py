"""Preparation end to end with everything switched on: sources of several kinds, near duplicates, evaluation sets,
mixing, object storage, the fast engine and the reference; and what it says of itself before, during and after."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from data_prep import engines, estimate, integrity, storage
from data_prep import manifest as manifests
from data_prep.corpus import CorpusConfig
from data_prep.errors import ConfigError, DataError, PreflightError
from data_prep.order import OrderConfig, order_of
from data_prep.plan import make_plan
from data_prep.reader import RowReader
from pipeline.prepare import prepare
from pipeline.verify import verify
from tests.pipeline.made_sources import Said, hashes, make_text

pytestmark = [pytest.mark.multi, pytest.mark.usefixtures("ray_session")]

EXAMPLE = "Fourteen blue herons were counted along the flooded meadow behind the abandoned railway station yesterday"


def settings(folder: Path, **changes: Any) -> CorpusConfig:
    """Two plain files and a table; half of the second file is the first one again, with a word changed in each text."""
    rng = random.Random(3)
    texts = [make_text(rng) for _ in range(240)]
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "first.jsonl", texts)
    again = [text.replace("the", "that", 1) for text in texts[:60] if len(text) > 1500]
    planted = [texts[200] + f" {EXAMPLE.replace(' ', chr(10), 3).upper()}. " + texts[201]]
    _write(folder / "second.jsonl", [*again, *(make_text(rng) for _ in range(60)), *planted])
    pq.write_table(_table([make_text(rng) for _ in range(80)]), folder / "third.parquet", row_group_size=20)
    (folder / "sets" / "RTE").mkdir(parents=True, exist_ok=True)
    lines = ["index\tsentence1\tsentence2\tlabel", f"0\t{EXAMPLE}.\tToo short to look for.\tentailment"]
    (folder / "sets" / "RTE" / "dev.tsv").write_text("\n".join(lines) + "\n")
    config = {
        "sources": [
            {"kind": "jsonl", "path": str(folder / "first.jsonl"), "weight": 1},
            {"kind": "jsonl", "path": str(folder / "second.jsonl"), "weight": 2},
            {"kind": "parquet", "path": str(folder / "third.parquet"), "weight": 1},
        ],
        "near_duplicates": {},
        "decontamination": {"sets": [{"name": "GLUE", "path": str(folder / "sets")}]},
        "tokenizer": {"vocab_size": 600, "sample_bytes": 200_000},
        "layout": "packed",
        "seq_len": 64,
        "heldout_fraction": 0.1,
        "unit_bytes": 60_000,
        "rows_per_shard": 128,
        **changes,
    }
    return CorpusConfig.model_validate(config)


def _write(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def _table(texts: list[str]) -> Any:
    import pyarrow as pa

    return pa.table({"text": texts})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CorpusConfig, Path, list[str]]]:
    """(settings, the corpus, what was said and told as events while it was prepared)."""
    folder = tmp_path_factory.mktemp("features")
    config, said = settings(folder / "input"), Said()
    prepare(
        config,
        folder / "corpus",
        0,
        console=said,
        on_event=lambda event, **details: said.lines.append(f"event {event} {json.dumps(details)}"),
    )
    yield config, folder / "corpus", said.lines


def test_planted_duplicates_and_the_planted_example_go(made: tuple[CorpusConfig, Path, list[str]]) -> None:
    _, corpus, _ = made
    manifest = manifests.load(corpus)
    rng = random.Random(3)
    copies = sum(len(make_text(rng)) > 1500 for _ in range(60))
    # a word of a text that is repeated in few words: some copies may share less than 0.8 of their word 5-grams
    assert copies * 0.95 <= manifest.documents.rejected["near_duplicate"] <= copies
    assert manifest.documents.rejected["contaminated:GLUE/RTE"] == 1
    assert manifest.documents.documents_in == manifest.documents.out + sum(manifest.documents.rejected.values())
    integrity.verify(corpus, manifest)


def test_what_is_cut_is_the_passage_alone(made: tuple[CorpusConfig, Path, list[str]], tmp_path: Path) -> None:
    config, corpus, _ = made
    assert config.decontamination is not None
    cutting = config.decontamination.model_copy(update={"policy": "cut", "cut_margin": 10})
    manifest = prepare(config.model_copy(update={"decontamination": cutting}), tmp_path / "corpus", 0)
    before = manifests.load(corpus)
    assert "contaminated:GLUE/RTE" not in manifest.documents.rejected
    assert manifest.documents.out == before.documents.out + 1
    planted = random.Random(3)
    texts = [make_text(planted) for _ in range(202)]
    grown = manifest.documents.text_bytes - before.documents.text_bytes
    whole = len(texts[200]) + len(texts[201])
    assert whole - 60 <= grown <= whole + 4  # without the example and ten characters, to whole words, on each side


def test_sources_are_mixed_by_their_weights(made: tuple[CorpusConfig, Path, list[str]]) -> None:
    _, corpus, _ = made
    manifest = manifests.load(corpus)
    assert [(source.kind, source.weight) for source in manifest.sources] == [("jsonl", 1), ("jsonl", 2), ("parquet", 1)]
    ends = np.cumsum([source.train.rows for source in manifest.sources])
    assert ends[-1] == manifest.train.rows
    _, rows = order_of(manifest, "train", 0, OrderConfig()).locate(np.arange(4 * 50))
    assert np.bincount(np.searchsorted(ends, rows, side="right")).tolist() == [50, 100, 50]


def test_other_weights_are_another_manifest_over_the_same_shards(
    made: tuple[CorpusConfig, Path, list[str]], tmp_path: Path
) -> None:
    config, _, _ = made
    first = prepare(config, tmp_path, 0)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tar")}
    equal = tuple(source.model_copy(update={"weight": 5}) for source in config.sources)
    other = prepare(config.model_copy(update={"sources": equal}), tmp_path, 0)
    assert [source.weight for source in other.sources] == [5, 5, 5]
    assert hashes(other) == hashes(first) and other.sha256 != first.sha256
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tar")} == stamps


def test_the_reference_writes_the_bytes_of_the_fast_engine(
    made: tuple[CorpusConfig, Path, list[str]], tmp_path: Path
) -> None:
    config, corpus, _ = made
    record = json.loads((corpus / "parts/00000.json").read_text())["result"]
    assert record["engine"] == {"name": f"nanotoken {engines.installed()['nanotoken']}", "mismatch": None}
    copy = tmp_path / "corpus"
    prepare(config, copy, 0)
    verdict = copy / "parts/engine.json"
    refused = json.loads(verdict.read_text())
    refused["result"] |= {"accepted": False, "reason": "refused by a test"}
    verdict.write_text(json.dumps(refused))
    for path in [*copy.glob("parts/0*.json"), copy / "manifest.json", *copy.rglob("*.tar")]:
        path.unlink()
    said = Said()
    manifest = prepare(config, copy, 0, console=said)
    assert "tokenizing with the slower reference: refused by a test" in said.lines
    assert json.loads((copy / "parts/00000.json").read_text())["result"]["engine"]["name"].startswith("tokenizers ")
    assert manifest == manifests.load(corpus)


def test_a_corpus_in_an_object_store_is_the_same_one(
    made: tuple[CorpusConfig, Path, list[str]],
    object_store: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, corpus, _ = made
    monkeypatch.setenv("ELECTRA_CACHE", str(tmp_path / "cache"))
    place = storage.folder(f"{object_store}/corpora/features")
    inputs = storage.folder(f"{object_store}/inputs")
    sources = []
    for source in config.sources:
        name = Path(source.path).name
        inputs.write_bytes(name, Path(source.path).read_bytes())
        sources.append(source.model_copy(update={"path": f"{inputs}/{name}"}))
    remote = config.model_copy(update={"sources": tuple(sources)})
    manifest = prepare(remote, place, 0)
    assert manifest == manifests.load(corpus)

    names = [shard.name for split in (manifest.train, manifest.heldout) for shard in split.shards]
    assert all(place.read_bytes(name) == (corpus / name).read_bytes() for name in names)
    rows = np.random.default_rng(0).integers(0, manifest.train.rows, 200)
    there, here = (RowReader(where, "train", manifest).rows(rows) for where in (place, corpus))
    assert np.array_equal(there, here)

    assert prepare(remote, place, 0, start_ray=_refuse) == manifest  # complete: recognised without Ray
    place.write_bytes(names[0], place.read_bytes(names[0])[:-512])
    with pytest.raises(DataError, match="1 of its files"):
        verify(str(place), quick=True, console=Said())  # type: ignore[arg-type]
    assert prepare(remote, place, 0) == manifest
    assert verify(str(place), quick=False, console=Said())["files"] > len(names)  # type: ignore[arg-type]


def _refuse() -> None:
    raise AssertionError("Ray was started for a finished corpus")


def test_verify_names_every_file_and_quick_reads_none(
    made: tuple[CorpusConfig, Path, list[str]], tmp_path: Path
) -> None:
    config, _, _ = made
    manifest = prepare(config, tmp_path, 0)
    shard = manifest.train.shards[0].name
    content = bytearray((tmp_path / shard).read_bytes())
    content[700] ^= 1
    (tmp_path / shard).write_bytes(content)
    (tmp_path / "train/77777-000.tar").touch()
    said = Said()
    with pytest.raises(DataError, match="1 of its files"):
        verify(str(tmp_path), quick=True, console=said)  # type: ignore[arg-type]
    assert said.lines == ["verify: train/77777-000.tar is extra"]
    with pytest.raises(DataError, match=r"2 of its files are not what the manifest says; run `electra prepare` again"):
        verify(str(tmp_path), quick=False, console=said)  # type: ignore[arg-type]
    assert f"verify: {shard} was altered (its sha256 differs)" in said.lines
    with pytest.raises(DataError, match="no such folder"):
        verify(str(tmp_path / "none"), quick=True, console=said)  # type: ignore[arg-type]


def test_progress_and_statistics_are_shown_and_told(made: tuple[CorpusConfig, Path, list[str]]) -> None:
    _, corpus, said = made
    manifest = manifests.load(corpus)
    paces = [line for line in said if "'MB/s a core'" in line and "'rows'" in line]
    assert paces and "'tokens/s a core'" in paces[-1]
    assert f"Corpus: ('documents read', '{manifest.documents.documents_in:,}')" in said
    padding = 1 - manifest.train.tokens / (manifest.train.rows * 64)
    assert f"Corpus: ('padding', '{padding:.2%} of the places')" in said
    assert any(line.startswith("Text of evaluation sets in the corpus: ['GLUE/RTE', 1, 0, 1, 0, 1]") for line in said)
    (stats,) = [json.loads(line.removeprefix("event stats ")) for line in said if line.startswith("event stats ")]
    assert stats["training tokens"] == f"{manifest.train.tokens:,}"
    # the second source is half copies of the first
    assert any("corpus.sources[1]" in line and "duplicates" in line for line in said)


def test_the_estimate_is_near_what_comes_out(made: tuple[CorpusConfig, Path, list[str]]) -> None:
    config, corpus, _ = made
    manifest = manifests.load(corpus)
    plan = make_plan(config, 0)
    found = estimate.estimate(config, plan)
    assert found.units == len(plan.units) == manifest.units
    assert found.input_bytes == sum(file.bytes for file in plan.files)
    # duplicates are not looked for, and one unit stands for each source
    assert manifest.train.rows + manifest.heldout.rows < found.rows < 2 * (manifest.train.rows + manifest.heldout.rows)
    assert found.seconds(2) > found.seconds(4) > 0


def test_a_disk_without_room_is_found_before_any_work(
    made: tuple[CorpusConfig, Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, _, _ = made
    monkeypatch.setattr(storage.LocalFolder, "free_bytes", lambda self: 1_000)
    with pytest.raises(PreflightError, match=r"GB will be needed and 0\.0 GB are free; make room"):
        prepare(config, tmp_path, 0, start_ray=_refuse)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "plan.json"]


def test_a_folder_of_other_things_is_no_corpus_and_nothing_in_it_is_touched(
    made: tuple[CorpusConfig, Path, list[str]], tmp_path: Path
) -> None:
    config, _, _ = made
    for name in ("train/mydata-000.tar", "other/notes.tmp-1", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=r"holds notes\.txt and is no corpus"):
        prepare(config, tmp_path, 0, start_ray=_refuse)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        ".lock",
        "mydata-000.tar",
        "notes.tmp-1",
        "notes.txt",
    ]


def test_only_our_own_shards_and_temporaries_are_cleared(
    made: tuple[CorpusConfig, Path, list[str]], tmp_path: Path
) -> None:
    config, _, _ = made
    prepare(config, tmp_path, 0)
    (tmp_path / "manifest.json").unlink()
    theirs, ours = ["train/notes.tar", "train/x.tmp-1"], ["train/00000-077.tar", "train/x.tar.tmp-12-0123abcd"]
    for name in theirs + ours:
        (tmp_path / name).touch()
    prepare(config, tmp_path, 0)
    assert all((tmp_path / name).exists() for name in theirs)
    assert not any((tmp_path / name).exists() for name in ours)


def test_one_preparation_at_a_time_works_in_a_corpus(
    made: tuple[CorpusConfig, Path, list[str]], tmp_path: Path
) -> None:
    config, _, _ = made
    with (
        storage.folder(tmp_path).held(),
        pytest.raises(PreflightError, match="another electra process is working in this folder"),
    ):
        prepare(config, tmp_path, 0, start_ray=_refuse)


def test_changed_evaluation_sets_are_another_corpus(made: tuple[CorpusConfig, Path, list[str]], tmp_path: Path) -> None:
    config = settings(tmp_path / "input")
    prepare(config, tmp_path / "corpus", 0)
    (tmp_path / "input/sets/RTE/test.tsv").write_text("index\tsentence1\tsentence2\n0\tOne more.\tAnother one.\n")
    with pytest.raises(ConfigError, match=r"decontamination\.sets: their files have changed"):
        prepare(config, tmp_path / "corpus", 0)


def test_what_is_wrong_with_sets_and_vocabularies_is_found_before_any_work(
    made: tuple[CorpusConfig, Path, list[str]], tmp_path: Path
) -> None:
    config, _, _ = made
    assert config.decontamination is not None
    nowhere = config.decontamination.sets[0].model_copy(update={"path": str(tmp_path / "none")})
    wrong = config.decontamination.model_copy(update={"sets": (nowhere,)})
    with pytest.raises(ConfigError, match="none"):
        prepare(config.model_copy(update={"decontamination": wrong}), tmp_path / "a", 0, start_ray=_refuse)
    (tmp_path / "vocab.json").write_text("{}")
    vocabulary = config.tokenizer.model_copy(update={"path": str(tmp_path / "vocab.json")})
    with pytest.raises(DataError, match=r"vocab\.json"):
        prepare(config.model_copy(update={"tokenizer": vocabulary}), tmp_path / "b", 0, start_ray=_refuse)


def test_a_wrong_field_ends_the_run_long_before_its_end(
    made: tuple[CorpusConfig, Path, list[str]], tmp_path: Path
) -> None:
    config, _, _ = made
    wrong = config.sources[0].model_copy(update={"text_field": "body"})
    sources = (wrong, *config.sources[1:])
    with pytest.raises(
        DataError, match=r"sources\[0\]: \d+ of the \d+ records read so far are malformed, one of them at"
    ):
        prepare(config.model_copy(update={"sources": sources, "unit_bytes": 5_000}), tmp_path, 0)
    units = json.loads((tmp_path / "plan.json").read_text())["units"]
    assert len(list((tmp_path / "documents").glob("*.json"))) < len(units) / 2


def test_an_altered_object_is_restored_when_it_is_deleted(
    made: tuple[CorpusConfig, Path, list[str]], object_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, _, _ = made
    monkeypatch.setenv("ELECTRA_CACHE", str(tmp_path / "cache"))
    place = storage.folder(f"{object_store}/corpora/altered")
    manifest = prepare(config, place, 0)
    name = manifest.train.shards[0].name
    content = bytearray(place.read_bytes(name))
    content[700] ^= 1
    place.write_bytes(name, bytes(content))
    with pytest.raises(DataError, match=r"delete them and run `electra prepare` again"):
        verify(str(place), quick=False, console=Said())  # type: ignore[arg-type]
    place.delete(name)
    assert prepare(config, place, 0) == manifest
    verify(str(place), quick=False, console=Said())  # type: ignore[arg-type]


def test_weights_that_no_cycle_can_hold_are_refused_with_the_settings() -> None:
    sources = [{"kind": "jsonl", "path": "a", "weight": 65_536}, {"kind": "jsonl", "path": "b", "weight": 1}]
    with pytest.raises(ValueError, match="65,536"):
        CorpusConfig.model_validate({"sources": sources})
    with pytest.raises(ValueError, match=r"sources\[1\] has no weight"):
        CorpusConfig.model_validate({"sources": [sources[0], {"kind": "jsonl", "path": "b"}]})
