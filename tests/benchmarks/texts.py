"""English for benchmarks, and how long work on it takes: real prose as plain JSONL in documents of a few kilobytes.

From ELECTRA_TEST_DATA/corpus where that is set, otherwise the docstrings of the installed packages, repeated with a
counter in front until there is enough (no two documents alike).
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

DOCUMENT = 2_600  # characters


def documents(megabytes: float) -> Iterator[str]:
    """Documents of about `DOCUMENT` characters, `megabytes` of UTF-8 in all."""
    left = megabytes * 1e6
    number = 0
    while True:
        for text in _texts():
            for start in range(0, len(text), DOCUMENT):
                document = (
                    text[start : start + DOCUMENT] if number == 0 else f"{number} {text[start : start + DOCUMENT]}"
                )
                left -= len(document.encode())
                if left < 0:
                    return
                yield document
        number += 1


def megabytes(texts: Sequence[str]) -> float:
    """MB of UTF-8."""
    return sum(len(text.encode()) for text in texts) / 1e6


def seconds(work: Callable[[], object], repeats: int = 1) -> float:
    """The least CPU time of a few runs."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def write_jsonl(path: Path, megabytes: float) -> int:
    """Write the documents as JSONL; returns the bytes of their text."""
    size = 0
    with path.open("w", encoding="utf-8") as file:
        for text in documents(megabytes):
            size += len(text.encode())
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return size


def _texts() -> Iterator[str]:
    folder = os.environ.get("ELECTRA_TEST_DATA")
    if folder is None:
        from data_prep.sources import Document, InstalledDocs, input_files, read

        source = InstalledDocs()
        yield from (
            record.text for record in read(source, input_files(source), 0, None) if isinstance(record, Document)
        )
        return
    import zstandard

    for name in ("novels98", "python_docs", "enwiki_sample"):
        with open(Path(folder) / "corpus" / f"{name}.jsonl.zst", "rb") as file:
            content = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
        yield from (json.loads(line)["text"] for line in content.split(b"\n") if line)
