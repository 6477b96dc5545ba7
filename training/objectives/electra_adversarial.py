"""ELECTRA with an adversarial generator (Clark et al. 2020, appendix F): trained by REINFORCE to raise the
discriminator's loss.

For each masked position the reward r is the discriminator's loss there, −log D where the sample is the original and
−log(1−D) where it is not, D its probability of "original". The generator minimises −(r − b)·log p(sample), with a
learned baseline b = −log σ(w·h) on its own hidden states, trained by cross-entropy towards r, that is with the target
exp(−r). r, b and the h that b sees are detached: the baseline only lowers the variance. No maximum likelihood: the
masked-token loss is measured, not trained.

Shapes: B rows, L row length, K mask slots, D hidden size.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from training.arms import ElectraAdversarialArm
from training.encoder import init_weights
from training.heads import FineLinear
from training.objectives.base import Outputs, Setup, Term, masked_token_loss
from training.objectives.batch import Batch
from training.objectives.corruption import corrupt
from training.objectives.electra import Detection, detect
from training.objectives.generators import NetworkSampler, sampled_hits, trained_parts


class Policy(NetworkSampler):
    """A generator that is told how well its samples deceived."""

    def __init__(self, *parts: Any, policy_weight: float, baseline_weight: float) -> None:
        super().__init__(*parts)
        self.policy_weight, self.baseline_weight = policy_weight, baseline_weight
        self.baseline = FineLinear(self.config.hidden_size, 1, bias=False)
        init_weights(self.baseline, self.config.init_range)

    def terms(self) -> tuple[Term, ...]:
        return (Term("policy", "masked", self.policy_weight), Term("baseline", "masked", self.baseline_weight))

    def rewarded(
        self, h_BKD: Tensor, log_p_BK: Tensor, reward_BK: Tensor, weights_BK: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Loss sums of policy and baseline, and the summed reward, from the log-probabilities of the samples."""
        baseline_logit_BK = self.baseline(h_BKD.detach()).squeeze(-1).to(reward_BK.dtype)
        advantage_BK = reward_BK + F.logsigmoid(baseline_logit_BK.detach())  # r − b
        truth_BK = torch.exp(-reward_BK)
        baseline_BK = F.binary_cross_entropy_with_logits(baseline_logit_BK, truth_BK, reduction="none")
        sums = {
            "policy": -(advantage_BK * log_p_BK * weights_BK).sum(),
            "baseline": (baseline_BK * weights_BK).sum(),
        }
        return sums, {"reward": (reward_BK * weights_BK).sum()}

    def figures(self, sums: dict[str, Any]) -> dict[str, float]:
        masked = max(sums["masked"], 1.0)
        found = super().figures(sums)
        return {"mlm_loss": sums["mlm_loss"] / masked, "reward": sums["reward"] / masked, **found}


class ElectraAdversarial(Detection):
    """The discriminator's opponent is paid by its mistakes."""

    generator: Policy

    def __init__(self, arm: ElectraAdversarialArm, setup: Setup) -> None:
        super().__init__(arm, setup)
        self.generator = Policy(
            *trained_parts(arm.generator, self, setup),
            policy_weight=arm.generator_weight,
            baseline_weight=arm.baseline_weight,
        )

    def forward(self, batch: Batch) -> Outputs:
        h_BKD, logits_BKV = self.generator.predict(batch)
        sampled_BK = self.generator.sample(logits_BKV, batch)
        corrupted_BL, replaced_BL = corrupt(sampled_BK, batch)
        scores_BL = self.judge(corrupted_BL, batch)
        rtd_sum, detection = detect(scores_BL, replaced_BL, batch)

        log_p_BKV = self.generator.sampling_logits(logits_BKV, batch).log_softmax(-1)
        log_p_BK = log_p_BKV.gather(-1, sampled_BK[:, :, None]).squeeze(-1)
        reward_BK = self._reward(scores_BL, replaced_BL, batch)
        sums, rewards = self.generator.rewarded(h_BKD, log_p_BK, reward_BK, batch["mask_weights"])
        with torch.no_grad():
            mlm_sum, mlm_hits = masked_token_loss(logits_BKV, batch)
        statistics = {
            "mlm_loss": mlm_sum,
            "mlm_hits": mlm_hits,
            "sampled_hits": sampled_hits(sampled_BK, batch),
            **rewards,
            **detection,
        }
        return self.outputs(batch, {**sums, "rtd": rtd_sum}, statistics)

    @torch.no_grad()
    def _reward(self, scores_BL: Tensor, replaced_BL: Tensor, batch: Batch) -> Tensor:
        """The discriminator's loss at each mask slot `[B, K]`."""
        scores_BK = scores_BL.gather(1, batch["mask_positions"])
        target_BK = replaced_BL.gather(1, batch["mask_positions"]).to(scores_BK.dtype)
        return F.binary_cross_entropy_with_logits(scores_BK, target_BK, reduction="none")
