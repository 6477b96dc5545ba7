"""The reference optimizer and its schedule.

`ReferenceAdam` is the Adam of google-research/electra (`model/optimization.py`): no bias correction, and decoupled
weight decay added to the update before the learning rate multiplies both. The learning rate is a plain function of the
completed steps; the loop sets it, so nothing about the schedule needs saving.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from training.settings import OptimizerConfig


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
    norms = {id(p) for m in module.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()}
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        is_plain = id(parameter) in norms or name.rsplit(".", 1)[-1] == "bias"
        (plain if is_plain else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]


def build_optimizer(module: nn.Module, config: OptimizerConfig) -> ReferenceAdam:
    """The reference Adam over a module's parameters; the learning rate is set by the loop before each step."""
    groups = parameter_groups(module, config.weight_decay)
    return ReferenceAdam(groups, lr=0.0, betas=(config.beta1, config.beta2), eps=config.eps)


def learning_rate(step: int, peak: float, steps: int, warmup_steps: int) -> float:
    """The rate of the update that follows `step` completed ones: warm-up multiplies an already decaying line, so the
    first update has rate 0 and the top stays below `peak` (google-research/electra, `create_optimizer`)."""
    warmup = min(1.0, step / warmup_steps) if warmup_steps else 1.0
    return peak * max(0.0, 1.0 - step / steps) * warmup
