"""ELECTRA: replaced-token detection (Clark et al. 2020; google-research/electra, run_pretraining.py).

A generator's samples stand in the masked positions, and the discriminator says of every token whether it is the
original. Generator loss: mean over masked tokens; discriminator loss: λ × mean over all tokens that are not padding,
specials included.

`Detection` is what this objective shares with those that differ from it in one thing. Shapes: B rows, L row length.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from training.arms import DetectionArm, ElectraArm
from training.detection import detection_figures, detection_statistics, detection_verdict
from training.encoder import at_least_float32
from training.heads import ReplacedTokenHead
from training.network import Network
from training.objectives.base import Outputs, Setup, Term
from training.objectives.batch import Batch
from training.objectives.corruption import CorruptedRows, corrupt
from training.objectives.generators import make_generator


class Detection(CorruptedRows):
    """A discriminator over corrupted rows; a subclass makes its `generator`."""

    main = "discriminator"

    def __init__(self, arm: DetectionArm, setup: Setup) -> None:
        super().__init__(arm, setup)
        self.discriminator_weight = arm.discriminator_weight
        self.discriminator_head = ReplacedTokenHead(setup.model)

    def loss_terms(self) -> tuple[Term, ...]:
        return (*self.generator.terms(), Term("rtd", "real", self.discriminator_weight))

    def main_network(self) -> Network:
        return Network(self.config, self.embeddings, self.body, {"rtd": self.discriminator_head})

    def forward(self, batch: Batch) -> Outputs:
        proposal = self.generator(batch)
        corrupted_BL, replaced_BL = corrupt(proposal.sampled_BK, batch)
        scores_BL = self.judge(corrupted_BL, batch)
        rtd_sum, detection = detect(scores_BL, replaced_BL, batch)
        return self.outputs(batch, {**proposal.sums, "rtd": rtd_sum}, {**proposal.statistics, **detection})

    def judge(self, corrupted_BL: Tensor, batch: Batch) -> Tensor:
        """Logits `[B, L]`, positive where a token looks replaced."""
        scores_BL: Tensor = self.discriminator_head(self.encode(corrupted_BL, batch))
        return at_least_float32(scores_BL)

    def figures(self, sums: dict[str, Any]) -> dict[str, float]:
        return {**super().figures(sums), **detection_figures(sums)}

    def verdict(self, metrics: dict[str, float]) -> str | None:
        return detection_verdict(metrics)


def detect(scores_BL: Tensor, replaced_BL: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """The summed cross-entropy over all tokens that are not padding, and detection statistics."""
    real_BL = batch["fragment"] > 0
    target_BL = replaced_BL.to(scores_BL.dtype)
    losses_BL = F.binary_cross_entropy_with_logits(scores_BL, target_BL, reduction="none")
    masked_BL = real_BL.new_zeros(real_BL.shape).scatter(1, batch["mask_positions"], batch["mask_weights"] > 0)
    statistics = detection_statistics(scores_BL.detach(), replaced_BL, real_BL, masked_BL, losses_BL.detach())
    return (losses_BL * real_BL).sum(), statistics


class Electra(Detection):
    """Generator and discriminator trained jointly."""

    def __init__(self, arm: ElectraArm, setup: Setup) -> None:
        super().__init__(arm, setup)
        self.generator = make_generator(arm.generator, arm.generator_weight, self, setup)
