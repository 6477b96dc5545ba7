"""Speed of sentences and packing: `python -m tests.benchmarks.packing [MEGABYTES]`, CPU time of one core.

Each line beside its peer: the same in plain Python, a sentence and a list of tokens at a time, on a part of the text.
Below, the share of padding of `packed`, by best fit and filled in document order.
"""

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep import sentences, tokenizer
from data_prep.packing import Layout, TokenBatch, make_packer
from data_prep.tokenizer import TokenizerConfig
from tests import reference_packing as reference
from tests.benchmarks.texts import documents, seconds

PEER_SHARE = 8  # the peer sees one document in so many
BATCH_BYTES = 4_000_000
SEPARATORS = 1
DTYPE = np.dtype("<u2")


def batches(texts: Sequence[str], encode: Callable[[list[str]], Any]) -> list[TokenBatch]:
    """The texts as the rows stage gives them to a packer."""
    found, first, size = [], 0, 0
    for n, text in enumerate(texts):
        size += len(text)
        if size > BATCH_BYTES or n + 1 == len(texts):
            parts, document_ends = sentences.split(texts[first : n + 1])
            encoded = encode(parts)
            keys = np.arange(first, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            found.append(TokenBatch(encoded.ids, encoded.ends, document_ends, keys))
            first, size = n + 1, 0
    return found


def as_lists(batch: TokenBatch) -> list[list[list[int]]]:
    """Documents, sentences, tokens."""
    parts = [part.tolist() for part in np.split(batch.ids, batch.sentence_ends[:-1])]
    return [parts[first:last] for first, last in pairwise([0, *batch.document_ends.tolist()])]


def main(megabytes: float) -> None:
    texts = list(documents(megabytes))
    peer_texts = texts[::PEER_SHARE]
    size, peer_size = (sum(len(text.encode()) for text in part) / 1e6 for part in (texts, peer_texts))
    made = tokenizer.train(peer_texts[:500], TokenizerConfig(vocab_size=8_000))
    flat, peer_flat = batches(texts, made.encode_flat), batches(peer_texts, made.encode_flat)
    lists = [
        (document, int(key)) for batch in peer_flat for document, key in zip(as_lists(batch), batch.keys, strict=True)
    ]

    def line(name: str, ours: Callable[[], object], peer: Callable[[], object]) -> None:
        mine, theirs = seconds(ours, 3) / size, seconds(peer, 1) / peer_size
        print(
            f"{name:<16}{mine * 1e3:8.2f} ms/MB{theirs * 1e3:10.1f} ms/MB in plain Python{theirs / mine:8.1f}x",
            flush=True,
        )

    def split_all() -> None:
        group = max(1, int(BATCH_BYTES / (size * 1e6) * len(texts)))
        for first in range(0, len(texts), group):
            sentences.split(texts[first : first + group])

    def pack(layout: Layout, seq_len: int) -> NDArray[Any]:
        packer = make_packer(
            layout,
            seq_len=seq_len,
            special=made.special,
            pair_separators=SEPARATORS,
            seed=0,
            continues=made.continues,
            dtype=DTYPE,
        )
        return np.concatenate([*(packer.add(batch) for batch in flat), packer.flush()])

    def pack_lists(layout: Layout, seq_len: int) -> NDArray[Any]:
        packer: reference.SegmentPacker | reference.SentencePacker
        if layout == "packed":
            packer = reference.SentencePacker(seq_len=seq_len, special=made.special)
        else:
            packer = reference.SegmentPacker(seq_len=seq_len, special=made.special, pair_separators=SEPARATORS, seed=0)
        rows = [row for document, key in lists for row in packer.add(document, key)] + packer.flush()
        return reference.pad_rows(rows, seq_len, made.special.pad, DTYPE)

    print(
        f"{size:.1f} MB, {len(texts)} documents, {sum(len(batch.ids) for batch in flat) / size / 1e3:.0f} k tokens/MB"
    )
    line("sentences", split_all, lambda: [reference.split_sentences(text) for text in peer_texts])
    for seq_len in (128, 512):
        line(f"packed {seq_len}", lambda n=seq_len: pack("packed", n), lambda n=seq_len: pack_lists("packed", n))
        line(f"segments {seq_len}", lambda n=seq_len: pack("segments", n), lambda n=seq_len: pack_lists("segments", n))
    for seq_len in (128, 512):
        ours, theirs = (
            np.mean(rows == made.special.pad) for rows in (pack("packed", seq_len), pack_lists("packed", seq_len))
        )
        print(f"padding at {seq_len}: best fit {ours:.2%}, in document order {theirs:.2%}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 16.0)
