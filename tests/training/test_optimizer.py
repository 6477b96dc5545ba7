"""Optimizers, their groups and the schedules against the formulas, by hand."""

import pytest
import torch
from torch import Tensor, nn

from training.encoder import Embeddings, Encoder
from training.optimizer import (
    ReferenceAdam,
    build_optimizer,
    layerwise_groups,
    learning_rate,
    parameter_groups,
    set_learning_rate,
)
from training.settings import OptimizerConfig, Schedule, ScheduleConfig
from training.sizes import EncoderConfig

GRADIENTS = (torch.tensor([0.5, 4.0]).double(), torch.tensor([-0.25, 1.0]).double(), torch.tensor([3.0, 0.0]).double())


class Vector(nn.Module):
    """One decayed parameter in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))


def updates(config: OptimizerConfig, rate: float) -> list[Tensor]:
    """The parameter after each of the updates that the configured optimizer makes."""
    module, found = Vector(), []
    optimizer = build_optimizer(module, config)
    for gradient in GRADIENTS:
        module.weight.grad = gradient.clone()
        set_learning_rate(optimizer, rate)
        optimizer.step()
        found.append(module.weight.detach().clone())
    return found


def moments(beta1: float, beta2: float) -> list[tuple[Tensor, Tensor]]:
    m = v = torch.zeros(2, dtype=torch.float64)
    found = []
    for g in GRADIENTS:
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        found.append((m, v))
    return found


def test_the_reference_adam_by_hand() -> None:
    """No bias correction: m = .1 g, v = .001 g², so the first update is .1/√.001 ≈ 3.16 of the gradient's sign."""
    expected = torch.tensor([1.0, -2.0], dtype=torch.float64)
    for actual, (m, v) in zip(updates(OptimizerConfig(), 0.1), moments(0.9, 0.999), strict=True):
        expected = expected - 0.1 * (m / (v.sqrt() + 1e-6) + 0.01 * expected)
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)
    first = updates(OptimizerConfig(weight_decay=0.0, eps=1e-12), 0.1)[0]
    assert first.tolist() == pytest.approx([1.0 - 0.1 * 0.1 / 0.001**0.5, -2.0 - 0.1 * 0.1 / 0.001**0.5], rel=1e-9)


def test_adamw_by_hand() -> None:
    """Bias-corrected moments, decay apart from them (Loshchilov & Hutter 2019): the first update is the sign itself."""
    config = OptimizerConfig(kind="adamw", beta1=0.8, beta2=0.98, eps=1e-3, weight_decay=0.05)
    expected = torch.tensor([1.0, -2.0], dtype=torch.float64)
    for t, (actual, (m, v)) in enumerate(zip(updates(config, 0.1), moments(0.8, 0.98), strict=True), start=1):
        corrected_m, corrected_v = m / (1 - 0.8**t), v / (1 - 0.98**t)
        expected = expected - 0.1 * 0.05 * expected - 0.1 * corrected_m / (corrected_v.sqrt() + 1e-3)
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)
    first = updates(OptimizerConfig(kind="adamw", weight_decay=0.0, eps=1e-12), 0.1)[0]
    assert first.tolist() == pytest.approx([0.9, -2.1], rel=1e-9)


# --- schedules --------------------------------------------------------------------------------------------------------


def test_the_linear_schedule_is_the_reference() -> None:
    """Warm-up multiplies the decaying line: 0 at the start, peak × (1 − W/T) at the end of warm-up, 0 at the end."""
    schedule = Schedule(kind="linear", warmup_steps=10, decay_steps=0)
    assert learning_rate(0, 1e-3, 100, schedule) == 0.0
    assert learning_rate(5, 1e-3, 100, schedule) == pytest.approx(1e-3 * 0.95 * 0.5)
    assert learning_rate(10, 1e-3, 100, schedule) == pytest.approx(1e-3 * 0.9)
    assert learning_rate(55, 1e-3, 100, schedule) == pytest.approx(1e-3 * 0.45)
    assert learning_rate(100, 1e-3, 100, schedule) == 0.0
    assert learning_rate(0, 1e-3, 100, Schedule(kind="linear", warmup_steps=0, decay_steps=0)) == 1e-3


def test_warmup_stable_decay_update_by_update() -> None:
    """Ten updates, four of warm-up and four of decay: the peak is reached at 4 and left after 6; 10 would be 0."""
    schedule = Schedule(kind="wsd", warmup_steps=4, decay_steps=4)
    rates = [learning_rate(step, 8.0, 10, schedule) for step in range(11)]
    assert rates == [0.0, 2.0, 4.0, 6.0, 8.0, 8.0, 8.0, 6.0, 4.0, 2.0, 0.0]
    trunk = Schedule(kind="wsd", warmup_steps=0, decay_steps=0)
    assert [learning_rate(step, 8.0, 10, trunk) for step in (0, 5, 9)] == [8.0, 8.0, 8.0]


def test_fractions_become_steps() -> None:
    assert ScheduleConfig(warmup_fraction=0.25).planned(10) == Schedule(kind="linear", warmup_steps=2, decay_steps=0)
    config = ScheduleConfig(kind="wsd", warmup_fraction=0.1, decay_fraction=0.3)
    assert config.planned(1000) == Schedule(kind="wsd", warmup_steps=100, decay_steps=300)


# --- groups -----------------------------------------------------------------------------------------------------------


def test_norms_and_biases_are_not_decayed_embeddings_are_and_frozen_parameters_are_left_out() -> None:
    module = nn.ModuleDict({"table": nn.Embedding(4, 3), "norm": nn.LayerNorm(3), "dense": nn.Linear(3, 3)})
    frozen = nn.ModuleDict({"dense": nn.Linear(3, 3), "norm": nn.LayerNorm(3)}).requires_grad_(False)
    decayed, plain = parameter_groups(nn.ModuleList([module, frozen]), 0.01)
    assert decayed["weight_decay"] == 0.01 and plain["weight_decay"] == 0.0
    table, norm, dense = module["table"], module["norm"], module["dense"]
    assert {id(p) for p in decayed["params"]} == {id(table.weight), id(dense.weight)}
    assert {id(p) for p in plain["params"]} == {id(norm.weight), id(norm.bias), id(dense.bias)}


@pytest.mark.parametrize("offset", [False, True])
def test_layerwise_rates_by_name(offset: bool) -> None:
    """Twelve layers. The reference (electra.md §1.2): decay^(n + 2 − depth), embeddings and their projection at depth
    0, layer i at i + 1, head at n + 2; so its top layer has decay². Ours has one power less below the head."""
    config = EncoderConfig(
        vocab_size=8, embedding_size=4, hidden_size=8, num_layers=12, num_heads=2, intermediate_size=8, max_positions=4
    )
    embeddings, encoder, head = Embeddings(config), Encoder(config), nn.Linear(8, 2)
    groups = layerwise_groups(embeddings, encoder, head, 0.01, decay=0.8, reference_offset=offset)
    optimizer = ReferenceAdam(groups)
    set_learning_rate(optimizer, 3.0)
    rates = {id(p): (group["lr"], group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]}

    expected: dict[str, float] = {"embeddings": 0.8**14, "encoder.project": 0.8**14, "head": 1.0}
    expected |= {f"encoder.layers.{i}": 0.8 ** (12 + 2 - (i + 1)) for i in range(12)}
    if not offset:
        expected = {part: scale if part == "head" else scale / 0.8 for part, scale in expected.items()}
        assert expected["encoder.layers.11"] == pytest.approx(0.8)
    else:
        assert expected["encoder.layers.11"] == pytest.approx(0.64)

    named = dict(nn.ModuleDict({"embeddings": embeddings, "encoder": encoder, "head": head}).named_parameters())
    assert {id(p) for p in named.values()} == rates.keys()
    for name, parameter in named.items():
        (part,) = [part for part in expected if name.startswith(f"{part}.")]
        rate, weight_decay = rates[id(parameter)]
        assert rate == pytest.approx(3.0 * expected[part]), name
        assert weight_decay == (0.0 if "norm" in name or name.endswith("bias") else 0.01), name


def test_without_decay_there_are_the_two_ordinary_groups() -> None:
    config = EncoderConfig(
        vocab_size=8, embedding_size=8, hidden_size=8, num_layers=3, num_heads=2, intermediate_size=8, max_positions=4
    )
    module = nn.ModuleDict({"embeddings": Embeddings(config), "encoder": Encoder(config), "head": nn.Linear(8, 2)})
    parts = (module["embeddings"], module["encoder"], module["head"])
    found = layerwise_groups(*parts, 0.01, decay=1.0, reference_offset=True)  # type: ignore[arg-type]
    expected = parameter_groups(module, 0.01)
    assert [[id(p) for p in group["params"]] for group in found] == [
        [id(p) for p in group["params"]] for group in expected
    ]
    assert [(group["weight_decay"], group["lr_scale"]) for group in found] == [(0.01, 1.0), (0.0, 1.0)]
