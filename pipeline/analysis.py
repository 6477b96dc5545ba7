"""The figures of the report: scores with intervals, differences, multipliers, matching, and what is missing.

Everything is computed from the records (`pipeline.gather`) and from the per-example answers, not from recorded means;
a recorded score that its own answers do not give is refused. Scores are fractions here (accuracy 0.61, Matthews 0.12).
A cell, an arm at a budget, has a mean only when every task of the suite's mean was evaluated for every finished seed of
it; a cell that lacks one is named in `missing` and left out, never averaged over what happens to be there.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_prep.errors import DataError
from pipeline import gather
from pipeline.gather import Contents, Run, fit_of
from pipeline.statistics import Estimate, Fit, Multiplier, bootstrap, mean, multiplier_with_interval, resampled_scores
from training.settings import run_name

Key = tuple[str, float]  # arm, budget
BASELINES = ("bert", "roberta", "mlm")  # objectives without a generator: what a detector is measured against


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
        """What an answer without any knowledge scores: Matthews' correlation of a constant is 0."""
        return 0.0 if self.metric == "matthews" else self.majority


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
    mean: Figure
    tasks: dict[str, Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Mean score of an arm minus the baseline's at the same budget, paired over what is drawn."""

    arm: str
    baseline: str
    budget: float
    difference: Figure

    @property
    def resolved(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.difference.low > 0 or self.difference.high < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmMultiplier:
    """The compute multiplier of an arm against the baseline."""

    arm: str
    baseline: str
    multiplier: Multiplier


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One evaluation suite: its tasks, cells and comparisons."""

    name: str
    arms: list[str]  # of the experiment, evaluated or not
    tasks: list[TaskFacts]
    cells: list[Cell]
    baseline: str | None
    differences: list[Difference]
    multipliers: list[ArmMultiplier]
    protocol: dict[str, Any]
    grouped: bool  # whether intervals draw documents, with all their examples, instead of examples

    @property
    def in_mean(self) -> list[TaskFacts]:
        """The tasks that the mean is over."""
        return [task for task in self.tasks if task.in_mean]

    @property
    def floor(self) -> float:
        """The mean score of answers without any knowledge."""
        return sum(task.floor for task in self.in_mean) / len(self.in_mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """How well counted FLOPs meet the budgets; of an experiment by steps, what its steps were planned to cost. The
    tolerance of a run is the larger of 1 % and one step."""

    worst_run: str
    worst_deviation: float  # share of the budget, with its sign
    tolerance: float  # of that run, share of the budget
    outside: dict[str, float]  # runs beyond their tolerance, with their deviation
    same_rows: bool  # one corpus and one global batch: then the order of rows is a function of the seed alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """All that the report says in numbers."""

    suites: list[Suite]
    matching: Matching
    missing: list[str]  # sentences


def analyse(contents: Contents) -> Analysis:
    """DataError when no run is finished, or when answers and recorded scores disagree."""
    if not contents.finished:
        raise DataError(f"{contents.out / 'runs'} holds no finished run to report on; run `electra train` first.")
    missing = _missing_runs(contents)
    suites = []
    for name in sorted({result["suite"] for result in contents.results}, key=lambda suite: (suite != "glue", suite)):
        suite, lacking = _suite(contents, name)
        missing += lacking
        if suite is not None:
            suites.append(suite)
    if not suites and not contents.results:
        missing.append("No checkpoint was evaluated yet: `electra evaluate` makes the scores.")
    by_steps = contents.config.get("steps") is not None
    return Analysis(suites=suites, matching=matching(contents.finished, by_steps=by_steps), missing=missing)


def matching(runs: Sequence[Run], *, by_steps: bool = False) -> Matching:
    """Compare every finished run's counted FLOPs with its budget, or with what its steps were planned to cost."""
    planned = {run.name: run.inherited + run.steps * run.flops_per_step if by_steps else run.budget for run in runs}
    deviations = {run.name: run.done["flops_counted"] / planned[run.name] - 1 for run in runs if run.done}
    tolerances = {run.name: max(0.01, run.flops_per_step / planned[run.name]) for run in runs}
    worst = max(deviations, key=lambda name: abs(deviations[name]))
    return Matching(
        worst_run=worst,
        worst_deviation=deviations[worst],
        tolerance=tolerances[worst],
        outside={name: deviation for name, deviation in deviations.items() if abs(deviation) > tolerances[name]},
        same_rows=len({(run.identity.get("manifest_sha256"), run.identity.get("global_batch")) for run in runs}) == 1,
    )


def choose_baseline(runs: Sequence[Run]) -> str | None:
    """What the others are compared with: the first arm whose objective is one of `BASELINES`, in their order, else the
    first arm; None with one arm."""
    arms = {run.arm: run.objective for run in runs}  # in the configuration's order
    if len(arms) < 2:
        return None
    for wanted in BASELINES:
        for arm, objective in arms.items():
            if objective == wanted:
                return arm
    return next(iter(arms))


def _missing_runs(contents: Contents) -> list[str]:
    """Runs the configuration asks for that are not finished."""
    config = contents.config
    seeds = [int(config.get("seed", 0)) + repeat for repeat in range(int(config.get("seeds", 1)))]
    there = {run.name: run for run in contents.runs}
    sentences = []
    for length, arm, seed in itertools.product(_lengths(config), gather.arm_labels(config), seeds):
        name = run_name(arm, seed, **length)
        run = there.get(name)
        if run is None:
            sentences.append(f"Run {name} was not started{_first_stage(contents, name)}.")
        elif run.done is None:
            sentences.append(f"Run {name} stopped after step {run.last_step:,} of {run.steps:,}.")
    return sentences


def _lengths(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What runs are named by: a number of steps, or each of the budgets."""
    if config.get("steps") is not None:
        return [{"steps": int(config["steps"])}]
    return [{"budget": float(budget)} for budget in config.get("budgets") or []]


def _first_stage(contents: Contents, name: str) -> str:
    """How far the first stage of a run is, where it has one."""
    for run in contents.first_stages:
        if run.part_of == name:
            return f" (its first stage is at step {run.last_step:,} of {run.steps:,})"
    return ""


# --- a suite ----------------------------------------------------------------------------------------------------------


def _suite(contents: Contents, name: str) -> tuple[Suite | None, list[str]]:
    finished = {run.name: run for run in contents.finished}
    results = [r for r in contents.results if r["suite"] == name and r["run"] in finished]
    if not results:
        return None, []
    tasks = _tasks(results)
    complete, missing = _complete(name, contents.finished, results, [task.name for task in tasks])
    runs: dict[Key, list[Run]] = {}
    for run in contents.finished:
        if run.name in complete:
            runs.setdefault((run.arm, run.budget), []).append(run)
    if not runs:
        return None, missing
    by_run: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        by_run.setdefault(result["run"], []).append(result)
    fits = {key: [_checked_fit(contents, r) for run in own for r in by_run[run.name]] for key, own in runs.items()}
    estimates = bootstrap(fits)
    means = {key: mean([found[task.name] for task in tasks if task.in_mean]) for key, found in estimates.items()}
    cells = [
        _cell(own, [r for run in own for r in by_run[run.name]], means[key], estimates[key])
        for key, own in runs.items()
    ]
    baseline = choose_baseline([run for own in runs.values() for run in own])
    return Suite(
        name=name,
        arms=contents.arms,
        tasks=tasks,
        cells=cells,
        baseline=baseline,
        differences=_differences(means, baseline),
        multipliers=_multipliers(cells, means, baseline),
        protocol=results[0]["protocol"],
        grouped=any(fit.grouped for own in fits.values() for fit in own),
    ), missing


def _tasks(results: Sequence[dict[str, Any]]) -> list[TaskFacts]:
    """Facts of each task, tasks of the mean first; results of one task agree on them."""
    facts: dict[str, TaskFacts] = {}
    for result in results:
        names = ("metric", "in_mean", "n_train", "n_dev", "majority", "subset")
        found = TaskFacts(name=result["task"], **{name: result[name] for name in names})
        if facts.setdefault(found.name, found) != found:
            raise DataError(
                f"evaluation/results.jsonl: {result['run']} was evaluated on another {found.name} than the others "
                "were; run `electra evaluate` again."
            )
    return sorted(facts.values(), key=lambda task: not task.in_mean)


def _complete(
    suite: str, runs: Sequence[Run], results: Sequence[dict[str, Any]], tasks: Sequence[str]
) -> tuple[set[str], list[str]]:
    """Runs of cells in which every seed has every task, and a sentence for each run that keeps a cell out."""
    sentences, incomplete = [], set()
    for run in runs:
        there = {result["task"] for result in results if result["run"] == run.name}
        if lacking := [task for task in tasks if task not in there]:
            incomplete.add((run.arm, run.budget))
            sentences.append(f"{run.name} was not evaluated on {', '.join(lacking)} ({suite}); it is left out there.")
    return {run.name for run in runs if (run.arm, run.budget) not in incomplete}, sentences


def _checked_fit(contents: Contents, result: dict[str, Any]) -> Fit:
    """The answers behind a result, after making sure that they give its score."""
    fit = fit_of(contents.out, result)
    found = resampled_scores([fit], 0, 0)[0].value
    if abs(found - result["score"]) > 1e-6:
        raise DataError(
            f"{result['predictions']} gives {result['task']} {found:.4f} where results.jsonl says "
            f"{result['score']:.4f}; delete {gather.record_of(contents.out, result)} and run `electra evaluate` again."
        )
    return fit


def _cell(
    runs: Sequence[Run], results: Sequence[dict[str, Any]], cell_mean: Estimate, estimates: Mapping[str, Estimate]
) -> Cell:
    done = [run.done for run in runs if run.done is not None]
    tuned = Counter((result["run"], result["task"]) for result in results)

    def average(name: str) -> float:
        return float(sum(one[name] for one in done) / len(done))

    return Cell(
        arm=runs[0].arm,
        objective=runs[0].objective,
        budget=runs[0].budget,
        seeds=len(runs),
        finetune_seeds=(min(tuned.values()), max(tuned.values())),
        finetunings=len(results),
        degenerate=sum(bool(result["degenerate"]) for result in results),
        steps=average("step"),
        tokens=average("tokens"),
        flops_counted=average("flops_counted"),
        flops_spent=average("flops_spent"),
        mean=_figure(cell_mean),
        tasks={task: _figure(estimate) for task, estimate in estimates.items()},
    )


def _figure(estimate: Estimate) -> Figure:
    low, high = estimate.interval()
    return Figure(value=estimate.value, low=low, high=high)


def _differences(means: Mapping[Key, Estimate], baseline: str | None) -> list[Difference]:
    return [
        Difference(arm=arm, baseline=baseline, budget=budget, difference=_figure(estimate - means[(baseline, budget)]))
        for (arm, budget), estimate in means.items()
        if baseline is not None and arm != baseline and (baseline, budget) in means
    ]


def _multipliers(cells: Sequence[Cell], means: Mapping[Key, Estimate], baseline: str | None) -> list[ArmMultiplier]:
    curves: dict[str, list[Cell]] = {}
    for cell in cells:  # in the order of budgets
        curves.setdefault(cell.arm, []).append(cell)
    if baseline is None or baseline not in curves:
        return []

    def curve(arm: str) -> tuple[list[float], list[Estimate]]:
        own = curves[arm]
        return [cell.flops_counted for cell in own], [means[(arm, cell.budget)] for cell in own]

    return [
        ArmMultiplier(arm=arm, baseline=baseline, multiplier=multiplier_with_interval(*curve(baseline), *curve(arm)))
        for arm in curves
        if arm != baseline
    ]
