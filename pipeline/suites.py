"""A suite's figures: scores with intervals, differences, multipliers, and what published models stand beside them.

Everything is computed from per-example answers, not from recorded means; a recorded score that its own answers do not
give is refused. A cell, an arm at a budget, has a mean only when every task of the suite's mean was evaluated for every
finished seed of it; a cell that lacks one is named and left out, never averaged over what happens to be there. Scores
are fractions here (accuracy 0.61, Matthews 0.12). Suites, and networks of another kind, are never averaged together.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_prep.errors import DataError
from pipeline import gather
from pipeline.gather import Contents, Run, fit_of
from pipeline.resampling import Estimate, Fit, resampled_scores
from pipeline.statistics import Multiplier, bootstrap, mean, multiplier_with_interval

Key = tuple[str, float]  # arm, budget
Result = dict[str, Any]
BASELINES = ("bert", "roberta", "mlm")  # objectives without a generator: what a detector is measured against
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
    protocol: dict[str, Any]
    scorers: list[str]
    grouped: bool  # whether intervals draw documents, with all their examples, instead of examples
    published: list[Published]

    @property
    def wide(self) -> bool:
        """Whether it has too many tasks to be told of one by one."""
        return len(self.tasks) > WIDE

    @property
    def in_mean(self) -> list[TaskFacts]:
        """The tasks that the mean is over."""
        return [task for task in self.tasks if task.in_mean]

    @property
    def floor(self) -> float:
        """The mean score of answers without any knowledge."""
        return sum(task.floor for task in self.in_mean) / len(self.in_mean)


def told(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Results by what is told of together, GLUE first: a suite, or, where none of its tasks is in a mean, each task by
    itself."""
    suites: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda one: (one["suite"] != "glue", one["suite"])):
        suites.setdefault(result["suite"], []).append(result)
    found: dict[str, list[Result]] = {}
    for suite, own in suites.items():
        if any(result["in_mean"] for result in own):
            found[suite] = own
            continue
        for result in own:
            found.setdefault(result["task"], []).append(result | {"in_mean": True})
    return found


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


def analyse_suite(contents: Contents, name: str, everything: Sequence[Result]) -> tuple[Suite | None, list[str]]:
    """What a suite's results come to (None, where no cell is complete), and a sentence for each run that is left out.
    DataError where answers and recorded scores disagree."""
    finished = {run.name for run in contents.finished}
    results = [result for result in everything if result["run"] in finished]
    if not results:
        return None, []
    own_runs = {run.name for run in contents.runs}
    published = [result for result in everything if result["run"] not in own_runs]
    tasks = _tasks([*results, *published])
    complete, missing = _complete(name, _meant(contents, name, results), results, [task.name for task in tasks])
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
        scorers=sorted({str(result["scorer"]) for result in results if result.get("scorer")}),
        grouped=any(fit.grouped for own in fits.values() for fit in own),
        published=_published(contents, published, [task.name for task in tasks if task.in_mean]),
    ), missing


def _published(contents: Contents, results: Sequence[Result], in_mean: Sequence[str]) -> list[Published]:
    by_model: dict[str, list[Result]] = {}
    for result in results:
        by_model.setdefault(result["run"], []).append(result)
    found = []
    for name, own in by_model.items():
        estimates = bootstrap({name: [_checked_fit(contents, result) for result in own]})[name]
        whole = all(task in estimates for task in in_mean)
        found.append(
            Published(
                name=name,
                flops=own[0]["flops_counted"],
                declared=bool(own[0].get("flops_declared")),
                finetunings=len(own),
                degenerate=sum(bool(result["degenerate"]) for result in own),
                mean=_figure(mean([estimates[task] for task in in_mean])) if whole else None,
                tasks={task: _figure(estimate) for task, estimate in estimates.items()},
            )
        )
    return found


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


def _meant(contents: Contents, name: str, results: Sequence[Result]) -> list[Run]:
    """The finished runs that the suite is of: of minimal pairs, those without the kind of network that it judges are
    not."""
    if not name.startswith("blimp"):
        return contents.finished
    judged = {result["run"] for result in contents.results if result["suite"].startswith("blimp")}
    here = {result["run"] for result in results}
    return [run for run in contents.finished if run.name in here or run.name not in judged]


def _complete(
    suite: str, runs: Sequence[Run], results: Sequence[dict[str, Any]], tasks: Sequence[str]
) -> tuple[set[str], list[str]]:
    """Runs of cells in which every seed has every task, and a sentence for each run that keeps a cell out."""
    sentences, incomplete = [], set()
    for run in runs:
        there = {result["task"] for result in results if result["run"] == run.name}
        if lacking := [task for task in tasks if task not in there]:
            incomplete.add((run.arm, run.budget))
            which = ", ".join(lacking) if len(lacking) <= WIDE else f"{len(lacking)} tasks"
            sentences.append(f"{run.name} was not evaluated on {which} ({suite}); it is left out there.")
    return {run.name for run in runs if (run.arm, run.budget) not in incomplete}, sentences


def _checked_fit(contents: Contents, result: dict[str, Any]) -> Fit:
    """The answers behind a result, after making sure that they give its score."""
    fit = fit_of(contents.out, result)
    found = resampled_scores([fit], 0, 0)[0].value
    # of null scores that are all alike, no threshold says which questions the official script's best one answers
    tied = result["suite"] == "squad" and result["degenerate"]
    if abs(found - result["score"]) > 1e-6 and not tied:
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
