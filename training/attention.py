"""Attention that never leaves a fragment, by several back-ends behind one function.

`resolve` says which back-end serves, `layout` makes once a forward pass what all layers share, `attend` is called in
each layer. All back-ends give the same numbers to rounding at every real token; what stands on padding is finite and
means nothing. No query is ever left without a key (a softmax over nothing is NaN): padding sees padding or the row's
tokens, a filler row sees itself.

- `reference`: matmul, softmax, matmul, which FLOPs are counted on.
- `sdpa`: `F.scaled_dot_product_attention`, with the smallest mask that does.
- `varlen`: `torch.nn.attention.varlen` (GPU, half precision, no dropout). `flash`: flash-attn (the same, with dropout).
  Both take the rows as one line of tokens cut into runs.

Nothing here makes the host wait for a GPU; every shape depends on the batch's shape and on `runs`, which the host
knows, alone.

Shape suffixes: B rows, L row length, Q queries a row, H heads, K head size, N runs of a batch, T = B·L.
"""

import math
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from data_prep.errors import ConfigError
from training.dropout import dropout as cheap_dropout

Backend = Literal["reference", "sdpa", "varlen", "flash"]

FRAGMENT = 3  # tokens of the shortest fragment there is: cls, a word, sep


@dataclass(frozen=True, slots=True)
class Layout:
    """Who may see whom in one batch of rows. Masked back-ends have `mask`, True where a query may see a key,
    broadcastable to `[B, H, Q, L]`, or none where all may see all. Run back-ends have `run_starts`, `[N + 1]` int32:
    where each run of a fragment's (or of padding's) tokens starts in the line of all tokens, then T."""

    backend: Backend
    mask: Tensor | None = None
    run_starts: Tensor | None = None


def resolve(
    asked: Literal["auto"] | Backend, *, device: torch.device, dtype: torch.dtype, dropout: float, head_size: int
) -> tuple[Backend, str]:
    """The back-end that serves on a device, and why it is that one. `dtype` is what attention is computed in,
    `dropout` its own rate (0 in evaluation). ConfigError where the one asked for cannot serve."""
    if asked != "auto":
        obstacle = _obstacle(asked, device, dtype, dropout, head_size)
        if obstacle is not None:
            raise ConfigError(f"training.compute.attention: '{asked}' {obstacle}; set it to 'auto' or 'sdpa'")
        return asked, "asked for"
    obstacles = []
    candidates: tuple[Backend, ...] = ("varlen", "flash")
    for backend in candidates:
        obstacle = _obstacle(backend, device, dtype, dropout, head_size)
        if obstacle is None:
            return backend, "the fastest that serves"
        obstacles.append(f"{backend} {obstacle}")
    return "sdpa", "; ".join(obstacles)


def _obstacle(backend: Backend, device: torch.device, dtype: torch.dtype, dropout: float, head_size: int) -> str | None:
    """Why a back-end cannot serve, as the rest of a sentence about it."""
    if backend in ("reference", "sdpa"):
        return None
    if device.type != "cuda":
        return f"needs a GPU and this runs on {device.type}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "needs a GPU of compute capability 8.0 or later (Ampere)"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"computes in half precision only, not in {str(dtype).removeprefix('torch.')}"
    if head_size % 8 or head_size > 256:
        return f"takes heads of 8, 16, … 256, and model.hidden_size / model.num_heads is {head_size}"
    if backend == "varlen" and dropout > 0:
        return f"has no dropout and model.attention_dropout is {dropout:g}"
    if backend == "flash" and not _flash_installed():
        return "needs the package flash-attn, which is not installed"
    return None


@cache
def _flash_installed() -> bool:
    return find_spec("flash_attn") is not None


def layout(fragment_BL: Tensor, *, packed: bool, backend: Backend, runs: int | None = None) -> Layout:
    """The layout of rows whose fragments are numbered from 1, 0 on padding. Only `packed` rows may hold more than one
    fragment; they cost the masked back-ends `[B, 1, L, L]`. `runs`: what the run back-ends may count on, that rows have
    no more runs of a fragment's or of padding's tokens than that on average; None: as many as can be."""
    if backend in ("varlen", "flash"):
        return Layout(backend, run_starts=_run_starts(fragment_BL, packed, runs))
    if fragment_BL.device.type == "cpu":  # free to look: often a smaller mask does, or none
        packed = packed and bool((fragment_BL > 1).any())
    if packed:
        return Layout(backend, _unless_full((fragment_BL[:, :, None] == fragment_BL[:, None, :])[:, None]))
    real_BL = fragment_BL > 0
    filler_B1 = ~real_BL.any(dim=1, keepdim=True)
    return Layout(backend, _unless_full((real_BL | filler_B1)[:, None, None, :]))


def first_layout(fragment_BL: Tensor, *, backend: Backend) -> Layout:
    """The layout of one query a row, at the first position: the keys of its fragment. The run back-ends would need the
    keys of that fragment without those between two of them, so they leave it to `sdpa`."""
    seen_BL = fragment_BL == fragment_BL[:, :1]
    masked: Backend = "reference" if backend == "reference" else "sdpa"
    return Layout(masked, _unless_full(seen_BL[:, None, None, :]))


def _unless_full(mask: Tensor) -> Tensor | None:
    """The mask, or none where it allows everything and that can be seen without waiting."""
    return None if mask.device.type == "cpu" and bool(mask.all()) else mask


def _run_starts(fragment_BL: Tensor, packed: bool, runs_a_row: int | None) -> Tensor:
    """`[N + 1]` int32: the starts of all runs in order, filled up with T, which makes empty runs. Those are not free:
    FlashAttention-2 takes 128 more rows of fp32 gradients, and blocks that find nothing to do, for every run. A packed
    row has at most a third as many fragments as tokens, another row one, and then padding."""
    B, L = fragment_BL.shape
    most = L // FRAGMENT + 2 if packed else 2
    runs = B * (most if runs_a_row is None else min(runs_a_row, most))
    is_start_BL = torch.ones_like(fragment_BL, dtype=torch.bool)
    is_start_BL[:, 1:] = fragment_BL[:, 1:] != fragment_BL[:, :-1]
    is_start_T = is_start_BL.flatten()
    place_T = torch.arange(B * L, dtype=torch.int32, device=fragment_BL.device)
    index_T = torch.where(is_start_T, is_start_T.cumsum(0) - 1, runs)
    starts = torch.full((runs + 1,), B * L, dtype=torch.int32, device=fragment_BL.device)
    torch._dynamo.maybe_mark_dynamic(starts, 0)  # compiled layers take any number of runs, without compiling anew
    return starts.scatter_(0, index_T, torch.where(is_start_T, place_T, B * L))


def attend(q_BQHK: Tensor, k_BLHK: Tensor, v_BLHK: Tensor, rows: Layout, dropout: float) -> Tensor:
    """Scaled dot-product attention, `[B, Q, H, K]`. Heads stand after positions, as a fused projection leaves them:
    every back-end takes views of that without a copy. Q = L, but for a layout of `first_layout`."""
    if rows.run_starts is not None:
        return _attend_runs(q_BQHK, k_BLHK, v_BLHK, rows, rows.run_starts, dropout)
    q, k, v = (x.transpose(1, 2) for x in (q_BQHK, k_BLHK, v_BLHK))
    # with dropout, PyTorch's own does the same on a CPU, with dear random numbers
    if rows.backend == "reference" or (dropout > 0 and q.device.type == "cpu"):
        return _attend_reference(q, k, v, rows.mask, dropout).transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=rows.mask, dropout_p=dropout).transpose(1, 2)


def _attend_reference(q_BHQK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    scores_BHQL = (q_BHQK / math.sqrt(q_BHQK.shape[-1])) @ k_BHLK.transpose(-1, -2)
    if mask is not None:
        scores_BHQL = scores_BHQL.masked_fill(~mask, torch.finfo(scores_BHQL.dtype).min)
    return cheap_dropout(scores_BHQL.softmax(dim=-1), dropout) @ v_BHLK


def _attend_runs(q: Tensor, k: Tensor, v: Tensor, rows: Layout, starts: Tensor, dropout: float) -> Tensor:
    length = q.shape[1]
    q_THK, k_THK, v_THK = (x.flatten(0, 1) for x in (q, k, v))
    if rows.backend == "varlen":
        mixed_THK = cast(Tensor, varlen_attn(q_THK, k_THK, v_THK, starts, starts, length, length))
    else:
        from flash_attn import flash_attn_varlen_func  # an optional package, for GPUs only

        mixed_THK = flash_attn_varlen_func(q_THK, k_THK, v_THK, starts, starts, length, length, dropout_p=dropout)
    return mixed_THK.view_as(q)
