"""Fine-tune one pre-trained body on one version of SQuAD with one seed, and answer every dev question.

The body is trained in place with the head that the protocol names. Batches hold windows of similar length. On the CPU
with one thread the same seed gives the same answers, bit for bit. Metrics are those of `squad_metrics`, as shares of 1;
per question there are exact match and F1 where the task's score is taken (2.0: at the best threshold), so their means
are the first two metrics. Questions of one paragraph are not independent and share a group.

Shape suffixes: B windows, L positions, D hidden size.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data_prep.errors import ConfigError
from data_prep.tokenizer import Tokenizer
from training.fine_steps import Batch, fit
from training.finetune import Backbone
from training.span_heads import span_head
from training.squad import Paragraph, SpanData
from training.squad_answers import Answered, Spans, answer
from training.squad_metrics import best_threshold, question_scores_1, question_scores_2, score_1, score_2
from training.squad_protocol import SpanProtocol
from training.squad_windows import Windows, cut
from training.text_batches import bucketed, keyed_order

PREDICT_BATCH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanTuned:
    """What one fine-tuning gave.

    `majority`: exact match of never answering. `degenerate`: the loss stopped being finite (training then ended there),
    every question got the same answer or none, or (2.0) answering is worth no more than that at any threshold.
    """

    metrics: dict[str, float]
    thresholds: dict[str, float]  # 2.0: `used`, `best_exact`, `best_f1`
    majority: float
    degenerate: bool
    n_train: int  # questions
    n_windows: int  # that they were trained as
    n_unplaced: int  # of them, those whose answer no window holds whole, so that they point at nothing
    n_dev: int
    answered: list[Answered]  # every dev question, in order
    exact: NDArray[np.float64]  # [n_dev]
    f1: NDArray[np.float64]  # [n_dev]
    given: NDArray[np.bool_]  # [n_dev], whether it is answered with something where exact match is taken
    group: NDArray[np.int64]  # [n_dev], the question's paragraph
    seconds: float


class SpanReader(nn.Module):
    """A body with a head that points at spans."""

    def __init__(self, backbone: Backbone, protocol: SpanProtocol) -> None:
        super().__init__()
        config, self.embeddings, self.encoder = backbone
        self.head = span_head(config.hidden_size, protocol)

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states `[B, L, D]`."""
        x_BLE = self.embeddings(batch["ids"], batch["positions"], batch["types"])
        h_BLD: Tensor = self.encoder(x_BLE, batch["fragment"])
        return h_BLD


def finetune_spans(
    backbone: Backbone,
    data: SpanData,
    *,
    tokenizer: Tokenizer,
    protocol: SpanProtocol,
    seed: int,
    device: torch.device,
) -> SpanTuned:
    """Train on `data.train`, answer `data.dev`. ConfigError when `max_length` exceeds the model's positions."""
    if protocol.max_length > backbone[0].max_positions:
        raise ConfigError(
            f"evaluation.squad_protocol.max_length {protocol.max_length} is longer than model.max_positions "
            f"{backbone[0].max_positions}: lower it."
        )
    begun = time.monotonic()
    train = cut(_limited(data.train, protocol, data.version), tokenizer, protocol)
    dev = cut(data.dev, tokenizer, protocol)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)  # the head's weights and every dropout
        model = SpanReader(backbone, protocol).to(device)
        finite = _train(model, train, protocol, seed, device)
        spans = point(model, dev, protocol, device)
    answered = answer(dev, spans, protocol)
    scored = _scored(data, answered, protocol)
    return SpanTuned(
        **scored,
        degenerate=not finite or _is_degenerate(data, scored, answered),
        n_train=len(train.questions),
        n_windows=len(train.rows.labels),
        n_unplaced=_unplaced(train),
        n_dev=len(dev.questions),
        answered=answered,
        group=dev.paragraph,
        seconds=time.monotonic() - begun,
    )


def _limited(paragraphs: list[Paragraph], protocol: SpanProtocol, version: str) -> list[Paragraph]:
    """At most `max_train_examples` questions, the same ones for every model and seed."""
    limit = protocol.max_train_examples
    total = sum(len(p.questions) for p in paragraphs)
    if limit is None or limit >= total:
        return paragraphs
    chosen = set(keyed_order(total, "finetune-subset", f"SQuAD{version}")[:limit].tolist())
    kept, at = [], 0
    for p in paragraphs:
        questions = tuple(q for i, q in enumerate(p.questions, at) if i in chosen)
        at += len(p.questions)
        if questions:
            kept.append(Paragraph(p.article, p.context, questions))
    return kept


def _train(model: SpanReader, windows: Windows, protocol: SpanProtocol, seed: int, device: torch.device) -> bool:
    """All epochs; False as soon as a loss is not finite."""

    def batches() -> Iterator[Batch]:
        for epoch in range(protocol.epochs):
            for which_B in bucketed(windows.rows.lengths, protocol.batch_size, seed, epoch):
                yield windows.batch(which_B, device)

    def losses(batch: Batch) -> Tensor:
        return model.head.losses(model(batch), batch)

    steps = protocol.epochs * -(-len(windows.rows.labels) // protocol.batch_size)
    model.train()
    return fit(model, batches(), losses, steps=steps, protocol=protocol)


@torch.no_grad()
def point(model: SpanReader, windows: Windows, protocol: SpanProtocol, device: torch.device) -> Spans:
    """The likeliest spans of every window, without dropout."""
    model.eval()
    by_length = np.argsort(windows.rows.lengths, kind="stable")
    spans = Spans.empty(len(by_length), protocol.beam)
    for at in range(0, len(by_length), PREDICT_BATCH):
        which_B = by_length[at : at + PREDICT_BATCH]
        batch = windows.batch(which_B, device)
        beam = model.head.beam(model(batch), batch["allowed"], protocol.beam)
        size = beam.start_BK.shape[1]
        spans.start_WK[which_B, :size] = beam.start_BK.cpu().numpy()
        spans.start_score_WK[which_B, :size] = beam.start_score_BK.float().cpu().numpy()
        spans.end_WKJ[which_B, :size, :size] = beam.end_BKJ.cpu().numpy()
        spans.end_score_WKJ[which_B, :size, :size] = beam.end_score_BKJ.float().cpu().numpy()
        spans.null_W[which_B] = beam.null_B.float().cpu().numpy()
    return spans


def _scored(data: SpanData, answered: list[Answered], protocol: SpanProtocol) -> dict[str, Any]:
    """The fields of `SpanTuned` that are scores."""
    predictions = {a.id: a.best for a in answered}
    if data.version == "1.1":
        official = score_1(data.dev, predictions)
        exact, f1 = question_scores_1(data.dev, predictions)
        metrics = {"f1": official["f1"] / 100.0, "exact": official["exact_match"] / 100.0}
        given = np.array([bool(a.best) for a in answered])
        return {"metrics": metrics, "thresholds": {}, "majority": 0.0, "given": given} | _columns(exact, f1)
    null_scores = {a.id: a.null_score for a in answered}
    official = score_2(data.dev, predictions, null_scores, protocol.null_threshold)
    questions = [q for p in data.dev for q in p.questions]
    answerable = {q.id: not q.impossible for q in questions}
    raw = question_scores_2(questions, predictions)
    best_exact, best_f1 = (best_threshold(predictions, scores, null_scores, answerable) for scores in raw)
    used = {"used": protocol.null_threshold}
    return {
        "metrics": {name: value / 100.0 for name, value in official.items() if name.endswith(("exact", "f1"))},
        "thresholds": used | {f"best_{n}": official[f"best_{n}_thresh"] for n in ("exact", "f1")},
        "majority": sum(q.impossible for q in questions) / len(questions),
        "given": np.array([a.id in best_exact.answered and bool(a.best) for a in answered]),
    } | _columns(best_exact.scores, best_f1.scores)


def _columns(exact: dict[str, float], f1: dict[str, float]) -> dict[str, Any]:
    return {"exact": np.array([*exact.values()]), "f1": np.array([*f1.values()])}


def _is_degenerate(data: SpanData, scored: dict[str, Any], answered: list[Answered]) -> bool:
    if data.version == "1.1":
        return len({a.best for a in answered}) == 1
    given = {"" if a.null_score > scored["thresholds"]["used"] else a.best for a in answered}
    worth = round(scored["exact"].sum())  # whole: shares of 1 may differ in their last digit
    return worth <= sum(q.impossible for p in data.dev for q in p.questions) or len(given) == 1


def _unplaced(windows: Windows) -> int:
    """Answerable questions none of whose windows holds the answer."""
    held = set(windows.rows.labels[windows.start_W > 0].tolist())
    return sum(not q.impossible for i, q in enumerate(windows.questions) if i not in held)
