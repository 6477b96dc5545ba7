"""What every engine does, so that the loop does not know which one it drives.

Guarantees, the same at every ZeRO stage and under plain DDP: gradients of the loss the loop hands in are summed over
ranks and micro-batches exactly; one joint clip; a step with a non-finite gradient, be it on one rank, changes nothing
on any (parameters, optimizer state, AdamW's count of updates) and is counted; no step changes a frozen parameter
(`requires_grad` False), which has no optimizer state. Finite gradients whose joint norm is beyond float32 are skipped
as well, but for stage 3, which takes the norm in float64. The process group must exist before (`torch.distributed`);
an engine never starts one.

Every trainable parameter must get a gradient in every micro-batch. Not here: CUDA graphs.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite, prod
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.loader import rank_slice
from training.objectives import Batch, Objective, Outputs
from training.optimizer import build_optimizer
from training.settings import OptimizerConfig

STATES = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Slice:
    """A contiguous piece of one parameter: its values and, unless the parameter is frozen, the optimizer's state, as
    live flat views (fp32 in the optimizer)."""

    name: str
    start: int
    tensors: dict[str, Tensor]  # "param" and every state of `STATES`, each [length]
    replicated: bool = False  # every rank holds the same piece

    @property
    def length(self) -> int:
        return self.tensors["param"].numel()

    def cut(self, start: int, stop: int) -> "Slice":
        """The part from `start` to `stop` within the piece, this rank's own."""
        return Slice(self.name, self.start + start, {key: tensor[start:stop] for key, tensor in self.tensors.items()})


class TensorSource(Protocol):
    """Where saved state is read from, by kind ("param" or one of `STATES`) and parameter name."""

    def read(self, kind: str, name: str, start: int, stop: int) -> Tensor:
        """Elements `start` to `stop` of a flat tensor: [stop - start], fp32, on the CPU."""


class Engine(ABC):
    """One objective, its optimizer, and the way its gradients cross ranks."""

    def __init__(self, objective: Objective, config: OptimizerConfig, device: torch.device, bf16: bool) -> None:
        self.objective = objective.to(device)
        self.shapes = {name: list(parameter.shape) for name, parameter in objective.named_parameters()}
        self.world_size = dist.get_world_size()
        self._device, self._bf16 = device, bf16
        self._optimizer = build_optimizer(self.objective, config)

    @property
    def parameter_count(self) -> int:
        """Parameters of the whole objective, shared ones once."""
        return sum(map(prod, self.shapes.values()))

    def autocast(self) -> torch.autocast:
        """The context in which forward passes are computed."""
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16)

    @abstractmethod
    def forward(self, batch: Batch) -> Outputs:
        """One micro-batch in training mode."""

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Outputs:
        """A forward pass in the module's present mode, in the engine's precision. Every rank must call."""
        with self.autocast():
            outputs: Outputs = self.objective(batch)
        return outputs

    def backward(self, loss: Tensor) -> None:
        """Add this rank's share of the step's loss: local sums over *global* counts, so shares add up to the loss."""
        self._backward(loss * self.world_size)

    @abstractmethod
    def _backward(self, loss: Tensor) -> None:
        """Backpropagate; gradients are averaged over ranks, and added over micro-batches."""

    @abstractmethod
    def step(self, learning_rate: float) -> None:
        """One update at the accumulation boundary; a no-op of the weights inside it."""

    @abstractmethod
    def gradient_norm(self) -> float:
        """The joint norm before clipping of the last step; infinite where that step was skipped."""

    @abstractmethod
    def skipped_steps(self) -> int:
        """Steps that changed nothing because a gradient was not finite."""

    @abstractmethod
    def close(self) -> None:
        """Release the engine's hooks and buffers; the module keeps its weights, but for what ZeRO-3 had divided."""

    # --- what checkpoints are made of ---------------------------------------------------------------------------------

    def slices(self) -> Iterator[Slice]:
        """What this rank answers for; over all ranks every element of every parameter exactly once."""
        for piece in self.held():
            start, stop = 0, piece.length
            if piece.replicated:
                start, stop = rank_slice(piece.length, dist.get_rank(), self.world_size)
            if start < stop:
                yield piece.cut(start, stop)

    def held(self) -> Iterator[Slice]:
        """All that this rank holds of what the optimizer works on, and frozen parameters: here everything, as every
        rank does."""
        for name, parameter in self.objective.named_parameters():
            states = self._states(parameter) if parameter.requires_grad else {}
            yield whole(name, parameter, states)

    def weights(self) -> Iterator[Slice]:
        """What this rank holds of the weights that forward passes read, which need not be those that the optimizer
        updates: `param` alone, here all of them."""
        for name, parameter in self.objective.named_parameters():
            yield whole(name, parameter, {})

    def updates(self) -> set[int]:
        """How many updates were applied, as the optimizer's tensors on this rank count them: one number, none where it
        does not count."""
        if not isinstance(self._optimizer, torch.optim.AdamW):
            return set()
        return {int(self._optimizer.state[tensor]["step"]) for tensor in self._optimized()}

    def _optimized(self) -> list[Tensor]:
        """The tensors the optimizer updates on this rank."""
        return [parameter for parameter in self.objective.parameters() if parameter.requires_grad]

    def _states(self, optimized: Tensor) -> dict[str, Tensor]:
        """The optimizer's state of one of its tensors, made before the first update if need be."""
        state: dict[str, Tensor] = self._optimizer.state[optimized]
        for key in STATES:
            if key not in state:
                state[key] = torch.zeros_like(optimized)
        if isinstance(self._optimizer, torch.optim.AdamW) and "step" not in state:
            state["step"] = torch.zeros(())  # it makes its state whole or not at all
        return {key: state[key] for key in STATES}

    @torch.no_grad()
    def load(self, source: TensorSource, updates: int) -> None:
        """Overwrite what this rank holds in place, reading no more than that, one tensor at a time. `updates`: how many
        were applied so far, which AdamW's bias correction goes by. Every rank must call."""
        for piece in self.held():
            for kind, tensor in piece.tensors.items():
                tensor.copy_(source.read(kind, piece.name, piece.start, piece.start + piece.length))
        for tensor in self._optimized():
            self._states(tensor)
            if isinstance(self._optimizer, torch.optim.AdamW):
                self._optimizer.state[tensor]["step"].fill_(updates)


def whole(name: str, parameter: nn.Parameter, states: dict[str, Tensor]) -> Slice:
    """A parameter that every rank holds whole."""
    tensors = {"param": parameter.detach(), **states}
    return Slice(name, 0, {key: tensor.view(-1) for key, tensor in tensors.items()}, replicated=True)


class LocalClip:
    """Clipping and skipping where every rank holds all gradients, already summed over ranks: all decide alike."""

    def __init__(self, parameters: list[Tensor], max_norm: float) -> None:
        self._parameters, self._max_norm = parameters, max_norm
        self.norm, self.skipped = 0.0, 0

    def apply(self) -> None:
        """Scale the gradients to a joint norm of at most `max_norm`; without a finite norm drop them all, so that the
        optimizer's step has nothing to do. Reads the norm on the host, as ZeRO does."""
        norm = nn.utils.get_total_norm([p.grad for p in self._parameters if p.grad is not None])
        self.norm = float(norm)
        if isfinite(self.norm):
            nn.utils.clip_grads_with_norm_(self._parameters, self._max_norm, norm)
            return
        self.norm, self.skipped = inf, self.skipped + 1
        for parameter in self._parameters:
            parameter.grad = None
