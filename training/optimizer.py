"""Optimizers, their parameter groups, and schedules.

`ReferenceAdam` is the Adam of google-research/electra (`model/optimization.py`): no bias correction, and decoupled
weight decay added to the update before the learning rate multiplies both. `torch.optim.AdamW` corrects the bias. The
learning rate is a plain function of the completed steps, set before each update, so nothing about the schedule needs
saving.

Groups hold trainable parameters only, and each a `lr_scale` that multiplies the rate: 1 but for layer-wise decay.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from training.settings import OptimizerConfig, Schedule

if TYPE_CHECKING:
    from training.encoder import Encoder


class ReferenceAdam(torch.optim.Optimizer):
    """`m ← β₁m + (1−β₁)g; v ← β₂v + (1−β₂)g²; p ← p − lr·(m / (√v + ε) + wd·p)`, multi-tensor."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._update(params, group)
        return loss

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        grads = [p.grad for p in params if p.grad is not None]
        for p in params:
            if "exp_avg" not in self.state[p]:
                self.state[p]["exp_avg"] = torch.zeros_like(p)
                self.state[p]["exp_avg_sq"] = torch.zeros_like(p)
        means = [self.state[p]["exp_avg"] for p in params]
        squares = [self.state[p]["exp_avg_sq"] for p in params]
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        scale = torch._foreach_sqrt(squares)
        torch._foreach_add_(scale, group["eps"])
        updates = torch._foreach_div(means, scale)
        if group["weight_decay"]:
            torch._foreach_add_(updates, params, alpha=group["weight_decay"])
        torch._foreach_add_(params, updates, alpha=-group["lr"])


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: decayed (weights, embeddings included) and not (LayerNorm and every bias)."""
    return _groups([(module, 1.0)], weight_decay)


def layerwise_groups(
    embeddings: nn.Module,
    encoder: "Encoder",
    head: nn.Module,
    weight_decay: float,
    *,
    decay: float,
    reference_offset: bool = False,
) -> list[dict[str, Any]]:
    """The same two kinds of groups for every depth, the rate falling by `decay` a layer from the head down: the top
    layer learns at `decay`, the embeddings and their projection at `decay^(n+1)`. With `reference_offset` everything
    below the head has one power more, as google-research/electra has it (`_get_layer_lrs`; its issues 51 and 64)."""
    below_head = 2 if reference_offset else 1
    layers = len(encoder.layers)
    bottom = decay ** (layers + below_head)
    parts: list[tuple[nn.Module, float]] = [(embeddings, bottom)]
    if encoder.project is not None:
        parts.append((encoder.project, bottom))
    for i, layer in enumerate(encoder.layers):
        parts.append((layer, decay ** (layers - 1 - i + below_head)))
    return _groups([*parts, (head, 1.0)], weight_decay)


def _groups(parts: Iterable[tuple[nn.Module, float]], weight_decay: float) -> list[dict[str, Any]]:
    """One group for every rate among the parts and either kind of decay; none is empty."""
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for module, scale in parts:
        norms = {id(p) for m in module.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()}
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            is_plain = id(parameter) in norms or name.rsplit(".", 1)[-1] == "bias"
            groups.setdefault((scale, is_plain), []).append(parameter)
    return [
        {"params": params, "lr_scale": scale, "weight_decay": 0.0 if is_plain else weight_decay}
        for (scale, is_plain), params in groups.items()
    ]


def build_optimizer(module: nn.Module, config: OptimizerConfig) -> ReferenceAdam | torch.optim.AdamW:
    """The configured Adam over a module's trainable parameters, multi-tensor; its rate is set before each step."""
    groups = parameter_groups(module, config.weight_decay)
    betas = (config.beta1, config.beta2)
    if config.kind == "adamw":
        return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=config.eps, foreach=True)
    return ReferenceAdam(groups, lr=0.0, betas=betas, eps=config.eps)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The rate of the next update, scaled group by group."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]


def learning_rate(step: int, peak: float, steps: int, schedule: Schedule) -> float:
    """The rate of the update that follows `step` completed ones of `steps`; 0 for the first where there is a warm-up.

    linear: warm-up multiplies an already decaying line, so the top stays below `peak` (google-research/electra,
    `create_optimizer`). wsd: `peak` from the end of warm-up until `decay_steps` updates are left, then a straight line
    that would reach 0 at `steps` (Hu et al. 2024); without decay steps it never falls.
    """
    warmup = min(1.0, step / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    if schedule.kind == "linear":
        return peak * max(0.0, 1.0 - step / steps) * warmup
    decay = min(1.0, max(0.0, (steps - step) / schedule.decay_steps)) if schedule.decay_steps else 1.0
    return peak * decay * warmup
