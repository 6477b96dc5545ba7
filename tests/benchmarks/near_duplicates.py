"""Speed of near-duplicate signatures and of decontamination: CPU time of one core.

    ELECTRA_TEST_DATA=... python -m tests.benchmarks.near_duplicates [MEGABYTES]

Signatures: from texts to band keys, and as a stage from the table of documents to the file of keys. The peer does the
same in plain Python as is usual: a set of 5-grams of words, eight bytes of SHA-1 each, minima of 112 linear functions
by numpy. Decontamination: search of texts, and as a stage, against the dev sets of GLUE and SQuAD (without test data:
against a hundredth of the text itself); its peer looks up tuples of 13 words in a set. Peers see a part of the text.
The rest of the near-duplicate stages is shown for a corpus in which every tenth document has a near duplicate.
"""

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_prep import decontaminate, nearcheck, neardup, ngram_index, shingles, tables
from data_prep.decontaminate import DecontaminateTask, Decontamination, IndexTask
from data_prep.evaluation_sets import EvaluationSet
from data_prep.minhash import band_keys, signatures
from data_prep.neardup import NearDuplicates, NearTask, PairsTask
from data_prep.storage import folder
from tests.benchmarks.texts import documents, megabytes, seconds

PEER_SHARE = 20  # the peers see one document in so many
BATCH_BYTES = 4_000_000
CONFIG = NearDuplicates()
PRIME = np.uint64((1 << 61) - 1)


def batches(texts: Sequence[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    size = 0
    for text in texts:
        found[-1].append(text)
        size += len(text)
        if size > BATCH_BYTES:
            found.append([])
            size = 0
    return found


def sign(texts: Sequence[str]) -> None:
    for batch in batches(texts):
        words = shingles.words(batch)
        made = signatures(shingles.shingles(words, CONFIG.shingle), words.ends, CONFIG.bands * CONFIG.rows)
        band_keys(made, CONFIG.bands)


def peer_sign(texts: Sequence[str]) -> None:
    rng = np.random.default_rng(0)
    factors, addends = rng.integers(1, 1 << 61, (2, CONFIG.bands * CONFIG.rows), dtype=np.uint64)
    for text in texts:
        words = re.findall(r"\w+", text.lower())
        grams = {" ".join(words[i : i + 5]) for i in range(max(1, len(words) - 4))}
        hashes = np.array(
            [int.from_bytes(hashlib.sha1(gram.encode()).digest()[:8], "little") for gram in grams], dtype=np.uint64
        )
        minima = ((hashes[:, None] * factors + addends) % PRIME).min(axis=0)
        for band in minima.reshape(CONFIG.bands, CONFIG.rows):
            band.tobytes()


def peer_search(texts: Sequence[str], grams: set[tuple[str, ...]]) -> int:
    found = 0
    for text in texts:
        words = re.findall(r"\w+", text.lower())
        found += any(tuple(words[i : i + 13]) in grams for i in range(len(words) - 12))
    return found


def show(name: str, rate: float, peer: float) -> None:
    print(f"{name:<44}{rate:8.1f} MB/s    peer {peer:6.1f} MB/s    {rate / peer:6.1f}×")


def edited(text: str) -> str:
    """A near duplicate: one word in a hundred changed."""
    words = text.split()
    return " ".join(f"{word}s" if i % 100 == 50 else word for i, word in enumerate(words))


def evaluation_sets(texts: Sequence[str], place: Path) -> tuple[EvaluationSet, ...]:
    root = os.environ.get("ELECTRA_TEST_DATA")
    if root:
        return tuple(EvaluationSet(name=name, path=f"{root}/{name}") for name in ("glue", "squad"))
    path = place / "dev.txt"
    path.write_text("\n\n".join(texts[::100]), encoding="utf-8")
    return (EvaluationSet(name="texts", path=str(path)),)


def stages(corpus: str, parts: int, size: float, sets: tuple[EvaluationSet, ...], peers: dict[str, float]) -> None:
    """The stages on the stored texts of one unit."""
    near = NearTask(corpus=corpus, config=CONFIG, unit=0, units=1, parts=parts)
    show("  stage: table → keys", size / seconds(lambda: neardup.signatures_unit(near)), peers["sign"])
    pairs = [PairsTask(corpus=corpus, part=part, parts=parts, units=1) for part in range(parts)]
    union = nearcheck.UnionTask(corpus=corpus, config=CONFIG, sources=["texts"], documents=[1])
    rest = {
        "pairs": lambda: [neardup.pairs_unit(task) for task in pairs],
        "sets": lambda: nearcheck.sets_unit(near),
        "check": lambda: nearcheck.check_unit(near),
        "union": lambda: nearcheck.union_unit(union),
    }
    print(
        "  later stages: " + ", ".join(f"{name} {seconds(work) / size * 1e3:.2f} ms/MB" for name, work in rest.items())
    )
    config = Decontamination(sets=sets)
    decontaminate.index_unit(IndexTask(corpus=corpus, config=config))
    task = DecontaminateTask(corpus=corpus, config=config, unit=0)
    show("  stage: table → hits", size / seconds(lambda: decontaminate.decontaminate_unit(task)), peers["search"])


def main(size: float) -> None:
    texts = list(documents(size))
    texts += [edited(text) for text in texts[::10]]
    few = texts[::PEER_SHARE]
    size, small = megabytes(texts), megabytes(few)
    peers = {"sign": small / seconds(lambda: peer_sign(few))}
    show("signatures: texts → 14 keys of 8 rows", size / seconds(lambda: sign(texts), 3), peers["sign"])
    with tempfile.TemporaryDirectory() as name:
        sets = evaluation_sets(texts, Path(name))
        examples = [
            text
            for chosen in sets
            for file in decontaminate.evaluation_sets.find_files(chosen, ("dev", "test"))
            for example in decontaminate.evaluation_sets.read_examples(file)
            for text in example.texts
        ]
        split = [re.findall(r"\w+", text.lower()) for text in examples]
        grams = {tuple(words[i : i + 13]) for words in split for i in range(len(words) - 12)}
        peers["search"] = small / seconds(lambda: peer_search(few, grams))
        searcher = ngram_index.Searcher(ngram_index.build(enumerate(examples), 13, 8), 13, 8)
        rate = size / seconds(lambda: [searcher.find(shingles.words(batch)) for batch in batches(texts)], 3)
        show(f"decontamination: texts → hits, {len(grams):,} n-grams", rate, peers["search"])
        corpus = folder(Path(name) / "corpus")
        with tables.document_writer(corpus, 0) as writer:
            for row, text in enumerate(texts):
                writer.extend([str(row)], [""], [text.encode()], [bytes(16)])
        stages(corpus.location, neardup.pair_parts(len(texts), CONFIG), size, sets, peers)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 50.0)
