"""The rules of a matched comparison, one function each: the sentences of what breaks it, and the one for when it holds.

Each takes runs as records (`pipeline.gather`), planned or finished, and starts nothing. What the sweep and the rows
that were read come to is `pipeline.matching`'s.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pydantic import TypeAdapter

from pipeline.gather import Contents, Run
from pipeline.wording import arm_name, names
from training.arms import ArmConfig
from training.flops import network_costs
from training.run import mean_counts
from training.settings import ScheduleConfig, run_name
from training.sizes import EncoderConfig

_ARM: TypeAdapter[ArmConfig] = TypeAdapter(ArmConfig)


# --- FLOPs ------------------------------------------------------------------------------------------------------------


def flops_of(run: Run) -> float:
    """Counted model FLOPs; of an unfinished run what its steps are planned to cost."""
    return float(run.done["flops_counted"]) if run.done else run.inherited + run.steps * run.flops_per_step


def tolerance(run: Run) -> float:
    """How far counted FLOPs may be from the budget: the larger of 1 % and one step."""
    return max(0.01 * run.budget, run.flops_per_step)


def outside_budget(runs: Sequence[Run]) -> list[str]:
    """Runs whose FLOPs miss the budget."""
    return [
        f"{run.name} {'counted' if run.done else 'is planned for'} {flops_of(run):.4g} model FLOPs of "
        f"{run.budget:.4g} ({flops_of(run) / run.budget - 1:+.2%}), farther than max(1 %, one step)."
        for run in runs
        if abs(flops_of(run) - run.budget) > tolerance(run)
    ]


def budget_kept(runs: Sequence[Run]) -> str:
    """How near the farthest comes."""
    worst = max(runs, key=lambda run: abs(flops_of(run) / run.budget - 1))
    deviation = flops_of(worst) / worst.budget - 1
    return (
        f"Model FLOPs of all {len(runs)} runs are within max(1 %, one step) of their budgets; farthest is "
        f"{worst.name}, by {deviation:+.2%}."
    )


def without_generator(contents: Contents) -> list[str]:
    """Runs whose FLOPs a step are nearer to those of the main network alone than to those of all networks."""
    found = []
    for run in contents.runs:
        share = _generator_share(run, contents)
        if share and abs(_per_step(run) - share[0]) >= abs(_per_step(run) - share[1]):
            found.append(f"{run.name} counts {_per_step(run):.4g} FLOPs a step, and with its generator {share[0]:.4g}.")
    return found


def generator_counted(contents: Contents) -> str | None:
    """The generators' shares, None where no arm has one or the corpus is not at hand."""
    shares = {run.arm: share for run in contents.runs if (share := _generator_share(run, contents))}
    told = [f"{arm_name(arm)} {1 - alone / whole:.0%}" for arm, (whole, alone) in shares.items()]
    return f"FLOPs of generators are in: {names(told)} of what a step costs." if told else None


def _generator_share(run: Run, contents: Contents) -> tuple[float, float] | None:
    """FLOPs of an average step with the generator, and without it."""
    manifest = contents.manifest_of(run)
    if manifest is None:
        return None
    arm = _ARM.validate_python(run.identity["arm"])
    columns = network_costs(arm, EncoderConfig.model_validate(run.identity["model"]))
    if "generator" not in columns:
        return None
    counts = mean_counts(manifest, arm).scaled(run.identity["global_batch"])
    whole = sum(column.train(counts) for column in columns.values())
    return whole, whole - columns["generator"].train(counts)


def _per_step(run: Run) -> float:
    if run.done is None:
        return run.flops_per_step
    return float(run.done["flops_counted"] - run.done.get("inherited", {}).get("flops_counted", 0.0)) / run.done["step"]


# --- schedules --------------------------------------------------------------------------------------------------------


def cut_schedules(contents: Contents) -> list[str]:
    """Runs whose rate does not go the whole way that the file says, and branches that it does not declare."""
    config = _schedule(contents)
    found = []
    for run in contents.runs:
        if run.done is not None and run.done["step"] != run.steps:
            found.append(f"{run.name} ended at step {run.done['step']:,} of the {run.steps:,} of its schedule.")
        if run.placement.get("trunk") and not config.branches:
            found.append(f"{run.name} is a decay branch, and training.schedule.branches does not declare it.")
        planned = config.planned(run.steps).model_dump()
        if config.branches:
            shortest = _shortest(run, contents)
            warmup = run.identity["schedule"] if shortest is None else config.planned(shortest).model_dump()
            planned["warmup_steps"] = warmup["warmup_steps"]
        if run.identity["schedule"] != planned:
            found.append(f"{run.name} has another schedule than training.schedule says for {run.steps:,} steps.")
    return found


def schedules_whole(contents: Contents) -> str:
    """What the budgets' schedules are."""
    if _schedule(contents).branches:
        return "Budgets are decay branches off one trunk an arm and seed, as the file declares."
    return "Every run has a schedule of its own that ends with it: no score is read in the middle of one."


def _schedule(contents: Contents) -> ScheduleConfig:
    return ScheduleConfig.model_validate((contents.config.get("training") or {}).get("schedule") or {})


def _shortest(run: Run, contents: Contents) -> int | None:
    """Steps of the smallest budget, whose warm-up is that of all branches; None where that run has not begun."""
    name = run_name(run.arm, run.seed, budget=min(contents.config.get("budgets") or [run.budget]))
    return next((other.steps for other in contents.runs if other.name == name), None)


# --- what all arms share ----------------------------------------------------------------------------------------------


def unlike_settings(contents: Contents) -> list[str]:
    """What of the recipe is not the same for all runs. How many words a model knows is its corpus's business."""
    words, everything = "vocab_size", contents.runs
    settings: dict[str, Callable[[Run], Any]] = {
        "training.optimizer": lambda run: run.identity["optimizer"],
        "the kind of schedule": lambda run: run.identity["schedule"]["kind"],
        "precision": precision,
        # dropout among them
        **{f"model.{key}": partial(_of_model, key) for key in EncoderConfig.model_fields if key != words},
    }
    found = [sentence for what, of in settings.items() if (sentence := unlike(what, everything, of))]
    for own in by_corpus(contents).values():
        found += filter(None, [unlike(f"model.{words}", own, partial(_of_model, words))])
    return found


def unlike(what: str, runs: Sequence[Run], of: Callable[[Run], Any]) -> str | None:
    """The breach that runs differ in something; None where those of which it is known do not."""
    known = [run for run in runs if of(run) is not None]
    return f"Runs differ in {what}: {_groups(known, of)}." if _differ(map(of, known)) else None


def by_corpus(contents: Contents) -> dict[str, list[Run]]:
    """The runs by the name of the corpus they read."""
    found: dict[str, list[Run]] = defaultdict(list)
    for run in contents.runs:
        found[contents.corpus_of(run)].append(run)
    return dict(found)


def _of_model(key: str, run: Run) -> Any:
    return run.identity["model"][key]


def settings_alike(runs: Sequence[Run]) -> str:
    """What is the same for all."""
    model = runs[0].identity["model"]
    known = next(filter(None, map(precision, runs)), "that of their device")
    return (
        f"All runs have one model size, optimizer, dropout ({model['dropout']:g}; of attention "
        f"{model['attention_dropout']:g}), batch ({runs[0].identity['global_batch']}) and precision "
        f"({known})."
    )


def precision(run: Run) -> str | None:
    """What a run's matmuls are in: `auto` is what its device makes of it, and unknown (None) before it ran."""
    wanted = str(run.placement.get("precision", "auto"))
    if wanted != "auto":
        return wanted
    if run.done is None:
        return None
    return "fp32" if "CPU process" in run.done["hardware"] else "bf16"


def unlike_evaluation(contents: Contents) -> list[str]:
    """Suites whose results are not under one protocol, on one set of data, as often for each run."""
    known = {run.name for run in contents.finished}
    suites: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in contents.results:
        if row["run"] in known:
            suites[row["suite"]].append(row)
    return [sentence for suite, rows in suites.items() for sentence in _unlike_suite(suite, rows)]


def _unlike_suite(suite: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    found = []
    if len({row["protocol"].get("fingerprint") for row in rows}) > 1:
        found.append(f"Results of {suite} are under more than one protocol.")
    data: dict[str, set[Any]] = defaultdict(set)
    seeds: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        data[row["task"]].add(row.get("data_sha256"))
        seeds[row["task"]][row["run"]] += 1
    if unlike := [task for task, hashes in data.items() if len(hashes) > 1]:
        found.append(f"Results of {suite} on {names(unlike[:4])} are on different data.")
    runs = {row["run"] for row in rows}
    uneven = [task for task, counts in seeds.items() if len({counts.get(run, 0) for run in runs}) > 1]
    if uneven:
        found.append(f"Not every run was evaluated as often on {names(uneven[:4])} of {suite}.")
    return found


def evaluation_alike(contents: Contents) -> str | None:
    """What all were evaluated under, None where nothing is."""
    suites = sorted({row["suite"] for row in contents.results})
    if not suites:
        return None
    return f"One protocol a suite, one set of data and as many results for every run evaluated ({names(suites)})."


# --- what cannot be the same ------------------------------------------------------------------------------------------


def differences(runs: Sequence[Run], *, rates: bool = True) -> list[str]:
    """In what else than their objective arms differ, because they must or because the file says so. `rates`: whether
    those of the runs are the ones that they have or will have."""
    arms: dict[str, dict[str, Any]] = {arm_name(run.arm): run.identity["arm"] for run in runs}
    if len(arms) < 2:
        return []
    found = []
    if _differ(arm["mask_prob"] for arm in arms.values()):
        masked = [f"{name} {arm['mask_prob']:.0%}" for name, arm in arms.items()]
        found.append(f"Mask rates: {names(masked)}.")
    if rates:
        own = [f"{name} {arm['learning_rate']:g}" for name, arm in arms.items()]
        found.append(f"Learning rates: {names(own)}.")
    bert = [name for name, arm in arms.items() if arm["objective"] == "bert"]
    if bert and len(bert) < len(arms):
        versions = arms[bert[0]]["mask_versions"]
        found.append(
            f"{names(bert)} alone predicts next sentences: half of its second segments are those of other rows; its "
            f"masks are static, in {versions} versions, and the others' are drawn anew."
        )
    found += _of_one_objective(arms)
    parameters = {arm_name(run.arm): run.done["parameters"] for run in runs if run.done is not None}
    if _differ(parameters.values()):
        found.append(f"Trained parameters: {names([f'{name} {count:,}' for name, count in parameters.items()])}.")
    return found


def _of_one_objective(arms: dict[str, dict[str, Any]]) -> list[str]:
    """Which settings arms with the same objective do not share: what such an experiment is about, or a slip."""
    found = []
    for objective in dict.fromkeys(arm["objective"] for arm in arms.values()):
        own = {name: arm for name, arm in arms.items() if arm["objective"] == objective}
        keys = {key for arm in own.values() for key in arm} - {"name", "mask_prob", "learning_rate"}
        if unlike := sorted(key for key in keys if _differ(arm.get(key) for arm in own.values())):
            found.append(f"{names(list(own))} have one objective and differ in {names(unlike)}.")
    return found


def _differ(values: Any) -> bool:
    found = list(values)
    return any(value != found[0] for value in found[1:])


def _groups(runs: Sequence[Run], of: Callable[[Run], Any]) -> str:
    """`a and b: 32; c: 64`; of long values, which runs go together."""
    groups: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        groups[str(of(run))].append(run.name)
    return "; ".join(
        f"{names(members[:3])}{' …' * (len(members) > 3)}: {value[:40]}" for value, members in groups.items()
    )
