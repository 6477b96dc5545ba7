"""What goes into an objective: rows and their keys from the loader, numpy arrays from `prepare`, tensors on the device.

Everything drawn (masks, uniforms) is a pure function of a row's keys, whatever the batch it is in.

Shape suffixes: B rows, L row length, K mask slots.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data_prep.rows import RowStructure
from training.masking import MaskPlan, RowKeys, plan_masks, sampling_uniforms
from training.nextsentence import Partners

Batch = dict[str, Tensor]
HostBatch = dict[str, NDArray[Any]]

ELECTRA_MASK_RATE = 0.85  # google-research/electra, pretrain_helpers.mask: the rest keep their token, none is random
BERT_MASK_RATE, BERT_RANDOM_RATE = 0.8, 0.1  # Devlin et al. 2019, section 3.1


@dataclass(frozen=True, slots=True)
class RowBatch:
    """What the loader hands to `prepare`: stored rows, their structure and keys, a way to other rows of the shard."""

    rows: NDArray[np.int64]
    structure: RowStructure
    keys: RowKeys
    partners: Partners


def counts(batch: HostBatch) -> dict[str, int]:
    """What the losses of a batch are divided by: real tokens, masked slots, rows with a pair."""
    found = {"real": int((batch["fragment"] > 0).sum()), "masked": int(batch["mask_weights"].sum())}
    if "pair_weights" in batch:
        found["pairs"] = int(batch["pair_weights"].sum())
    return found


def to_device(batch: HostBatch, device: torch.device) -> Batch:
    """Numpy arrays as tensors on the device; through pinned memory to a GPU, so that the host does not wait. What only
    the host can see without waiting goes along: `room_for_runs`."""
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    if device.type == "cuda":
        tensors = {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in tensors.items()}
    if "fragment" in batch:
        tensors["runs"] = torch.empty(_runs_a_row(batch["fragment"]), 0)  # its length is what it says
    return tensors


def room_for_runs(batch: Batch) -> int | None:
    """What `Encoder.forward` takes as `runs`; None where the batch has not come through `to_device`."""
    return len(batch["runs"]) if "runs" in batch else None


def _runs_a_row(fragment_BL: NDArray[np.int64]) -> int:
    """The mean number of runs (of a fragment's or of padding's tokens) a row, rounded up to a power of two, so that
    batches have few shapes, and 2 at least, which rows of one fragment have."""
    rows = len(fragment_BL)
    runs = rows + int((fragment_BL[:, 1:] != fragment_BL[:, :-1]).sum())
    return max(2, 1 << (-(-runs // rows) - 1).bit_length())


def _row_fields(rows_BL: NDArray[np.int64], structure: RowStructure, plan: MaskPlan) -> HostBatch:
    """The stored row, its structure, and the row with its masked positions overwritten."""
    return {
        "ids": rows_BL,
        "fragment": structure.fragment.astype(np.int64),
        "positions": structure.positions.astype(np.int64),
        "types": structure.types.astype(np.int64),
        "inputs": plan.inputs,
        "mask_positions": plan.positions,
        "mask_labels": plan.labels,
        "mask_weights": plan.weights,
    }


@dataclass(frozen=True, slots=True)
class Masking:
    """An arm's masking: how much, in how many slots, and what stands there instead."""

    mask_prob: float
    slots: int
    mask_id: int
    mask_rate: float = ELECTRA_MASK_RATE
    random_rate: float = 0.0
    random_ids: NDArray[np.int64] | None = None
    versions: int | None = None  # of each row's mask, taken in turn by epoch; None: a fresh one every epoch

    def fields(self, batch: RowBatch, rows_BL: NDArray[np.int64] | None = None) -> HostBatch:
        """A batch's rows (or `rows_BL` in their place, of the same structure), masked."""
        rows_BL = batch.rows if rows_BL is None else rows_BL
        plan = plan_masks(
            rows_BL,
            batch.structure,
            batch.keys.counter(self.versions),
            seed=batch.keys.seed,
            mask_prob=self.mask_prob,
            slots=self.slots,
            mask_id=self.mask_id,
            mask_rate=self.mask_rate,
            random_rate=self.random_rate,
            random_ids=self.random_ids,
        )
        return _row_fields(rows_BL, batch.structure, plan)


def sampling_fields(batch: RowBatch, slots: int) -> HostBatch:
    """One uniform number a mask slot, for what is sampled there."""
    return {"uniforms": sampling_uniforms(batch.keys.counter(), batch.keys.seed, slots)}
