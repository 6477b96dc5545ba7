"""Budgets as decay branches: one trunk for each arm and seed, and what the smaller budgets share with it.

With `schedule: {kind: wsd, branches: true}` the run of the largest budget is the trunk. A run of a smaller budget goes
the same way until its own decay begins: the same rows, masks and rates, since the rate stays at its peak and the
warm-up is one number of steps for all, the fraction of the smallest budget's. So it need not be trained again. The
trunk saves there and keeps it for good, and the branch begins with that checkpoint (`training.trunk`) and decays to 0.
What comes out is what a whole run of that budget comes to, at one process to the last bit; what it spends is the decay.

Plans only: reads no checkpoint, and torch-free.
"""

from collections.abc import Sequence

from data_prep.errors import ConfigError
from data_prep.manifest import Manifest
from data_prep.storage import Location
from training.arms import ArmConfig, why_no_trunk
from training.run import plan_run
from training.settings import RunSpec, TrainingConfig
from training.sizes import ModelConfig


def plan_branches(
    *,
    arm: ArmConfig,
    model: ModelConfig,
    training: TrainingConfig,
    manifest: Manifest,
    seed: int,
    budgets: Sequence[float],
    corpus_dir: Location | None = None,
) -> list[RunSpec]:
    """The runs of an arm with a seed at these budgets, which rise: first the trunk, then its branches from the smallest
    on, the order in which they can be trained.

    ConfigError as `plan_run`, and where the arm has no trunk or a budget is too small to share or decay anything.
    """
    if refused := why_no_trunk(arm):
        raise ConfigError(refused)
    runs = [
        plan_run(
            arm=arm,
            model=model,
            training=training,
            manifest=manifest,
            seed=seed,
            budget=budget,
            corpus_dir=corpus_dir,
        )
        for budget in budgets
    ]
    warmup = runs[0].identity.schedule.warmup_steps
    *shorter, trunk = [_with_warmup(run, warmup) for run in runs]
    branches = [_off(trunk, run) for run in shorter]
    points = {run.first_step for run in branches}
    return [_saving_at(trunk, points.union(trunk.placement.save_at)), *branches]


def _with_warmup(run: RunSpec, steps: int) -> RunSpec:
    schedule = run.identity.schedule.model_copy(update={"warmup_steps": steps})
    return run.model_copy(update={"identity": run.identity.model_copy(update={"schedule": schedule})})


def _off(trunk: RunSpec, run: RunSpec) -> RunSpec:
    """The run as a branch, which saves in its own part only."""
    decay = run.identity.schedule.decay_steps
    if not 0 < decay < run.steps:
        raise ConfigError(
            f"budgets: {run.budget:.3g} model FLOPs are {run.steps} step(s) of arm {run.identity.arm.label!r}, of "
            f"which {decay} decay: too few for a branch; raise the budget or change training.schedule.decay_fraction"
        )
    branch = run.model_copy(update={"placement": run.placement.model_copy(update={"trunk": f"../{trunk.name}"})})
    return _saving_at(branch, {step for step in run.placement.save_at if step > branch.first_step})


def _saving_at(run: RunSpec, steps: set[int]) -> RunSpec:
    return run.model_copy(update={"placement": run.placement.model_copy(update={"save_at": sorted(steps)})})
