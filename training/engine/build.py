"""From a run's placement to its engine."""

import torch

from training.encoder import Layer
from training.engine.base import Engine
from training.engine.ddp import DataParallel
from training.engine.zero import STAGES
from training.objectives import Objective
from training.settings import OptimizerConfig, Placement


def build_engine(
    objective: Objective, optimizer: OptimizerConfig, placement: Placement, *, accumulation: int, device: torch.device
) -> Engine:
    """The engine of a run whose step has `accumulation` micro-batches a rank. Moves the objective to the device. Every
    rank must call, with an objective of the same weights."""
    if placement.compute.compile and device.type == "cuda":
        compile_layers(objective)
    bf16 = placement.precision == "bf16" or (placement.precision == "auto" and device.type == "cuda")
    if placement.engine == "ddp":
        return DataParallel(objective, optimizer, accumulation=accumulation, device=device, bf16=bf16)
    return STAGES[placement.zero_stage](
        objective,
        optimizer,
        stage=placement.zero_stage,
        micro_batch=placement.micro_batch,
        accumulation=accumulation,
        device=device,
        bf16=bf16,
    )


def compile_layers(objective: Objective) -> None:
    """Compile every layer in place: parameters keep their names, and an engine's hooks stay outside. Layers of a width
    share one compilation; of all shapes only the number of attention's runs changes, and it is marked as one that does.

    What earlier runs of this process have compiled is forgotten: all layers share one code object, and with it a limit,
    past which they would silently be computed as if nothing were compiled. Here that is an error.
    """
    torch._dynamo.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    for module in objective.modules():
        if isinstance(module, Layer):
            module.forward = torch.compile(module.forward, dynamic=False)  # type: ignore[method-assign]
