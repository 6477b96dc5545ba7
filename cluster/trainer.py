"""Training under Ray Train: worker groups, one after another, until every run is done.

Starting a group costs 15-20 seconds, so a group is shared by all runs of an experiment. It ends with the first failure;
what follows is decided here: a user's mistake is raised, a group that was lost is started again from the newest
checkpoints (`cluster.restarts` says how often), and Ray itself too where that has died. The driver follows the metric
lines on the shared file system and leaves a `failed` event in the run's folder. Without Ray: `cluster.launch`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cluster import failures, session
from cluster.aftermath import Before, newest_step
from cluster.config import ClusterConfig
from cluster.exposed import Exposed
from cluster.oversight import current, overseeing
from cluster.progress import following
from cluster.restarts import Budget
from cluster.stop import stop_on_signals
from cluster.waiting import Waiting
from cluster.worker import Assignment, OnProgress, assign
from data_prep.errors import PreflightError, StoppedError
from data_prep.storage import Location
from training import requests
from training.settings import RunSpec

POLL_SECONDS = 0.5
LOOK_SECONDS = 1.0


def train_runs(
    specs: Sequence[RunSpec],
    corpora: Mapping[str, Location],
    runs_dir: Path,
    config: ClusterConfig,
    on_progress: OnProgress,
    profile: int = 0,
) -> None:
    """Train every run that is not done, each on its corpus (`corpora`, by its name). Needs a running Ray
    (`cluster.session`). `on_progress(spec, line)` is called from a thread with each run's newest metric line; of the
    first run, so many steps as `profile` says are traced.

    SIGTERM, SIGUSR1, the first Ctrl-C and `training.requests` save and stop: StoppedError. Raises the worker's own
    error where it is a user's mistake, RestartsExhaustedError where restarting does not help, PreflightError where Ray
    is gone; before starting anything, PreflightError where the cluster is too small (Ray would wait for ever) and what
    `cluster.worker.assign` raises.
    """
    check_resources(config)
    assignment = assign(specs, corpora, runs_dir, config, profile)
    if not assignment.specs:
        return
    exposed = Exposed()
    with (
        stop_on_signals(lambda reason: requests.ask(runs_dir, "stop", reason)),
        following(assignment, exposed.following(on_progress)),
    ):
        _train(assignment, config, exposed.restarted)


def check_resources(config: ClusterConfig) -> None:
    """PreflightError where the running Ray does not have what the worker group asks for at least."""
    import ray

    present, fewest = ray.cluster_resources(), config.fewest
    wanted = {"CPU": fewest * config.threads_per_worker, "GPU": fewest * config.use_gpu}
    key = "num_workers" if config.min_workers is None else "min_workers"
    for kind, amount in wanted.items():
        if amount > present.get(kind, 0):
            raise PreflightError(
                f"cluster.{key}: {fewest} workers need {amount} {kind}s and Ray has "
                f"{present.get(kind, 0):g}; lower {key} or threads_per_worker, or use a larger cluster"
            )


def _train(assignment: Assignment, config: ClusterConfig, on_restart: Callable[[str], None]) -> None:
    """Groups, until one ends well or is not to be followed by another. `on_restart` is told of the run that trained in
    one that was lost."""
    budget, waiting = Budget(config.max_failures), Waiting(assignment)
    while True:
        before = Before(assignment)
        try:
            _fit(assignment, config, waiting)
            return
        except Exception as error:
            found = failures.cause(error)
            if found.error is not None:
                raise found.error from None
            _pause(assignment, 0.0)  # a group that was lost while a stop stands is none of the budget's
            if found.then == "wait":
                waiting.say(found.reason)
                continue
            failure = before.failure(found)
            _pause(assignment, budget.pause(failure))
            if found.then == "reconnect" and not session.renew(
                config.reconnect_seconds, lambda: _pause(assignment, 0.0)
            ):
                raise
            on_restart(failure.run)


def _fit(assignment: Assignment, config: ClusterConfig, waiting: Waiting) -> None:
    from cluster.group import Group

    group = Group(assignment, config)
    unbegun = waiting.watch(group.scratch, group.end)
    with overseeing(assignment, group.end, group.scratch, (unbegun.look, LOOK_SECONDS)):
        group.fit()


def _pause(assignment: Assignment, seconds: float) -> None:
    """Before the next attempt; a stop that was asked for meanwhile needs none."""
    until = time.monotonic() + seconds
    while True:
        asked = requests.read(assignment.runs_dir)
        if asked is not None and asked.what == "stop":
            spec = current(assignment) or assignment.specs[-1]
            raise StoppedError(
                f"{spec.name}: stopped while it was to be started again ({asked.reason}); the same command again "
                f"resumes at step {newest_step(assignment.run_dir(spec))} of {spec.steps}"
            )
        if time.monotonic() >= until:
            return
        time.sleep(min(POLL_SECONDS, seconds))
