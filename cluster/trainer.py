"""Training under Ray Train: worker groups, one after another, until every run is done.

Starting a group costs 15-20 seconds, so a group is shared by all runs of an experiment. It ends with the first failure;
what follows is decided here: a user's mistake is raised, a group that was lost is started again from the newest
checkpoints (`cluster.restarts` says how often), and Ray itself too where that has died. The driver follows the metric
lines on the shared file system and leaves a `failed` event in the run's folder. Without Ray: `cluster.launch`.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from cluster import failures, session
from cluster.config import ClusterConfig
from cluster.failures import Cause
from cluster.oversight import current, last_step, overseeing
from cluster.progress import following
from cluster.restarts import Budget, Failure, Kind
from cluster.stop import stop_on_signals
from cluster.worker import Assignment, OnProgress, assign
from data_prep.errors import PreflightError, StoppedError
from data_prep.storage import Location
from training import requests, run_folder
from training.settings import RunSpec

POLL_SECONDS = 0.5


def train_runs(
    specs: Sequence[RunSpec],
    corpus: Location,
    runs_dir: Path,
    config: ClusterConfig,
    on_progress: OnProgress,
    profile: int = 0,
) -> None:
    """Train every run that is not done. Needs a running Ray (`cluster.session`). `on_progress(spec, line)` is called
    from a thread with each run's newest metric line; of the first run, so many steps as `profile` says are traced.

    SIGTERM, SIGUSR1, the first Ctrl-C and `training.requests` save and stop: StoppedError. Raises the worker's own
    error where it is a user's mistake, RestartsExhaustedError where restarting does not help, PreflightError where Ray
    is gone; before starting anything, PreflightError where the cluster is too small (Ray would wait for ever) and what
    `cluster.worker.assign` raises.
    """
    check_resources(config)
    assignment = assign(specs, corpus, runs_dir, config, profile)
    if not assignment.specs:
        return
    with (
        stop_on_signals(lambda reason: requests.ask(runs_dir, "stop", reason)),
        following(assignment, on_progress),
    ):
        _train(assignment, config)


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


def _train(assignment: Assignment, config: ClusterConfig) -> None:
    """Groups, until one ends well or is not to be followed by another."""
    budget, waiting = Budget(config.max_failures), False
    while True:
        before = _own_words(assignment)
        try:
            _fit(assignment, config)
            return
        except Exception as error:
            found = failures.cause(error)
            if found.error is not None:
                raise found.error from None
            if found.then == "wait":
                _wait(assignment, found, told=waiting)
            else:
                told = _own_words(assignment) > before
                _pause(assignment, budget.pause(_failed(assignment, found, told=told)))
            waiting = found.then == "wait"
            if found.then == "reconnect" and not session.renew(config.reconnect_seconds):
                raise


def _fit(assignment: Assignment, config: ClusterConfig) -> None:
    from cluster.group import Group

    group = Group(assignment, config)
    with overseeing(assignment, group.end, group.scratch):
        group.fit()


def _wait(assignment: Assignment, found: Cause, *, told: bool) -> None:
    """Say once that Ray has no room; Ray has waited for a minute, and waits on."""
    run_dir = _run_dir(assignment)
    if not told:
        event = {"event": "waiting", "reason": found.reason, "step": last_step(run_dir)}
        run_folder.append_events(run_dir, [event])
    _pause(assignment, 0.0)


def _own_words(assignment: Assignment) -> int:
    """How often rank 0 has said itself why it failed; what a driver says names ranks."""
    said = [event for spec in assignment.specs for event in run_folder.events(assignment.run_dir(spec))]
    return sum(event["event"] == "failed" and "ranks" not in event for event in said)


def _failed(assignment: Assignment, found: Cause, *, told: bool) -> Failure:
    """Leave a `failed` event in the folder of the run that trained, unless rank 0 has, and say what the budget is to
    judge."""
    done = sum((assignment.run_dir(one) / run_folder.DONE).exists() for one in assignment.specs)
    run_dir = _run_dir(assignment)
    hung = _hung(run_dir)
    reason = found.reason if hung is None else hung
    kind: Kind = "hung" if hung is not None else "store" if found.store else "lost"
    step = last_step(run_dir)
    if not told:
        event = {"event": "failed", "reason": reason, "step": step, "ranks": list(found.ranks)}
        run_folder.append_events(run_dir, [event])
    return Failure(run=run_dir.name, step=step, saved=(done, _newest(run_dir)), reason=reason, kind=kind)


def _run_dir(assignment: Assignment) -> Path:
    """Of the run that trained."""
    run_dir = assignment.run_dir(current(assignment) or assignment.specs[-1])
    run_dir.mkdir(parents=True, exist_ok=True)
    return run_dir


def _hung(run_dir: Path) -> str | None:
    """What the watchdog has said, if that is what ended the group: a `failed` event follows what is known already."""
    said = [one for one in run_folder.last_events(run_dir) if one["event"] in ("hung", "failed")]
    if not said or said[-1]["event"] == "failed":
        return None
    step, ranks = said[-1]["step"], said[-1]["ranks"]
    named = ", ".join(str(one["rank"]) for one in ranks)
    return f"hung at step {step}, rank {named}: {ranks[0]['why']}" if ranks else f"hung at step {step}"


def _newest(run_dir: Path) -> int:
    """The step that the next attempt begins at: the last saved one, or where the last attempt began."""
    steps = [one["step"] for one in run_folder.last_events(run_dir) if one["event"] in ("started", "saved")]
    return max(steps, default=0)


def _pause(assignment: Assignment, seconds: float) -> None:
    """Before the next attempt; a stop that was asked for meanwhile needs none."""
    until = time.monotonic() + seconds
    while True:
        asked = requests.read(assignment.runs_dir)
        if asked is not None and asked.what == "stop":
            spec = current(assignment) or assignment.specs[-1]
            raise StoppedError(
                f"{spec.name}: stopped while it was to be started again ({asked.reason}); the same command again "
                f"resumes at step {_newest(assignment.run_dir(spec))} of {spec.steps}"
            )
        if time.monotonic() >= until:
            return
        time.sleep(min(POLL_SECONDS, seconds))
