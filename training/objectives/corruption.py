"""Objectives that see rows in which a generator's samples stand in the masked positions.

Shapes: B rows, L row length, K mask slots.
"""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from training.network import Network
from training.objectives.base import Objective
from training.objectives.batch import Batch, HostBatch, RowBatch, sampling_fields
from training.objectives.generators import Generator


class CorruptedRows(Objective):
    """A main network behind a `generator`, which a subclass makes. Rows are masked as ELECTRA does: 85 % [MASK], the
    rest left as they are; samples stand in all of them."""

    generator: Generator

    @abstractmethod
    def main_network(self) -> Network:
        """The main network with its heads."""

    def networks(self) -> dict[str, Network]:
        generator = self.generator.network()
        return {self.main: self.main_network()} | ({} if generator is None else {"generator": generator})

    def prepare(self, batch: RowBatch) -> HostBatch:
        return {**self.masking.fields(batch), **sampling_fields(batch, self.masking.slots)}

    def figures(self, sums: dict[str, Any]) -> dict[str, float]:
        """The generator's figures, and the share of replaced tokens among all that are not padding."""
        return {**self.generator.figures(sums), "replaced_rate": sums["replaced"] / max(sums["real"], 1.0)}


def corrupt(sampled_BK: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The stored rows with their masked positions overwritten by samples `[B, L]`, and where that changed them
    `[B, L]`: a sample that happens to be right counts as original."""
    stored_BK = batch["ids"].gather(1, batch["mask_positions"])
    filled_BK = torch.where(batch["mask_weights"] > 0, sampled_BK, stored_BK)
    # unused slots write the stored token back to position 0: always the same value, whatever the order
    corrupted_BL = batch["ids"].scatter(1, batch["mask_positions"], filled_BK)
    return corrupted_BL, corrupted_BL != batch["ids"]
