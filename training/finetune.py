"""Fine-tune one pre-trained body on one task with one seed.

The body is trained in place with a dropout and one linear layer on the first position (google-research/electra; no
further layer, unlike transformers' ElectraClassificationHead): cross-entropy for classes, the squared error of label /
largest label for values. Batches hold texts of similar length and are padded to their own longest, so little is
computed on padding. On the CPU with one thread the same seed gives the same predictions, bit for bit; on a GPU sums in
another order may differ. Which checkpoints, tasks and seeds are run, and where results go, is decided above.

Shape suffixes: B examples, L tokens, D hidden size, C classes (1 for values).
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from data_prep.errors import ConfigError
from data_prep.tokenizer import Tokenizer
from training.encoder import Embeddings, Encoder
from training.fine_steps import Batch, fit, init_head
from training.protocol import Protocol
from training.sizes import EncoderConfig
from training.tasks import Example, Labels, Task, TaskData, Unlabelled, score
from training.text_batches import Encoded, ascending, bucketed, encode, keyed_order

Backbone = tuple[EncoderConfig, Embeddings, Encoder]

PREDICT_TOKENS = 16_384  # of a batch without gradient: bounds the memory whatever the texts' length
CONSTANT = 1e-2  # values that differ by less than this share of the largest label are one value


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A dev side with its answers. `scores` are logits `[n, C]`, or what the network gave for a value `[n, 1]`, on the
    labels' scale; `majority` is the accuracy of the commonest class. `degenerate`: the same answer to everything, or
    the training or the answers did not stay finite."""

    task: Task
    metrics: dict[str, float]
    majority: float
    degenerate: bool
    label: Labels
    prediction: Labels
    group: NDArray[np.int64]  # examples of one group are not independent
    scores: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuned:
    """What one fine-tuning gave: its task's dev side and the further ones, predictions for test sets by name, and what
    it took. `finite`: no loss stopped being a number (training would have ended there)."""

    sides: tuple[Answered, ...]
    tests: dict[str, Labels]
    finite: bool
    n_train: int
    seconds: float
    cpu_seconds: float


class Classifier(nn.Module):
    """A body with a dropout and one linear layer on the first position."""

    def __init__(self, backbone: Backbone, outputs: int, protocol: Protocol) -> None:
        super().__init__()
        config, self.embeddings, self.encoder = backbone
        self.dropout = nn.Dropout(protocol.dropout)
        self.head = nn.Linear(config.hidden_size, outputs)
        init_head(self.head, protocol.head_init)

    def forward(self, batch: Batch) -> Tensor:
        """Logits `[B, C]`."""
        x_BLE = self.embeddings(batch["ids"], batch["positions"], batch["types"])
        h_BD = self.encoder(x_BLE, batch["fragment"], first=True)[:, 0]
        logits: Tensor = self.head(self.dropout(h_BD))
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
    tests: Sequence[Unlabelled] = (),
) -> FineTuned:
    """Train on `data.train`, answer its dev sides and `tests`. ConfigError when `max_length` exceeds the model's
    positions."""
    if protocol.max_length > backbone[0].max_positions:
        raise ConfigError(
            f"evaluation.protocol.max_length {protocol.max_length} is longer than model.max_positions "
            f"{backbone[0].max_positions}: lower it."
        )
    start, cpu_start = time.monotonic(), time.process_time()
    chosen = _limited(data.train, protocol, data.task)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)  # the head's weights and every dropout
        model = Classifier(backbone, 1 if task.largest else len(data.classes), protocol).to(device)
        train = encode(_doubled(chosen, protocol, data.task), tokenizer, protocol.max_length)
        finite = _train(model, train, task, protocol, seed, device)

    def scores_of(examples: Sequence[Example]) -> NDArray[np.float32]:
        return predict(model, encode(examples, tokenizer, protocol.max_length), device) * np.float32(task.largest or 1)

    sides = [_answered(side, data, scores_of(data.side(side.name)), finite) for side in task.sides()]
    return FineTuned(
        sides=tuple(sides),
        tests={test.name: predictions(scores_of(test.examples), task) for test in tests},
        finite=finite,
        n_train=len(chosen),
        seconds=time.monotonic() - start,
        cpu_seconds=time.process_time() - cpu_start,
    )


def predictions(scores: NDArray[np.float32], task: Task) -> Labels:
    """Classes or values `[n]` from scores `[n, C]`. What is no number counts as class 0, or as the value 0."""
    if task.largest:
        return np.nan_to_num(scores[:, 0].astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    return np.nan_to_num(scores, nan=-np.inf).argmax(axis=1).astype(np.int64)


def _answered(side: Task, data: TaskData, scores: NDArray[np.float32], finite: bool) -> Answered:
    prediction = predictions(scores, side)
    label = np.asarray([example.label for example in data.side(side.name)])
    one_answer = np.ptp(prediction) <= CONSTANT * side.largest if side.largest else np.ptp(prediction) == 0
    return Answered(
        task=side,
        metrics=score(side, label, prediction),
        majority=data.majority(side.name),
        degenerate=bool(one_answer) or not finite or not np.isfinite(scores).all(),
        label=label,
        prediction=prediction,
        group=data.groups(side.name),
        scores=scores,
    )


def _limited(examples: list[Example], protocol: Protocol, task: str) -> list[Example]:
    """At most `max_train_examples`, the same ones for every model and seed."""
    limit = protocol.max_train_examples
    if limit is None or limit >= len(examples):
        return examples
    chosen = keyed_order(len(examples), "finetune-subset", task)[:limit]
    return [examples[i] for i in sorted(chosen.tolist())]


def _doubled(examples: list[Example], protocol: Protocol, task: str) -> list[Example]:
    """Pairs in both orders, where the protocol says so of the task."""
    if task not in protocol.doubled:
        return examples
    return examples + [Example(e.text_b, e.text_a, e.label, e.group) for e in examples if e.text_b is not None]


def _train(model: Classifier, data: Encoded, task: Task, protocol: Protocol, seed: int, device: torch.device) -> bool:
    """All epochs; False as soon as a loss is not finite, with the weights as they were before it."""
    epochs = protocol.epochs_for(task.name)

    def batches() -> Iterator[Batch]:
        for epoch in range(epochs):
            for which_B in bucketed(data.lengths, protocol.batch_size, seed, epoch):
                yield data.batch(which_B, device)

    def losses_of(batch: Batch) -> Tensor:
        logits_BC = model(batch)
        if task.largest:
            return F.mse_loss(logits_BC[:, 0], batch["labels"] / task.largest, reduction="none")
        return F.cross_entropy(logits_BC, batch["labels"], reduction="none")

    model.train()
    steps = epochs * -(-len(data.labels) // protocol.batch_size)
    return fit(model, batches(), losses_of, steps=steps, protocol=protocol)


@torch.no_grad()
def predict(model: Classifier, data: Encoded, device: torch.device) -> NDArray[np.float32]:
    """The head's output `[n, C]` in the examples' order, without dropout."""
    model.eval()
    scores = np.empty((len(data.labels), model.head.out_features), dtype=np.float32)
    for which_B in ascending(data.lengths, PREDICT_TOKENS):
        scores[which_B] = model(data.batch(which_B, device)).float().cpu().numpy()
    return scores
