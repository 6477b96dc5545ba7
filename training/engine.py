"""The DeepSpeed engine behind a few methods, so that the loop does not know which engine it drives.

Guarantees: gradients of the loss the loop hands in are summed over ranks and micro-batches exactly (DeepSpeed's own
averaging over ranks is undone here, its division by accumulation is off); one joint clip; a step with a non-finite
gradient changes nothing. The process group must exist before (`torch.distributed`); the engine never starts one.

Not here: ZeRO-3, mixed precision, compilation, the plain-DDP twin.
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
    """One objective under DeepSpeed ZeRO 0, 1 or 2."""

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
            config=_deepspeed_config(micro_batch, accumulation, zero_stage, optimizer.grad_clip),
            dist_init_required=False,
        )
        self._zero = zero_stage > 0

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

    def gradient_norm(self) -> float | None:
        """The joint norm before clipping of the last step; None where the engine does not know it (stage 0, fp32)."""
        norm = self._engine.get_global_grad_norm()
        return None if norm is None else float(norm)

    def skipped_steps(self) -> int:
        """Steps that changed nothing because a gradient was not finite."""
        return int(self._engine.skipped_steps)

    def slices(self) -> Iterator[Slice]:
        """What this rank owns; over all ranks every element of every parameter exactly once."""
        if not self._zero:
            yield from self._whole_parameters()
            return
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

    def _whole_parameters(self) -> Iterator[Slice]:
        """Stage 0 replicates everything: rank 0 speaks for all when saving, every rank restores its own copy."""
        for name, parameter in self.objective.named_parameters():
            states = {key: state.view(-1) for key, state in self._states(parameter).items()}
            yield Slice(name, 0, {"param": parameter.data.view(-1), **states})

    def _states(self, tensor: Tensor) -> dict[str, Tensor]:
        """The optimizer's state of one of its tensors, made before the first step if need be."""
        state: dict[str, Tensor] = self._optimizer.state[tensor]
        for key in STATES:
            if key not in state:
                state[key] = torch.zeros_like(tensor)
        return state

    @property
    def owns_slices(self) -> bool:
        """Whether this rank's slices belong in a checkpoint."""
        return self._zero or dist.get_rank() == 0

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


def _deepspeed_config(micro_batch: int, accumulation: int, zero_stage: int, grad_clip: float) -> dict[str, Any]:
    # train_batch_size is left out: DeepSpeed would insist on micro × accumulation × world, ours may be ragged
    return {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": grad_clip,
        "zero_optimization": {"stage": zero_stage, "overlap_comm": torch.cuda.is_available()},
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
