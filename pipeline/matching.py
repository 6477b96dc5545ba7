"""Whether the arms of an experiment are matched: the rules of an honest comparison, each held to what is on record.

`check` looks at every run that has begun, as it was planned and, where it is finished, as it was counted. So the same
rules serve before anything is trained (`pipeline.experiment_check` hands over runs as they are planned), in the middle,
and for the report. A finding that does not hold breaks the comparison; `NOTES` are differences that a comparison of
objectives cannot avoid, or that a reader must know of.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data_prep import storage
from data_prep.errors import DataError
from pipeline import matching_rules as rules
from pipeline import matching_streams as streams
from pipeline import rows_read, sweep
from pipeline.gather import Contents
from pipeline.wording import arm_name, names

Kind = Literal[
    "rows", "budget", "generator", "schedule", "sweep", "settings", "evaluation", "difference", "rate", "unfinished"
]
NOTES: tuple[Kind, ...] = ("difference", "rate", "unfinished")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule came to. Of a note `ok` is always true."""

    kind: Kind
    ok: bool
    sentence: str


def check(contents: Contents) -> list[Finding]:
    """Every rule, those of one kind together; nothing of an experiment without a run."""
    if not contents.runs:
        return []
    return [
        *_rows(contents),
        *_of("budget", rules.outside_budget(contents.runs), rules.budget_kept(contents.runs)),
        *_of("generator", rules.without_generator(contents), rules.generator_counted(contents)),
        *_of("schedule", rules.cut_schedules(contents), rules.schedules_whole(contents)),
        *_sweep(contents),
        *_of("settings", rules.unlike_settings(contents), rules.settings_alike(contents.runs)),
        *_of("evaluation", rules.unlike_evaluation(contents), rules.evaluation_alike(contents)),
        *_differences(contents),
        *_unfinished(contents),
    ]


def _of(kind: Kind, broken: Sequence[str], kept: str | None) -> Iterator[Finding]:
    """A finding for each breach; without one, what was kept, where there was anything to keep."""
    for sentence in broken:
        yield Finding(kind, False, sentence)
    if not broken and kept is not None:
        yield Finding(kind, True, kept)


def _rows(contents: Contents) -> Iterator[Finding]:
    """The plan reads one corpus in one order; what was really read is held to it, rollbacks and second stages too."""
    yield from _of("rows", streams.broken(contents), streams.kept(contents))
    groups = rows_read.alike(contents)
    if groups:
        for sentence in rows_read.sentences(contents):
            yield Finding("rows", not rows_read.apart(groups), sentence)


def _differences(contents: Contents) -> Iterator[Finding]:
    waiting = contents.config.get("sweep") is not None and chosen(contents.out) is None
    for sentence in [*streams.differences(contents), *rules.differences(contents.runs, rates=not waiting)]:
        yield Finding("difference", True, sentence)


def _unfinished(contents: Contents) -> Iterator[Finding]:
    if waiting := [run.name for run in contents.runs if run.done is None]:
        total = len(contents.runs)
        sentence = f"{len(waiting)} of {total} runs are not finished, and are held to their plan: {names(waiting[:4])}"
        yield Finding("unfinished", True, sentence + (f" and {len(waiting) - 4} more." if len(waiting) > 4 else "."))


# --- the sweep --------------------------------------------------------------------------------------------------------


def _sweep(contents: Contents) -> Iterator[Finding]:
    config: dict[str, Any] | None = contents.config.get("sweep")
    if len(contents.arms) < 2:
        return
    if config is None:
        yield Finding("sweep", True, "No arm's learning rate was searched for: each has the one of the file.")
        return
    tries = {arm: len(config["rates"][arm]) for arm in contents.arms if arm in config["rates"]}
    if len(set(tries.values())) == 1:
        count = next(iter(tries.values()))
        yield Finding("sweep", True, f"Every arm's learning rate is chosen from {count}, the same number for all.")
    else:
        why = str(config.get("unequal")).rstrip(".")
        counts = names([f"{arm_name(arm)} {count}" for arm, count in tries.items()])
        yield Finding("sweep", True, f"Arms have unequal numbers of rates, as the file declares: {counts} ({why}).")
    record = chosen(contents.out)
    if record is not None:
        yield from _chosen(contents, record)
    elif contents.finished:
        sentence = f"Runs are finished, and {sweep.FOLDER}/{sweep.CHOSEN} does not say how their rates were chosen."
        yield Finding("sweep", False, sentence)


def chosen(out: Path) -> dict[str, Any] | None:
    """The record of the sweep of an experiment, None where there is none. DataError where it is broken."""
    path = out / sweep.FOLDER / sweep.CHOSEN
    if not path.is_file():
        return None
    record = storage.read_json(path)
    if not isinstance(record, dict) or not isinstance(record.get("arms"), dict):
        raise DataError(f"{path}: is no record of a choice; remove it and run `electra experiment run` again.")
    return record


def _chosen(contents: Contents, record: dict[str, Any]) -> Iterator[Finding]:
    """The runs have the rates that were chosen; what choosing cost; rates that a wider grid might have bettered."""
    arms: dict[str, Any] = {arm: record["arms"][arm] for arm in contents.arms if arm in record["arms"]}
    grids: dict[str, list[float]] = contents.config["sweep"]["rates"]
    tried = {arm: [one["rate"] for one in own["tries"]] for arm, own in arms.items()}
    if other := [arm_name(arm) for arm, rates in grids.items() if tried.get(arm) != rates]:
        sentence = f"{sweep.FOLDER}/{sweep.CHOSEN} is a choice among other rates than the file's for {names(other)}."
        yield Finding("sweep", False, sentence)
    if not arms:
        return
    yield from _at_other_rates(contents, arms)
    tries = [one for arm in arms.values() for one in arm["tries"]]
    unlike = len({len(one["runs"]) for one in tries if one["value"] is not None}) > 1
    if unlike:
        yield Finding("sweep", False, "Rates were tried with unequal numbers of runs.")
    costs = [f"{arm_name(arm)} {one['flops_counted']:.3g} ({one['flops_spent']:.3g})" for arm, one in arms.items()]
    yield Finding("sweep", True, f"Model FLOPs counted (spent) in the sweep, in no arm's budget: {names(costs)}.")
    lost = [(arm, one) for arm, own in arms.items() for one in own["tries"] if one["value"] is None]
    if lost:
        told = names([f"{arm_name(arm)} {one['rate']:g}" for arm, one in lost])
        yield Finding("rate", True, f"Diverged in the sweep, and out of the choice: {told}.")
    for arm, one in arms.items():
        if one["end_of_grid"] is not None:
            best, end = f"{arm_name(arm)} did best at {one['rate']:g}", one["end_of_grid"]
            yield Finding("rate", True, f"{best}, the {end} rate tried: its best may lie beyond.")


def _at_other_rates(contents: Contents, arms: dict[str, Any]) -> Iterator[Finding]:
    other = [run for run in contents.finished if run.identity["arm"]["learning_rate"] != _rate(arms, run.arm)]
    for run in other:
        rate, best = run.identity["arm"]["learning_rate"], _rate(arms, run.arm)
        told = "the sweep chose none for it" if best is None else f"the sweep chose {best:g}"
        yield Finding("sweep", False, f"{run.name} was trained at {rate:g}, and {told}.")


def _rate(arms: dict[str, Any], arm: str) -> float | None:
    return float(arms[arm]["rate"]) if arm in arms else None
