"""Input made up for tests of preparation, and a console that keeps what it is told."""

import contextlib
import gzip
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from data_prep.corpus import CorpusConfig
from data_prep.manifest import Manifest

NOUNS = ["river", "engine", "teacher", "window", "garden", "letter", "market", "bridge", "lesson", "winter", "village"]
VERBS = [
    "follows",
    "repairs",
    "describes",
    "measures",
    "crosses",
    "remembers",
    "finds",
    "carries",
    "questions",
    "paints",
]


def make_text(rng: random.Random) -> str:
    """Some 300 to 2,800 characters of sentences."""
    sentences = [
        f"The {rng.choice(NOUNS)} {rng.choice(VERBS)} the {rng.choice(NOUNS)} in {rng.randint(1, 999)} days."
        for _ in range(rng.randint(7, 60))
    ]
    return " ".join(sentences)


def write_sources(folder: Path, documents: int = 600) -> CorpusConfig:
    """A plain file of several ranges and an archive, with duplicates, short texts and broken lines among them."""
    rng = random.Random(0)
    texts = [make_text(rng) for _ in range(documents)]
    lines = [json.dumps({"text": text, "kind": f"k{i % 5}"}) for i, text in enumerate(texts)]
    lines[10:10] = ['{"text": "broken', '{"no": "text"}', json.dumps({"text": "too short"})]
    lines += [json.dumps({"text": texts[3].upper()}), json.dumps({"text": "  " + texts[7].replace(" ", "  ")})]
    cut = documents * 3 // 4
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plain.jsonl").write_text("\n".join(lines[:cut]) + "\n")
    (folder / "rest.jsonl.gz").write_bytes(gzip.compress(("\n".join(lines[cut:]) + "\n").encode(), mtime=0))
    return CorpusConfig.model_validate(
        {
            "sources": [{"kind": "jsonl", "path": str(folder / "*.jsonl*"), "topic_field": "kind"}],
            "tokenizer": {"vocab_size": 600, "sample_bytes": 200_000},
            "layout": "segments",
            "seq_len": 64,
            "heldout_fraction": 0.1,
            "unit_bytes": 70_000,
            "rows_per_shard": 192,
        }
    )


def hashes(manifest: Manifest) -> dict[str, str]:
    return {shard.name: shard.sha256 for split in (manifest.train, manifest.heldout) for shard in split.shards}


class Said:
    """A console that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextlib.contextmanager
    def stage(self, name: str, total: float | None = None, unit: str = "") -> Iterator["Said"]:
        yield self

    def advance(self, n: float = 1, **figures: float | str) -> None:
        self.lines.append(f"{n} {figures}")

    def say(self, text: str) -> None:
        self.lines.append(text)

    warn = say

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.lines += [f"{title}: {row}" for row in rows]
