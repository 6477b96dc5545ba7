"""The figures of a suite, from its results and their answers.

Everything is computed from per-example answers, not from recorded means; a recorded score that its own answers do not
give is refused. A cell, an arm at a budget, has a mean only when every task of the suite's mean was evaluated for every
finished seed of it; a cell that lacks one is named and left out, never averaged over what happens to be there. Suites,
and networks of another kind, are never averaged together.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from data_prep.errors import DataError
from pipeline import gather, pareto, run_facts
from pipeline.gather import Contents, Run, fit_of
from pipeline.resampling import Estimate, Fit, resampled_scores
from pipeline.statistics import bootstrap, mean, multiplier_with_interval
from pipeline.suites import WIDE, ArmMultiplier, Cell, Difference, Figure, Published, Suite, TaskFacts


class DisagreementError(DataError):
    """A recorded score that its own answers do not give."""


Key = tuple[str, float]  # arm, budget
Result = dict[str, Any]
BASELINES = ("bert", "roberta", "mlm")  # objectives without a generator: what a detector is measured against


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
    estimates = bootstrap(fits, pool=str if _branched(contents) else _arm)
    means = {key: mean([found[task.name] for task in tasks if task.in_mean]) for key, found in estimates.items()}
    cells = [
        _cell(contents, own, [r for run in own for r in by_run[run.name]], means[key], estimates[key])
        for key, own in runs.items()
    ]
    baseline = choose_baseline([run for own in runs.values() for run in own])
    return Suite(
        name=name,
        arms=contents.arms,
        tasks=tasks,
        cells=cells,
        baseline=baseline,
        differences=_differences(cells, means, baseline),
        multipliers=_multipliers(cells, means, baseline),
        pareto=_pareto(cells, means),
        protocol=results[0]["protocol"],
        scorers=sorted({str(result["scorer"]) for result in results if result.get("scorer")}),
        grouped=any(fit.grouped for own in fits.values() for fit in own),
        published=_published(contents, published, [task.name for task in tasks if task.in_mean]),
    ), missing


def _arm(key: Key) -> str:
    """The seeds of an arm are taken to vary alike at all of its budgets."""
    return key[0]


def _branched(contents: Contents) -> bool:
    """Whether budgets share trunks: then a seed's luck is much the same at all of them, and they are no further sample
    of how seeds differ."""
    return any(((run.done or {}).get("shared") or {}).get("run") for run in contents.finished)


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
    if abs(found - result["score"]) > 1e-6:
        raise DisagreementError(
            f"{result['predictions']} gives {result['task']} {found:.4f} where results.jsonl says "
            f"{result['score']:.4f}; delete {gather.record_of(contents.out, result)} and run `electra evaluate` again."
        )
    return fit


def _cell(
    contents: Contents,
    runs: Sequence[Run],
    results: Sequence[dict[str, Any]],
    cell_mean: Estimate,
    estimates: Mapping[str, Estimate],
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
        flops_paper=average("flops_paper") if all("flops_paper" in one for one in done) else None,
        parameters=average("parameters"),
        device_hours=sum(run_facts.device_hours(run, contents) for run in runs) / len(runs),
        mean=_figure(cell_mean),
        tasks={task: _figure(estimate) for task, estimate in estimates.items()},
    )


def _figure(estimate: Estimate) -> Figure:
    low, high = estimate.interval()
    return Figure(value=estimate.value, low=low, high=high)


def _differences(cells: Sequence[Cell], means: Mapping[Key, Estimate], baseline: str | None) -> list[Difference]:
    seeds = {(cell.arm, cell.budget): cell.seeds for cell in cells}
    return [
        Difference(
            arm=arm,
            baseline=baseline,
            budget=budget,
            seeds=min(seeds[(arm, budget)], seeds[(baseline, budget)]),
            difference=_figure(estimate - means[(baseline, budget)]),
        )
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
        ArmMultiplier(
            arm=arm,
            baseline=baseline,
            seeds=min(cell.seeds for cell in [*curves[arm], *curves[baseline]]),
            multiplier=multiplier_with_interval(*curve(baseline), *curve(arm)),
        )
        for arm in curves
        if arm != baseline
    ]


def _pareto(cells: Sequence[Cell], means: Mapping[Key, Estimate]) -> list[pareto.Point]:
    """By budget, not by counted FLOPs: what those differ by within a budget is no difference in compute."""
    return pareto.points(
        [cell.arm for cell in cells],
        [cell.budget for cell in cells],
        [cell.parameters for cell in cells],
        [means[(cell.arm, cell.budget)] for cell in cells],
    )
