"""What a suite's figures are: scores with intervals, differences, multipliers, and what stands beside them.

Records alone; `pipeline.scoring` computes them. A cell is an arm at a budget. Scores are fractions here (accuracy 0.61,
Matthews 0.12).
"""

from dataclasses import dataclass
from typing import Any

from pipeline.pareto import Point
from pipeline.statistics import Multiplier

WIDE = 12  # tasks, above which a suite is told by its mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """A task as it was evaluated. `majority` is dev accuracy of always answering the commonest class."""

    name: str
    metric: str
    in_mean: bool
    n_train: int
    n_dev: int
    majority: float
    subset: bool

    @property
    def floor(self) -> float:
        """What an answer without any knowledge scores: the correlation of a constant is 0."""
        return 0.0 if self.metric in ("matthews", "pearson", "spearman") else self.majority


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """An arm at a budget; counts are means over its pre-training seeds. `finetune_seeds`: the fewest and the most
    fine-tunings of one run on one task."""

    arm: str
    objective: str
    budget: float
    seeds: int
    finetune_seeds: tuple[int, int]
    finetunings: int
    degenerate: int
    steps: float
    tokens: float
    flops_counted: float
    flops_spent: float
    flops_paper: float | None  # under the convention of the ELECTRA paper; None where a run did not record it
    parameters: float  # trained, with a generator's
    device_hours: float  # of training (`pipeline.run_facts`)
    mean: Figure
    tasks: dict[str, Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Mean score of an arm minus the baseline's at the same budget, paired over what is drawn. `seeds`: of
    pre-training, the fewer of the two."""

    arm: str
    baseline: str
    budget: float
    seeds: int
    difference: Figure

    @property
    def resolved(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.difference.low > 0 or self.difference.high < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmMultiplier:
    """The compute multiplier of an arm against the baseline. `seeds`: of pre-training, the fewest of a cell."""

    arm: str
    baseline: str
    seeds: int
    multiplier: Multiplier


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A model that was not trained to the end here, evaluated beside the arms: a checkpoint on the way, whose `flops`
    were counted, or a published one, whose were `declared` by whoever evaluated it, or are not known (None). `mean` is
    None where a task that belongs to it is missing."""

    name: str
    flops: float | None
    declared: bool
    finetunings: int
    degenerate: int
    mean: Figure | None
    tasks: dict[str, Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One evaluation suite: its tasks, cells and comparisons. `scorers`: how sentences of minimal pairs were scored."""

    name: str
    arms: list[str]  # of the experiment, evaluated or not
    tasks: list[TaskFacts]
    cells: list[Cell]
    baseline: str | None
    differences: list[Difference]
    multipliers: list[ArmMultiplier]
    pareto: list[Point]  # one a cell, in the cells' order
    protocol: dict[str, Any]
    scorers: list[str]
    grouped: bool  # whether intervals draw documents, with all their examples, instead of examples
    published: list[Published]

    @property
    def wide(self) -> bool:
        """Whether it has too many tasks to be told of one by one."""
        return len(self.tasks) > WIDE

    @property
    def tuned(self) -> bool:
        """Whether its answers are those of networks that were fine-tuned."""
        return not self.name.startswith("blimp")

    @property
    def in_mean(self) -> list[TaskFacts]:
        """The tasks that the mean is over."""
        return [task for task in self.tasks if task.in_mean]

    @property
    def floor(self) -> float:
        """The mean score of answers without any knowledge."""
        return sum(task.floor for task in self.in_mean) / len(self.in_mean)
