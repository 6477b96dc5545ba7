"""The learning-rate sweep: every arm tried at every rate of its grid, and the rate that did best taken for its runs.

The sweep is an experiment of its own in OUT/sweep (`as_experiment`: arms × rates are its arms), so every stage serves
it as it is. It is on the main experiment's corpus, at some of its budgets, with seeds that no result has, and where
scores decide under its protocol of evaluation. `choose` compares what came of it, and OUT/sweep/chosen.json is its
commit record. Main runs are planned from `rated`, which refuses to plan before there is one.

A rate is chosen within an arm, and nothing is compared between arms. By held-out loss an arm that trains a generator
along is judged with care: its discriminator's loss rises as the generator improves; a suite's score has no such flaw.
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep import storage
from data_prep.errors import ConfigError, DataError, DivergedError
from data_prep.settings import fingerprint
from pipeline import gather
from pipeline.corpora import MAIN, Variant, places, prepared
from pipeline.gather import Contents, Run
from pipeline.sweep_config import LOSS, SweepConfig, rate_name
from training.protocol import SOURCES
from training.settings import budget_name

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

FOLDER = "sweep"
CHOSEN = "chosen.json"
SEEDS_FROM = 1000  # a sweep's seeds are the experiment's and so many more: no result is of a run that chose its rate

# --- the sweep as an experiment ---------------------------------------------------------------------------------------


def label_of(arm: str, rate: float) -> str:
    """What an arm at a rate is called in the sweep."""
    return f"{arm}-lr{rate_name(rate)}"


def as_experiment(experiment: "Experiment", out: Path) -> "Experiment":
    """The sweep of the experiment in `out`, on its corpora; the experiment must have one."""
    from pipeline.experiment import Experiment

    sweep, where = _config(experiment), {name: place.location for name, place in places(experiment, out).items()}
    arms = [
        arm.model_copy(update={"name": label_of(arm.label, rate), "learning_rate": rate})
        for arm in experiment.arms
        for rate in sweep.rates[arm.label]
    ]
    budgets = sweep.budgets or (experiment.budgets or [])[:1]
    changed = {
        "name": f"{experiment.name}-sweep",
        "seed": experiment.seed + SEEDS_FROM,
        "seeds": sweep.seeds,
        "corpus": experiment.corpus.model_copy(update={"location": where[MAIN]}),
        "corpora": {name: _variant(one, sweep, where[name]) for name, one in experiment.corpora.items()},
        "training": _training(experiment, alone=len(budgets) == 1),
        "arms": arms,
        "budgets": budgets,
        "evaluation": _evaluation(experiment, sweep),
        "sweep": None,
    }
    return Experiment.model_validate(experiment.model_copy(update=changed).model_dump())


def _variant(variant: Variant, sweep: SweepConfig, location: str) -> Variant:
    """For the arms at all of their rates."""
    arms = [label_of(arm, rate) for arm in variant.arms for rate in sweep.rates[arm]]
    return variant.model_copy(update={"arms": arms, "location": location})


def _config(experiment: "Experiment") -> SweepConfig:
    assert experiment.sweep is not None
    return experiment.sweep


def _training(experiment: "Experiment", *, alone: bool) -> Any:
    """A budget that is alone is a trunk without branches, and has the same schedule without that word."""
    schedule = experiment.training.schedule
    branches = schedule.branches and not alone
    return experiment.training.model_copy(update={"schedule": schedule.model_copy(update={"branches": branches})})


def _evaluation(experiment: "Experiment", sweep: SweepConfig) -> Any:
    """The experiment's protocol, of the suite alone that decides; where none does, nothing is evaluated."""
    config = experiment.evaluation
    if sweep.choose_by == LOSS:
        return config
    elsewhere = {key: None for suite, keys in SOURCES.items() if suite != sweep.choose_by for key in keys}
    return config.model_copy(update={"suites": [sweep.choose_by], **elsewhere})


# --- what came of it --------------------------------------------------------------------------------------------------


def choose(experiment: "Experiment", out: Path, diverged: Mapping[str, str]) -> dict[str, Any]:
    """Compare what the finished sweep of the experiment in `out` came to, and commit the choice. `diverged`: the labels
    of arms and rates whose training ended in numbers that are none, and how.

    DataError where a run or a score of it is missing, DivergedError where an arm diverged at every rate.
    """
    sweep, contents = _config(experiment), gather.read(out / FOLDER)
    arms = {arm.label: _choose(arm.label, sweep, contents, diverged) for arm in experiment.arms}
    record = {
        "identity": identity(experiment, out),
        "choose_by": sweep.choose_by,
        "best": "lowest" if sweep.choose_by == LOSS else "highest",
        "budgets": [budget_name(budget) for budget in sweep.budgets or (experiment.budgets or [])[:1]],
        "seeds": sweep.seeds,
        "arms": arms,
    }
    storage.write_json(out / FOLDER / CHOSEN, record)
    return record


def _choose(arm: str, sweep: SweepConfig, contents: Contents, diverged: Mapping[str, str]) -> dict[str, Any]:
    """The rate of an arm; of equal ones the lower."""
    sign = 1.0 if sweep.choose_by == LOSS else -1.0
    tries = [_try(arm, rate, sweep, contents, diverged) for rate in sweep.rates[arm]]
    whole = [one for one in tries if one["value"] is not None]
    if not whole:
        raise DivergedError(f"sweep: {arm} diverged at every rate of its grid; give sweep.rates.{arm} lower ones")
    labels = {label_of(arm, rate) for rate in sweep.rates[arm]}
    own = [run for run in contents.runs if run.arm in labels]
    if sweep.choose_by == LOSS and len({run.placement.get("eval_rows") for run in own if run.done is not None}) > 1:
        raise DataError(
            f"{contents.out}: the rates of {arm} were judged on different numbers of held-out rows "
            "(training.eval_rows); remove its runs there and run `electra experiment run` again."
        )
    best = min(whole, key=lambda one: (sign * one["value"], one["rate"]))["rate"]
    edges = {sweep.rates[arm][0]: "lowest", sweep.rates[arm][-1]: "highest"}
    ledgers = [_ledger(run) for run in own]
    return {
        "rate": best,
        "end_of_grid": edges.get(best) if len(tries) > 1 else None,
        "tries": tries,
        "flops_counted": sum(counted for counted, _ in ledgers),
        "flops_spent": sum(spent for _, spent in ledgers),
    }


def _ledger(run: Run) -> tuple[float, float]:
    """FLOPs counted and spent; of a run that diverged, up to its last window."""
    if run.done is not None:
        return float(run.done["flops_counted"]), float(run.done["flops_spent"])
    values = run.lines[-1]["values"] if run.lines else {}
    return float(values.get("flops", 0.0)), float(values.get("flops_spent", 0.0))


def _try(arm: str, rate: float, sweep: SweepConfig, contents: Contents, diverged: Mapping[str, str]) -> dict[str, Any]:
    """A rate with the mean over its runs of what decides; without one where any of them diverged."""
    label = label_of(arm, rate)
    if label in diverged:
        return {"rate": rate, "value": None, "runs": {}, "diverged": diverged[label]}
    runs = [run for run in contents.finished if run.arm == label]
    planned = sweep.seeds * len(sweep.budgets or [None])  # the smallest, where none is named
    if len(runs) < planned:
        raise DataError(
            f"{contents.out}: {len(runs)} of {planned} runs of {arm} at rate {rate:g} are finished; run "
            "`electra experiment run` again."
        )
    values = {run.name: _value(run, sweep, contents) for run in runs}
    return {"rate": rate, "value": sum(values.values()) / len(values), "runs": values}


def _value(run: Run, sweep: SweepConfig, contents: Contents) -> float:
    if sweep.choose_by == LOSS:
        assert run.done is not None
        return float(run.done["heldout"]["heldout/loss"])
    tasks: dict[str, list[float]] = defaultdict(list)
    results = [row for row in contents.results if row["run"] == run.name and row["suite"] == sweep.choose_by]
    in_mean = any(row["in_mean"] for row in results)  # SQuAD's two are in no mean of several tasks
    for row in results:
        if row["in_mean"] == in_mean:
            tasks[row["task"]].append(row["score"])
    if not tasks:
        raise DataError(f"{contents.out}: {run.name} has no score; run `electra experiment run` again.")
    return sum(sum(scores) / len(scores) for scores in tasks.values()) / len(tasks)


def identity(experiment: "Experiment", out: Path) -> str:
    """What the choice depends on: the sweep's runs with all that makes them what they are, and what decides."""
    sweep, swept = _config(experiment), as_experiment(experiment, out)
    runs = swept.runs(prepared(places(experiment, out)), out / FOLDER / "runs")
    parts: list[Any] = [sweep.choose_by, {run.name: run.identity.model_dump(mode="json") for run in runs}]
    if sweep.choose_by != LOSS:
        config = swept.evaluation
        protocol = config.protocol_of(sweep.choose_by)
        parts += [protocol.fingerprint(), config.tasks, config.seeds, config.probes.model_dump(mode="json")]
    return fingerprint(parts)


def chosen(experiment: "Experiment", out: Path) -> dict[str, Any] | None:
    """The record of the choice, None where there is none or it is another sweep's."""
    path = out / FOLDER / CHOSEN
    if experiment.sweep is None or not path.is_file():
        return None
    record = storage.read_json(path)
    if not isinstance(record, dict) or record.get("identity") != identity(experiment, out):
        return None
    return record


def rates_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The chosen rate of every arm."""
    return {arm: float(one["rate"]) for arm, one in record["arms"].items()}


def rated(experiment: "Experiment", out: Path) -> "Experiment":
    """The experiment with the rates its sweep in `out` chose; itself where it has no sweep. ConfigError before that."""
    if experiment.sweep is None:
        return experiment
    record = chosen(experiment, out)
    if record is None:
        raise ConfigError(
            f"sweep: {out / FOLDER} holds no choice of learning rates for this experiment yet; "
            "run `electra experiment run`, which sweeps first, or leave sweep out to train at the arms' own rates"
        )
    return experiment.with_rates(rates_of(record))
