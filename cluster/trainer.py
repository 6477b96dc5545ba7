"""Ray Train launch of `training.loop`: one worker group trains a list of runs, one after another.

Starting a group costs 15-20 seconds, so a group is shared by all runs of an experiment. Each run resumes from its own
newest checkpoint and is skipped when done; Ray Train's own checkpointing is not used. The driver follows the metric
lines on the shared file system. Not here: elasticity, restarts of a failed group.
"""

import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster.config import ClusterConfig
from data_prep.errors import ElectraError, PreflightError
from data_prep.integrity import verify
from data_prep.manifest import load
from data_prep.storage import Location, folder
from training.metrics import newest_line
from training.settings import RunSpec

OnProgress = Callable[[RunSpec, dict[str, Any]], None]

POLL_SECONDS = 1.0


def train_runs(
    specs: Sequence[RunSpec], corpus: Location, runs_dir: Path, config: ClusterConfig, on_progress: OnProgress
) -> None:
    """Train every run that is not done. Needs a running Ray (`cluster.session`). `on_progress(spec, line)` is called
    from a thread with each run's newest metric line.

    Raises the worker's own error where it is a user's mistake; before starting anything, PreflightError where the
    cluster is too small (Ray would wait for ever) and DataError where a shard is not what the manifest says.
    """
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    waiting = [spec for spec in specs if not (runs_dir / spec.name / "done.json").exists()]
    if not waiting:
        return
    check_resources(config)
    corpus = folder(corpus)
    verify(corpus, load(corpus))
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
        train_loop_config={
            "specs": [spec.model_dump(mode="json") for spec in waiting],
            "corpus": corpus.location,
            "runs_dir": str(runs_dir.resolve()),
            "threads": config.threads_per_worker,
        },
        torch_config=TorchConfig(backend="nccl" if config.use_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=config.num_workers, use_gpu=config.use_gpu, resources_per_worker=resources
        ),
        run_config=RunConfig(**run_options),
    )
    with _following(waiting, runs_dir, on_progress):
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
    import os

    import ray.train
    import ray.train.torch
    import torch

    context = ray.train.get_context()
    os.environ["RANK"] = str(context.get_world_rank())
    os.environ["LOCAL_RANK"] = str(context.get_local_rank())
    os.environ["WORLD_SIZE"] = str(context.get_world_size())
    device = ray.train.torch.get_device()
    os.environ["DS_ACCELERATOR"] = device.type
    torch.set_num_threads(config["threads"])

    from training.loop import train

    for payload in config["specs"]:
        spec = RunSpec.model_validate(payload)
        run_dir = Path(config["runs_dir"]) / spec.name
        try:
            train(spec, folder(config["corpus"]), run_dir, device)
        except OSError as error:
            place = error.filename or run_dir
            raise PreflightError(
                f"{place}: {error.strerror or error}; free the space or correct the permissions"
            ) from None


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


@contextmanager
def _following(specs: Sequence[RunSpec], runs_dir: Path, on_progress: OnProgress) -> Iterator[None]:
    """Call `on_progress` from a thread while the block runs. An error in it stops the following, not the training, and
    is raised at the end."""
    stop = threading.Event()
    failures: list[Exception] = []

    def poll_until_stopped() -> None:
        try:
            poll()
        except Exception as error:
            failures.append(error)

    def poll() -> None:
        seen: dict[str, int] = {}
        while True:
            ending = stop.wait(POLL_SECONDS)
            for spec in specs:
                line = newest_line(runs_dir / spec.name)
                if line is not None and line["step"] != seen.get(spec.name):
                    seen[spec.name] = line["step"]
                    on_progress(spec, line)
            if ending:
                return

    thread = threading.Thread(target=poll_until_stopped, name="metrics-follower", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]
