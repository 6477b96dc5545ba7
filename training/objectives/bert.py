"""BERT (Devlin et al. 2019): 80/10/10 masks in ten static versions of each row, and next-sentence prediction.

Both losses are means, over masked tokens and over rows that hold a pair. Pairs are made when loading
(`training.nextsentence`). Shapes: B rows, D hidden size.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch.nn.functional as F

from training.arms import BertArm
from training.encoder import at_least_float32
from training.heads import NextSentenceHead
from training.network import Network
from training.nextsentence import exchange_second_segments
from training.objectives.base import Outputs, Setup, Term
from training.objectives.batch import BERT_MASK_RATE, BERT_RANDOM_RATE, Batch, HostBatch, RowBatch
from training.objectives.mlm import MaskedLanguageModel


class Bert(MaskedLanguageModel):
    """Needs rows of one pair each. ValueError for packed rows."""

    def __init__(self, arm: BertArm, setup: Setup) -> None:
        if setup.packed:
            raise ValueError("objective 'bert' needs rows of one pair each: layout 'segments'")
        super().__init__(arm, setup)
        self.pair_head = NextSentenceHead(setup.model)
        anything = np.arange(setup.model.vocab_size, dtype=np.int64)  # create_pretraining_data.py: specials as well
        self.masking = replace(
            self.masking,
            mask_rate=BERT_MASK_RATE,
            random_rate=BERT_RANDOM_RATE,
            random_ids=anything,
            versions=arm.mask_versions,
        )

    def loss_terms(self) -> tuple[Term, ...]:
        return (*super().loss_terms(), Term("nsp", "pairs", 1.0))

    def networks(self) -> dict[str, Network]:
        heads = {"mlm": self.mlm_head, "nsp": self.pair_head}
        return {"encoder": Network(self.config, self.embeddings, self.body, heads)}

    def prepare(self, batch: RowBatch) -> HostBatch:
        rows, labels, weights = exchange_second_segments(batch.rows, batch.structure, batch.keys, batch.partners)
        return {**self.masking.fields(batch, rows), "pair_labels": labels, "pair_weights": weights}

    def forward(self, batch: Batch) -> Outputs:
        h_BLD = self.encode(batch["inputs"], batch)
        sums, statistics = self.predict(h_BLD, batch)
        logits_B2 = at_least_float32(self.pair_head(h_BLD))
        nll_B = F.cross_entropy(logits_B2, batch["pair_labels"], reduction="none")
        sums["nsp"] = (nll_B * batch["pair_weights"]).sum()
        hits = ((logits_B2.argmax(-1) == batch["pair_labels"]) * batch["pair_weights"]).sum()
        return self.outputs(batch, sums, {**statistics, "pairs": batch["pair_weights"].sum(), "nsp_hits": hits})

    def figures(self, sums: dict[str, Any]) -> dict[str, float]:
        return {**super().figures(sums), "nsp_accuracy": sums["nsp_hits"] / max(sums["pairs"], 1.0)}
