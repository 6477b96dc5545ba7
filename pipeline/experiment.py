"""One experiment: a corpus, a model size, arms, budgets and seeds, evaluated one way.

`Experiment` is the whole configuration tree; its sections live beside what they configure. `runs` expands it to run
specifications. It knows no folder and starts nothing (`pipeline.folder`, `pipeline.stages`), and imports nothing heavy.
"""

from typing import Annotated, Any

from pydantic import Field, PositiveInt, field_validator, model_validator

from cluster.config import ClusterConfig
from data_prep.corpus import CorpusConfig
from data_prep.manifest import Manifest
from data_prep.settings import Settings
from data_prep.storage import Location
from training.protocol import EvaluationConfig
from training.settings import ArmConfig, ModelConfig, RunSpec, TrainingConfig, budget_name


class Experiment(Settings):
    """The experiment file. Every arm is trained at every budget with every seed, on the same rows in the same order."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    seed: Annotated[int, Field(ge=0)] = 0
    seeds: PositiveInt = 1  # pre-training repetitions: seed, seed + 1, ...
    corpus: CorpusConfig
    model: ModelConfig
    training: TrainingConfig
    arms: Annotated[list[ArmConfig], Field(min_length=1)]
    budgets: Annotated[list[Annotated[float, Field(gt=0, allow_inf_nan=False)]], Field(min_length=1)]  # model FLOPs
    cluster: ClusterConfig
    evaluation: EvaluationConfig

    @field_validator("budgets")
    @classmethod
    def _distinct_budgets(cls, budgets: list[float]) -> list[float]:
        names = [budget_name(budget) for budget in budgets]
        if budgets != sorted(budgets):
            raise ValueError("budgets must rise from the smallest to the largest")
        if len(set(names)) != len(names):
            raise ValueError(f"two budgets have the same three digits, which name a run: {', '.join(names)}")
        return budgets

    @field_validator("arms")
    @classmethod
    def _distinct_arms(cls, arms: list[Any]) -> list[Any]:
        labels = [arm.label for arm in arms]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"two arms are called '{label}'; give each its own name")
        return arms

    @model_validator(mode="after")
    def _rows_fit_positions(self) -> "Experiment":
        if self.corpus.seq_len > self.model.max_positions:
            raise ValueError(
                f"corpus.seq_len {self.corpus.seq_len} is longer than model.max_positions {self.model.max_positions}"
            )
        return self

    def runs(self, manifest: Manifest, corpus_dir: Location | None = None) -> list[RunSpec]:
        """Every arm × budget × seed as a run on the corpus `manifest` describes, smallest budgets first. With the
        corpus at hand, the steps of short runs are planned from the rows they will read."""
        from training.run import plan_run

        return [
            plan_run(
                arm=arm,
                model=self.model,
                training=self.training,
                manifest=manifest,
                budget=budget,
                seed=self.seed + repeat,
                corpus_dir=corpus_dir,
            )
            for budget in self.budgets
            for repeat in range(self.seeds)
            for arm in self.arms
        ]
