"""What stands in the masked positions: samples of a network trained along, of a frozen one, or of chance.

A generator takes a prepared batch to a `Proposal`: a token for every mask slot, the sums of the losses it is trained
with, and statistics. The distribution is computed in fp32 or better (from logits that a half-precision matmul may have
rounded), one uniform a slot draws from it, and no gradient passes through. Rules: google-research/electra
(run_pretraining.py, `_get_masked_lm_output` and `_get_fake_data`).

Shape suffixes: B rows, L row length, K mask slots, D hidden size, V vocabulary.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from training.arms import FrozenGenerator, GeneratorConfig, NetworkGenerator, UniformGenerator
from training.detection import sample_tokens
from training.encoder import Embeddings, Encoder, at_least_float32
from training.flops import trained_generator
from training.heads import MaskedTokenHead, gather_positions
from training.network import Network
from training.objectives.base import Objective, Setup, Term, masked_token_loss
from training.objectives.batch import Batch, room_for_runs
from training.sizes import EncoderConfig

FORBIDDEN = 1000.0  # what disallow_correct takes from the true token's logit (pretrain_helpers.sample_from_softmax)


@dataclass(frozen=True)  # without slots, as `Outputs`
class Proposal:
    """A token for every mask slot `[B, K]`, loss sums by term, detached statistics."""

    sampled_BK: Tensor
    sums: dict[str, Tensor]
    statistics: dict[str, Tensor]


class Generator(nn.Module, ABC):
    """Draws the tokens that a row is corrupted with: called with a batch, it gives a `Proposal`. (The adversarial
    generator, whose loss needs the discriminator's answer, is used by its parts.)"""

    @abstractmethod
    def terms(self) -> tuple[Term, ...]:
        """The losses it is trained with."""

    @abstractmethod
    def network(self) -> Network | None:
        """The network behind it, if it is one."""

    def figures(self, sums: dict[str, Any]) -> dict[str, float]:
        """Named figures from statistic sums."""
        return {"sampled_accuracy": sums["sampled_hits"] / max(sums["masked"], 1.0)}


class UniformSampler(Generator):
    """Every entry of the vocabulary with equal chances (the reference's `uniform_generator`)."""

    def __init__(self, settings: UniformGenerator, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.disallow_correct = settings.disallow_correct

    def terms(self) -> tuple[Term, ...]:
        return ()

    def network(self) -> None:
        return None

    def forward(self, batch: Batch) -> Proposal:
        choices = self.vocab_size - self.disallow_correct
        sampled_BK = (batch["uniforms"] * choices).long().clamp(max=choices - 1)
        if self.disallow_correct:  # all entries but the true one
            sampled_BK = sampled_BK + (sampled_BK >= batch["mask_labels"])
        return Proposal(sampled_BK, {}, {"sampled_hits": sampled_hits(sampled_BK, batch)})


class NetworkSampler(Generator):
    """Samples of a masked language model: what trained and frozen generators share."""

    def __init__(
        self,
        settings: NetworkGenerator | FrozenGenerator,
        config: EncoderConfig,
        embeddings: Embeddings,
        encoder: Encoder,
        packed: bool,
    ) -> None:
        super().__init__()
        self.temperature, self.disallow_correct = settings.temperature, settings.disallow_correct
        self.config, self.packed = config, packed
        self.embeddings, self.encoder = embeddings, encoder
        self.head = MaskedTokenHead(config)

    def network(self) -> Network:
        return Network(self.config, self.embeddings, self.encoder, {"mlm": self.head})

    def predict(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Hidden states `[B, K, D]` and logits `[B, K, V]` at the masked positions."""
        x_BLE = self.embeddings(batch["inputs"], batch["positions"], batch["types"])
        h_BLD = self.encoder(x_BLE, batch["fragment"], self.packed, runs=room_for_runs(batch))
        h_BKD = gather_positions(h_BLD, batch["mask_positions"])
        return h_BKD, self.head(h_BKD, self.embeddings.word.weight)

    def sampling_logits(self, logits_BKV: Tensor, batch: Batch) -> Tensor:
        """The logits `[B, K, V]` of the distribution that is sampled from."""
        scaled_BKV = at_least_float32(logits_BKV) / self.temperature
        if not self.disallow_correct:
            return scaled_BKV
        penalty_BK1 = scaled_BKV.new_full((1, 1, 1), -FORBIDDEN).expand(*batch["mask_labels"].shape, 1)
        return scaled_BKV.scatter_add(-1, batch["mask_labels"][:, :, None], penalty_BK1)

    @torch.no_grad()
    def sample(self, logits_BKV: Tensor, batch: Batch) -> Tensor:
        """Token ids `[B, K]`."""
        return sample_tokens(self.sampling_logits(logits_BKV, batch), batch["uniforms"])

    def figures(self, sums: dict[str, Any]) -> dict[str, float]:
        accuracy = sums["mlm_hits"] / max(sums["masked"], 1.0)
        return {"mlm_accuracy": accuracy, **super().figures(sums)}


class TrainedSampler(NetworkSampler):
    """Trained along by maximum likelihood on the masked tokens."""

    def __init__(self, *parts: Any, weight: float) -> None:
        super().__init__(*parts)
        self.weight = weight

    def terms(self) -> tuple[Term, ...]:
        return (Term("mlm", "masked", self.weight),)

    def forward(self, batch: Batch) -> Proposal:
        _, logits_BKV = self.predict(batch)
        mlm_sum, hits = masked_token_loss(logits_BKV, batch)
        sampled_BK = self.sample(logits_BKV, batch)
        return Proposal(
            sampled_BK, {"mlm": mlm_sum}, {"mlm_hits": hits, "sampled_hits": sampled_hits(sampled_BK, batch)}
        )


class FrozenSampler(NetworkSampler):
    """Never trained here: its forward pass keeps nothing for a backward one. Dropout stays on in training, as it is
    when a trained generator samples."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.requires_grad_(False)

    def terms(self) -> tuple[Term, ...]:
        return ()

    @torch.no_grad()
    def forward(self, batch: Batch) -> Proposal:
        _, logits_BKV = self.predict(batch)
        mlm_sum, hits = masked_token_loss(logits_BKV, batch)
        sampled_BK = self.sample(logits_BKV, batch)
        statistics = {"mlm_loss": mlm_sum, "mlm_hits": hits, "sampled_hits": sampled_hits(sampled_BK, batch)}
        return Proposal(sampled_BK, {}, statistics)

    def figures(self, sums: dict[str, Any]) -> dict[str, float]:
        return {"mlm_loss": sums["mlm_loss"] / max(sums["masked"], 1.0), **super().figures(sums)}


def sampled_hits(sampled_BK: Tensor, batch: Batch) -> Tensor:
    """How many samples are the true token."""
    return ((sampled_BK == batch["mask_labels"]) * batch["mask_weights"]).sum()


def make_generator(settings: GeneratorConfig, weight: float, main: Objective, setup: Setup) -> Generator:
    """The generator of an objective whose embeddings and main network exist."""
    if isinstance(settings, FrozenGenerator):
        return FrozenSampler(*frozen_parts(settings, setup))
    if isinstance(settings, NetworkGenerator):
        return TrainedSampler(*trained_parts(settings, main, setup), weight=weight)
    return UniformSampler(settings, setup.model.vocab_size)


def trained_parts(
    settings: NetworkGenerator, main: Objective, setup: Setup
) -> tuple[NetworkGenerator, EncoderConfig, Embeddings, Encoder, bool]:
    """What a trained generator is made of: shared with the main network as far as its tying says."""
    config = trained_generator(settings, setup.model)
    embeddings = Embeddings(config) if settings.tying == "none" else main.embeddings
    encoder = main.body if settings.tying == "all" else Encoder(config, setup.compute)
    return settings, config, embeddings, encoder, setup.packed


def frozen_parts(
    settings: FrozenGenerator, setup: Setup
) -> tuple[FrozenGenerator, EncoderConfig, Embeddings, Encoder, bool]:
    """What a frozen generator is made of: nothing of the main network's."""
    assert settings.network is not None, "a planned run's frozen generator carries its size"
    config = settings.network.encoder(setup.model.vocab_size)
    return settings, config, Embeddings(config), Encoder(config, setup.compute), setup.packed
