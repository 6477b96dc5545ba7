"""Shards of given rows, for tests that need a corpus without preparing one."""

from pathlib import Path

import numpy as np

from data_prep import manifest as manifests
from data_prep import storage
from data_prep.manifest import ShardEntry, Split
from data_prep.rows import SpecialIds
from data_prep.shards import ShardWriter

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)


def write_rows(
    location: storage.Location, split: Split, unit: int, rows: np.ndarray, *, rows_per_shard: int, vocab_size: int
) -> list[ShardEntry]:
    """Write rows `[n, seq_len]` as one unit's shards of a split."""
    with ShardWriter(
        storage.folder(location),
        split,
        unit,
        seq_len=rows.shape[1],
        rows_per_shard=rows_per_shard,
        vocab_size=vocab_size,
    ) as writer:
        writer.add(rows)
    return writer.entries


def make_rows(count: int, seq_len: int, vocab_size: int, seed: int = 0) -> np.ndarray:
    """Rows of random ids."""
    return np.random.default_rng(seed).integers(0, vocab_size, (count, seq_len))


def write_corpus(
    location: storage.Location, rows: np.ndarray, *, vocab_size: int, rows_per_shard: int
) -> manifests.Manifest:
    """A corpus whose train split holds `rows`, in two units, and whose held-out split is empty."""
    half = len(rows) // 2
    parts = []
    for unit, part in enumerate((rows[:half], rows[half:])):
        shards = write_rows(location, "train", unit, part, rows_per_shard=rows_per_shard, vocab_size=vocab_size)
        # rows of random ids have no fragments to count
        parts.append(manifests.empty_stats(rows.shape[1]).model_copy(update={"rows": len(part), "shards": shards}))
    manifest = manifests.Manifest(
        config_sha256="c", inputs_sha256="i", seed=0, tokenizer_sha256="t", vocab_size=vocab_size, special=SPECIAL,
        layout="segments", pair_separators=1, seq_len=rows.shape[1],
        dtype="uint16" if vocab_size < 0xFFFF else "uint32", units=2,
        documents=manifests.Documents(
            documents_in=0, out=0, train=0, heldout=0, text_bytes=0, rejected={}, topics={}
        ),
        heldout_documents=[], train=manifests.add_stats(parts, rows.shape[1]),
        heldout=manifests.empty_stats(rows.shape[1]), sources=[],
    )  # fmt: skip
    manifests.save(manifest, location)
    return manifest


def flip_a_bit(path: Path) -> None:
    """Alter a file without changing its size."""
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
