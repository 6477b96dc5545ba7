"""Which positions are masked and what stands there, as pure functions of (seed, epoch, row).

Rules of google-research/electra (`pretrain_helpers.mask`), with one declared difference: positions are drawn without
replacement, because drawing with replacement averages token ids (google-research/electra#41). All arrays are numpy and
computed on the host from the *stored* row; the same row gets the same mask in any batch, on any rank.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.keyed import bits, key, uniforms
from data_prep.rows import RowStructure

Int = NDArray[np.int64]

_EPOCH_STRIDE = np.int64(1) << np.int64(40)  # rows of a source stay far below 2^40


@dataclass(frozen=True, slots=True)
class RowKeys:
    """The identity of each row of a batch, `[B]` each: what every keyed draw depends on."""

    seed: int
    epoch: Int
    row: Int

    def counter(self, versions: int | None = None) -> Int:
        """One integer a row; with `versions`, epochs repeat after that many (BERT's ten duplicated masks)."""
        epoch = self.epoch if versions is None else self.epoch % versions
        return epoch * _EPOCH_STRIDE + self.row


@dataclass(frozen=True, slots=True)
class MaskPlan:
    """K slots a row; unused slots have weight 0 and point at position 0 (`cls`, never a candidate)."""

    positions: Int  # [B, K], ascending among the used slots
    labels: Int  # [B, K] the stored token there, 0 in unused slots
    weights: NDArray[np.float32]  # [B, K] 1 or 0
    inputs: Int  # [B, L] the row with its masked positions overwritten

    @property
    def count(self) -> int:
        """Masked positions in the batch."""
        return int(self.weights.sum())


def mask_counts(lengths: Int, mask_prob: float, slots: int) -> Int:
    """k = max(1, min(slots, round(p·n))), n real tokens with specials, halves to even; 0 for a row without text.

    A row of nothing but specials has no candidates; callers cap k by the number of candidates.
    """
    k = np.rint(np.float32(mask_prob) * lengths.astype(np.float32)).astype(np.int64)  # in float32, as TensorFlow
    k = np.clip(k, 1, slots)
    return np.where(lengths > 0, k, 0)


def choose_positions(structure: RowStructure, counter: Int, seed: int, mask_prob: float, slots: int) -> tuple[Int, Int]:
    """Positions `[B, K]` (ascending, then zeros) and how many are used `[B]`: drawn uniformly without replacement among
    real, non-special positions, by ranking keyed 64-bit words."""
    candidates = structure.real & ~structure.special
    width = candidates.shape[1]
    rank = bits(key("mask-position", seed), counter, width)
    rank[~candidates] = np.iinfo(np.uint64).max
    used = np.minimum(mask_counts(structure.lengths, mask_prob, slots), candidates.sum(axis=1))
    chosen = np.argsort(rank, axis=1, kind="stable")[:, :slots].astype(np.int64)
    chosen[np.arange(slots)[None, :] >= used[:, None]] = width  # sorts last
    chosen.sort(axis=1)
    return np.where(chosen == width, 0, chosen), used


def plan_masks(
    rows_BL: Int,
    structure: RowStructure,
    counter: Int,
    *,
    seed: int,
    mask_prob: float,
    slots: int,
    mask_id: int,
    mask_rate: float,
    random_rate: float = 0.0,
    random_ids: Int | None = None,
) -> MaskPlan:
    """Masks for a batch: of the chosen positions `mask_rate` become [MASK], `random_rate` a token drawn uniformly from
    `random_ids`, the rest stay. ELECTRA: .85 / 0 / .15; BERT and RoBERTa: .8 / .1 / .1."""
    positions, used = choose_positions(structure, counter, seed, mask_prob, slots)
    weights = (np.arange(slots)[None, :] < used[:, None]).astype(np.float32)
    stored = np.take_along_axis(rows_BL, positions, axis=1)
    fate = uniforms(key("mask-fate", seed), counter, slots)
    filled = np.where(fate < mask_rate, mask_id, stored)
    if random_rate > 0:
        if random_ids is None:
            raise ValueError("random_rate needs random_ids")
        draw = uniforms(key("mask-random", seed), counter, slots)
        tokens = random_ids[(draw * len(random_ids)).astype(np.int64)]
        filled = np.where((fate >= mask_rate) & (fate < mask_rate + random_rate), tokens, filled)
    inputs = rows_BL.copy()
    # unused slots write the stored token back to position 0: always the same value, whatever the order
    np.put_along_axis(inputs, positions, np.where(weights > 0, filled, stored), axis=1)
    return MaskPlan(positions, np.where(weights > 0, stored, 0), weights, inputs)


def sampling_uniforms(counter: Int, seed: int, slots: int) -> NDArray[np.float32]:
    """One uniform in [0, 1) a mask slot, for inverse-CDF sampling of the generator."""
    u = uniforms(key("generator-sample", seed), counter, slots)
    return np.minimum(u, 1.0 - 2.0**-24).astype(np.float32)  # rounding to float32 must not reach 1
