"""What an objective is: networks, and the losses and figures they give on a batch.

An objective has two halves. `prepare` runs on the host, in numpy, as a pure function of the rows and their keys: masks,
uniforms, next-sentence exchanges. `forward` runs on the device, inside the engine: it returns *sums* of losses with the
name of the count each is divided by. The division by the global count of the whole step happens in the loop, so the
result does not depend on how a step is cut into ranks and micro-batches.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from data_prep.rows import SpecialIds
from training.arms import ArmBase
from training.encoder import Embeddings, Encoder, at_least_float32
from training.network import Network
from training.objectives.batch import Batch, HostBatch, Masking, RowBatch, room_for_runs
from training.settings import Compute
from training.sizes import EncoderConfig


@dataclass(frozen=True, slots=True)
class Term:
    """One loss of an objective: `weight` × (sum over the step ÷ the step's global `count`)."""

    name: str
    count: str
    weight: float


@dataclass(frozen=True)  # without slots: DeepSpeed's hooks look for tensors in `vars()` of what a module returns
class Outputs:
    """Loss sums by term (to be differentiated) and detached statistic sums (to be read every `log_every` steps)."""

    sums: dict[str, Tensor]
    statistics: dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What every objective is built for, whatever its arm: the main network's size, the rows, the way to compute."""

    model: EncoderConfig
    special: SpecialIds
    seq_len: int
    packed: bool  # several fragments a row
    compute: Compute


class Objective(nn.Module, ABC):
    """The networks of one arm and what they are trained to do. Every objective has one main network, which is what is
    fine-tuned, on embeddings of its own."""

    main: str  # the main network's name among `networks()`

    def __init__(self, arm: ArmBase, setup: Setup) -> None:
        super().__init__()
        self.masking = Masking(arm.mask_prob, arm.max_predictions(setup.seq_len), setup.special.mask)
        self.config = setup.model
        self.special = setup.special
        self.packed = setup.packed
        self.embeddings = Embeddings(setup.model)
        setattr(self, self.main, Encoder(setup.model, setup.compute))

    @property
    def body(self) -> Encoder:
        """The main network's layers."""
        found: Encoder = getattr(self, self.main)
        return found

    @abstractmethod
    def loss_terms(self) -> tuple[Term, ...]:
        """The terms of the loss, in the order they are reported."""

    @abstractmethod
    def prepare(self, batch: RowBatch) -> HostBatch:
        """Everything `forward` needs, as numpy arrays with leading dimension B."""

    @abstractmethod
    def forward(self, batch: Batch) -> Outputs:
        """Loss sums and statistics of one micro-batch."""

    @abstractmethod
    def networks(self) -> dict[str, Network]:
        """The networks by name: the main one, and the generator where one is a network."""

    @abstractmethod
    def figures(self, sums: dict[str, Any]) -> dict[str, float]:
        """Named figures, besides the losses, from statistic sums over a window."""

    def metrics(self, sums: dict[str, Any]) -> dict[str, float]:
        """The total loss, the mean of each term, and `figures`, from statistic sums over a window (already summed over
        ranks and micro-batches)."""
        terms = self.loss_terms()
        means = {f"{t.name}_loss": sums[f"{t.name}_loss"] / max(sums[t.count], 1.0) for t in terms}
        total = sum(t.weight * means[f"{t.name}_loss"] for t in terms)
        return {"loss": total, **means, **self.figures(sums)}

    def verdict(self, metrics: dict[str, float]) -> str | None:
        """A sentence where the figures of a held-out evaluation say that nothing was learned; None otherwise."""
        return None

    def encode(self, ids_BL: Tensor, batch: Batch) -> Tensor:
        """Hidden states `[B, L, D]` of the main network over token ids, with the structure of the stored rows."""
        x_BLE = self.embeddings(ids_BL, batch["positions"], batch["types"])
        h_BLD: Tensor = self.body(x_BLE, batch["fragment"], self.packed, runs=room_for_runs(batch))
        return h_BLD

    def outputs(self, batch: Batch, sums: dict[str, Tensor], statistics: dict[str, Tensor]) -> Outputs:
        """The sums, and with the statistics the counts that the losses are divided by."""
        common = {"masked": batch["mask_weights"].sum(), "real": (batch["fragment"] > 0).sum()}
        losses = {f"{name}_loss": value.detach() for name, value in sums.items()}
        return Outputs(sums, {**common, **losses, **statistics})


def masked_token_loss(logits_BKV: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The summed negative log-likelihood of the masked tokens, in fp32 or better, and the detached count of argmax
    hits."""
    logits_NV, labels_N = at_least_float32(logits_BKV).flatten(0, 1), batch["mask_labels"].flatten()
    nll_N = F.cross_entropy(logits_NV, labels_N, reduction="none")
    weights_N = batch["mask_weights"].flatten()
    hits_N = (logits_NV.argmax(-1) == labels_N) * weights_N
    return (nll_N * weights_N).sum(), hits_N.sum().detach()
