"""Heads that point at an answer: where it starts, where it ends, and whether there is one.

`PlainSpans` is BERT's: two logits a position, independent of one another. `JointSpans` is google-research/electra's
(`finetune/qa/qa_tasks.py`): the end is conditioned on the start (on the annotated one when training, on each of the
likeliest when answering), and a classifier on `cls` and the expected start says whether the question has an answer at
all; it has no dropout. Positions outside the text, but for position 0, are never pointed at. GELU is erf's in both.

Shape suffixes: B windows, L positions, D hidden size, F features, K starts, J ends of each start.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.encoder import at_least_float32
from training.fine_protocol import HeadInit
from training.fine_steps import init_head
from training.heads import FineLinear
from training.squad_protocol import SpanProtocol

FEATURES = 512  # of the reference's hidden layers, whatever the model's size
NOWHERE = -1000.0  # added to the logits of positions that are not allowed, as the reference


@dataclass(frozen=True, slots=True)
class Beam:
    """The likeliest spans of each window, and how much it speaks against an answer. Scores of start and end add up."""

    start_BK: Tensor
    start_score_BK: Tensor
    end_BKJ: Tensor
    end_score_BKJ: Tensor
    null_B: Tensor


def span_head(hidden_size: int, protocol: SpanProtocol) -> "PlainSpans | JointSpans":
    """The head that a protocol names."""
    if protocol.head == "joint":
        return JointSpans(hidden_size, protocol.answerable_weight, protocol.head_init)
    return PlainSpans(hidden_size, protocol.head_init)


class PlainSpans(nn.Module):
    """One linear layer. Scores are logits, so that spans of different windows compare; the null score is that of the
    span from position 0 to itself."""

    def __init__(self, hidden_size: int, init: HeadInit) -> None:
        super().__init__()
        self.out = FineLinear(hidden_size, 2)
        init_head(self.out, init)

    def losses(self, h_BLD: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """`[B]`: the mean of the start's and the end's cross-entropy."""
        start_BL, end_BL = self._logits(h_BLD, batch["allowed"])
        return _pointing(start_BL, end_BL, batch)

    def beam(self, h_BLD: Tensor, allowed_BL: Tensor, size: int) -> Beam:
        """The `size` likeliest starts and ends (all, in a shorter window)."""
        start_BL, end_BL = self._logits(h_BLD, allowed_BL)
        size = min(size, start_BL.shape[1])
        start_score_BK, start_BK = start_BL.topk(size)
        end_score_BJ, end_BJ = end_BL.topk(size)
        shape = (-1, size, -1)
        null_B = start_BL[:, 0] + end_BL[:, 0]
        return Beam(
            start_BK, start_score_BK, end_BJ[:, None].expand(shape), end_score_BJ[:, None].expand(shape), null_B
        )

    def _logits(self, h_BLD: Tensor, allowed_BL: Tensor) -> tuple[Tensor, Tensor]:
        start_BL, end_BL = self.out(h_BLD).unbind(-1)
        return _masked(start_BL, allowed_BL), _masked(end_BL, allowed_BL)


class JointSpans(nn.Module):
    """Start, end given start, and answerability. Scores are log-probabilities; the null score is the logit of having no
    answer."""

    def __init__(self, hidden_size: int, answerable_weight: float, init: HeadInit) -> None:
        super().__init__()
        self.answerable_weight = answerable_weight
        self.start = FineLinear(hidden_size, 1)
        self.end_hidden = nn.Linear(2 * hidden_size, FEATURES)
        self.end = FineLinear(FEATURES, 1)
        self.null_hidden = nn.Linear(2 * hidden_size, FEATURES)
        self.null = FineLinear(FEATURES, 1)
        for layer in (self.start, self.end_hidden, self.end, self.null_hidden, self.null):
            init_head(layer, init)

    def losses(self, h_BLD: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """`[B]`: the mean of the start's and the end's cross-entropy, plus the weighted answerability loss."""
        start_BL = self._start(h_BLD, batch["allowed"])
        at_B1 = batch["start"][:, None]
        end_BL = self._ends(h_BLD, at_B1, batch["allowed"])[:, 0]
        null_B = self._null(h_BLD, start_BL)
        null_loss_B = F.binary_cross_entropy_with_logits(null_B, batch["impossible"], reduction="none")
        return _pointing(start_BL, end_BL, batch) + self.answerable_weight * null_loss_B

    def beam(self, h_BLD: Tensor, allowed_BL: Tensor, size: int) -> Beam:
        """The `size` likeliest starts, and of each the `size` likeliest ends (all, in a shorter window)."""
        start_BL = self._start(h_BLD, allowed_BL)
        size = min(size, start_BL.shape[1])
        start_score_BK, start_BK = start_BL.log_softmax(-1).topk(size)
        end_BKL = self._ends(h_BLD, start_BK, allowed_BL)
        end_score_BKJ, end_BKJ = end_BKL.log_softmax(-1).topk(size)
        return Beam(start_BK, start_score_BK, end_BKJ, end_score_BKJ, self._null(h_BLD, start_BL))

    def _start(self, h_BLD: Tensor, allowed_BL: Tensor) -> Tensor:
        return _masked(self.start(h_BLD).squeeze(-1), allowed_BL)

    def _ends(self, h_BLD: Tensor, start_BK: Tensor, allowed_BL: Tensor) -> Tensor:
        """Logits of the end for each of the starts, `[B, K, L]`. The layer on the concatenation of start and position
        is two layers added up; start by start, because `[B, K, L, F]` would be many gigabytes."""
        of_start_FD, of_position_FD = self.end_hidden.weight.chunk(2, dim=1)
        position_BLF = F.linear(h_BLD, of_position_FD, self.end_hidden.bias)
        h_start_BKD = h_BLD.gather(1, start_BK[:, :, None].expand(-1, -1, h_BLD.shape[-1]))
        start_BKF = F.linear(h_start_BKD, of_start_FD)
        ends = [self.end(F.gelu(position_BLF + start_BF[:, None])).squeeze(-1) for start_BF in start_BKF.unbind(1)]
        return _masked(torch.stack(ends, dim=1), allowed_BL[:, None])

    def _null(self, h_BLD: Tensor, start_BL: Tensor) -> Tensor:
        """Logit of having no answer `[B]`, from `cls` and the mean of the positions as starts."""
        expected_BD = torch.einsum("bl,bld->bd", start_BL.softmax(-1), at_least_float32(h_BLD))
        both = torch.cat([h_BLD[:, 0], expected_BD.to(h_BLD.dtype)], dim=-1)
        logits: Tensor = self.null(F.gelu(self.null_hidden(both)))
        return logits.squeeze(-1)


def _masked(logits: Tensor, allowed: Tensor) -> Tensor:
    return logits + NOWHERE * (~allowed).to(logits.dtype)


def _pointing(start_BL: Tensor, end_BL: Tensor, batch: dict[str, Tensor]) -> Tensor:
    start_B = F.cross_entropy(start_BL, batch["start"], reduction="none")
    end_B = F.cross_entropy(end_BL, batch["end"], reduction="none")
    return (start_B + end_B) / 2
