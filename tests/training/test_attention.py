"""Attention back-ends against plain loops in float64, the layouts they need, and which one is chosen."""

import inspect
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch.nn.attention.varlen import varlen_attn

from data_prep.errors import ConfigError
from tests.training.fragments import ROWS, H, K, L, emulate_kernels, holds_several, numbered
from training import attention
from training.attention import Backend, attend, first_layout, layout, resolve
from training.objectives import room_for_runs, to_device

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def random_qkv(rows: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, L, H, K, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(3)]


def by_loops(q: Tensor, k: Tensor, v: Tensor, fragment: Tensor) -> Tensor:
    """Every real query over the keys of its own fragment; zeros on padding."""
    out = torch.zeros_like(q)
    for row in range(len(q)):
        for place in (fragment[row] > 0).nonzero().flatten().tolist():
            keys = fragment[row] == fragment[row, place]
            for head in range(H):
                weights = (k[row, keys, head] @ q[row, place, head] / math.sqrt(K)).softmax(-1)
                out[row, place, head] = weights @ v[row, keys, head]
    return out


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate_kernels(monkeypatch)


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", "sdpa", "varlen", "flash"])
@pytest.mark.parametrize("kind", ROWS)
def test_outputs_and_gradients_equal_plain_loops(kind: str, backend: Backend, emulated: None) -> None:
    fragment = numbered(ROWS[kind])
    fused = torch.stack([x.detach() for x in random_qkv(len(fragment))], dim=2).requires_grad_()  # as a projection's
    rows = layout(fragment, packed=holds_several(ROWS[kind]), backend=backend)
    out = attend(*fused.unbind(2), rows, 0.0)
    expected = by_loops(*fused.unbind(2), fragment)
    real = fragment > 0
    assert out.isfinite().all()
    torch.testing.assert_close(out[real], expected[real], rtol=0, atol=1e-12)
    pull = (
        torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * real[..., None, None]
    )
    (found,) = torch.autograd.grad((out * pull).sum(), fused)
    (wanted,) = torch.autograd.grad((expected * pull).sum(), fused) if real.any() else (torch.zeros_like(fused),)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ROWS)
def test_reference_equals_sdpa_on_padding_too(kind: str) -> None:
    fragment = numbered(ROWS[kind])
    qkv = random_qkv(len(fragment))
    several = holds_several(ROWS[kind])
    left, right = (attend(*qkv, layout(fragment, packed=several, backend=b), 0.0) for b in ("reference", "sdpa"))
    torch.testing.assert_close(left, right, rtol=0, atol=1e-12)
    ours = torch.autograd.grad(left.square().sum(), qkv)
    theirs = torch.autograd.grad(right.square().sum(), qkv)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-11)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "varlen", "flash"])
@pytest.mark.parametrize("kind", ROWS)
def test_one_query_a_row_equals_the_first_of_all(kind: str, backend: Backend) -> None:
    fragment = numbered(ROWS[kind])
    q, k, v = random_qkv(len(fragment))
    rows = first_layout(fragment, backend=backend)
    assert rows.backend == ("reference" if backend == "reference" else "sdpa")
    out = attend(q[:, :1], k, v, rows, 0.0)
    assert out.shape == (len(fragment), 1, H, K) and out.isfinite().all()
    real = fragment[:, 0] > 0
    torch.testing.assert_close(out[real, 0], by_loops(q, k, v, fragment)[real, 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_dropout_drops_weights_and_keeps_their_mean(backend: Backend) -> None:
    fragment = numbered([[16]] * 4000)
    q = k = torch.zeros(4000, L, 1, K)  # all weights are 1/16
    v = torch.ones(4000, L, 1, K)
    torch.manual_seed(0)
    out = attend(q, k, v, layout(fragment, packed=False, backend=backend), 0.25)[..., 0]
    assert out.mean().item() == pytest.approx(1.0, abs=0.003)
    assert out.var().item() == pytest.approx(0.25 / 0.75 / L, rel=0.05)  # of a mean of 16 Bernoulli(.75) / .75


# --- layouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_the_smallest_mask_that_does(backend: Backend) -> None:
    def shape(kind: str, packed: bool) -> tuple[int, ...] | None:
        mask = layout(numbered(ROWS[kind]), packed=packed, backend=backend).mask
        return None if mask is None else tuple(mask.shape)

    for packed in (False, True):
        assert shape("full", packed) is None
        assert shape("filler only", packed) is None
        assert shape("padded", packed) == (3, 1, 1, L)
        assert shape("filler", packed) == (3, 1, 1, L)
    assert shape("packed", True) == (4, 1, L, L)
    assert shape("packed and filler", True) == (3, 1, L, L)


def test_without_looking_the_mask_depends_on_the_layout_alone() -> None:
    """As on a GPU, where looking at the rows would make the host wait: a fake tensor cannot be looked at either."""
    fragment = torch.empty(2, L, dtype=torch.long, device="meta")
    for packed, expected in ((False, (2, 1, 1, L)), (True, (2, 1, L, L))):
        mask = layout(fragment, packed=packed, backend="sdpa").mask
        assert mask is not None and mask.shape == expected
    for packed, told, runs in (
        (False, None, 2 * 2),
        (True, None, 2 * (L // 3 + 2)),
        (True, 4, 2 * 4),
        (True, 8, 2 * (L // 3 + 2)),  # as many as can be
        (False, 4, 2 * 2),
    ):
        starts = layout(fragment, packed=packed, backend="varlen", runs=told).run_starts
        assert starts is not None and starts.shape == (runs + 1,)
    first = first_layout(fragment, backend="varlen").mask
    assert first is not None and first.shape == (2, 1, 1, L)


def starts_by_loop(fragment: Tensor) -> list[int]:
    flat = [(row, number) for row, numbers in enumerate(fragment.tolist()) for number in numbers]
    return [place for place, key in enumerate(flat) if place == 0 or key != flat[place - 1]]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("width", [3, 4, 5, 6, 16, 31])
def test_run_starts_equal_a_loop_and_their_number_is_static(width: int, packed: bool) -> None:
    generator = torch.Generator().manual_seed(width)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=generator))

    def random_row() -> list[int]:
        lengths: list[int] = []
        while width - sum(lengths) >= 3 and draw(0, 5) and (packed or not lengths):
            lengths.append(draw(3, width - sum(lengths)))
        return lengths

    extreme = [[3] * (width // 3)] if packed else [[width]]
    for _ in range(20):
        batch = [*extreme * 2, [], *(random_row() for _ in range(3))]
        fragment = numbered(batch, width)
        found = layout(fragment, packed=packed, backend="varlen").run_starts
        assert found is not None and found.dtype == torch.int32
        expected = starts_by_loop(fragment)
        total, size = len(batch) * width, len(batch) * (width // 3 + 2 if packed else 2) + 1
        assert found.tolist() == expected + [total] * (size - len(expected))
        assert found[-1] == total and size > len(expected)


@pytest.mark.parametrize("kind", ROWS)
def test_the_host_tells_how_many_runs_a_batch_has(kind: str) -> None:
    """Two or a power of two, no more than twice as many as there are, and all of them have room."""
    fragment = numbered(ROWS[kind])
    told = room_for_runs(to_device({"fragment": fragment.numpy()}, CPU))
    expected = starts_by_loop(fragment)
    assert told in (2, 4, 8) and told == max(2, 2 ** math.ceil(math.log2(len(expected) / len(fragment))))
    found = layout(fragment, packed=holds_several(ROWS[kind]), backend="varlen", runs=told).run_starts
    assert found is not None and found[: len(expected)].tolist() == expected
    assert found[len(expected) :].unique().tolist() == [fragment.numel()]


def test_a_compiled_layer_takes_any_number_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or every new number would compile anew, eight times, and then nothing is compiled any more."""
    monkeypatch.setattr(attention, "varlen_attn", lambda q, k, v, starts, *rest: q + k + v * starts.float().mean())
    counter, fragment = CompileCounter(), numbered(ROWS["packed"])
    compiled = torch.compile(attend, dynamic=False, backend=counter)
    qkv = [x.detach() for x in random_qkv(len(fragment))]
    for runs in (4, 5, 6, 7):
        rows = layout(fragment, packed=True, backend="varlen", runs=runs)
        torch.testing.assert_close(compiled(*qkv, rows, 0.0), attend(*qkv, rows, 0.0))
    assert counter.frame_count == 1


# --- which one --------------------------------------------------------------------------------------------------------


def chosen(asked: str, device: torch.device = GPU, **changes: object) -> Backend:
    needs = {"dtype": torch.bfloat16, "dropout": 0.0, "head_size": 64, **changes}
    return resolve(asked, device=device, **needs)[0]  # type: ignore[arg-type]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def pretend(flash: bool, capability: tuple[int, int] = (9, 0)) -> None:
        monkeypatch.setattr(attention, "_flash_installed", lambda: flash)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    return pretend


def test_auto_takes_the_fastest_that_serves(installed: Callable[..., None]) -> None:
    for flash in (False, True):
        installed(flash=flash)
        assert chosen("auto", CPU) == chosen("auto", CPU, dtype=torch.float32, dropout=0.1) == "sdpa"
        assert chosen("auto") == chosen("auto", dtype=torch.float16) == "varlen"
        assert chosen("auto", dropout=0.1) == ("flash" if flash else "sdpa")
        assert chosen("auto", dtype=torch.float32) == chosen("auto", dtype=torch.float64) == "sdpa"
        assert chosen("auto", head_size=20) == chosen("auto", head_size=512) == "sdpa"
    installed(flash=False)
    reason = resolve("auto", device=GPU, dtype=torch.bfloat16, dropout=0.1, head_size=64)[1]
    assert reason == (
        "varlen has no dropout and model.attention_dropout is 0.1; "
        "flash needs the package flash-attn, which is not installed"
    )
    installed(flash=True, capability=(7, 5))
    assert chosen("auto") == "sdpa"


def test_what_is_asked_for_is_taken_or_refused_with_the_way_out(installed: Callable[..., None]) -> None:
    installed(flash=True)
    for asked in ("reference", "sdpa"):
        assert chosen(asked, CPU, dropout=0.1) == chosen(asked, GPU) == asked
    assert chosen("varlen") == "varlen"
    assert chosen("flash", dropout=0.1) == "flash"

    def refused(asked: str, why: str, device: torch.device = GPU, **changes: object) -> None:
        with pytest.raises(ConfigError, match=f"training.compute.attention: '{asked}' {why}.*; set it to 'auto' or"):
            chosen(asked, device, **changes)

    refused("varlen", "needs a GPU and this runs on cpu", CPU)
    refused("flash", "needs a GPU", CPU)
    refused("varlen", "has no dropout and model.attention_dropout is 0.1", dropout=0.1)
    refused("varlen", "computes in half precision only, not in float32", dtype=torch.float32)
    refused("flash", "takes heads of 8, 16, … 256, and .* is 20", head_size=20)
    installed(flash=False)
    refused("flash", "needs the package flash-attn")
    installed(flash=True, capability=(7, 0))
    refused("varlen", "needs a GPU of compute capability 8.0")


# --- the kernels themselves -------------------------------------------------------------------------------------------


def test_the_installed_varlen_takes_the_call_and_has_no_dropout() -> None:
    signature = inspect.signature(varlen_attn)
    assert list(signature.parameters)[:7] == ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
    assert signature.parameters["window_size"].default == (-1, -1)  # every token sees its whole run
    assert not any("dropout" in name for name in signature.parameters)
