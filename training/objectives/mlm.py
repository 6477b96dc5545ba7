"""Masked language modelling as google-research/electra trains it with `electra_objective` off: 85 % of the masked
positions show [MASK], the others their token; fresh masks every epoch; the loss is the mean over the masked tokens.

The ELECTRA paper says (section 3.5) that its own BERT also replaced 10 % by random tokens: that is the `roberta` arm.
The code it was released with does not.

`MaskedLanguageModel` is what BERT and RoBERTa share with it. Shapes: B rows, L row length, K mask slots, D hidden size.
"""

from typing import Any

from torch import Tensor

from training.arms import ArmBase
from training.heads import MaskedTokenHead, gather_positions
from training.network import Network
from training.objectives.base import Objective, Outputs, Setup, Term, masked_token_loss
from training.objectives.batch import Batch, HostBatch, RowBatch


class MaskedLanguageModel(Objective):
    """One encoder, one masked-token head; a subclass may mask otherwise."""

    main = "encoder"

    def __init__(self, arm: ArmBase, setup: Setup) -> None:
        super().__init__(arm, setup)
        self.mlm_head = MaskedTokenHead(setup.model)

    def loss_terms(self) -> tuple[Term, ...]:
        return (Term("mlm", "masked", 1.0),)

    def networks(self) -> dict[str, Network]:
        return {"encoder": Network(self.config, self.embeddings, self.body, {"mlm": self.mlm_head})}

    def prepare(self, batch: RowBatch) -> HostBatch:
        return self.masking.fields(batch)

    def forward(self, batch: Batch) -> Outputs:
        sums, statistics = self.predict(self.encode(batch["inputs"], batch), batch)
        return self.outputs(batch, sums, statistics)

    def predict(self, h_BLD: Tensor, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The masked tokens' loss sum and statistics from hidden states."""
        h_BKD = gather_positions(h_BLD, batch["mask_positions"])
        mlm_sum, hits = masked_token_loss(self.mlm_head(h_BKD, self.embeddings.word.weight), batch)
        return {"mlm": mlm_sum}, {"mlm_hits": hits}

    def figures(self, sums: dict[str, Any]) -> dict[str, float]:
        return {"mlm_accuracy": sums["mlm_hits"] / max(sums["masked"], 1.0)}


class Mlm(MaskedLanguageModel):
    """The generator's own task, at full size."""
