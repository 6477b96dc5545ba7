"""ELECTRA 15 % (Clark et al. 2020, section 3.5): as ELECTRA, with the discriminator's loss at masked positions only.

What is left between this and ELECTRA is learning from all tokens. The loss is the mean over the masked positions, as
the reference's sum(w·l) / sum(w) gives when w is the mask: with the same λ a masked token weighs some 1 / .15 times
what it does in ELECTRA (the paper does not say). The head runs at the mask slots only. Shapes: B rows, K mask slots, D
hidden size.
"""

import torch
import torch.nn.functional as F

from training.arms import Electra15Arm
from training.detection import detection_statistics
from training.encoder import at_least_float32
from training.heads import gather_positions
from training.objectives.base import Outputs, Setup, Term
from training.objectives.batch import Batch
from training.objectives.corruption import corrupt
from training.objectives.electra import Detection
from training.objectives.generators import make_generator


class Electra15(Detection):
    """The discriminator judges the generator's samples and nothing else."""

    def __init__(self, arm: Electra15Arm, setup: Setup) -> None:
        super().__init__(arm, setup)
        self.generator = make_generator(arm.generator, arm.generator_weight, self, setup)

    def loss_terms(self) -> tuple[Term, ...]:
        return (*self.generator.terms(), Term("rtd", "masked", self.discriminator_weight))

    def forward(self, batch: Batch) -> Outputs:
        proposal = self.generator(batch)
        corrupted_BL, _ = corrupt(proposal.sampled_BK, batch)
        h_BKD = gather_positions(self.encode(corrupted_BL, batch), batch["mask_positions"])
        scores_BK = at_least_float32(self.discriminator_head(h_BKD))
        replaced_BK = proposal.sampled_BK != batch["mask_labels"]
        used_BK = batch["mask_weights"] > 0
        losses_BK = F.binary_cross_entropy_with_logits(scores_BK, replaced_BK.to(scores_BK.dtype), reduction="none")
        detection = detection_statistics(
            scores_BK.detach(), replaced_BK, used_BK, torch.ones_like(used_BK), losses_BK.detach()
        )
        sums = {**proposal.sums, "rtd": (losses_BK * used_BK).sum()}
        return self.outputs(batch, sums, {**proposal.statistics, **detection})
