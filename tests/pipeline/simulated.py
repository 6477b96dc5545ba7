"""Simulated experiments whose truth is known: two arms, one of which needs a quarter of the other's FLOPs.

Scores, spreads and sizes are those of small models on GLUE: .05 a factor of ten in FLOPs (ELECTRA-Small gains .058 over
a factor of 16, Clark et al. 2020, Table 1), .006 between pre-training seeds in the mean over tasks (richarddwang's 14
seeds: .0057), four tasks of 1,000 examples. Which examples a model gets right is partly the same for all models.
"""

from collections.abc import Callable

import numpy as np

from pipeline.resampling import Fit
from pipeline.statistics import Multiplier, bootstrap, mean, multiplier_with_interval

PLANTED = 4.0
BUDGETS = (1e17, 10**17.5, 1e18)
TASKS, EXAMPLES, FINETUNINGS = 4, 1000, 2
SLOPE = 0.05  # a factor of ten
OF_ALL_TASKS, OF_A_TASK, OF_A_FINETUNING = 0.004, 0.009, 0.007  # √(.004² + (.009² + .007²/2)/4) = .0063 of the mean
SHARED = 0.7  # of the examples' difficulty

Curve = Callable[[float], float]


def straight(flops: float) -> float:
    """Linear in log FLOPs."""
    return 0.75 + SLOPE * np.log10(flops / 1e18)


def saturating(flops: float) -> float:
    """Towards .8, with the same slope at 3e17."""
    return 0.8 - 0.0724 * (flops / 10**17.5) ** -0.3


CURVES = (straight, saturating)


def experiment(seeds: int, curve: Curve, generator: np.random.Generator) -> dict[tuple[str, float], list[Fit]]:
    """The answers of one experiment, by cell."""
    difficulty_TE = generator.random((TASKS, EXAMPLES))
    cells: dict[tuple[str, float], list[Fit]] = {}
    for arm, ahead in (("baseline", 1.0), ("other", PLANTED)):
        for budget in BUDGETS:
            ability = curve(ahead * budget)
            own = [_run(ability, seed, difficulty_TE, generator) for seed in range(seeds)]
            cells[(arm, budget)] = [fit for fits in own for fit in fits]
    return cells


def _run(ability: float, seed: int, difficulty_TE: np.ndarray, generator: np.random.Generator) -> list[Fit]:
    luck = generator.normal(0, OF_ALL_TASKS)
    fits = []
    for task in range(TASKS):
        of_task = ability + luck + generator.normal(0, OF_A_TASK)
        for number in range(FINETUNINGS):
            share = of_task + generator.normal(0, OF_A_FINETUNING)
            own = generator.random(EXAMPLES) < 1 - SHARED
            hard_E = np.where(own, generator.random(EXAMPLES), difficulty_TE[task])
            answers_E = (hard_E < share).astype(np.float64)
            # the labels keep the draws of the tasks apart: different data
            labels_E = np.full(EXAMPLES, float(task))
            fits.append(
                Fit(task=f"task-{task}", metric="mean", seed=seed, finetune_seed=number, label=labels_E,
                    prediction=answers_E)
            )  # fmt: skip
    return fits


def covered(low: float | None, high: float | None, truth: float) -> bool:
    """An open end covers everything on its side."""
    return (low is None or low <= truth) and (high is None or truth <= high)


def judge(seeds: int, curve: Curve, generator: np.random.Generator, replicates: int) -> dict[str, float]:
    """Of one experiment: whether the intervals of a score, of a difference and of the multiplier hold the truth, and
    whether the multiplier's is closed."""
    found = bootstrap(experiment(seeds, curve, generator), pool=lambda cell: cell[0], replicates=replicates)
    means = {cell: mean(list(tasks.values())) for cell, tasks in found.items()}
    largest = BUDGETS[-1]
    one = means[("baseline", largest)]
    apart = means[("other", largest)] - one
    multiplier: Multiplier = multiplier_with_interval(
        BUDGETS,
        [means[("baseline", budget)] for budget in BUDGETS],
        BUDGETS,
        [means[("other", budget)] for budget in BUDGETS],
    )
    return {
        "score": covered(*one.interval(), curve(largest)),
        "difference": covered(*apart.interval(), curve(PLANTED * largest) - curve(largest)),
        "multiplier": covered(multiplier.low, multiplier.high, PLANTED),
        "closed": multiplier.low is not None and multiplier.high is not None,
    }


def coverage(seeds: int, experiments: int, curve: Curve = straight, replicates: int = 1000) -> dict[str, float]:
    """The shares over so many experiments."""
    generator = np.random.default_rng([seeds, experiments, CURVES.index(curve)])
    judged = [judge(seeds, curve, generator, replicates) for _ in range(experiments)]
    return {kind: sum(one[kind] for one in judged) / experiments for kind in judged[0]}
