"""Kills of workers, the driver and Ray itself: the corpus is that of an undisturbed run with other CPUs."""

import random
from pathlib import Path

import pytest
import yaml

from tests.conftest import write_documents
from tests.pipeline.chaos import Chaos, content, differences, experiment, work_folder
from tests.pipeline.chaos_sites import Embedded

pytestmark = [pytest.mark.slow, pytest.mark.multi]


def tiny_corpus(folder: Path) -> dict[str, object]:
    """Every stage, on some forty units."""
    write_documents(folder / "documents.jsonl", 3000)
    (folder / "sets").mkdir()
    passage = (folder / "documents.jsonl").read_text(encoding="utf-8").split('"text": "')[9].split(".")[:2]
    (folder / "sets" / "dev.txt").write_text(".".join(passage), encoding="utf-8")
    return {
        "sources": [{"kind": "jsonl", "path": str(folder / "documents.jsonl"), "topic_field": "topic"}],
        "near_duplicates": {},
        "decontamination": {"sets": [{"name": "planted", "path": str(folder / "sets")}], "policy": "cut"},
        "tokenizer": {"kind": "wordpiece", "vocab_size": 300},
        "layout": "packed",
        "seq_len": 32,
        "heldout_fraction": 0.1,
        "unit_bytes": 60_000,
        "rows_per_shard": 256,
    }


def test_killed_workers_driver_and_ray_leave_no_trace() -> None:
    said: list[str] = []
    with work_folder() as work:
        config = work / "chaos.yaml"
        config.write_text(yaml.safe_dump(experiment(tiny_corpus(work))), encoding="utf-8")
        chaos = Chaos(work, config, Embedded(), random.Random(0), say=said.append)
        try:
            expected = chaos.undisturbed()
            wanted = content(expected)
            # a worker first: what is killed after it is killed in the middle of the work, not while Ray starts
            chaos.disturb(expected, ["worker", "raylet", "worker", "driver"], longest_pause=1.5)
        finally:
            chaos.site.leftovers(0.0)
    assert sum(name.startswith("train/") and name.endswith(".tar") for name in wanted) > 30
    assert chaos.counts == {"worker": 2, "driver": 1, "raylet": 1}, said
    assert chaos.problems == [], said


def test_what_differs_is_named() -> None:
    wanted, found = {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "9", "d": "4"}
    assert differences(wanted, found) == ["c is missing", "d is there too much", "b differs"]
