"""Dropout: its rate, its mean, its gradient, and what decides the mask."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch.utils.checkpoint import checkpoint

from training.dropout import Dropout, dropout

KEPT = 1 - 6554 / 65536  # .1 to the nearest multiple of 2⁻¹⁶


def test_elements_are_dropped_at_the_rate_and_the_others_keep_the_mean() -> None:
    torch.manual_seed(0)
    x = torch.full((1000, 1003), 3.0)  # not a multiple of four elements
    found = dropout(x, 0.1)
    kept = int((found != 0).sum())
    assert chisquare([kept, x.numel() - kept], [KEPT * x.numel(), (1 - KEPT) * x.numel()]).pvalue > 1e-3
    np.testing.assert_allclose(found[found != 0], 3.0 / KEPT, rtol=1e-6)


@pytest.mark.parametrize("size", [1, 3, 4, 7])
def test_any_size_will_do(size: int) -> None:
    assert dropout(torch.ones(size), 0.5).shape == (size,)
    assert dropout(torch.ones(0, 3), 0.5).shape == (0, 3)


def test_neighbours_are_independent() -> None:
    """Four elements share one random word: pairs at distance 1 to 4 are dropped together as often as chance has it."""
    torch.manual_seed(1)
    dropped = (dropout(torch.ones(400_000), 0.3) == 0).numpy()
    rate = dropped.mean()
    for distance in (1, 2, 3, 4):
        together = (dropped[distance:] & dropped[:-distance]).mean()
        assert together == pytest.approx(rate**2, abs=5 * np.sqrt(rate**2 / 400_000))


def test_the_gradient_passes_where_the_value_did() -> None:
    torch.manual_seed(2)
    x = torch.randn(50, 41, dtype=torch.float64, requires_grad=True)
    found = dropout(x, 0.25)
    found.backward(torch.full_like(found, 2.0))
    assert x.grad is not None
    torch.testing.assert_close(x.grad, (found != 0).double() * (2.0 / 0.75), rtol=1e-12, atol=0)


def test_the_seed_decides_the_mask_and_checkpointing_repeats_it() -> None:
    layer, x = Dropout(0.1), torch.ones(64, 64, requires_grad=True)
    torch.manual_seed(3)
    first, second = layer(x), layer(x)
    torch.manual_seed(3)
    again = checkpoint(layer, x, use_reentrant=False)
    assert torch.equal(first, again) and not torch.equal(first, second)
    (plain,) = torch.autograd.grad(first.sum(), x)
    (repeated,) = torch.autograd.grad(again.sum(), x)
    assert torch.equal(plain, repeated)


def test_evaluation_and_rate_0_change_nothing() -> None:
    x = torch.randn(5)
    assert Dropout(0.5).eval()(x) is x and Dropout(0.0)(x) is x


def test_what_is_not_finite_stays_so() -> None:
    torch.manual_seed(4)
    assert dropout(torch.full((100,), float("nan")), 0.9).isnan().all()


def test_a_rate_next_to_one_drops_almost_all() -> None:
    torch.manual_seed(5)
    found = dropout(torch.ones(1_000_000), 0.999999)  # the nearest multiple of 2⁻¹⁶ below 1
    assert 0 < int((found != 0).sum()) < 60 and found.max() == 65536
