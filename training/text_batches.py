"""Examples as token ids, and batches of similar length: what a fine-tuning reads.

`encode` makes `cls A sep` or `cls A sep B sep` of each example; `bucketed` deals the examples into batches whose texts
have about the same length, so that padding to the batch's own longest costs little. Everything is a function of its
arguments; no generator state. Text that spells a special token stays text (`data_prep.tokenizer`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data_prep import keyed
from data_prep.tokenizer import Tokenizer
from training.tasks import Example, Labels

BUCKET_BATCHES = 32  # batches sorted by length together: enough for little padding, few enough to keep order random
ENCODE_SLAB = 1024  # texts tokenized at once


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of many examples in one flat array; example i is `ids[starts[i] : starts[i + 1]]`."""

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]  # [n + 1]
    second: NDArray[np.int64]  # [n], where token types become 1
    labels: Labels  # [n], classes or values
    pad: int

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each example, `[n]`."""
        return np.diff(self.starts)

    def batch(self, which_B: NDArray[np.int64], device: torch.device) -> dict[str, Tensor]:
        """`ids, positions, types, fragment` `[B, L]` padded to the longest of the batch, and `labels` `[B]` (int64
        classes or float32 values)."""
        lengths_B = self.lengths[which_B]
        column_L = np.arange(lengths_B.max())
        real_BL = column_L[None, :] < lengths_B[:, None]
        at_BL = np.where(real_BL, self.starts[which_B][:, None] + column_L[None, :], 0)
        arrays = {
            "ids": np.where(real_BL, self.ids[at_BL], self.pad),
            "positions": np.where(real_BL, column_L[None, :], 0),
            "types": (column_L[None, :] >= self.second[which_B][:, None]) & real_BL,
            "fragment": real_BL,
        }
        labels_B = self.labels[which_B]
        kinds = {"labels": labels_B.astype(np.float32 if labels_B.dtype.kind == "f" else np.int64)}
        kinds |= {name: array.astype(np.int64) for name, array in arrays.items()}
        return {name: torch.from_numpy(array).to(device) for name, array in kinds.items()}


def bucketed(lengths: NDArray[np.int64], batch_size: int, seed: int, epoch: int) -> Iterator[NDArray[np.int64]]:
    """Batches of indices of similar length, every index once: shuffle, sort within pools of `BUCKET_BATCHES` batches,
    cut, shuffle the batches. Only the last batch cut may be smaller."""
    order = keyed_order(len(lengths), "finetune-order", seed, epoch)
    pool = batch_size * BUCKET_BATCHES
    batches = []
    for start in range(0, len(order), pool):
        part = order[start : start + pool]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += [part[i : i + batch_size] for i in range(0, len(part), batch_size)]
    for i in keyed_order(len(batches), "finetune-batches", seed, epoch):
        yield batches[i]


def ascending(lengths: NDArray[np.int64], tokens: int) -> Iterator[NDArray[np.int64]]:
    """Batches of indices, shortest first, each of at most `tokens` tokens with its padding (or one example)."""
    order = np.argsort(lengths, kind="stable")
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - start) * lengths[order[end]] > tokens:
            yield order[start:end]
            start = end


def keyed_order(n: int, *key: int | str) -> NDArray[np.int64]:
    """A permutation of 0…n-1 that is a function of the key."""
    uniforms_n = keyed.uniforms(keyed.key(*key), np.arange(n, dtype=np.int64), 1)[:, 0]
    return np.argsort(uniforms_n, kind="stable").astype(np.int64)


def encode(examples: Sequence[Example], tokenizer: Tokenizer, max_length: int) -> Encoded:
    """Token ids of every example, the longer segment cut first where both do not fit in `max_length`."""
    special, rows, second = tokenizer.special, [], []
    for start in range(0, len(examples), ENCODE_SLAB):
        slab = examples[start : start + ENCODE_SLAB]
        firsts = tokenizer.encode([example.text_a for example in slab])
        paired = [example.text_b for example in slab if example.text_b is not None]
        seconds = iter(tokenizer.encode(paired) if paired else ())
        for example, first in zip(slab, firsts, strict=True):
            if example.text_b is None:
                row = [special.cls, *first[: max_length - 2], special.sep]
                second.append(len(row))
            else:
                other = next(seconds)
                separators = [special.sep] * tokenizer.pair_separators
                n_first, n_other = truncated(len(first), len(other), max_length - 2 - len(separators))
                head = [special.cls, *first[:n_first], *separators]
                row = [*head, *other[:n_other], special.sep]
                second.append(len(head))
            rows.append(np.asarray(row, dtype=np.int32))
    return Encoded(
        ids=np.concatenate(rows),
        starts=np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64),
        second=np.asarray(second, dtype=np.int64),
        labels=np.asarray([example.label for example in examples]),
        pad=special.pad,
    )


def truncated(first: int, second: int, budget: int) -> tuple[int, int]:
    """Lengths of a pair that fit `budget` together, one token at a time off the longer (the second, if equal)."""
    kept = min(first, max(budget - second, -(-budget // 2)))
    return kept, min(second, budget - kept)
