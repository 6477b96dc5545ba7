"""Speed of preparing a corpus: `python -m tests.benchmarks.prepare [MEGABYTES]`, CPU time of one core.

JSONL to packed shards with control-character cleaning and exact duplicates dropped, by the fast engine and by the
reference, and `segments`; beside them, in the same process, what people would use instead: `encode_batch_fast` of
`tokenizers` and a tar of one row a member.
"""

import io
import json
import os
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import tokenizers

from data_prep import storage, tokenizer
from data_prep.clean import CleaningConfig
from data_prep.corpus import CorpusConfig
from data_prep.plan import make_plan
from data_prep.removals import find_removals
from data_prep.row_units import EngineTask, RowsTask, engine_unit, rows_unit
from data_prep.units import DocumentsTask, TokenizerTask, documents_unit, tokenizer_unit
from tests.benchmarks.texts import documents, write_jsonl

SEQ_LEN = 512
PEER_MEGABYTES = 6.0
CONTROL_ONLY = CleaningConfig(min_chars=0, min_letters=0.0, max_symbols=1.0, whitespace=False)


def config(
    path: Path, layout: str, cleaning: CleaningConfig, vocabulary: Path | None = None, kind: str = "wordpiece"
) -> CorpusConfig:
    """One plain JSONL file; the vocabulary is trained where none is given."""
    return CorpusConfig.model_validate(
        {
            "sources": [{"kind": "jsonl", "path": str(path)}],
            "cleaning": cleaning.model_dump(),
            "layout": layout,
            "seq_len": SEQ_LEN,
            "tokenizer": {
                "kind": kind,
                "lowercase": kind == "wordpiece",
                "vocab_size": 30_522 if kind == "wordpiece" else 50_265,
                "sample_bytes": 3_000_000,
                "path": str(vocabulary) if vocabulary is not None else None,
            },
        }
    )


class Road:
    """The stages in this process, each with its CPU seconds."""

    def __init__(self, settings: CorpusConfig, folder: Path) -> None:
        self.settings, self.corpus = settings, storage.folder(folder)
        self.corpus.prepare()
        self.plan = make_plan(settings, 0)

    def documents(self) -> float:
        """Read, clean, hash and find duplicates."""
        began = time.process_time()
        for unit in self.plan.units:
            files = self.plan.inputs(unit)
            documents_unit(DocumentsTask(corpus=self.corpus.location, config=self.settings, unit=unit, files=files))
        find_removals(self.corpus, self.plan, self.settings)
        return time.process_time() - began

    def tokenizer(self) -> str:
        """Train the vocabulary: once a corpus, so not part of a rate."""
        task = TokenizerTask(corpus=self.corpus.location, config=self.settings, units=len(self.plan.units))
        return str(tokenizer_unit(task)["sha256"])

    def rows(self, sha256: str, verdict: dict[str, Any]) -> float:
        """Tokenize, pack and write."""
        began = time.process_time()
        for unit in self.plan.units:
            rows_unit(
                RowsTask(
                    corpus=self.corpus.location,
                    config=self.settings,
                    unit=unit.unit,
                    seed=0,
                    tokenizer_sha256=sha256,
                    verdict=verdict,
                )
            )
        return time.process_time() - began

    def verdict(self, sha256: str) -> dict[str, Any]:
        """On the fast engine."""
        return engine_unit(EngineTask(corpus=self.corpus.location, units=len(self.plan.units), tokenizer_sha256=sha256))


def peer(made: tokenizer.Tokenizer, texts: list[str]) -> tuple[float, float]:
    """(CPU seconds of `encode_batch_fast` alone, of it with a tar of one row a member)."""
    backend = tokenizers.Tokenizer.from_str(json.dumps(made.state()))
    began = time.process_time()
    encodings = []
    for start in range(0, len(texts), 256):
        encodings += backend.encode_batch_fast(texts[start : start + 256], add_special_tokens=False)
    encoded = time.process_time() - began
    ids = np.concatenate([np.array(encoding.ids, dtype=np.uint16) for encoding in encodings])
    with tempfile.TemporaryFile() as file, tarfile.open(fileobj=file, mode="w|", format=tarfile.USTAR_FORMAT) as tar:
        for number, start in enumerate(range(0, len(ids) - SEQ_LEN, SEQ_LEN)):
            member = tarfile.TarInfo(f"{number:09d}.u16")
            payload = ids[start : start + SEQ_LEN].tobytes()
            member.size = len(payload)
            tar.addfile(member, io.BytesIO(payload))
    return encoded, time.process_time() - began


def main() -> None:
    """Print one line a case."""
    megabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    with tempfile.TemporaryDirectory() as folder:
        path, small = Path(folder) / "text.jsonl", Path(folder) / "small.jsonl"
        size = write_jsonl(path, megabytes) / 1e6
        write_jsonl(small, PEER_MEGABYTES)
        print(f"{size:.1f} MB of English; MB a second of CPU on one core")
        for kind in ("wordpiece", "bpe"):
            vocabulary = _warm_up(small, Path(folder) / kind, kind)
            _cases(path, small, size, vocabulary, Path(folder) / f"{kind}-cases")


def _cases(path: Path, small: Path, size: float, vocabulary: Path, folder: Path) -> None:
    texts = list(documents(PEER_MEGABYTES))
    encode_seconds, peer_seconds = peer(tokenizer.load(vocabulary), texts)
    ceiling, rate_of_peer = PEER_MEGABYTES / encode_seconds, PEER_MEGABYTES / peer_seconds
    show("tokenizers.encode_batch_fast alone", ceiling)
    show("the same, and a tar of one row a member", rate_of_peer, 1.0)
    road = Road(config(path, "packed", CONTROL_ONLY, vocabulary), folder / "packed")
    documents_seconds = road.documents()
    sha256 = road.tokenizer()
    verdict = road.verdict(sha256)
    rows_seconds = road.rows(sha256, verdict)
    rate = size / (documents_seconds + rows_seconds)
    show(f"JSONL → packed shards, {verdict['engine'] or 'reference'}", rate, rate / rate_of_peer)
    show("  of it reading, cleaning, duplicates", size / documents_seconds)
    show("  of it tokenizing, packing, writing", size / rows_seconds)
    for name, layout, cleaning in (
        ("JSONL → segments", "segments", CONTROL_ONLY),
        ("JSONL → packed shards, default cleaning", "packed", CleaningConfig()),
    ):
        road = Road(config(path, layout, cleaning, vocabulary), folder / name)
        seconds = road.documents() + road.rows(road.tokenizer(), verdict)
        show(name, size / seconds, size / seconds / rate_of_peer)
    road = Road(config(small, "packed", CONTROL_ONLY, vocabulary), folder / "reference")
    seconds = road.documents() + road.rows(road.tokenizer(), {"accepted": False})
    rate = PEER_MEGABYTES / seconds
    show("JSONL → packed shards, reference", rate, rate / ceiling, "encode_batch_fast")


def _warm_up(path: Path, folder: Path, kind: str) -> Path:
    """Import, compile and build what the stages need, as a worker does once, whatever the size of the corpus; returns
    the vocabulary that was trained."""
    road = Road(config(path, "packed", CONTROL_ONLY, kind=kind), folder)
    road.documents()
    sha256 = road.tokenizer()
    began = time.process_time()
    road.rows(sha256, road.verdict(sha256))
    print(f"{kind}; first unit of a process, with its imports: {time.process_time() - began:.1f} s of CPU")
    return folder / "tokenizer"


def show(name: str, rate: float, ratio: float | None = None, of: str = "the peer") -> None:
    """One line of the table."""
    print(f"  {name:<44}{rate:8.2f}" + ("" if ratio is None else f"{ratio:7.2f} × {of}"), flush=True)


if __name__ == "__main__":
    main()
