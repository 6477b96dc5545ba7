"""The updates of a fine-tuning: rates, groups and schedules against tables by hand, and the loss that is clipped."""

import math
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from training.encoder import Embeddings, Encoder
from training.fine_steps import build_optimizer, fit, init_head, learning_rate
from training.optimizer import ReferenceAdam
from training.protocol import Protocol
from training.sizes import EncoderConfig

PAPER = {size: Protocol.model_validate({"name": "electra_paper", "size": size}) for size in ("small", "base", "large")}


class Model(nn.Module):
    """A body of twelve or so layers with a head of two classes."""

    def __init__(self, layers: int, hidden_size: int = 8) -> None:
        super().__init__()
        config = EncoderConfig(
            vocab_size=11, embedding_size=4, hidden_size=hidden_size, num_layers=layers, num_heads=2,
            intermediate_size=16, max_positions=8,
        )  # fmt: skip
        self.embeddings, self.encoder = Embeddings(config), Encoder(config)
        self.head = nn.Linear(hidden_size, 2)


def test_learning_rate_against_a_table_by_hand() -> None:
    protocol = Protocol(learning_rate=1.0, warmup_fraction=0.2)
    table = [1 / 2, 1, 8 / 8, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]
    assert [learning_rate(step, 10, protocol) for step in range(10)] == pytest.approx(table)
    without = Protocol(learning_rate=1.0, warmup_fraction=0.0)
    assert [learning_rate(step, 4, without) for step in range(4)] == [1, 3 / 4, 2 / 4, 1 / 4]


def test_the_references_schedule_against_a_table_by_hand() -> None:
    """The line falls from the first step, and the warm-up, a tenth, multiplies it; it need not be whole steps."""
    twenty = [0.0, 0.95 / 2, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55]
    found = [learning_rate(step, 20, PAPER["base"]) / 1e-4 for step in range(10)]
    assert found == pytest.approx(twenty)
    fifteen = [0.0, 14 / 15 / 1.5, 13 / 15, 12 / 15]
    assert [learning_rate(step, 15, PAPER["large"]) / 5e-5 for step in range(4)] == pytest.approx(fifteen)


@pytest.mark.parametrize(
    ("size", "layers", "top", "first", "embeddings"),
    # decay^2, decay^(n+1), decay^(n+2): .8² .8¹³ .8¹⁴; .9² .9²⁵ .9²⁶
    [
        ("small", 12, 0.64, 0.0549755814, 0.0439804651),
        ("base", 12, 0.64, 0.0549755814, 0.0439804651),
        ("large", 24, 0.81, 0.0717897988, 0.0646108189),
    ],
)
def test_rates_and_decay_of_the_paper_against_a_table_by_hand(
    size: str, layers: int, top: float, first: float, embeddings: float
) -> None:
    model = Model(layers)
    optimizer = build_optimizer(model, PAPER[size])
    assert isinstance(optimizer, ReferenceAdam)
    told = {
        id(parameter): (group["lr_scale"], group["weight_decay"], group["eps"], group["betas"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert set(told) == {id(parameter) for parameter in model.parameters()}
    assert {(eps, betas) for _, _, eps, betas in told.values()} == {(1e-6, (0.9, 0.999))}

    def of(module: nn.Module) -> dict[str, tuple[float, float]]:
        return {name: told[id(parameter)][:2] for name, parameter in module.named_parameters()}

    for module, rate in (
        (model.embeddings, embeddings),
        (model.encoder.project, embeddings),
        (model.encoder.layers[0], first),
        (model.encoder.layers[layers - 1], top),
        (model.head, 1.0),
    ):
        assert module is not None
        for name, (scale, decay) in of(module).items():
            assert scale == pytest.approx(rate, rel=1e-6), name
            assert decay == (0.0 if "norm" in name or name.endswith("bias") else 0.01), name
    assert len({round(scale, 12) for scale, *_ in told.values()}) == layers + 2


def test_plain_is_one_rate_and_bias_corrected() -> None:
    optimizer = build_optimizer(Model(2), Protocol())
    assert isinstance(optimizer, torch.optim.AdamW)
    assert {group["lr_scale"] for group in optimizer.param_groups} == {1.0}


@pytest.mark.parametrize(("loss", "scale"), [("mean", 1.0), ("sum", 4.0)])
def test_the_loss_is_reduced_before_the_clip(loss: Literal["mean", "sum"], scale: float) -> None:
    """A gradient of norm `scale`, clipped at 2, gives the reference Adam's first update: .1 g / (√(.001 g²) + 1e-6)."""
    model = Model(1)
    protocol = Protocol(
        learning_rate=1.0, warmup_fraction=0.0, weight_decay=0.0, grad_clip=2.0, adam="reference_adam", loss=loss
    )
    nn.init.zeros_(model.head.bias)

    def losses_of(batch: dict[str, Tensor]) -> Tensor:
        return model.head.bias[0].expand(len(batch["ids"]))

    assert fit(model, [{"ids": torch.zeros(4)}], losses_of, steps=1, protocol=protocol)
    gradient = min(scale, 2.0)
    expected = -0.1 * gradient / (math.sqrt(0.001) * gradient + 1e-6)
    assert model.head.bias.tolist() == [pytest.approx(expected, rel=1e-6), 0.0]


def test_the_clip_is_of_the_summed_loss() -> None:
    """Read from the optimizer's first moment, since Adam's update hides how large a gradient was."""
    model, protocol = Model(1), Protocol(grad_clip=1.0, adam="reference_adam", loss="sum", warmup_fraction=0.0)
    optimizers: list[ReferenceAdam] = []

    class Kept(ReferenceAdam):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            optimizers.append(self)

    weights = torch.tensor([3.0, 4.0])
    import training.fine_steps as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ReferenceAdam", Kept)
        assert fit(model, [{}], lambda _: (model.head.bias * weights).sum().expand(2), steps=1, protocol=protocol)
    moment = optimizers[0].state[model.head.bias]["exp_avg"]
    # the sum's gradient is (6, 8), of norm 10; clipped to 1 it is (.6, .8), of which a tenth is kept
    torch.testing.assert_close(moment, torch.tensor([0.06, 0.08]), rtol=1e-5, atol=0)


def test_a_loss_that_is_not_finite_changes_nothing() -> None:
    model = Model(1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    assert not fit(model, [{}], lambda _: model.head.bias / 0, steps=1, protocol=Protocol())
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_a_head_begins_as_the_protocol_says() -> None:
    torch.manual_seed(0)
    glorot, normal = nn.Linear(300, 100), nn.Linear(300, 100)
    init_head(glorot, "glorot")
    init_head(normal, 0.02)
    glorot.requires_grad_(False)
    normal.requires_grad_(False)
    bound = math.sqrt(6 / 400)  # Glorot & Bengio 2010, uniform
    assert float(glorot.weight.abs().max()) <= bound
    assert float(glorot.weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert float(normal.weight.abs().max()) <= 0.04
    assert float(normal.weight.std()) == pytest.approx(0.02 * 0.8796, rel=0.02)  # of a normal cut at two deviations
    assert not glorot.bias.any() and not normal.bias.any()
