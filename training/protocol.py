"""How checkpoints are evaluated: suites, tasks, and protocols as named objects; every score is stored with one.

Sentences, pairs and spans are fine-tuned on (`Protocol`, `SpanProtocol`), minimal pairs are not (`BlimpProtocol`). A
head for sentences is dropout and one linear layer on the first position, for every model and both protocols
(`training.fine_protocol`). Torch-free, so that reading a configuration stays instant.
"""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from data_prep.settings import Settings
from training import glue, probes, squad
from training.blimp import BlimpProtocol
from training.fine_protocol import FineProtocol
from training.probes import ProbesConfig
from training.squad_protocol import SpanProtocol
from training.tasks import Task

Suite = Literal["probes", "glue", "squad", "blimp"]

# the tasks of suites that are fine-tuned on, one by one; BLiMP's paradigms are scored together
TASKS: dict[str, dict[str, Task]] = {"probes": probes.TASKS, "glue": glue.TASKS, "squad": squad.TASKS}

# where a suite's data is, by key of EvaluationConfig; the probes are made of the corpus
SOURCES: dict[str, tuple[str, ...]] = {
    "glue": ("glue_dir", "glue_dataset"),
    "squad": ("squad_dir",),
    "blimp": ("blimp",),
}


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

    @field_validator("epochs_of", "doubled")
    @classmethod
    def _of_tasks(cls, given: Any) -> Any:
        known = [*probes.TASKS, *glue.TASKS]
        for name in given:
            if name not in known:
                raise ValueError(f"no task is called {name!r}; there are {', '.join(known)}")
        return given

    def epochs_for(self, task: str) -> int:
        """The epochs of a task."""
        return self.epochs_of.get(task, self.epochs)


class EvaluationConfig(Settings):
    """What every finished run is evaluated on: one suite or several, which are never averaged with one another.

    `tasks` are those that are wanted; of a suite of which it names none, and where it is empty, all.
    """

    suites: Annotated[list[Suite], Field(min_length=1)] = ["probes"]  # noqa: RUF012 (pydantic copies it)
    tasks: list[str] | None = None
    seeds: PositiveInt = 1  # fine-tunings of each checkpoint on each task: seeds 0, 1, …
    glue_dir: Path | None = None  # a folder a task, with the official files
    glue_dataset: str | None = None  # or the layout of nyu-mll/glue, by its name or as a local copy
    squad_dir: Path | None = None  # train-v1.1.json, dev-v1.1.json, and those of v2.0
    blimp: Path | None = None  # a file of BLiMP's JSON lines, or a folder of them
    pairs: PositiveInt | None = None  # of each of BLiMP's paradigms; None: all
    protocol: Protocol = Protocol()  # of probes and GLUE
    squad_protocol: SpanProtocol = SpanProtocol()
    probes: ProbesConfig = ProbesConfig()
    # of each fine-tuning: 0 is one CPU thread, 0.25 four of them on one GPU
    gpus_per_unit: Annotated[float, Field(ge=0.0)] = 0.0

    def protocol_of(self, suite: str) -> Protocol | SpanProtocol | BlimpProtocol:
        """The protocol that a suite's scores come from."""
        if suite == "blimp":
            return BlimpProtocol(pairs=self.pairs)
        return self.squad_protocol if suite == "squad" else self.protocol

    @field_validator("suites")
    @classmethod
    def _distinct(cls, suites: list[Suite]) -> list[Suite]:
        if len(set(suites)) < len(suites):
            raise ValueError("a suite stands there twice; name each once")
        return suites

    @field_validator("tasks")
    @classmethod
    def _known(cls, tasks: list[str] | None) -> list[str] | None:
        known = [name for suite in TASKS.values() for name in suite]
        for name in tasks or []:
            if name not in known:
                raise ValueError(f"no task is called {name!r}; there are {', '.join(known)}")
        return tasks

    @field_validator("gpus_per_unit")
    @classmethod
    def _whole_above_one(cls, gpus: float) -> float:
        if gpus > 1 and not gpus.is_integer():
            raise ValueError("a part of a GPU is less than 1; more than one are a whole number")
        return gpus

    @model_validator(mode="after")
    def _sources_of_suites(self) -> "EvaluationConfig":
        for suite, keys in SOURCES.items():
            given = [key for key in keys if getattr(self, key) is not None]
            if given and suite not in self.suites:
                raise ValueError(
                    f"{given[0]} says where {suite} is, and suites does not name it; add {suite} to suites"
                )
            if len(given) > 1:
                raise ValueError(f"{given[0]} and {given[1]} both say where {suite} is; keep one")
        return self


def too_long(config: EvaluationConfig, max_positions: int) -> str | None:
    """Which texts of the suites are cut at more tokens than a model has positions, None where they fit: the beginning
    of a sentence."""
    for suite in config.suites:
        longest = getattr(config.protocol_of(suite), "max_length", 0)
        if longest > max_positions:
            key = "squad_protocol" if suite == "squad" else "protocol"
            return f"evaluation.{key}.max_length {longest} is longer than the {max_positions} positions"
    return None
