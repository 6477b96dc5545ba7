"""How checkpoints are evaluated: the suite, the tasks, and the protocol as a named object stored with every score.

`plain` is one global setting for every model: dropout and one linear layer on the first position, AdamW, linear warm-up
and linear decay, mean loss, gradient clipping. A protocol with any other number is another protocol, with another
fingerprint, and its scores are other results. Torch-free, so that reading a configuration stays instant.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from data_prep.settings import Settings
from training import glue, probes
from training.probes import ProbesConfig
from training.tasks import Task

Suite = Literal["probes", "glue"]

SUITES: dict[str, dict[str, Task]] = {"probes": probes.TASKS, "glue": glue.TASKS}


class Protocol(Settings):
    """The `plain` fine-tuning protocol; every number is part of a result's identity.

    The defaults suit models of a few million parameters and a few thousand examples; a base-sized model wants a
    learning rate ten times lower.
    """

    name: Literal["plain"] = "plain"
    learning_rate: Annotated[float, Field(gt=0.0)] = 1e-3
    epochs: PositiveInt = 2
    batch_size: PositiveInt = 16
    max_length: Annotated[int, Field(ge=8)] = 128  # tokens, special ones included; longer texts are cut
    max_train_examples: PositiveInt | None = None  # of each task, chosen by a hash; None: all. Dev is always whole
    warmup_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01  # none on LayerNorm and biases
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # each layer learns at this share of the rate above it
    layer_decay_offset: bool = False  # google-research/electra: below the head, once more
    grad_clip: Annotated[float, Field(gt=0.0)] = 1.0  # global norm
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1  # of the head; the body keeps its own
    head_init: Annotated[float, Field(gt=0.0)] = 0.02  # truncated normal


class EvaluationConfig(Settings):
    """What every finished run is evaluated on. `tasks` empty means all tasks of the suite."""

    suite: Suite = "probes"
    glue_dir: Path | None = None
    tasks: list[str] | None = None
    seeds: PositiveInt = 1  # fine-tunings of each checkpoint on each task: seeds 0, 1, …
    protocol: Protocol = Protocol()
    probes: ProbesConfig = ProbesConfig()

    @field_validator("tasks")
    @classmethod
    def _known(cls, tasks: list[str] | None) -> list[str] | None:
        known = [name for suite in SUITES.values() for name in suite]
        for name in tasks or []:
            if name not in known:
                raise ValueError(f"no task is called {name!r}; there are {', '.join(known)}")
        return tasks

    @model_validator(mode="after")
    def _one_suite(self) -> "EvaluationConfig":
        if self.glue_dir is not None and self.suite != "glue":
            raise ValueError("glue_dir names a GLUE folder but suite is 'probes'; set suite to 'glue'")
        return self
