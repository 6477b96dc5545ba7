"""The figures of the report: what its suites come to (`pipeline.suites`), matching, and what is missing.

Everything is computed from the records (`pipeline.gather`) and from the per-example answers.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_prep.errors import DataError
from pipeline import gather
from pipeline.deviations import Deviation, deviations
from pipeline.gather import Contents, Run
from pipeline.matching import Finding, check
from pipeline.scoring import analyse_suite, told
from pipeline.suites import Suite
from training.settings import run_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """How well counted FLOPs meet the budgets; of an experiment by steps, what its steps were planned to cost. The
    tolerance of a run is the larger of 1 % and one step."""

    worst_run: str
    worst_deviation: float  # share of the budget, with its sign
    tolerance: float  # of that run, share of the budget
    outside: dict[str, float]  # runs beyond their tolerance, with their deviation
    same_rows: bool  # one global batch, and the corpus that is said: then the order of rows follows from the seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """All that the report says in numbers."""

    suites: list[Suite]
    matching: Matching
    missing: list[str]  # sentences
    findings: list[Finding]  # of whether the arms are matched; none of an experiment by steps, which compares none
    deviations: list[Deviation]


def analyse(contents: Contents) -> Analysis:
    """DataError when no run is finished, or when answers and recorded scores disagree."""
    if not contents.finished:
        raise DataError(f"{contents.out / 'runs'} holds no finished run to report on; run `electra train` first.")
    missing = _missing_runs(contents)
    suites = []
    for name, results in told(contents.results).items():
        suite, lacking = analyse_suite(contents, name, results)
        missing += lacking
        if suite is not None:
            suites.append(suite)
    if not suites and not contents.results:
        missing.append("No checkpoint was evaluated yet: `electra evaluate` makes the scores.")
    by_steps = contents.config.get("steps") is not None
    findings = [] if by_steps else check(contents)
    corpora = {run.name: contents.corpus_of(run) for run in contents.finished}
    return Analysis(
        suites=suites,
        matching=matching(contents.finished, corpora, by_steps=by_steps),
        missing=missing,
        findings=findings,
        deviations=deviations(contents, suites, findings),
    )


def matching(runs: Sequence[Run], corpora: Mapping[str, str], *, by_steps: bool = False) -> Matching:
    """Compare every finished run's counted FLOPs with its budget, or with what its steps were planned to cost.
    `corpora`: the name of what each reads, by run."""
    streams = {(corpora[run.name], run.identity.get("manifest_sha256")) for run in runs}
    batches = {run.identity.get("global_batch") for run in runs}
    planned = {run.name: run.inherited + run.steps * run.flops_per_step if by_steps else run.budget for run in runs}
    deviations = {run.name: run.done["flops_counted"] / planned[run.name] - 1 for run in runs if run.done}
    tolerances = {run.name: max(0.01, run.flops_per_step / planned[run.name]) for run in runs}
    worst = max(deviations, key=lambda name: abs(deviations[name]))
    return Matching(
        worst_run=worst,
        worst_deviation=deviations[worst],
        tolerance=tolerances[worst],
        outside={name: deviation for name, deviation in deviations.items() if abs(deviation) > tolerances[name]},
        same_rows=len(streams) == len({name for name, _ in streams}) and len(batches) == 1,
    )


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
