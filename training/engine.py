"""The DeepSpeed engine behind a few methods, so that the loop does not know which engine it drives.

Guarantees: gradients of the loss the loop hands in are summed over ranks and micro-batches exactly (DeepSpeed's own
averaging over ranks is undone here, its division by accumulation is off); one joint clip; a step with a non-finite
gradient changes nothing. The process group must exist before (`torch.distributed`); the engine never starts one.

Not here: ZeRO-3, mixed precision, compilation, the plain-DDP twin; nor stage 0, which in fp32 would let a non-finite
gradient into the weights.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.objectives import Batch, Objective, Outputs
from training.optimizer import build_optimizer
from training.settings import OptimizerConfig

STATES = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Slice:
    """A contiguous piece of one parameter that this rank owns: fp32 values and optimizer state, as live flat views."""

    name: str
    start: int
    tensors: dict[str, Tensor]  # "param" and every optimizer state, each [length]

    @property
    def length(self) -> int:
        return self.tensors["param"].numel()


class Engine:
    """One objective under DeepSpeed ZeRO 1 or 2."""

    def __init__(
        self,
        objective: Objective,
        optimizer: OptimizerConfig,
        *,
        micro_batch: int,
        accumulation: int,
        zero_stage: int,
        device: torch.device,
    ) -> None:
        _prepare_deepspeed(device)
        import deepspeed

        self.objective = objective.to(device)
        self.world_size = dist.get_world_size()
        self._optimizer = build_optimizer(self.objective, optimizer)
        self._engine, _, _, _ = deepspeed.initialize(
            model=self.objective,
            optimizer=self._optimizer,
            config=_deepspeed_config(micro_batch, accumulation, zero_stage, optimizer.grad_clip, device),
            dist_init_required=False,
        )

    def forward(self, batch: Batch) -> Outputs:
        """One micro-batch in training mode."""
        outputs: Outputs = self._engine(batch)
        return outputs

    def backward(self, loss: Tensor) -> None:
        """Add this rank's share of the step's loss: local sums over *global* counts, so shares add up to the loss."""
        self._engine.backward(loss * self.world_size, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> None:
        """One update at the accumulation boundary; a no-op of the weights inside it."""
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()

    def gradient_norm(self) -> float:
        """The joint norm before clipping of the last step; infinite where that step was skipped."""
        return float(self._engine.get_global_grad_norm())

    def skipped_steps(self) -> int:
        """Steps that changed nothing because a gradient was not finite."""
        return int(self._engine.skipped_steps)

    def slices(self) -> Iterator[Slice]:
        """What this rank owns; over all ranks every element of every parameter exactly once."""
        zero = self._engine.optimizer
        for name, parameter in self.objective.named_parameters():
            # DeepSpeed hangs on the parameter where it lies in this rank's fp32 partition
            fragment: Any = getattr(parameter, "_hp_mapping")  # noqa: B009
            if fragment is None:
                continue
            partition = zero.single_partition_of_fp32_groups[fragment.param_group_index]
            place = fragment.hp_fragment_address
            states = {key: state.narrow(0, place.start, place.numel) for key, state in self._states(partition).items()}
            yield Slice(name, fragment.lp_fragment_address.start, {"param": fragment.hp_fragment, **states})

    def _states(self, tensor: Tensor) -> dict[str, Tensor]:
        """The optimizer's state of one of its tensors, made before the first step if need be."""
        state: dict[str, Tensor] = self._optimizer.state[tensor]
        for key in STATES:
            if key not in state:
                state[key] = torch.zeros_like(tensor)
        return state

    def load(self, parameters: dict[str, Tensor], states: dict[str, dict[str, Tensor]]) -> None:
        """Overwrite parameters and optimizer state in place from full tensors by parameter name."""
        with torch.no_grad():
            for name, parameter in self.objective.named_parameters():
                parameter.copy_(parameters[name].view_as(parameter))
            for piece in self.slices():
                window = slice(piece.start, piece.start + piece.length)
                piece.tensors["param"].copy_(parameters[piece.name].view(-1)[window])
                for key, tensors in states.items():
                    piece.tensors[key].copy_(tensors[piece.name].view(-1)[window])

    def close(self) -> None:
        """Release the engine's hooks and buffers; the module keeps its weights."""
        self._engine.destroy()


def _deepspeed_config(
    micro_batch: int, accumulation: int, zero_stage: int, grad_clip: float, device: torch.device
) -> dict[str, Any]:
    # train_batch_size is left out: DeepSpeed would insist on micro × accumulation × world, ours may be ragged
    return {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": grad_clip,
        "zero_optimization": {"stage": zero_stage, "overlap_comm": device.type == "cuda"},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**62,
        "wall_clock_breakdown": False,
    }


def _prepare_deepspeed(device: torch.device) -> None:
    """Settle what DeepSpeed decides at import or first use: the accelerator, and no compiler at run time."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    import deepspeed.ops
    from deepspeed.utils import logger

    logger.setLevel("WARNING")
    if device.type == "cpu":
        # The shared-memory all-reduce would be built with a C++ compiler at first use, and finding out which kernels
        # could be built runs compilers too. gloo needs none of them: answer for them all, before anything asks.
        vars(deepspeed.ops)["__compatible_ops__"] = {}


def parameter_count(module: nn.Module) -> int:
    """Parameters, shared ones once."""
    return sum(p.numel() for p in module.parameters())
