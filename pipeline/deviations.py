"""What an experiment did otherwise than the protocol of an honest comparison asks, each stated in a sentence.

The protocol is DESIGN §6 and §10: one corpus in one order, counted FLOPs that meet the budget, a schedule of its own
for every budget, a sweep of equal size for every arm, several seeds of pre-training and of fine-tuning, one protocol of
fine-tuning, whole evaluation sets that are not in the corpus. Nothing here is a mistake: at a small budget much of it
cannot be had. From the records alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.gather import Contents
from pipeline.matching import Finding, Kind
from pipeline.suites import Suite
from pipeline.sweep_config import LOSS
from pipeline.swept import choice
from pipeline.wording import arm_name, flops_text, names, suite_name

PRETRAINING_SEEDS = 3  # fewer say little of how another seed would have come out
FINETUNING_SEEDS = 5
GLUE_TASKS = 8
SUBJECTS: dict[Kind, str] = {
    "rows": "rows",
    "budget": "budgets",
    "generator": "FLOPs of generators",
    "schedule": "schedules",
    "sweep": "learning rates",
    "settings": "settings",
    "evaluation": "evaluation",
    "difference": "differences of the arms",
    "rate": "learning rates",
    "unfinished": "unfinished runs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """What of the protocol it concerns, and how this experiment differs."""

    subject: str
    sentence: str


def deviations(contents: Contents, suites: Sequence[Suite], findings: Sequence[Finding]) -> list[Deviation]:
    """What is not matched first, then in the protocol's order; empty where there is none."""
    return [
        *(Deviation(subject=SUBJECTS[one.kind], sentence=one.sentence) for one in findings if not one.ok),
        *_corpus(contents),
        *_schedules(contents),
        *_learning_rates(contents),
        *(Deviation(subject="learning rates", sentence=one.sentence) for one in findings if one.kind == "rate"),
        *_seeds(suites),
        *_evaluation(suites),
    ]


def _corpus(contents: Contents) -> list[Deviation]:
    corpus: dict[str, Any] = contents.config.get("corpus") or {}
    if corpus.get("decontamination"):
        return []
    sentence = (
        "The corpus was not searched for the evaluation sets (corpus.decontamination); text that is in both "
        "helps every arm, and perhaps not alike."
    )
    return [Deviation(subject="corpus", sentence=sentence)]


def _schedules(contents: Contents) -> list[Deviation]:
    branches = [run for run in contents.finished if run.done and run.done.get("shared", {}).get("run")]
    if not branches:
        return []
    sentence = (
        f"{len(branches)} of {len(contents.finished)} runs are decay branches off the run of the largest budget of "
        "their arm and seed (training.schedule.branches), with the warm-up of the smallest: they share its trunk, so "
        "the points of a curve are not independent of one another, and how seeds differ is judged at each budget by "
        "itself."
    )
    return [Deviation(subject="schedules", sentence=sentence)]


def _learning_rates(contents: Contents) -> list[Deviation]:
    sweep: dict[str, Any] | None = contents.config.get("sweep")
    if len(contents.arms) < 2:
        return []
    found = choice(contents)
    told = []
    if sweep is None or found is None:
        told.append(
            "Learning rates are those of the configuration. None was searched for, so one arm may be nearer its best "
            "than another."
        )
    elif sweep.get("unequal"):
        told.append(f"The arms' sweeps are of unequal size: {str(sweep['unequal']).rstrip('.')}.")
    if found is not None and found.choose_by != LOSS:
        told.append(
            f"Rates were chosen by {found.choose_by} scores on the evaluation sets that scores are reported on, in "
            "runs of other seeds: scores are a little too good for it."
        )
    if found is not None and len(found.budgets) < len(contents.config.get("budgets") or []):
        where = names([flops_text(budget) for budget in found.budgets])
        told.append(
            f"Rates were chosen at {where} model FLOPs alone and are used at every budget: at another "
            "one another rate may be best."
        )
    return [Deviation(subject="learning rates", sentence=sentence) for sentence in told]


def _seeds(suites: Sequence[Suite]) -> list[Deviation]:
    cells = [cell for suite in suites for cell in suite.cells]
    found = []
    fewest = min((cell.seeds for cell in cells), default=PRETRAINING_SEEDS)
    if fewest < PRETRAINING_SEEDS:
        sentence = (
            f"{_number(fewest)} pre-training seed{'s' * (fewest > 1)} an arm and budget, where the protocol asks "
            f"for at least {PRETRAINING_SEEDS}."
        )
        found.append(Deviation(subject="seeds", sentence=sentence))
    tuned = [min(cell.finetune_seeds) for suite in suites if suite.tuned for cell in suite.cells]
    if (least := min(tuned, default=FINETUNING_SEEDS)) < FINETUNING_SEEDS:
        sentence = (
            f"{_number(least)} fine-tuning{'s' * (least > 1)} of a run on a task, where the protocol asks for at least "
            f"{FINETUNING_SEEDS}."
        )
        found.append(Deviation(subject="seeds", sentence=sentence))
    return found


def _evaluation(suites: Sequence[Suite]) -> list[Deviation]:
    found = []
    for suite in suites:
        name = suite_name(suite)
        if cut := [task.name for task in suite.tasks if task.subset]:
            which = "all tasks" if len(cut) == len(suite.tasks) else names(cut)
            found.append(Deviation(subject=name, sentence=f"Of {which} a declared subset of the data was used."))
        if suite.name == "glue" and len(suite.in_mean) < GLUE_TASKS:
            sentence = f"The mean is over {len(suite.in_mean)} of the paper's {GLUE_TASKS} tasks."
            found.append(Deviation(subject=name, sentence=sentence))
        if suite.name in ("glue", "squad") and suite.protocol.get("name") != "electra_paper":
            sentence = (
                f"Fine-tuning follows the protocol {suite.protocol.get('name')!s}, not the paper's (electra_paper): no "
                "score is to be laid beside a published one."
            )
            found.append(Deviation(subject=name, sentence=sentence))
        degenerate = sorted({arm_name(cell.arm) for cell in suite.cells if cell.degenerate})
        if suite.tuned and degenerate:
            sentence = f"Degenerate fine-tunings of {names(degenerate)} are in the means; none was repeated or dropped."
            found.append(Deviation(subject=name, sentence=sentence))
    return found


def _number(count: int) -> str:
    return {1: "One", 2: "Two", 3: "Three", 4: "Four"}.get(count, str(count))
