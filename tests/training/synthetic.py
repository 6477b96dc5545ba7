"""Small synthetic corpora for the training tests: rows with some regularity to learn, in either layout."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_prep import manifest as manifests
from data_prep import tokenizer as tokenizers
from data_prep.manifest import Documents, Manifest, SourceStats, SplitStats
from data_prep.rows import SpecialIds, structure
from data_prep.shards import row_stats
from tests.shard_files import write_rows
from training.nextsentence import PairIndex, Partners
from training.sizes import ModelConfig

SEQ_LEN, VOCAB = 32, 96
SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
MODEL = ModelConfig(
    embedding_size=16,
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    intermediate_size=64,
    max_positions=64,
    dropout=0.0,
    attention_dropout=0.0,
)


def make_rows(count: int, seed: int, packed: bool = False, separators: int = 1) -> np.ndarray:
    """Rows of pairs and single segments (or of several fragments), of many lengths, with some regularity to learn;
    `separators` stand between the segments of a pair."""
    rng = np.random.default_rng(seed)
    rows = np.full((count, SEQ_LEN), SPECIAL.pad, dtype=np.int64)
    for row in rows:
        place, fragments = 0, rng.integers(1, 4) if packed else 1
        for _ in range(fragments):
            segments = 1 if packed or rng.random() < 0.2 else 2
            need = 1 + segments * 3 + (segments - 1) * (separators - 1)
            if SEQ_LEN - place < need:
                break
            row[place], place = SPECIAL.cls, place + 1
            for left in range(segments, 0, -1):
                room = SEQ_LEN - place - 1 - (left - 1) * (2 + separators)
                length = int(rng.integers(2, max(3, min(room, 14) + 1)))
                start = int((VOCAB - 5) * rng.random() ** 4)  # low words are frequent
                row[place : place + length] = 5 + (start + np.arange(length)) % (VOCAB - 5)
                end = place + length + (separators if left == 2 else 1)
                row[place + length : end], place = SPECIAL.sep, end
    return rows


def with_ids(rows: np.ndarray, special: SpecialIds) -> np.ndarray:
    """The same rows under another vocabulary: the special ids where `special` has them, the words in their order in
    what is left."""
    assert special.unk is not None and SPECIAL.unk is not None
    names = ("cls", "sep", "pad", "mask", "unk")
    ids = np.empty(VOCAB, dtype=np.int64)
    ids[[getattr(SPECIAL, name) for name in names]] = [getattr(special, name) for name in names]
    ids[np.setdiff1d(np.arange(VOCAB), SPECIAL.all())] = np.setdiff1d(np.arange(VOCAB), special.all())
    return ids[rows]


def write_corpus(
    folder: Path, packed: bool = False, rows: int = 300, sources: Sequence[tuple[int, int]] = ()
) -> Manifest:
    """A prepared corpus of synthetic rows in two shards a unit: one unit, or one for each of the sources, given as
    (training rows, weight). The held-out rows are the first unit's."""

    def unit(name: manifests.Split, number: int, count: int, seed: int) -> SplitStats:
        stored = make_rows(count, seed, packed)
        shards = write_rows(folder, name, number, stored, rows_per_shard=-(-count // 2), vocab_size=VOCAB)
        return row_stats(stored, SPECIAL).model_copy(update={"shards": shards})

    folder.mkdir(parents=True, exist_ok=True)
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *(f"word{chr(97 + i // 10)}{chr(97 + i % 10)}" for i in range(VOCAB - 5)),
    ]
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(words) + "\n")
    tokenizer_sha256 = tokenizers.load(vocabulary).save(folder / "tokenizer")
    train = [unit("train", number, count, 1 + 2 * number) for number, (count, _) in enumerate(sources or [(rows, 1)])]
    heldout = unit("heldout", 0, 40, 2)
    manifest = Manifest(
        config_sha256="0" * 64,
        inputs_sha256="0" * 64,
        seed=0,
        tokenizer_sha256=tokenizer_sha256,
        vocab_size=VOCAB,
        special=SPECIAL,
        layout="packed" if packed else "segments",
        pair_separators=1,
        seq_len=SEQ_LEN,
        dtype="uint16",
        units=len(train),
        documents=Documents(documents_in=1, out=1, train=1, heldout=0, text_bytes=1, rejected={}, topics={}),
        heldout_documents=[],
        train=manifests.add_stats(train, SEQ_LEN),
        heldout=heldout,
        sources=[
            SourceStats(
                kind="synthetic",
                weight=weight,
                units=1,
                train=train[number].model_copy(update={"shards": []}),
                heldout=manifests.empty_stats(SEQ_LEN) if number else heldout.model_copy(update={"shards": []}),
            )
            for number, (_, weight) in enumerate(sources)
        ],
    )
    manifests.save(manifest, folder)
    return manifest


def partners_within(rows: np.ndarray, special: SpecialIds = SPECIAL, picked: np.ndarray | None = None) -> Partners:
    """Next-sentence partners for a batch that is a whole shard, or the picked rows of one."""
    index, here = PairIndex(structure(rows, special)), np.arange(len(rows)) if picked is None else picked

    def fetch(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        partner, start, found = index.partners(here, draws)
        return rows[partner], start, found

    return fetch
