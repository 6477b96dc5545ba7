"""ELECTRA in two stages (Clark et al. 2020, section 3.2): first a masked language model alone, then a discriminator
that starts from its weights and judges what it samples, frozen.

This is the second stage; the first is a run of `mlm` at the same size. The paper gives both the same number of steps;
planned by a budget, each has half of its FLOPs, and so the second, dearer a step, fewer of them. The generator is the
first stage's network, embeddings included, and costs its forward pass only. (Starting a discriminator from other
weights than the generator's can leave it at the majority class, the paper says: the loop reports that.)
"""

from training.arms import ElectraTwoStageArm, FrozenGenerator
from training.objectives.base import Setup
from training.objectives.electra import Detection
from training.objectives.generators import FrozenSampler, frozen_parts
from training.sizes import ModelConfig


class ElectraTwoStage(Detection):
    """The discriminator alone learns."""

    def __init__(self, arm: ElectraTwoStageArm, setup: Setup) -> None:
        super().__init__(arm, setup)
        first_stage = ModelConfig(**setup.model.model_dump(exclude={"vocab_size"}))
        settings = FrozenGenerator(
            network=first_stage, temperature=arm.temperature, disallow_correct=arm.disallow_correct
        )
        self.generator = FrozenSampler(*frozen_parts(settings, setup))
