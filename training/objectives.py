"""From a batch of stored rows to losses and counts, one class an objective.

An objective has two halves. `prepare` runs on the host, in numpy, as a pure function of the rows and their keys: masks,
uniforms, next-sentence exchanges. `forward` runs on the device, inside the engine: it returns *sums* of losses with the
name of the count each is divided by. The division by the global count of the whole step happens in the loop, so the
result does not depend on how a step is cut into ranks and micro-batches.

Rules: `electra`, google-research/electra (run_pretraining.py); `bert`, Devlin et al. 2019; `roberta`, Liu et al. 2019.

Shape suffixes: B rows, L row length, K mask slots, E embedding size, D hidden size, V vocabulary.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from data_prep.rows import RowStructure, SpecialIds
from training.detection import detection_metrics, detection_statistics, sample_tokens
from training.encoder import Embeddings, Encoder
from training.heads import MaskedTokenHead, NextSentenceHead, ReplacedTokenHead, gather_positions
from training.masking import MaskPlan, RowKeys, plan_masks, sampling_uniforms
from training.nextsentence import Partners, exchange_second_segments
from training.settings import ArmConfig, BertArm, ElectraArm, EncoderConfig, RobertaArm

Batch = dict[str, Tensor]
HostBatch = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Term:
    """One loss of an objective: `weight` × (sum over the step ÷ the step's global `count`)."""

    name: str
    count: str
    weight: float


@dataclass(frozen=True, slots=True)
class RowBatch:
    """What the loader hands to `prepare`: stored rows, their structure and keys, a way to other rows of the shard."""

    rows: NDArray[np.int64]
    structure: RowStructure
    keys: RowKeys
    partners: Partners


@dataclass(frozen=True, slots=True)
class Outputs:
    """Loss sums by term (to be differentiated) and detached statistic sums (to be read every `log_every` steps)."""

    sums: dict[str, Tensor]
    statistics: dict[str, Tensor]


class Objective(nn.Module, ABC):
    """The networks of one arm and what they are trained to do."""

    def __init__(self, model: EncoderConfig, special: SpecialIds, seq_len: int, packed: bool) -> None:
        super().__init__()
        self.config = model
        self.special = special
        self.seq_len = seq_len
        self.packed = packed

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
    def backbone(self) -> tuple[Embeddings, Encoder]:
        """The network that is fine-tuned."""

    @abstractmethod
    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Named figures from statistic sums over a window (already summed over ranks and micro-batches)."""


def counts(batch: HostBatch) -> dict[str, int]:
    """What the losses of a batch are divided by: real tokens, masked slots, rows with a pair."""
    found = {"real": int((batch["fragment"] > 0).sum()), "masked": int(batch["mask_weights"].sum())}
    if "pair_weights" in batch:
        found["pairs"] = int(batch["pair_weights"].sum())
    return found


def to_device(batch: HostBatch, device: torch.device) -> Batch:
    """Numpy arrays as tensors on the device; through pinned memory to a GPU, so that the host does not wait."""
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    if device.type == "cuda":
        tensors = {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in tensors.items()}
    return tensors


def _common(rows_BL: NDArray[np.int64], structure: RowStructure) -> HostBatch:
    return {
        "ids": rows_BL,
        "fragment": structure.fragment.astype(np.int64),
        "positions": structure.positions.astype(np.int64),
        "types": structure.types.astype(np.int64),
    }


def _masked(plan: MaskPlan) -> HostBatch:
    return {
        "inputs": plan.inputs,
        "mask_positions": plan.positions,
        "mask_labels": plan.labels,
        "mask_weights": plan.weights,
    }


def masked_token_loss(logits_BKV: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The summed negative log-likelihood of the masked tokens, in fp32, and the detached count of argmax hits."""
    nll = F.cross_entropy(logits_BKV.float().flatten(0, 1), batch["mask_labels"].flatten(), reduction="none")
    weights = batch["mask_weights"].flatten()
    hits = (logits_BKV.argmax(-1) == batch["mask_labels"]).flatten() * weights
    return (nll * weights).sum(), hits.sum().detach()


class Electra(Objective):
    """Replaced-token detection: generator and discriminator trained jointly, sharing all embeddings."""

    def __init__(self, arm: ElectraArm, model: EncoderConfig, special: SpecialIds, seq_len: int, packed: bool) -> None:
        super().__init__(model, special, seq_len, packed)
        self.arm = arm
        self.slots = arm.max_predictions(seq_len)
        generator = model.scaled(arm.generator_width, arm.generator_depth)
        self.embeddings = Embeddings(model)
        self.generator = Encoder(generator)
        self.generator_head = MaskedTokenHead(generator)
        self.discriminator = Encoder(model)
        self.discriminator_head = ReplacedTokenHead(model)

    def loss_terms(self) -> tuple[Term, ...]:
        return (
            Term("mlm", "masked", self.arm.generator_weight),
            Term("rtd", "real", self.arm.discriminator_weight),
        )

    def backbone(self) -> tuple[Embeddings, Encoder]:
        return self.embeddings, self.discriminator

    def prepare(self, batch: RowBatch) -> HostBatch:
        counter = batch.keys.counter()
        plan = plan_masks(
            batch.rows,
            batch.structure,
            counter,
            seed=batch.keys.seed,
            mask_prob=self.arm.mask_prob,
            slots=self.slots,
            mask_id=self.special.mask,
            mask_rate=0.85,  # the rest keep their token and are sampled over all the same
        )
        uniforms = sampling_uniforms(counter, batch.keys.seed, self.slots)
        return {**_common(batch.rows, batch.structure), **_masked(plan), "uniforms": uniforms}

    def forward(self, batch: Batch) -> Outputs:
        fragment, positions, types = batch["fragment"], batch["positions"], batch["types"]
        masked_x = self.embeddings(batch["inputs"], positions, types)
        hidden = gather_positions(self.generator(masked_x, fragment, self.packed), batch["mask_positions"])
        logits = self.generator_head(hidden, self.embeddings.word.weight)
        mlm_sum, mlm_hits = masked_token_loss(logits, batch)

        sampled, corrupted, fake = self._corrupt(logits, batch)
        judged = self.discriminator(self.embeddings(corrupted, positions, types), fragment, self.packed)
        scores = self.discriminator_head(judged).float()
        real = (fragment > 0).float()
        rtd = F.binary_cross_entropy_with_logits(scores, fake, reduction="none")
        rtd_sum = (rtd * real).sum()
        statistics = {
            "masked": batch["mask_weights"].sum(),
            "real": real.sum(),
            "mlm_loss": mlm_sum.detach(),
            "mlm_hits": mlm_hits,
            "sampled_hits": ((sampled == batch["mask_labels"]) * batch["mask_weights"]).sum(),
            "rtd_loss": rtd_sum.detach(),
            **detection_statistics(scores.detach(), fake, real),
        }
        return Outputs({"mlm": mlm_sum, "rtd": rtd_sum}, statistics)

    def _corrupt(self, logits_BKV: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Samples `[B, K]`, the corrupted row `[B, L]`, and 1.0 where it differs from the stored one: a sample that
        happens to be right counts as real."""
        sampled = sample_tokens(logits_BKV, batch["uniforms"], self.arm.temperature)
        stored = batch["ids"].gather(1, batch["mask_positions"])
        filled = torch.where(batch["mask_weights"] > 0, sampled, stored)
        corrupted = batch["ids"].scatter(1, batch["mask_positions"], filled)
        return sampled, corrupted, (corrupted != batch["ids"]).float()

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        masked, real = max(sums["masked"], 1.0), max(sums["real"], 1.0)
        mlm, rtd = sums["mlm_loss"] / masked, sums["rtd_loss"] / real
        return {
            "loss": self.arm.generator_weight * mlm + self.arm.discriminator_weight * rtd,
            "mlm_loss": mlm,
            "mlm_accuracy": sums["mlm_hits"] / masked,
            "sampled_accuracy": sums["sampled_hits"] / masked,
            "rtd_loss": rtd,
            **detection_metrics(sums),
        }


class MaskedLanguageModel(Objective):
    """The part BERT and RoBERTa share: one encoder, one masked-token head."""

    def __init__(self, model: EncoderConfig, special: SpecialIds, seq_len: int, packed: bool) -> None:
        super().__init__(model, special, seq_len, packed)
        self.embeddings = Embeddings(model)
        self.encoder = Encoder(model)
        self.mlm_head = MaskedTokenHead(model)

    def backbone(self) -> tuple[Embeddings, Encoder]:
        return self.embeddings, self.encoder

    def _encode(self, batch: Batch) -> Tensor:
        x_BLE = self.embeddings(batch["inputs"], batch["positions"], batch["types"])
        return self.encoder(x_BLE, batch["fragment"], self.packed)

    def _predict(self, h_BLD: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = gather_positions(h_BLD, batch["mask_positions"])
        mlm_sum, hits = masked_token_loss(self.mlm_head(hidden, self.embeddings.word.weight), batch)
        masked, real = batch["mask_weights"].sum(), (batch["fragment"] > 0).sum().float()
        return mlm_sum, {"masked": masked, "real": real, "mlm_loss": mlm_sum.detach(), "mlm_hits": hits}

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        masked = max(sums["masked"], 1.0)
        mlm = sums["mlm_loss"] / masked
        return {"loss": mlm, "mlm_loss": mlm, "mlm_accuracy": sums["mlm_hits"] / masked}


class Bert(MaskedLanguageModel):
    """BERT: ten static masks a row, next-sentence pairs made by exchanging second segments."""

    def __init__(self, arm: BertArm, model: EncoderConfig, special: SpecialIds, seq_len: int, packed: bool) -> None:
        if packed:
            raise ValueError("objective 'bert' needs rows of one pair each: layout 'segments'")
        super().__init__(model, special, seq_len, packed)
        self.arm = arm
        self.slots = arm.max_predictions(seq_len)
        self.pair_head = NextSentenceHead(model)
        self.random_ids = np.arange(model.vocab_size, dtype=np.int64)  # create_pretraining_data.py: any entry

    def loss_terms(self) -> tuple[Term, ...]:
        return (Term("mlm", "masked", 1.0), Term("nsp", "pairs", 1.0))

    def prepare(self, batch: RowBatch) -> HostBatch:
        rows, labels, weights = exchange_second_segments(batch.rows, batch.structure, batch.keys, batch.partners)
        plan = plan_masks(
            rows,
            batch.structure,
            batch.keys.counter(self.arm.mask_versions),
            seed=batch.keys.seed,
            mask_prob=self.arm.mask_prob,
            slots=self.slots,
            mask_id=self.special.mask,
            mask_rate=0.8,
            random_rate=0.1,
            random_ids=self.random_ids,
        )
        return {**_common(rows, batch.structure), **_masked(plan), "pair_labels": labels, "pair_weights": weights}

    def forward(self, batch: Batch) -> Outputs:
        h_BLD = self._encode(batch)
        mlm_sum, statistics = self._predict(h_BLD, batch)
        logits = self.pair_head(h_BLD).float()
        nll = F.cross_entropy(logits, batch["pair_labels"], reduction="none")
        nsp_sum = (nll * batch["pair_weights"]).sum()
        hits = ((logits.argmax(-1) == batch["pair_labels"]) * batch["pair_weights"]).sum()
        statistics |= {"pairs": batch["pair_weights"].sum(), "nsp_loss": nsp_sum.detach(), "nsp_hits": hits}
        return Outputs({"mlm": mlm_sum, "nsp": nsp_sum}, statistics)

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        pairs = max(sums["pairs"], 1.0)
        found = super().metrics(sums)
        nsp = sums["nsp_loss"] / pairs
        return {**found, "loss": found["mlm_loss"] + nsp, "nsp_loss": nsp, "nsp_accuracy": sums["nsp_hits"] / pairs}


class Roberta(MaskedLanguageModel):
    """RoBERTa: a fresh mask every epoch, nothing but masked tokens."""

    def __init__(self, arm: RobertaArm, model: EncoderConfig, special: SpecialIds, seq_len: int, packed: bool) -> None:
        super().__init__(model, special, seq_len, packed)
        self.arm = arm
        self.slots = arm.max_predictions(seq_len)
        self.random_ids = np.setdiff1d(
            np.arange(model.vocab_size, dtype=np.int64), special.all()
        )  # fairseq's MaskTokens

    def loss_terms(self) -> tuple[Term, ...]:
        return (Term("mlm", "masked", 1.0),)

    def prepare(self, batch: RowBatch) -> HostBatch:
        plan = plan_masks(
            batch.rows,
            batch.structure,
            batch.keys.counter(),
            seed=batch.keys.seed,
            mask_prob=self.arm.mask_prob,
            slots=self.slots,
            mask_id=self.special.mask,
            mask_rate=0.8,
            random_rate=0.1,
            random_ids=self.random_ids,
        )
        return {**_common(batch.rows, batch.structure), **_masked(plan)}

    def forward(self, batch: Batch) -> Outputs:
        mlm_sum, statistics = self._predict(self._encode(batch), batch)
        return Outputs({"mlm": mlm_sum}, statistics)


def build(arm: ArmConfig, model: EncoderConfig, special: SpecialIds, *, seq_len: int, packed: bool) -> Objective:
    """The objective of an arm, initialised from the global torch generator (seed it first)."""
    match arm:
        case ElectraArm():
            return Electra(arm, model, special, seq_len, packed)
        case BertArm():
            return Bert(arm, model, special, seq_len, packed)
        case RobertaArm():
            return Roberta(arm, model, special, seq_len, packed)
