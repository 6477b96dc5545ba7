"""What a learning-rate sweep is told (`sweep:` of an experiment file), and what keeps it from serving an experiment.

Light, because the command line reads it before anything heavy is imported; what a sweep does is `pipeline.sweep`.
"""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from data_prep.settings import Settings
from training.settings import budget_name

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

LOSS = "heldout_loss"

Rate = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class SweepConfig(Settings):
    """How learning rates are chosen: the same number of tries for every arm, or the reason why not."""

    rates: dict[str, Annotated[list[Rate], Field(min_length=1)]]  # by arm, from the lowest to the highest
    unequal: Annotated[str, Field(min_length=1)] | None = None  # why arms have different numbers of rates
    budgets: Annotated[list[float], Field(min_length=1)] | None = None  # of the experiment's; None: the smallest
    seeds: PositiveInt = 1
    choose_by: Literal["heldout_loss", "glue", "blimp", "squad", "probes"] = "heldout_loss"

    @model_validator(mode="after")
    def _grids_are_alike(self) -> "SweepConfig":
        for arm, rates in self.rates.items():
            if rates != sorted(rates) or len(set(map(rate_name, rates))) < len(rates):
                raise ValueError(f"the rates of {arm!r} must rise, and differ in their first three digits")
        if len({len(rates) for rates in self.rates.values()}) > 1 and self.unequal is None:
            raise ValueError(
                "arms have different numbers of rates; give each as many, or say under unequal why they differ"
            )
        return self


def rate_name(rate: float) -> str:
    """Three digits at most, in what an arm's name may hold: `5e-4`, `2_5e-4`."""
    digits, exponent = f"{rate:.2e}".split("e")
    return f"{digits.rstrip('0').rstrip('.').replace('.', '_')}e{int(exponent)}"


def refusal(experiment: "Experiment") -> str | None:
    """What keeps the sweep from choosing for this experiment, in a sentence; None where nothing does."""
    sweep = experiment.sweep
    if sweep is None:
        return None
    labels = [arm.label for arm in experiment.arms]
    if wrong := sorted(set(labels) ^ set(sweep.rates)):
        return f"sweep.rates needs a list for every arm and for nothing else; look at {', '.join(wrong)}"
    if experiment.budgets is None:
        return "sweep is for budgets; give budgets, or leave it out"
    known = [budget_name(budget) for budget in experiment.budgets]
    if strange := [f"{budget:g}" for budget in sweep.budgets or [] if budget_name(budget) not in known]:
        return f"sweep.budgets has {strange[0]}, which is none of budgets; choose among {', '.join(known)}"
    if sweep.choose_by not in (LOSS, *experiment.evaluation.suites):
        return f"sweep.choose_by is {sweep.choose_by}, which evaluation.suites does not name; add it there"
    return None
