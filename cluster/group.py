"""One group of workers under Ray Train, from its start to its end. Imports Ray: load it inside functions.

Ray Train starts the workers and watches them. What it would decide about their number, failures, checkpoints and
signals is decided here instead (`cluster.scaling`, `cluster.restarts`, `training`, `cluster.stop`).
"""

import os
import shutil
import threading
import uuid
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2._internal.constants import ENABLE_PREEMPTION_WATCHER_ENV_VAR, get_env_vars_to_propagate
from ray.train.v2._internal.execution.controller import TrainController
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.config import ClusterConfig
from cluster.drain import NODES
from cluster.scaling import FreeRoom
from cluster.worker import Assignment, work
from data_prep import log_lines

SCRATCH = ".ray_train"  # in the runs' folder, while a group lives


class Group(TorchTrainer):
    """A worker group that `fit` starts and waits for, and `end` ends from another thread."""

    def __init__(self, assignment: Assignment, config: ClusterConfig) -> None:
        self.scratch = assignment.runs_dir / SCRATCH
        self._assignment = assignment
        self._controller: Any = None
        self._known = threading.Lock()
        self._ended = False
        super().__init__(
            _worker,
            train_loop_config={"assignment": assignment.model_dump(mode="json"), "scratch": str(self.scratch)},
            torch_config=TorchConfig(backend="nccl" if config.use_gpu else "gloo"),
            scaling_config=_scaling(config),
            run_config=RunConfig(
                # a fresh name: Ray Train would otherwise resume from its own snapshot of an earlier group
                name=f"group-{uuid.uuid4().hex[:12]}",
                storage_path=str(self.scratch),
                failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
                worker_runtime_env={
                    "env_vars": {"OMP_NUM_THREADS": str(config.threads_per_worker), **log_lines.environment()}
                },
            ),
        )

    def fit(self) -> Any:
        """Until every worker has returned, or the first failure, which is raised as Ray hands it on."""
        shutil.rmtree(self.scratch, ignore_errors=True)  # of a driver that was killed
        (self.scratch / NODES).mkdir(parents=True)
        # A drain is ours to answer, by a checkpoint; Ray's controller would wait for the node's end with the rest idle.
        os.environ[ENABLE_PREEMPTION_WATCHER_ENV_VAR] = "0"
        try:
            return super().fit()
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)  # Ray Train's own bookkeeping; nothing of ours is in it

    def end(self) -> None:
        """Kill the group; `fit` then raises. Safe from any thread, at any time."""
        with self._known:
            self._ended = True
            controller = self._controller
        if controller is not None:
            ray.kill(controller)

    def _initialize_and_run_controller(self, **parts: Any) -> Any:
        """In place of Ray Train's own, which takes SIGINT for itself, aborts the group without a checkpoint then, and
        keeps the controller to itself; a test holds `fit` to calling this."""
        if self.scaling_config.elasticity_enabled:
            parts["scaling_policy"] = FreeRoom(self.scaling_config, self._assignment)
        this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        surroundings = {"env_vars": get_env_vars_to_propagate()}
        actor = ray.remote(num_cpus=0, scheduling_strategy=this_node, runtime_env=surroundings)(TrainController)
        controller = actor.remote(**parts)
        with self._known:
            self._controller = controller
            ended = self._ended
        if ended:
            ray.kill(controller)
        ray.get(controller.run.remote())
        return ray.get(controller.get_result.remote())


def _scaling(config: ClusterConfig) -> ScalingConfig:
    elastic = config.min_workers is not None and config.min_workers < config.num_workers
    return ScalingConfig(
        num_workers=(config.fewest, config.num_workers) if elastic else config.num_workers,
        elastic_resize_monitor_interval_s=config.resize_seconds,
        use_gpu=config.use_gpu,
        resources_per_worker={"CPU": float(config.threads_per_worker)},
    )


def _worker(config: dict[str, Any]) -> None:
    """Runs in every worker process."""
    context = ray.train.get_context()
    (Path(config["scratch"]) / NODES / ray.get_runtime_context().get_node_id()).touch()
    work(
        Assignment.model_validate(config["assignment"]),
        ray.train.torch.get_device(),
        rank=context.get_world_rank(),
        local_rank=context.get_local_rank(),
        world_size=context.get_world_size(),
    )
