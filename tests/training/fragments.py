"""Rows by the lengths of their fragments, and the GPU's attention kernels as loops, for the tests of the encoder."""

import math
import sys
import types
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from training import attention

L, H, K = 16, 2, 8
ROWS = {  # lengths of each row's fragments; the rest is padding
    "packed": [[5, 3, 8], [4, 6], [3, 3, 3, 3, 3], [16]],
    "padded": [[5], [16], [9]],
    "full": [[16], [16]],
    "filler": [[16], [], [4]],
    "packed and filler": [[7, 9], [], [4, 3]],
    "filler only": [[], []],
}


def numbered(rows: list[list[int]], width: int = L) -> Tensor:
    """Fragment numbers `[B, width]` from fragment lengths."""
    fragment = torch.zeros(len(rows), width, dtype=torch.long)
    for row, lengths in enumerate(rows):
        start = 0
        for number, length in enumerate(lengths, start=1):
            fragment[row, start : start + length] = number
            start += length
    return fragment


def holds_several(rows: list[list[int]]) -> bool:
    return any(len(row) > 1 for row in rows)


def kernel_by_loops(
    q: Tensor, k: Tensor, v: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, dropout_p: float = 0.0
) -> Tensor:
    """What varlen_attn and flash_attn_varlen_func compute: every run on its own, `[T, H, K]`."""
    assert (max_q, max_k, dropout_p) == (L, L, 0.0)
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()  # no copy
    assert q.stride(-1) == 1
    out = torch.zeros_like(q)
    starts = cu_seq_q.tolist()
    assert starts == cu_seq_k.tolist() and starts[0] == 0 and starts[-1] == len(q)
    for start, end in pairwise(starts):
        assert 0 <= end - start <= max_q
        scores = torch.einsum("qhk,lhk->hql", q[start:end], k[start:end]) / math.sqrt(q.shape[-1])
        out[start:end] = torch.einsum("hql,lhk->qhk", scores.softmax(-1), v[start:end])
    return out


def emulate_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU kernels as loops, so that all that surrounds them runs here."""
    module = types.ModuleType("flash_attn")
    module.flash_attn_varlen_func = kernel_by_loops  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    monkeypatch.setattr(attention, "varlen_attn", kernel_by_loops)
