"""Fine-tune one pre-trained body on one task with one seed.

The body is trained in place with a dropout and one linear layer on the first position. Batches hold texts of similar
length and are padded to their own longest, so little is computed on padding. On the CPU with one thread the same seed
gives the same predictions, bit for bit; on a GPU sums in another order may differ. Which checkpoints, tasks and seeds
are run, and where results go, is decided above.

Shape suffixes: B examples, L tokens, D hidden size, C classes.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from data_prep.errors import ConfigError
from data_prep.tokenizer import Tokenizer
from training.encoder import Embeddings, Encoder, init_weights
from training.optimizer import layerwise_groups, set_learning_rate
from training.protocol import Protocol
from training.sizes import EncoderConfig
from training.tasks import Example, Task, TaskData, score
from training.text_batches import Encoded, bucketed, encode, keyed_order

Backbone = tuple[EncoderConfig, Embeddings, Encoder]

PREDICT_BATCH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuned:
    """What one fine-tuning gave. `scores` are logits `[n_dev, C]`; `majority` is dev accuracy of the commonest class.
    `degenerate`: one class only was predicted, or the loss stopped being finite (training then ended there)."""

    metrics: dict[str, float]
    majority: float
    degenerate: bool
    n_train: int
    n_dev: int
    label: NDArray[np.int64]
    prediction: NDArray[np.int64]
    group: NDArray[np.int64]  # examples of one group are not independent
    scores: NDArray[np.float32]
    seconds: float


class Classifier(nn.Module):
    """A body with a dropout and one linear layer on the first position (google-research/electra fine-tuning)."""

    def __init__(self, backbone: Backbone, classes: int, protocol: Protocol) -> None:
        super().__init__()
        config, self.embeddings, self.encoder = backbone
        self.dropout = nn.Dropout(protocol.dropout)
        self.out = nn.Linear(config.hidden_size, classes)
        init_weights(self.out, protocol.head_init)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Logits `[B, C]`."""
        x_BLE = self.embeddings(batch["ids"], batch["positions"], batch["types"])
        h_BD = self.encoder(x_BLE, batch["fragment"], first=True)[:, 0]
        logits: Tensor = self.out(self.dropout(h_BD))
        return logits


def finetune(
    backbone: Backbone,
    data: TaskData,
    *,
    task: Task,
    tokenizer: Tokenizer,
    protocol: Protocol,
    seed: int,
    device: torch.device,
) -> FineTuned:
    """Train on `data.train`, predict `data.dev`. ConfigError when `max_length` exceeds the model's positions."""
    if protocol.max_length > backbone[0].max_positions:
        raise ConfigError(
            f"evaluation.protocol.max_length {protocol.max_length} is longer than model.max_positions "
            f"{backbone[0].max_positions}: lower it."
        )
    start = time.monotonic()
    train = encode(_limited(data.train, protocol, data.task), tokenizer, protocol.max_length)
    dev = encode(data.dev, tokenizer, protocol.max_length)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)  # the head's weights and every dropout
        model = Classifier(backbone, len(data.classes), protocol).to(device)
        finite = _train(model, train, protocol, seed, device)
        scores = predict(model, dev, device)
    prediction = scores.argmax(axis=1).astype(np.int64)
    return FineTuned(
        metrics=score(task, dev.labels, prediction),
        majority=data.majority,
        degenerate=not finite or len(np.unique(prediction)) == 1,
        n_train=len(train.labels),
        n_dev=len(dev.labels),
        label=dev.labels,
        prediction=prediction,
        group=data.dev_groups,
        scores=scores,
        seconds=time.monotonic() - start,
    )


def _limited(examples: list[Example], protocol: Protocol, task: str) -> list[Example]:
    """At most `max_train_examples`, the same ones for every model and seed."""
    limit = protocol.max_train_examples
    if limit is None or limit >= len(examples):
        return examples
    chosen = keyed_order(len(examples), "finetune-subset", task)[:limit]
    return [examples[i] for i in sorted(chosen.tolist())]


def _train(model: Classifier, data: Encoded, protocol: Protocol, seed: int, device: torch.device) -> bool:
    """All epochs; False as soon as a loss is not finite, with the weights as they were before it."""
    groups = layerwise_groups(
        model.embeddings,
        model.encoder,
        model.out,
        protocol.weight_decay,
        decay=protocol.layer_decay,
        reference_offset=protocol.layer_decay_offset,
    )
    # bias-corrected: without it small fine-tunings fail at random (Mosbach et al. 2021, Zhang et al. 2021)
    optimizer = torch.optim.AdamW(groups, lr=0.0, fused=True)
    steps = protocol.epochs * -(-len(data.labels) // protocol.batch_size)
    model.train()
    step = 0
    for epoch in range(protocol.epochs):
        for which_B in bucketed(data.lengths, protocol.batch_size, seed, epoch):
            batch = data.batch(which_B, device)
            loss = F.cross_entropy(model(batch), batch["labels"])
            if not torch.isfinite(loss):
                return False
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), protocol.grad_clip)
            set_learning_rate(optimizer, learning_rate(step, steps, protocol))
            optimizer.step()
            step += 1
    return True


def learning_rate(step: int, steps: int, protocol: Protocol) -> float:
    """The rate of update `step` (from 0) of `steps`: linear up to the peak in the first `warmup_fraction` of them,
    then linear down, to reach 0 just after the last."""
    warmup = round(protocol.warmup_fraction * steps)
    if step < warmup:
        return protocol.learning_rate * (step + 1) / warmup
    return protocol.learning_rate * (steps - step) / (steps - warmup)


@torch.no_grad()
def predict(model: Classifier, data: Encoded, device: torch.device) -> NDArray[np.float32]:
    """Logits `[n, C]` in the examples' order, without dropout."""
    model.eval()
    by_length = np.argsort(data.lengths, kind="stable")
    scores = np.empty((len(data.labels), model.out.out_features), dtype=np.float32)
    for start in range(0, len(by_length), PREDICT_BATCH):
        which_B = by_length[start : start + PREDICT_BATCH]
        scores[which_B] = model(data.batch(which_B, device)).float().cpu().numpy()
    return scores
