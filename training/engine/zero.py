"""DeepSpeed ZeRO, stages 0 to 3, behind the engine's methods.

DeepSpeed's own averaging over ranks is undone (`Engine.backward`), its division by accumulation is off. bf16 is its
`torch_autocast` over an fp32 module: gradients add up in fp32 and those of linear layers cross ranks in bf16. On a GPU
communication overlaps the backward pass (stages 1 to 3).

Stage 0 with fp32 parameters has neither a norm nor a check of its own, so it clips and skips as plain DDP does. Where
the state of a divided parameter lies is private to DeepSpeed; the attributes read here are pinned by the tests of every
stage and by the version bound in pyproject.toml.
"""

import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from training.engine.base import Engine, LocalClip, Slice, TensorSource, whole
from training.objectives import Batch, Objective, Outputs
from training.optimizer import set_learning_rate
from training.settings import OptimizerConfig

# Elements, not bytes. A bucket is allocated whole, so DeepSpeed's 5e8 would take 2 GB of every rank.
REDUCE_BUCKET = 2**26
# ZeRO-3 keeps parameters up to this size whole on every rank: gathering biases and norms costs more than it saves.
PERSISTENT_SIZE = 2**16


class Zero(Engine):
    """What the stages share."""

    def __init__(
        self,
        objective: Objective,
        config: OptimizerConfig,
        *,
        stage: int,
        micro_batch: int,
        accumulation: int,
        device: torch.device,
        bf16: bool,
    ) -> None:
        super().__init__(objective, config, device, bf16)
        _prepare_deepspeed(device)
        import deepspeed

        if stage == 3:
            gather_by_layer(self.objective)
        self._engine, _, _, _ = deepspeed.initialize(
            model=self.objective,
            optimizer=self._optimizer,
            config={
                # train_batch_size is left out: DeepSpeed would insist on micro × accumulation × world, ours may be
                # ragged
                "train_micro_batch_size_per_gpu": micro_batch,
                "gradient_accumulation_steps": accumulation,
                "gradient_clipping": config.grad_clip if stage else 0.0,
                "torch_autocast": {"enabled": bf16, "dtype": "bfloat16"},
                "zero_optimization": {
                    "stage": stage,
                    "overlap_comm": device.type == "cuda",
                    "reduce_bucket_size": REDUCE_BUCKET,
                    "stage3_param_persistence_threshold": PERSISTENT_SIZE,
                },
                "zero_allow_untested_optimizer": True,
                "steps_per_print": 2**62,
                "wall_clock_breakdown": False,
            },
            dist_init_required=False,
        )

    def forward(self, batch: Batch) -> Outputs:
        outputs: Outputs = self._engine(batch)
        return outputs

    def _backward(self, loss: Tensor) -> None:
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> None:
        set_learning_rate(self._optimizer, learning_rate)
        self._engine.step()

    def gradient_norm(self) -> float:
        return float(self._engine.get_global_grad_norm())

    def skipped_steps(self) -> int:
        return int(self._engine.skipped_steps)

    def close(self) -> None:
        self._engine.destroy()


class Zero0(Zero):
    """Nothing is divided; gradients are reduced in one go after the backward pass."""

    def __init__(self, objective: Objective, config: OptimizerConfig, **settings: Any) -> None:
        super().__init__(objective, config, **settings)
        self._clip = LocalClip(self._optimized(), config.grad_clip)

    def step(self, learning_rate: float) -> None:
        if self._engine.is_gradient_accumulation_boundary():
            self._clip.apply()
        super().step(learning_rate)

    def gradient_norm(self) -> float:
        return self._clip.norm

    def skipped_steps(self) -> int:
        return self._clip.skipped


class Zero12(Zero):
    """The optimizer's fp32 parameters and state are divided, at stage 2 gradients too; the module is whole."""

    def held(self) -> Iterator[Slice]:
        for name, parameter in self.objective.named_parameters():
            if not parameter.requires_grad:
                yield whole(name, parameter, {})
                continue
            # DeepSpeed hangs on the parameter where it lies in this rank's fp32 partition
            fragment: Any = getattr(parameter, "_hp_mapping")  # noqa: B009
            if fragment is None:
                continue
            partition = self._optimized()[fragment.param_group_index]
            place = fragment.hp_fragment_address
            states = {key: state.narrow(0, place.start, place.numel) for key, state in self._states(partition).items()}
            yield Slice(name, fragment.lp_fragment_address.start, {"param": fragment.hp_fragment, **states})

    def _optimized(self) -> list[Tensor]:
        partitions: list[Tensor] = self._engine.optimizer.single_partition_of_fp32_groups
        return partitions

    @torch.no_grad()
    def load(self, source: TensorSource, updates: int) -> None:
        super().load(source, updates)
        for piece in self.weights():
            piece.tensors["param"].copy_(source.read("param", piece.name, 0, piece.length))


class Zero3(Zero):
    """Parameters are divided as well; layers gather what they compute with and drop it again. Every rank must take part
    in every forward pass, evaluation included."""

    def held(self) -> Iterator[Slice]:
        zero = self._engine.optimizer
        for name, parameter in self.objective.named_parameters():
            start, stop = self._window(parameter)
            if start == stop:
                continue
            tensors = {"param": self._partition(parameter).narrow(0, 0, stop - start)}
            if parameter.requires_grad:
                group, offset, _ = zero.grad_position[zero.get_param_id(parameter)]
                optimized = self._optimized()[group]
                tensors = {"param": optimized, **self._states(optimized)}
                tensors = {key: tensor.detach().narrow(0, offset, stop - start) for key, tensor in tensors.items()}
            yield Slice(name, start, tensors)

    def _optimized(self) -> list[Tensor]:
        partitions: list[Tensor] = self._engine.optimizer.fp32_partitioned_groups_flat
        return partitions

    def weights(self) -> Iterator[Slice]:
        for name, parameter in self.objective.named_parameters():
            start, stop = self._window(parameter)
            yield Slice(name, start, {"param": self._partition(parameter).narrow(0, 0, stop - start)})

    @torch.no_grad()
    def load(self, source: TensorSource, updates: int) -> None:
        super().load(source, updates)
        self._engine.optimizer.parameter_offload.partition_all_parameters()  # drop what is gathered: it is old
        for piece in self.weights():
            stop = piece.start + piece.length
            piece.tensors["param"].copy_(source.read("param", piece.name, piece.start, stop))

    def _partition(self, parameter: Any) -> Tensor:
        """This rank's part of a parameter, that of the last ranks filled up."""
        partition: Tensor = parameter.ds_tensor.detach()
        return partition

    def _window(self, parameter: Any) -> tuple[int, int]:
        """Where this rank's part lies in the flat parameter."""
        size = parameter.partition_numel()
        start = min(size * dist.get_rank(), parameter.ds_numel)
        return start, min(start + size, parameter.ds_numel)


def gather_by_layer(objective: Objective) -> None:
    """Have ZeRO-3 gather a layer at once, not linear by linear: a few hooks instead of dozens, and none inside what is
    compiled. It reduces such gradients when the layer's backward pass is over, so a layer that two networks share, and
    that has two of them, is left out."""
    from deepspeed.utils import set_z3_leaf_module

    encoders = [network.encoder for network in objective.networks().values()]
    for encoder in encoders:
        if sum(other is encoder for other in encoders) == 1:
            for layer in encoder.layers:
                set_z3_leaf_module(layer, True)


STAGES: dict[int, type[Zero]] = {0: Zero0, 1: Zero12, 2: Zero12, 3: Zero3}


def _prepare_deepspeed(device: torch.device) -> None:
    """Settle what DeepSpeed decides at import or first use: the accelerator, and no compiler at run time."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    import deepspeed.ops
    from deepspeed.utils import logger

    # What it warns of is meant (our optimizer), harmless (outputs it does not look into) or counted (skipped steps)
    logger.setLevel("ERROR")
    # DeepSpeed 0.19 calls collectives by names that torch 2.13 deprecates: a line for every one of every step
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+_tensor` is deprecated", FutureWarning)
    if device.type == "cpu":
        # The shared-memory all-reduce would be built with a C++ compiler at first use, and finding out which kernels
        # could be built runs compilers too. gloo needs none of them: answer for them all, before anything asks.
        vars(deepspeed.ops)["__compatible_ops__"] = {}
