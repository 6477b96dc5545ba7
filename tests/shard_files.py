"""Shards of given rows, for tests that need a corpus without preparing one."""

from pathlib import Path

import numpy as np

from data_prep.manifest import ShardEntry, Split
from data_prep.shards import ShardWriter


def write_rows(
    corpus_dir: Path, split: Split, unit: int, rows: np.ndarray, *, rows_per_shard: int, vocab_size: int
) -> list[ShardEntry]:
    """Write rows `[n, seq_len]` as one unit's shards of a split."""
    writer = ShardWriter(
        corpus_dir, split, unit, seq_len=rows.shape[1], rows_per_shard=rows_per_shard, vocab_size=vocab_size
    )
    writer.add(rows)
    return writer.close()
