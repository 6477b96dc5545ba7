"""The updates of a fine-tuning, whatever the head: optimizer, schedule, clipping, and the loop over batches.

Guarantees: an update is a function of the weights, the batch and its number; a loss that is not finite ends the
training and leaves the weights as they were before it. Which batches come in which order, what the loss is and how a
seed is planted is the caller's.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

from training.encoder import Embeddings, Encoder, init_weights
from training.fine_protocol import FineProtocol, HeadInit
from training.optimizer import ReferenceAdam, layerwise_groups, set_learning_rate

Batch = dict[str, Tensor]


class FineTunable(Protocol):
    """A body and whatever is trained on top of it, at the full rate."""

    @property
    def embeddings(self) -> Embeddings: ...
    @property
    def encoder(self) -> Encoder: ...
    @property
    def head(self) -> nn.Module: ...


def fit(
    model: FineTunable,
    batches: Iterable[Batch],
    losses_of: Callable[[Batch], Tensor],
    *,
    steps: int,
    protocol: FineProtocol,
) -> bool:
    """One update a batch, `steps` in all. `losses_of` gives the loss of each example `[B]`. False as soon as a loss is
    not finite. The model's mode is the caller's."""
    optimizer = build_optimizer(model, protocol)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for step, batch in enumerate(batches):
        losses_B = losses_of(batch)
        loss = losses_B.mean() if protocol.loss == "mean" else losses_B.sum()
        if not torch.isfinite(loss):
            return False
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, protocol.grad_clip)
        set_learning_rate(optimizer, learning_rate(step, steps, protocol))
        optimizer.step()
    return True


def build_optimizer(model: FineTunable, protocol: FineProtocol) -> ReferenceAdam | torch.optim.AdamW:
    """The protocol's Adam over the body layer by layer and the head; its rate is set before each step."""
    groups = layerwise_groups(
        model.embeddings,
        model.encoder,
        model.head,
        protocol.weight_decay,
        decay=protocol.layer_decay,
        reference_offset=protocol.layer_decay_offset,
    )
    if protocol.adam == "reference_adam":
        return ReferenceAdam(groups, lr=0.0)
    # bias-corrected: without it small fine-tunings fail at random (Mosbach et al. 2021, Zhang et al. 2021)
    return torch.optim.AdamW(groups, lr=0.0, fused=True)


def learning_rate(step: int, steps: int, protocol: FineProtocol) -> float:
    """The rate of update `step` (from 0) of `steps`.

    linear: up to the peak in the first `warmup_fraction` of them, then down, to reach 0 just after the last. reference:
    warm-up times a line that falls from the beginning, so the first update's rate is 0 (google-research/electra,
    `create_optimizer`).
    """
    peak, part = protocol.learning_rate, protocol.warmup_fraction * steps
    if protocol.schedule == "reference":
        return peak * (1 - step / steps) * (min(1.0, step / part) if part else 1.0)
    warmup = round(part)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (steps - step) / (steps - warmup)


def init_head(linear: nn.Linear, how: HeadInit) -> None:
    """Weights of a new head: truncated normal, or Glorot's uniform (TensorFlow's default, which the reference keeps);
    no bias."""
    if how == "glorot":
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
    else:
        init_weights(linear, how)
