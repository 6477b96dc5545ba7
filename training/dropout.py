"""Dropout whose random numbers are cheap on a CPU.

There PyTorch draws one Mersenne twister number an element, which costs more than a matmul; here 64 random bits make
four elements. The rate is the nearest multiple of 2⁻¹⁶ (.1 becomes .100006), and what is kept is scaled by what keeps
the mean exactly. Each call's generator is seeded from torch's, so that `torch.manual_seed` decides everything and
activation checkpointing repeats it; the number of threads does not matter. On a GPU it is PyTorch's own.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 1 << 16


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        dropped = min(round(rate * _LEVELS), _LEVELS - 1)
        seed = int(torch.randint(1 << 62, ()))
        bits = np.random.SFC64(seed).random_raw(-(-x.numel() // 4)).view(np.int16)[: x.numel()]
        keep = torch.from_numpy(bits).view(x.shape) >= dropped - _LEVELS // 2
        ctx.save_for_backward(keep)
        ctx.scale = _LEVELS / (_LEVELS - dropped)
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return (gradient * keep).mul_(ctx.scale), None


def dropout(x: Tensor, rate: float) -> Tensor:
    """`x` with a share of its elements set to 0 and the others scaled up; `x` itself at rate 0."""
    if rate == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    found: Tensor = _Dropout.apply(x, rate)
    return found


class Dropout(nn.Module):
    """`dropout` in training, nothing in evaluation."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """The shape of `x`."""
        return dropout(x, self.rate) if self.training else x
