"""Matmuls and attention alone, for `tests.benchmarks.gpu_step`: what the parts of a step could reach at most."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args

import torch
from torch import Tensor

from data_prep.errors import ConfigError
from training.attention import Backend, Layout, attend, layout, resolve
from training.flops import TRAINED


@dataclass(frozen=True, slots=True)
class Shapes:
    """What is multiplied, and what is attended over."""

    tokens: int = 32_768
    widths: tuple[int, ...] = (256, 1024, 3072, 4096)
    rows: int = 64
    length: int = 512
    heads: int = 16
    head_size: int = 64


TINY = Shapes(tokens=256, widths=(16, 32), rows=2, length=32, heads=2, head_size=8)


def wait(device: torch.device) -> None:
    """Until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], Any], device: torch.device, total: float) -> float:
    """A call's time, the mean of as many as take about `total` seconds together; three are not counted."""
    for _ in range(3):
        call()
    once = _timed(call, device, 1)
    times = min(500, math.ceil(total / once))
    return _timed(call, device, times) / times


def _timed(call: Callable[[], Any], device: torch.device, times: int) -> float:
    wait(device)
    began = time.perf_counter()
    for _ in range(times):
        call()
    wait(device)
    return time.perf_counter() - began


def speed(flops: float, found: float, peak: float | None) -> str:
    """`612 TFLOP/s (62 %)`, the share of the device's peak where that is known."""
    share = f" ({flops / found / peak:.0%})" if peak else ""
    return f"{flops / found / 1e12:8.1f} TFLOP/s{share}"


def matmul_lines(device: torch.device, shapes: Shapes, total: float, peak: float | None) -> Iterator[str]:
    """A line a shape: [tokens, K] × [K, N] in bf16."""
    for K, N in product(shapes.widths, shapes.widths):
        x_TK = torch.randn(shapes.tokens, K, device=device, dtype=torch.bfloat16)
        w_NK = torch.randn(N, K, device=device, dtype=torch.bfloat16)
        found = seconds(lambda: x_TK @ w_NK.T, device, total)  # noqa: B023
        yield f"matmul {shapes.tokens} x {K:>4} x {N:>4}   {speed(2.0 * shapes.tokens * K * N, found, peak)}"


def attention_lines(device: torch.device, shapes: Shapes, total: float, peak: float | None) -> Iterator[str]:
    """A line a back-end, on rows of one fragment and of four, forward and backward in bf16, layouts as the encoder
    makes them; and PyTorch's fused attention without a mask, which only rows without padding could do with. FLOPs are
    the ledger's: forward × 3, over true lengths."""
    B, L, H, K = shapes.rows, shapes.length, shapes.heads, shapes.head_size
    fused = torch.randn(B, L, 3, H, K, device=device, dtype=torch.bfloat16, requires_grad=True)
    pull = torch.randn(B, L, H, K, device=device, dtype=torch.bfloat16)

    def both_ways(rows: Layout) -> None:
        torch.autograd.grad(attend(*fused.unbind(2), rows, 0.0), fused, pull)

    for pieces in (1, 4):
        flops = TRAINED * 4.0 * H * K * B * pieces * (L // pieces) ** 2
        fragment_BL = (torch.arange(L, device=device) // (L // pieces) + 1).expand(B, L).contiguous()
        made: dict[str, Layout | str] = {
            name: _layout(name, fragment_BL, pieces, head_size=K) for name in get_args(Backend)
        }
        if pieces == 1:
            made["sdpa, no mask"] = Layout("sdpa")
        for name, rows in made.items():
            label = f"attention {B} x {L} in {pieces}, {name:<14}"
            if isinstance(rows, str):
                yield f"{label} {rows}"
                continue
            yield f"{label} {speed(flops, seconds(lambda: both_ways(rows), device, total), peak)}"  # noqa: B023


def _layout(backend: Backend, fragment_BL: Tensor, pieces: int, head_size: int) -> Layout | str:
    """Of such rows; or why the back-end does not serve."""
    try:
        resolve(backend, device=fragment_BL.device, dtype=torch.bfloat16, dropout=0.0, head_size=head_size)
    except ConfigError as error:
        return str(error)
    return layout(fragment_BL, packed=pieces > 1, backend=backend, runs=max(2, pieces))
