"""How checkpoints are evaluated: the suite, the tasks, and the protocol as a named object stored with every score.

A head is dropout and one linear layer on the first position, for every model and both protocols
(`training.fine_protocol`). Torch-free, so that reading a configuration stays instant.
"""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from data_prep.settings import Settings
from training import glue, probes
from training.fine_protocol import FineProtocol
from training.probes import ProbesConfig
from training.tasks import Task

Suite = Literal["probes", "glue"]

SUITES: dict[str, dict[str, Task]] = {"probes": probes.TASKS, "glue": glue.TASKS}


class Protocol(FineProtocol):
    """Of sentences and pairs, with a class or a value each.

    The defaults are `plain`'s and suit models of a few million parameters and a few thousand examples; a base-sized
    model wants a learning rate ten times lower.
    """

    PAPER: ClassVar[dict[str, Any]] = {
        **FineProtocol.PAPER,
        "epochs": 3,
        "epochs_of": {"RTE": 10, "STS-B": 10},
        "doubled": ("MRPC", "STS-B"),
        "max_length": 128,
        "dropout": 0.1,
    }

    learning_rate: Annotated[float, Field(gt=0.0)] = 1e-3
    epochs_of: dict[str, PositiveInt] = Field(default_factory=dict)  # of tasks that take another number of them
    doubled: tuple[str, ...] = ()  # tasks of pairs that are trained on in both orders
    max_length: Annotated[int, Field(ge=8)] = 128  # tokens, special ones included; longer texts are cut
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1  # of the head; the body keeps its own

    def epochs_for(self, task: str) -> int:
        """The epochs of a task."""
        return self.epochs_of.get(task, self.epochs)


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
