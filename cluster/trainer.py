"""Ray Train launch of `training.loop`: one worker group trains a list of runs, one after another.

Starting a group costs 15-20 seconds, so a group is shared by all runs of an experiment. Ray Train's own checkpointing
is not used. The driver follows the metric lines on the shared file system. Not here: elasticity, restarts of a failed
group. Without Ray: `cluster.launch`.
"""

import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.config import ClusterConfig
from cluster.progress import following
from cluster.worker import Assignment, OnProgress, assign, work
from data_prep.errors import ElectraError, PreflightError
from data_prep.storage import Location
from training.settings import RunSpec


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

    Raises the worker's own error where it is a user's mistake; before starting anything, PreflightError where the
    cluster is too small (Ray would wait for ever) and DataError where a shard is not what the manifest says.
    """
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    check_resources(config)
    assignment = assign(specs, corpus, runs_dir, config, profile)
    if not assignment.specs:
        return
    storage_path = runs_dir.resolve() / ".ray_train"
    resources = {"CPU": float(config.threads_per_worker)}
    run_options: dict[str, Any] = {
        # a fresh name: Ray Train would otherwise resume from its own snapshot of an earlier group
        "name": f"group-{uuid.uuid4().hex[:12]}",
        "storage_path": str(storage_path),
        "worker_runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(config.threads_per_worker)}},
    }
    trainer = TorchTrainer(
        _worker,
        train_loop_config=assignment.model_dump(mode="json"),
        torch_config=TorchConfig(backend="nccl" if config.use_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=config.num_workers, use_gpu=config.use_gpu, resources_per_worker=resources
        ),
        run_config=RunConfig(**run_options),
    )
    with following(assignment, on_progress):
        try:
            trainer.fit()
        except Exception as error:
            own = _user_error(error)
            if own is None:
                raise
            raise own from None
        finally:
            shutil.rmtree(storage_path, ignore_errors=True)  # Ray Train's own bookkeeping; nothing of ours is in it


def check_resources(config: ClusterConfig) -> None:
    """PreflightError where the running Ray does not have what the worker group asks for."""
    import ray

    present = ray.cluster_resources()
    wanted = {"CPU": config.num_workers * config.threads_per_worker, "GPU": config.num_workers * config.use_gpu}
    for kind, amount in wanted.items():
        if amount > present.get(kind, 0):
            raise PreflightError(
                f"cluster.num_workers: {config.num_workers} workers need {amount} {kind}s and Ray has "
                f"{present.get(kind, 0):g}; lower num_workers or threads_per_worker, or use a larger cluster"
            )


def _worker(config: dict[str, Any]) -> None:
    """Runs in every worker process."""
    import ray.train
    import ray.train.torch

    context = ray.train.get_context()
    work(
        Assignment.model_validate(config),
        ray.train.torch.get_device(),
        rank=context.get_world_rank(),
        local_rank=context.get_local_rank(),
        world_size=context.get_world_size(),
    )


def _user_error(error: BaseException) -> ElectraError | None:
    """The user's mistake inside what Ray Train raised, if that is what ended the group."""
    failures = getattr(error, "worker_failures", {})
    for nested in [
        *failures.values(),
        error.__cause__,
        getattr(error, "cause", None),
        getattr(error, "_base_exc", None),
    ]:
        if isinstance(nested, ElectraError):
            return nested
        if isinstance(nested, BaseException) and nested is not error:
            found = _user_error(nested)
            if found is not None:
                return found
    return None
