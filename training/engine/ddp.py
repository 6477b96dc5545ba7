"""PyTorch's DistributedDataParallel behind the engine's methods: the twin that the ZeRO stages are held to.

Gradients cross ranks in fp32, overlapped with the last micro-batch's backward pass; earlier ones add up locally.
"""

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from training.engine.base import Engine, LocalClip
from training.objectives import Batch, Objective, Outputs
from training.optimizer import set_learning_rate
from training.settings import OptimizerConfig


class DataParallel(Engine):
    """Everything on every rank."""

    def __init__(
        self, objective: Objective, config: OptimizerConfig, *, accumulation: int, device: torch.device, bf16: bool
    ) -> None:
        super().__init__(objective, config, device, bf16)
        self._ddp = DistributedDataParallel(self.objective, gradient_as_bucket_view=True)
        self._clip = LocalClip(self._optimized(), config.grad_clip)
        self._accumulation, self._done = accumulation, 0  # micro-batches a step, and of this one

    def forward(self, batch: Batch) -> Outputs:
        is_last = self._done == self._accumulation - 1
        with nullcontext() if is_last else self._ddp.no_sync(), self.autocast():
            outputs: Outputs = self._ddp(batch)
        return outputs

    def _backward(self, loss: Tensor) -> None:
        torch.autograd.backward(loss)
        self._done += 1

    def step(self, learning_rate: float) -> None:
        if self._done < self._accumulation:
            return
        self._done = 0
        self._clip.apply()
        set_learning_rate(self._optimizer, learning_rate)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def gradient_norm(self) -> float:
        return self._clip.norm

    def skipped_steps(self) -> int:
        return self._clip.skipped

    def close(self) -> None:
        del self._ddp
