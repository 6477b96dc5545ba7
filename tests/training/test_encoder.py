"""The encoder: packed rows against their fragments alone, recomputed activations, first weights by their moments."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from data_prep.errors import ConfigError
from tests.training.fragments import ROWS, L, emulate_kernels, holds_several, numbered
from training import encoder
from training.encoder import Embeddings, Encoder, at_least_float32
from training.heads import MaskedTokenHead, NextSentenceHead, ReplacedTokenHead
from training.settings import Compute
from training.sizes import EncoderConfig, ModelConfig

TINY = EncoderConfig(
    vocab_size=50,
    embedding_size=12,
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    intermediate_size=48,
    max_positions=L,
    dropout=0.0,
    attention_dropout=0.0,
)
BACKENDS = ["auto", "reference", "sdpa", "varlen", "flash"]


def networks(backend: str = "auto", checkpointing: bool = False, **changes: object) -> tuple[Embeddings, Encoder]:
    """Random networks in float64, with weights large enough for attention to be far from uniform."""
    config = TINY.model_copy(update=changes)
    compute = Compute(attention=backend, activation_checkpointing=checkpointing)
    torch.manual_seed(0)
    parts = nn.ModuleList([Embeddings(config), Encoder(config, compute)]).double()
    for parameter in parts.parameters():
        nn.init.normal_(parameter, std=0.3)
    embeddings, body = parts
    assert isinstance(embeddings, Embeddings) and isinstance(body, Encoder)
    return embeddings, body


def positions_of(fragment: Tensor) -> Tensor:
    """Positions that restart at 0 in each fragment."""
    place = torch.arange(fragment.shape[1]).expand_as(fragment)
    starts = torch.ones_like(fragment, dtype=torch.bool)
    starts[:, 1:] = fragment[:, 1:] != fragment[:, :-1]
    return place - torch.where(starts, place, 0).cummax(dim=1).values


def random_rows(kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, token types and fragments `[B, L]`."""
    fragment = numbered(ROWS[kind])
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, TINY.vocab_size, fragment.shape, generator=generator)
    return ids, torch.randint(0, 2, fragment.shape, generator=generator), fragment


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU kernels as loops, taken wherever they are asked for."""
    emulate_kernels(monkeypatch)
    real = encoder.resolve
    monkeypatch.setattr(
        encoder, "resolve", lambda asked, **how: (asked, "") if asked in ("varlen", "flash") else real(asked, **how)
    )


# --- packed rows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_packed_rows_equal_their_fragments_alone(backend: str, checkpointing: bool, emulated: None) -> None:
    """Outputs and gradients of all parameters in float64, against rows of one fragment without padding."""
    embeddings, body = networks(backend, checkpointing)
    plain_embeddings, plain_body = networks("reference")
    ids, types_, fragment = random_rows("packed")
    generator = torch.Generator().manual_seed(4)
    pull = torch.randn(*ids.shape, TINY.hidden_size, dtype=torch.float64, generator=generator)
    out = body(embeddings(ids, positions_of(fragment), types_), fragment, packed=True)
    (out * pull * (fragment > 0)[..., None]).sum().backward()
    for row, numbers in enumerate(fragment):
        for number in numbers[numbers > 0].unique():
            columns = numbers == number
            one = ids[row, columns][None]
            alone = plain_body(
                plain_embeddings(one, torch.arange(one.shape[1])[None], types_[row, columns][None]),
                torch.ones_like(one),
            )
            torch.testing.assert_close(out[row, columns], alone[0], rtol=0, atol=1e-9)
            (alone[0] * pull[row, columns]).sum().backward()
    for module, plain in ((embeddings, plain_embeddings), (body, plain_body)):
        for (name, ours), theirs in zip(module.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_fragment_gives_the_same_wherever_it_stands(backend: str, emulated: None) -> None:
    """Positions restart in each fragment: three copies of one, beside different neighbours, do not differ."""
    embeddings, body = networks(backend)
    fragment = numbered([[4, 5, 4], [3, 4, 3]])
    ids = torch.arange(2 * L).view(2, L)
    copies = [(0, slice(0, 4)), (0, slice(9, 13)), (1, slice(3, 7))]
    for row, place in copies:
        ids[row, place] = torch.tensor([7, 8, 9, 8])
    with torch.no_grad():
        out = body(embeddings(ids, positions_of(fragment), torch.zeros_like(ids)), fragment, packed=True)
    first, second, third = (out[row, place] for row, place in copies)
    torch.testing.assert_close(second, first, rtol=0, atol=1e-12)
    torch.testing.assert_close(third, first, rtol=0, atol=1e-12)
    assert (first[1] - first[3]).abs().max() > 1e-3  # the same word elsewhere is another vector


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ROWS)
def test_first_position_alone_equals_all_and_fillers_stay_finite(kind: str, backend: str, emulated: None) -> None:
    embeddings, body = networks(backend)
    ids, types_, fragment = random_rows(kind)
    x = embeddings(ids, positions_of(fragment), types_)
    out = body(x, fragment, packed=holds_several(ROWS[kind]))
    first = body(x, fragment, packed=holds_several(ROWS[kind]), first=True)
    assert first.shape == (len(ids), 1, TINY.hidden_size)
    torch.testing.assert_close(first[:, 0], out[:, 0], rtol=0, atol=1e-12)
    (out.square().sum() + first.square().sum()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in [*embeddings.parameters(), *body.parameters()])


def test_a_back_end_that_cannot_serve_is_refused_at_the_first_row() -> None:
    embeddings, body = networks("varlen")
    ids, types_, fragment = random_rows("full")
    with pytest.raises(ConfigError, match=r"training\.compute\.attention: 'varlen' needs a GPU"):
        body(embeddings(ids, positions_of(fragment), types_), fragment)


@pytest.mark.parametrize(
    ("training", "autocast", "dtype", "dropout"), [(True, True, "bf16", 0.1), (False, False, "f64", 0.0)]
)
def test_the_back_end_is_chosen_by_what_attention_computes(
    training: bool, autocast: bool, dtype: str, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout counts in training only, and under autocast half precision is what reaches the kernel."""
    asked = {}

    def remember(backend: str, **how: object) -> tuple[str, str]:
        asked.update(how, backend=backend)
        return "sdpa", ""

    monkeypatch.setattr(encoder, "resolve", remember)
    embeddings, body = networks(attention_dropout=0.1)
    ids, types_, fragment = random_rows("full")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        body.train(training)(embeddings(ids, positions_of(fragment), types_), fragment)
    wanted = {"bf16": torch.bfloat16, "f64": torch.float64}[dtype]
    assert asked == {
        "backend": "auto",
        "device": torch.device("cpu"),
        "dtype": wanted,
        "dropout": dropout,
        "head_size": 16,
    }


def test_attention_weights_are_dropped_in_training_only() -> None:
    embeddings, body = networks(attention_dropout=0.5)
    ids, types_, fragment = random_rows("packed")
    x = embeddings(ids, positions_of(fragment), types_).detach()
    trained = [body.train()(x, fragment, packed=True) for _ in range(2)]
    evaluated = [body.eval()(x, fragment, packed=True) for _ in range(2)]
    assert not torch.allclose(*trained)
    assert torch.equal(*evaluated)
    torch.testing.assert_close(evaluated[0], networks()[1](x, fragment, packed=True), rtol=0, atol=1e-12)


# --- activation checkpointing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [False, True])
def test_recomputed_activations_change_no_bit_with_dropout_on(first: bool) -> None:
    ids, types_, fragment = random_rows("packed")

    def run(checkpointing: bool) -> tuple[Tensor, list[Tensor], Tensor, int]:
        embeddings, body = networks(checkpointing=checkpointing, dropout=0.1, attention_dropout=0.1)
        calls = []
        body.layers[0].ffn_in.register_forward_hook(lambda *_: calls.append(1))
        torch.manual_seed(7)
        out = body(embeddings(ids, positions_of(fragment), types_), fragment, packed=True, first=first)
        out.square().mean().backward()
        gradients = [p.grad for p in [*embeddings.parameters(), *body.parameters()] if p.grad is not None]
        return out, gradients, torch.rand(3), len(calls)

    plain, recomputed = run(False), run(True)
    assert torch.equal(plain[0], recomputed[0])
    assert len(plain[1]) == len(recomputed[1]) == 5 + 2 + 2 * 12
    assert all(torch.equal(x, y) for x, y in zip(plain[1], recomputed[1], strict=True))
    assert torch.equal(plain[2], recomputed[2])  # what is drawn afterwards is the same too
    assert (plain[3], recomputed[3]) == (1, 2)


@pytest.mark.parametrize(
    ("training", "gradients", "saved"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_activations_are_recomputed_in_training_only(
    training: bool, gradients: bool, saved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def remember(function: Callable[..., Tensor], *arguments: object, **_: object) -> Tensor:
        calls.append(1)
        return function(*arguments)

    monkeypatch.setattr(encoder, "checkpoint", remember)
    embeddings, body = networks(checkpointing=True)
    ids, types_, fragment = random_rows("full")
    with torch.set_grad_enabled(gradients):
        body.train(training)(embeddings(ids, positions_of(fragment), types_), fragment)
    assert len(calls) == (TINY.num_layers if saved else 0)


# --- first weights ----------------------------------------------------------------------------------------------------

TRUNCATED = 0.02 * 0.87963  # standard deviation of N(0, .02) cut at two of it


def is_truncated_normal(weight: Tensor) -> None:
    """Mean, standard deviation, fourth moment and bounds of a normal cut at ±2σ, to five standard errors."""
    n = weight.numel()
    assert weight.mean().item() == pytest.approx(0.0, abs=5 * TRUNCATED / n**0.5)
    assert weight.std().item() == pytest.approx(TRUNCATED, rel=5 * 0.59 / n**0.5)
    kurtosis = weight.double().pow(4).mean().item() / TRUNCATED**4
    assert kurtosis == pytest.approx(2.3656, rel=5 * 1.96 / n**0.5)  # 3 for a normal, 1.8 for a uniform
    assert 0.9 * 0.04 < weight.abs().max().item() <= 0.04


def is_glorot_uniform(weight: Tensor) -> None:
    """Uniform on ±√(6 / (in + out))."""
    n, bound = weight.numel(), (6 / sum(weight.shape)) ** 0.5
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=5 * 0.45 / n**0.5)
    assert 0.97 * bound < weight.abs().max().item() <= bound
    quarters = torch.histc(weight, 4, -bound, bound) / n
    assert quarters.tolist() == pytest.approx([0.25] * 4, abs=5 * (0.25 * 0.75 / n) ** 0.5)


@pytest.fixture(scope="module")
def base() -> EncoderConfig:
    """One layer of BERT-base, on embeddings of another size so that there is a projection."""
    sizes = {**ModelConfig(size="base").model_dump(), "embedding_size": 128, "num_layers": 1}  # type: ignore[call-arg]
    return ModelConfig(**sizes).encoder(3000)


def test_first_weights_are_the_reference_s(base: EncoderConfig) -> None:
    """google-research/electra: truncated normal of .02; Glorot where its code names no initializer; zeros and ones."""
    torch.manual_seed(0)
    parts = nn.ModuleDict(
        {
            "embeddings": Embeddings(base),
            "encoder": Encoder(base),
            "mlm": MaskedTokenHead(base),
            "rtd": ReplacedTokenHead(base),
            "nsp": NextSentenceHead(base),
        }
    )
    seen = set()
    for name, parameter in parts.named_parameters():
        owner = name.split(".")[-2]
        if name.endswith("bias"):
            assert parameter.count_nonzero() == 0, name
        elif "norm" in owner:
            assert (parameter == 1).all(), name
        elif name in ("encoder.project.weight", "rtd.out.weight"):
            is_glorot_uniform(parameter.detach())
            seen.add(name)
        else:
            is_truncated_normal(parameter.detach())
            seen.add(name)
    layer = [f"encoder.layers.0.{part}.weight" for part in ("qkv", "attention_out", "ffn_in", "ffn_out")]
    tables = [f"embeddings.{table}.weight" for table in ("word", "position", "token_type")]
    heads = ["mlm.dense.weight", "rtd.dense.weight", "rtd.out.weight", "nsp.pooler.weight", "nsp.out.weight"]
    assert seen == {*layer, *tables, *heads, "encoder.project.weight"}


def test_half_types_become_float32_and_nothing_else_changes() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        assert at_least_float32(torch.ones(2, dtype=dtype)).dtype == torch.float32
    for dtype in (torch.float32, torch.float64):
        x = torch.ones(2, dtype=dtype)
        assert at_least_float32(x) is x
