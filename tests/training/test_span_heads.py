"""Heads that point at spans, against loops written plainly in float64, and losses known by arithmetic."""

import math

import pytest
import torch
from torch import Tensor

from training.span_heads import JointSpans, PlainSpans, span_head
from training.squad_protocol import SpanProtocol

B, L, D = 3, 9, 6
PAPER = SpanProtocol.model_validate({"name": "electra_paper", "size": "small"})


def batch() -> dict[str, Tensor]:
    """Position 0 and the last 6, 5, 4 positions but for padding are allowed."""
    allowed = torch.zeros(B, L, dtype=torch.bool)
    allowed[:, 0] = True
    allowed[0, 3:9], allowed[1, 3:8], allowed[2, 4:8] = True, True, True
    return {
        "allowed": allowed,
        "start": torch.tensor([3, 0, 5]),
        "end": torch.tensor([4, 0, 7]),
        "impossible": torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64),
    }


def hidden() -> Tensor:
    return torch.randn(B, L, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def joint() -> JointSpans:
    torch.manual_seed(1)
    return JointSpans(D, 0.5, "glorot").double()


def log_softmax(logits: list[float]) -> list[float]:
    total = math.log(sum(math.exp(x) for x in logits))
    return [x - total for x in logits]


def start_logits(head: JointSpans, h_LD: Tensor, allowed: list[bool]) -> list[float]:
    return [float(head.start(h_LD[t])) - (0.0 if allowed[t] else 1000.0) for t in range(L)]


def end_logits(head: JointSpans, h_LD: Tensor, start: int, allowed: list[bool]) -> list[float]:
    """The layers applied to the concatenation of the start's state and each position's, as the reference has it."""
    out = []
    for t in range(L):
        both = torch.cat([h_LD[start], h_LD[t]])
        logit = head.end(torch.nn.functional.gelu(head.end_hidden(both)))
        out.append(float(logit) - (0.0 if allowed[t] else 1000.0))
    return out


def null_logit(head: JointSpans, h_LD: Tensor, starts: list[float]) -> float:
    expected_D = sum(math.exp(log_p) * h_LD[t] for t, log_p in enumerate(log_softmax(starts)))
    assert isinstance(expected_D, Tensor)
    return float(head.null(torch.nn.functional.gelu(head.null_hidden(torch.cat([h_LD[0], expected_D])))))


@torch.no_grad()
def test_the_joint_loss_equals_a_plain_loop_with_the_annotated_start() -> None:
    head, h, made = joint(), hidden(), batch()
    losses = head.losses(h, made)
    for b in range(B):
        allowed = made["allowed"][b].tolist()
        start, end, impossible = int(made["start"][b]), int(made["end"][b]), float(made["impossible"][b])
        starts = start_logits(head, h[b], allowed)
        of_start = -log_softmax(starts)[start]
        of_end = -log_softmax(end_logits(head, h[b], start, allowed))[end]
        p = 1 / (1 + math.exp(-null_logit(head, h[b], starts)))
        of_null = -(impossible * math.log(p) + (1 - impossible) * math.log(1 - p))
        assert float(losses[b]) == pytest.approx((of_start + of_end) / 2 + 0.5 * of_null, rel=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("size", [2, 20])
def test_the_joint_beam_equals_a_plain_loop(size: int) -> None:
    head, h, made = joint(), hidden(), batch()
    beam = head.beam(h, made["allowed"], size)
    kept = min(size, L)
    assert beam.end_score_BKJ.shape == (B, kept, kept)
    for b in range(B):
        allowed = made["allowed"][b].tolist()
        starts = start_logits(head, h[b], allowed)
        log_p = log_softmax(starts)
        best = sorted(range(L), key=lambda t: -log_p[t])[:kept]
        assert beam.start_BK[b].tolist() == best
        assert beam.start_score_BK[b].tolist() == pytest.approx([log_p[t] for t in best], rel=1e-12)
        for k, start in enumerate(best):
            of_ends = log_softmax(end_logits(head, h[b], start, allowed))
            best_ends = sorted(range(L), key=lambda t: -of_ends[t])[:kept]
            assert beam.end_BKJ[b, k].tolist() == best_ends
            assert beam.end_score_BKJ[b, k].tolist() == pytest.approx([of_ends[t] for t in best_ends], rel=1e-12)
        assert float(beam.null_B[b]) == pytest.approx(null_logit(head, h[b], starts), rel=1e-12)


@torch.no_grad()
def test_the_plain_head_scores_spans_by_logits_and_the_null_by_position_0() -> None:
    head, h, made = PlainSpans(D, 0.5).double(), hidden(), batch()
    logits = h @ head.out.weight.T + head.out.bias
    beam = head.beam(h, made["allowed"], 3)
    for b in range(B):
        allowed = [t for t in range(L) if made["allowed"][b, t]]
        starts = sorted(allowed, key=lambda t: -float(logits[b, t, 0]))[:3]
        ends = sorted(allowed, key=lambda t: -float(logits[b, t, 1]))[:3]
        assert beam.start_BK[b].tolist() == starts
        assert beam.end_BKJ[b].tolist() == [ends] * 3
        assert beam.start_score_BK[b].tolist() == pytest.approx([float(logits[b, t, 0]) for t in starts])
        assert beam.end_score_BKJ[b, 1].tolist() == pytest.approx([float(logits[b, t, 1]) for t in ends])
        assert float(beam.null_B[b]) == pytest.approx(float(logits[b, 0].sum()))


@pytest.mark.parametrize("name", ["plain", "joint"])
def test_without_weights_the_losses_are_those_of_guessing(name: str) -> None:
    """Every allowed position alike: log of their number; answerability at one half: log 2, at weight .5."""
    head = joint() if name == "joint" else PlainSpans(D, 0.02).double()
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    extra = 0.5 * math.log(2) if name == "joint" else 0.0
    expected = [math.log(7) + extra, math.log(6) + extra, math.log(5) + extra]
    assert head.losses(hidden(), batch()).tolist() == pytest.approx(expected)


def test_every_part_of_the_joint_head_learns_and_the_end_follows_the_annotated_start() -> None:
    head, h = joint(), hidden()
    head.losses(h, batch()).sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in head.parameters())
    moved = batch()
    moved["start"] = torch.tensor([5, 0, 5])
    first, second = head.losses(h, batch()), head.losses(h, moved)
    assert first[0] != second[0]
    assert torch.equal(first[1:], second[1:])


def test_a_protocol_names_its_head_and_how_it_begins() -> None:
    plain = span_head(64, SpanProtocol(head_init=0.01))
    assert isinstance(plain, PlainSpans)
    assert float(plain.out.weight.detach().abs().max()) <= 0.02  # truncated at two deviations
    paper = span_head(64, PAPER)
    assert isinstance(paper, JointSpans)
    assert paper.answerable_weight == 0.5
    # Glorot's uniform: ±√(6 / (128 + 512)), filled to its edge by 65,536 draws
    bound = math.sqrt(6 / 640)
    assert 0.999 * bound < float(paper.end_hidden.weight.detach().abs().max()) <= bound
    assert sum(p.numel() for p in paper.parameters()) == 65 + 2 * (129 * 512 - 512 + 512) + 2 * 513
