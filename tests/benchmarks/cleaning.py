"""MB of text a second of CPU that cleaning takes: each step alone, the default, everything; each beside a peer.

    ELECTRA_TEST_DATA=... python -m tests.benchmarks.cleaning [MB]

Three texts: documents of 2.6 KB in ASCII, the same with curly quotation marks, and the same joined to documents of
260 KB, which shows what a document costs whatever its length. Peers: `ftfy.fix_text` for repairs and for cleaning as a
whole, a Counter for each length of n-gram (the usual implementation) for repetition. Ratios are to the peer's rate on
the same text in this process.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

os.environ.setdefault("OMP_NUM_THREADS", "1")

import ftfy

from data_prep.clean import CleaningConfig, clean_batch
from tests.benchmarks.texts import documents

OFF = {"control_characters": False, "whitespace": False, "min_chars": 0, "min_letters": 0.0, "max_symbols": 1.0}
CONFIGS = {
    "control characters only": CleaningConfig(**{**OFF, "control_characters": True}),
    "whitespace only": CleaningConfig(**{**OFF, "whitespace": True}),
    "encoding only": CleaningConfig(**{**OFF, "repair_encoding": True}),
    "letters only": CleaningConfig(**{**OFF, "min_letters": 0.6}),
    "symbols only": CleaningConfig(**{**OFF, "max_symbols": 0.1}),
    "quality only": CleaningConfig(**{**OFF, "quality": {}}),
    "repetition only": CleaningConfig(**{**OFF, "repetition": {}}),
    "language only": CleaningConfig(**{**OFF, "languages": ("en",)}),
    "default": CleaningConfig(),
    "default + quality + repetition": CleaningConfig(quality={}, repetition={}),
}
AGAINST_COUNTER = ("repetition only", "default + quality + repetition")


def counter_repetition(text: str) -> list[float]:
    """The fraction of each length of n-gram, by counting."""
    words = text.split()
    fractions = []
    for n in range(2, 11):
        counts = Counter(" ".join(words[i : i + n]) for i in range(len(words) - n + 1))
        if n <= 4:
            top = counts.most_common(1)
            fractions.append(len(top[0][0]) * top[0][1] / len(text) if top else 0.0)
        else:
            fractions.append(sum(len(gram) * (count - 1) for gram, count in counts.items() if count > 1) / len(text))
    return fractions


def rate(work: Callable[[str], object], texts: Sequence[str]) -> float:
    """MB a second of CPU, the better of two passes."""
    best = float("inf")
    work(texts[0])
    for _ in range(2):
        start = time.process_time()
        for text in texts:
            work(text)
        best = min(best, time.process_time() - start)
    return sum(len(text.encode()) for text in texts) / 1e6 / best


def batch_rate(config: CleaningConfig, texts: Sequence[str]) -> float:
    """The same for our cleaning, which takes a batch of documents at a time, as a unit gives it them."""
    size = max(1, 256_000 // len(texts[0]))
    batches = [list(texts[i : i + size]) for i in range(0, len(texts), size)]
    clean_batch(batches[0], config)
    best = float("inf")
    for _ in range(2):
        start = time.process_time()
        for batch in batches:
            clean_batch(batch, config)
        best = min(best, time.process_time() - start)
    return sum(len(text.encode()) for text in texts) / 1e6 / best


def main() -> None:
    small = [text.encode("ascii", "ignore").decode() for text in documents(float(sys.argv[1]) if sys.argv[1:] else 4.0)]
    curly = [text.replace('"', "”").replace("'", "’") for text in small]
    joined = ["\n\n".join(small[i : i + 100]) for i in range(0, len(small), 100)]
    for label, texts in (("ASCII, 2.6 KB", small), ("curly quotes, 2.6 KB", curly), ("ASCII, 260 KB", joined)):
        peers = {"ftfy.fix_text": rate(ftfy.fix_text, texts), "a Counter": rate(counter_repetition, texts[::4])}
        print(
            f"{label}: {len(texts)} documents; " + ", ".join(f"{name} {peer:.1f} MB/s" for name, peer in peers.items())
        )
        for name, config in CONFIGS.items():
            found = batch_rate(config, texts)
            peer = "a Counter" if name in AGAINST_COUNTER else "ftfy.fix_text"
            print(f"  {name:32}{found:8.1f} MB/s {1e3 / found:8.2f} ms/MB {found / peers[peer]:8.1f} × {peer}")


if __name__ == "__main__":
    main()
