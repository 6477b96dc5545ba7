"""Replace MLM (Clark et al. 2020, section 3.5): masked language modelling in which a generator's samples stand where
[MASK] would.

What is left between this and `mlm` is the [MASK] symbol, which no fine-tuned network ever sees. The main network
predicts the stored tokens of the masked positions; the generator is trained along, as ELECTRA's. Both losses are means
over the masked tokens. Shapes: B rows, L row length, K mask slots.
"""

from typing import Any

from training.arms import ReplaceMlmArm
from training.heads import MaskedTokenHead, gather_positions
from training.network import Network
from training.objectives.base import Outputs, Setup, Term, masked_token_loss
from training.objectives.batch import Batch
from training.objectives.corruption import CorruptedRows, corrupt
from training.objectives.generators import make_generator


class ReplaceMlm(CorruptedRows):
    """`mlm_*` are figures of the generator, `replaced_*` of the main network."""

    main = "encoder"

    def __init__(self, arm: ReplaceMlmArm, setup: Setup) -> None:
        super().__init__(arm, setup)
        self.mlm_head = MaskedTokenHead(setup.model)
        self.generator = make_generator(arm.generator, arm.generator_weight, self, setup)

    def loss_terms(self) -> tuple[Term, ...]:
        return (*self.generator.terms(), Term("replaced", "masked", 1.0))

    def main_network(self) -> Network:
        return Network(self.config, self.embeddings, self.body, {"mlm": self.mlm_head})

    def forward(self, batch: Batch) -> Outputs:
        proposal = self.generator(batch)
        corrupted_BL, replaced_BL = corrupt(proposal.sampled_BK, batch)
        h_BKD = gather_positions(self.encode(corrupted_BL, batch), batch["mask_positions"])
        replaced_sum, hits = masked_token_loss(self.mlm_head(h_BKD, self.embeddings.word.weight), batch)
        sums = {**proposal.sums, "replaced": replaced_sum}
        statistics = {**proposal.statistics, "replaced_hits": hits, "replaced": replaced_BL.sum()}
        return self.outputs(batch, sums, statistics)

    def figures(self, sums: dict[str, Any]) -> dict[str, float]:
        accuracy = sums["replaced_hits"] / max(sums["masked"], 1.0)
        return {**super().figures(sums), "replaced_accuracy": accuracy}
