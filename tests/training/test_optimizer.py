"""The optimizer and the schedule against the formulas, by hand."""

import pytest
import torch
from torch import nn

from training.optimizer import ReferenceAdam, learning_rate, parameter_groups


def test_two_updates_by_hand() -> None:
    """No bias correction: m = .1 g, v = .001 g², so the first update is .1/√.001 ≈ 3.16 of the gradient's sign."""
    p = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = ReferenceAdam([p], lr=0.1, eps=1e-6, weight_decay=0.01)
    expected, m, v = p.detach().clone(), torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for gradient in (torch.tensor([0.5, 4.0]), torch.tensor([-0.25, 1.0])):
        g = gradient.double()
        p.grad = g.clone()
        optimizer.step()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        expected = expected - 0.1 * (m / (v.sqrt() + 1e-6) + 0.01 * expected)
        torch.testing.assert_close(p.detach(), expected, rtol=1e-12, atol=0)


def test_schedule_is_the_reference() -> None:
    """Warm-up multiplies the decaying line: 0 at the start, peak × (1 − W/T) at the end of warm-up, 0 at the end."""
    assert learning_rate(0, 1e-3, 100, 10) == 0.0
    assert learning_rate(5, 1e-3, 100, 10) == pytest.approx(1e-3 * 0.95 * 0.5)
    assert learning_rate(10, 1e-3, 100, 10) == pytest.approx(1e-3 * 0.9)
    assert learning_rate(55, 1e-3, 100, 10) == pytest.approx(1e-3 * 0.45)
    assert learning_rate(100, 1e-3, 100, 10) == 0.0
    assert learning_rate(0, 1e-3, 100, 0) == 1e-3


def test_norms_and_biases_are_not_decayed_and_embeddings_are() -> None:
    module = nn.ModuleDict({"table": nn.Embedding(4, 3), "norm": nn.LayerNorm(3), "dense": nn.Linear(3, 3)})
    decayed, plain = parameter_groups(module, 0.01)
    assert decayed["weight_decay"] == 0.01 and plain["weight_decay"] == 0.0
    table, norm, dense = module["table"], module["norm"], module["dense"]
    assert {id(p) for p in decayed["params"]} == {id(table.weight), id(dense.weight)}
    assert {id(p) for p in plain["params"]} == {id(norm.weight), id(norm.bias), id(dense.bias)}
