"""All-Tokens MLM (Clark et al. 2020, section 3.5): as Replace MLM, but every token is predicted, and a learned gate may
copy the input.

For each token the network gives D·1[input] + (1 − D)·softmax(logits), D = σ(w·h + c): the loss is the mean over all
tokens that are not padding of −log of what the stored token gets. Generator loss as ELECTRA's. The output layer runs at
every position, which is most of the arm's cost. Shapes: B rows, L row length, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from training.arms import AllTokensMlmArm
from training.encoder import at_least_float32
from training.heads import CopyHead, MaskedTokenHead
from training.network import Network
from training.objectives.base import Outputs, Setup, Term
from training.objectives.batch import Batch
from training.objectives.corruption import CorruptedRows, corrupt
from training.objectives.generators import make_generator


class AllTokensMlm(CorruptedRows):
    """`mlm_*` are figures of the generator, `all_tokens_*` of the main network."""

    main = "encoder"

    def __init__(self, arm: AllTokensMlmArm, setup: Setup) -> None:
        super().__init__(arm, setup)
        self.mlm_head = MaskedTokenHead(setup.model)
        self.copy_head = CopyHead(setup.model)
        self.generator = make_generator(arm.generator, arm.generator_weight, self, setup)

    def loss_terms(self) -> tuple[Term, ...]:
        return (*self.generator.terms(), Term("all_tokens", "real", 1.0))

    def main_network(self) -> Network:
        return Network(self.config, self.embeddings, self.body, {"mlm": self.mlm_head, "copy": self.copy_head})

    def forward(self, batch: Batch) -> Outputs:
        proposal = self.generator(batch)
        corrupted_BL, replaced_BL = corrupt(proposal.sampled_BK, batch)
        h_BLD = self.encode(corrupted_BL, batch)
        log_p_BLV = at_least_float32(self.mlm_head(h_BLD, self.embeddings.word.weight)).log_softmax(-1)
        gate_BL = at_least_float32(self.copy_head(h_BLD))
        loss_BL = copy_loss(log_p_BLV, gate_BL, corrupted_BL, batch["ids"])
        real_BL = batch["fragment"] > 0
        right_BL = (_predictions(log_p_BLV.detach(), gate_BL.detach(), corrupted_BL) == batch["ids"]) & real_BL
        statistics = {
            "replaced": (replaced_BL & real_BL).sum(),
            "corrected": (right_BL & replaced_BL).sum(),
            "kept": (right_BL & ~replaced_BL).sum(),
        }
        sums = {**proposal.sums, "all_tokens": (loss_BL * real_BL).sum()}
        return self.outputs(batch, sums, {**proposal.statistics, **statistics})

    def figures(self, sums: dict[str, Any]) -> dict[str, float]:
        real, replaced = sums["real"], sums["replaced"]
        return {
            **super().figures(sums),
            "all_tokens_accuracy": (sums["corrected"] + sums["kept"]) / max(real, 1.0),
            "corrected_accuracy": sums["corrected"] / max(replaced, 1.0),  # of the replaced tokens
            "kept_accuracy": sums["kept"] / max(real - replaced, 1.0),  # of the others
        }


def copy_loss(log_p_BLV: Tensor, gate_BL: Tensor, inputs_BL: Tensor, targets_BL: Tensor) -> Tensor:
    """−log(D·1[target = input] + (1 − D)·p(target)) `[B, L]`, D = σ(gate)."""
    predicted_BL = F.logsigmoid(-gate_BL) + log_p_BLV.gather(-1, targets_BL[:, :, None]).squeeze(-1)
    either_BL = torch.logaddexp(F.logsigmoid(gate_BL), predicted_BL)
    return -torch.where(inputs_BL == targets_BL, either_BL, predicted_BL)


def _predictions(log_p_BLV: Tensor, gate_BL: Tensor, inputs_BL: Tensor) -> Tensor:
    """The likeliest token `[B, L]`: the input where what the gate gives it outweighs the best of the others."""
    best_BL, token_BL = log_p_BLV.max(-1)
    own_BL = log_p_BLV.gather(-1, inputs_BL[:, :, None]).squeeze(-1)
    copied_BL = torch.logaddexp(F.logsigmoid(gate_BL), F.logsigmoid(-gate_BL) + own_BL)
    return torch.where(copied_BL >= F.logsigmoid(-gate_BL) + best_BL, inputs_BL, token_BL)
