"""One experiment: a corpus, a model size, arms, budgets (or a number of steps) and seeds, evaluated one way.

`Experiment` is the whole configuration tree; its sections live beside what they configure. `runs` expands it to run
specifications. It knows no folder and starts nothing (`pipeline.folder`, `pipeline.place`), and imports nothing heavy.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt, field_validator, model_validator
from pydantic_core import PydanticCustomError

from cluster.config import ClusterConfig
from data_prep.corpus import CorpusConfig
from data_prep.settings import Settings
from pipeline import corpora, sweep_config
from pipeline.corpora import MAIN, Reading, Readings, Variant
from training.arms import ArmConfig, ElectraTwoStageArm, why_no_trunk
from training.protocol import EvaluationConfig
from training.settings import RunSpec, TrainingConfig, budget_name
from training.sizes import ModelConfig

Budgets = Annotated[list[Annotated[float, Field(gt=0, allow_inf_nan=False)]], Field(min_length=1)]

CorpusName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]


class Experiment(Settings):
    """The experiment file. Every arm is trained at every budget with every seed, on the same rows in the same order; an
    arm that `corpora` names, on the same documents through another tokenizer or in another layout.

    A comparison says `budgets`, and an arm has as many steps as each pays for. The recipe of a paper says `steps`, and
    is one arm: two would have as many budgets, at which nothing is to be compared.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    seed: Annotated[int, Field(ge=0)] = 0
    seeds: PositiveInt = 1  # pre-training repetitions: seed, seed + 1, ...
    corpus: CorpusConfig
    corpora: dict[CorpusName, Variant] = Field(default_factory=dict)
    model: ModelConfig
    training: TrainingConfig
    arms: Annotated[list[ArmConfig], Field(min_length=1)]
    budgets: Budgets | None = None  # model FLOPs
    steps: PositiveInt | None = None
    sweep: sweep_config.SweepConfig | None = None  # chooses the learning rate of every arm, in place of the arm's own
    cluster: ClusterConfig
    evaluation: EvaluationConfig

    @field_validator("budgets")
    @classmethod
    def _distinct_budgets(cls, budgets: list[float] | None) -> list[float] | None:
        if budgets is None:
            return None
        names = [budget_name(budget) for budget in budgets]
        if budgets != sorted(budgets):
            raise ValueError("budgets must rise from the smallest to the largest")
        if len(set(names)) != len(names):
            raise ValueError(f"two budgets have the same three digits, which name a run: {', '.join(names)}")
        return budgets

    @field_validator("arms")
    @classmethod
    def _distinct_arms(cls, arms: list[Any]) -> list[Any]:
        firsts = [arm.first_stage().label for arm in arms if isinstance(arm, ElectraTwoStageArm)]
        labels = [*(arm.label for arm in arms), *firsts]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"two arms are called '{label}'; give each its own name")
        return arms

    @model_validator(mode="after")
    def _budgets_or_steps(self) -> "Experiment":
        if (self.budgets is None) == (self.steps is None):
            raise ValueError("set either budgets (a list, in model FLOPs) or steps (one number), and not both")
        if self.steps is not None and len(self.arms) > 1:
            raise PydanticCustomError("steps", "is for one arm; give budgets to compare arms", {"key": "steps"})
        return self

    @model_validator(mode="after")
    def _rows_fit_positions(self) -> "Experiment":
        if self.corpus.seq_len > self.model.max_positions:
            raise ValueError(
                f"corpus.seq_len {self.corpus.seq_len} is longer than model.max_positions {self.model.max_positions}"
            )
        return self

    @model_validator(mode="after")
    def _arms_have_a_corpus(self) -> "Experiment":
        if refused := corpora.refusal(self.corpus, self.corpora, [arm.label for arm in self.arms]):
            raise ValueError(refused)
        return self

    @model_validator(mode="after")
    def _arms_have_trunks(self) -> "Experiment":
        if not self.training.schedule.branches:
            return self
        if self.steps is not None:
            raise ValueError("training.schedule.branches is for budgets; give budgets, or set it to false")
        for refused in filter(None, map(why_no_trunk, self.arms)):
            raise ValueError(refused)
        return self

    @model_validator(mode="after")
    def _sweep_serves(self) -> "Experiment":
        if refused := sweep_config.refusal(self):
            raise ValueError(refused)
        return self

    def with_rates(self, rates: Mapping[str, float]) -> "Experiment":
        """The same with these learning rates, by arm."""
        arms = [arm.model_copy(update={"learning_rate": rates[arm.label]}) for arm in self.arms]
        return self.model_copy(update={"arms": arms})

    def corpus_configs(self) -> dict[str, CorpusConfig]:
        """Every corpus by its name, `corpus` itself first."""
        return {MAIN: self.corpus} | {name: variant.of(self.corpus) for name, variant in self.corpora.items()}

    def corpus_of(self, arm: str) -> str:
        """The name of the corpus that an arm reads."""
        return next((name for name, variant in self.corpora.items() if arm in variant.arms), MAIN)

    def corpus_by_run(self, runs: Sequence[RunSpec]) -> dict[str, str]:
        """The names of the corpora that planned runs read, by run; a first stage reads that of its second."""
        arms = {run.name: run.identity.arm.label for run in runs}
        return {run.name: self.corpus_of(arms[run.part_of or run.name]) for run in runs}

    def runs(self, readings: Readings, runs_dir: Path | None = None) -> list[RunSpec]:
        """Every arm × budget × seed as a run on the corpus that its arm reads, smallest budgets first (an arm in two
        stages as two runs). With the rows of a corpus at hand, short runs are planned from those they will read; with
        the folder of runs at hand, what a run began with need not be there any more. Where budgets are decay branches,
        the largest, their trunks, come first."""
        from training.run import plan_runs

        if self.training.schedule.branches:
            return self._branches(readings)
        budgets: Sequence[float | None] = self.budgets or [None]
        return [
            run
            for budget in budgets
            for repeat in range(self.seeds)
            for arm in self.arms
            for run in plan_runs(
                arm=arm,
                model=self.model,
                training=self.training,
                manifest=self._reading(arm, readings).manifest,
                seed=self.seed + repeat,
                budget=budget,
                steps=self.steps,
                corpus_dir=self._reading(arm, readings).place,
                runs_dir=runs_dir,
            )
        ]

    def _reading(self, arm: ArmConfig, readings: Readings) -> Reading:
        return readings[self.corpus_of(arm.label)]

    def _branches(self, readings: Readings) -> list[RunSpec]:
        from training.branches import plan_branches

        trees = [
            plan_branches(
                arm=arm,
                model=self.model,
                training=self.training,
                manifest=self._reading(arm, readings).manifest,
                seed=self.seed + repeat,
                budgets=self.budgets or [],
                corpus_dir=self._reading(arm, readings).place,
            )
            for repeat in range(self.seeds)
            for arm in self.arms
        ]
        return [run for runs in zip(*trees, strict=True) for run in runs]
