"""The GPU's attention kernels against the reference, and layouts that are made without waiting."""

import pytest
import torch
from torch import Tensor

from tests.training.fragments import ROWS, H, K, holds_several, numbered
from tests.training.test_attention import starts_by_loop
from training.attention import Backend, Layout, attend, first_layout, layout

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda")
WORKING = [[100, 200, 212], [512], [], [300], [3] * 170, [256, 256]]  # rows of 512, heads of 64


@pytest.mark.parametrize("backend", ["sdpa", "varlen", "flash"])
@pytest.mark.parametrize("kind", ROWS)
def test_kernels_equal_the_reference(kind: str, backend: Backend) -> None:
    assert_equal_to_reference(backend, numbered(ROWS[kind]), holds_several(ROWS[kind]), heads=H, size=K, runs=None)


@pytest.mark.parametrize("runs", [None, 32])
@pytest.mark.parametrize("backend", ["sdpa", "varlen", "flash"])
def test_kernels_equal_the_reference_on_rows_of_512(backend: Backend, runs: int | None) -> None:
    """32 runs a row are 192, and there are 180: six are empty. Of themselves, 172 a row."""
    fragment = numbered(WORKING, 512)
    assert len(starts_by_loop(fragment)) == 180
    assert_equal_to_reference(backend, fragment, True, heads=4, size=64, runs=runs)


def assert_equal_to_reference(
    backend: Backend, fragment: Tensor, several: bool, *, heads: int, size: int, runs: int | None
) -> None:
    """Outputs and gradients in bf16, against fp32 of the same numbers, at every real token: to 1e-2 as a whole, and no
    number is off by more than rounding makes it."""
    if backend == "flash":
        pytest.importorskip("flash_attn")
    fragment = fragment.to(GPU)
    real = (fragment > 0)[..., None, None]
    generator = torch.Generator(GPU).manual_seed(0)
    fused = torch.randn(*fragment.shape, 3, heads, size, device=GPU, generator=generator).bfloat16().requires_grad_()

    def run(name: Backend, x: Tensor) -> tuple[Tensor, Tensor]:
        out = attend(*x.unbind(2), layout(fragment, packed=several, backend=name, runs=runs), 0.0) * real
        return out, torch.autograd.grad(out.float().square().sum(), fused)[0]

    for found, expected in zip(run(backend, fused), run("reference", fused.float()), strict=True):
        assert found.isfinite().all()
        assert (found.float() - expected).norm() <= 1e-2 * expected.norm()
        torch.testing.assert_close(found.float(), expected.float(), rtol=2e-2, atol=8e-2)


def test_layouts_are_made_without_waiting_for_the_gpu() -> None:
    fragment = numbered(ROWS["packed"]).to(GPU)
    torch.cuda.set_sync_debug_mode("error")
    try:
        made: list[Layout] = [layout(fragment, packed=p, backend=b) for p in (False, True) for b in ("sdpa", "varlen")]
        made.append(first_layout(fragment, backend="sdpa"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    starts = made[-2].run_starts
    assert starts is not None and starts.tolist()[: len(starts_by_loop(fragment))] == starts_by_loop(fragment)
