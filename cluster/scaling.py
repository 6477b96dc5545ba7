"""How many workers an elastic group has, decided in Ray Train's controller by what is free. Imports Ray.

Ray's own policy goes by what nodes have in all, so that on a shared cluster it asks for workers that there is no room
for, for ever, and ends healthy groups for them. Here a group begins with the workers that fit into what is free now,
waits while those are too few, and grows when more becomes free, once it has saved. A healthy group is never made
smaller, and not touched while a stop stands. What is to be had from an autoscaler is asked for as Ray's policies do.
"""

import time
from collections.abc import Collection, Mapping

from ray._private.state import available_resources_per_node
from ray.train import ScalingConfig
from ray.train.v2._internal.execution.scaling_policy import (
    NoopDecision,
    ResizeDecision,
    ScalingDecision,
    ScalingPolicy,
)
from ray.train.v2._internal.execution.worker_group import WorkerGroupPollStatus, WorkerGroupState

from cluster.drain import draining
from cluster.growth import SaveFirst
from cluster.worker import Assignment

SETTLE_SECONDS = 5.0  # what a group that has ended held comes free by and by
PAUSE_SECONDS = 0.5  # Ray asks again at once


class FreeRoom(ScalingPolicy):
    """Between `min_workers` and `max_workers` of the scaling configuration."""

    def __init__(self, scaling_config: ScalingConfig, assignment: Assignment) -> None:
        super().__init__(scaling_config)
        self._save_first = SaveFirst(assignment)
        self._began: float | None = None  # to look for room
        self._looked = float("-inf")  # for room to grow

    def make_decision_for_non_running_worker_group(self) -> ScalingDecision:
        """All workers at once where they fit; after a while so many as do."""
        self._maybe_send_resource_request()
        self._began = time.monotonic() if self._began is None else self._began
        fewest, most = self.scaling_config.min_workers, self.scaling_config.max_workers
        settled = time.monotonic() - self._began >= SETTLE_SECONDS
        found = min(self._room(), most)
        if found < (fewest if settled else most):
            time.sleep(PAUSE_SECONDS)
            return NoopDecision()
        return self._resize(found)

    def make_decision_for_running_worker_group(
        self, worker_group_state: WorkerGroupState, worker_group_status: WorkerGroupPollStatus
    ) -> ScalingDecision:
        """More workers, where there is room for them and the run has saved."""
        self._maybe_send_resource_request()
        size, now = worker_group_state.num_workers, time.monotonic()
        since = now - max(self._looked, worker_group_state.start_time)
        if size >= self.scaling_config.max_workers or since < self.scaling_config.elastic_resize_monitor_interval_s:
            return NoopDecision()
        larger = min(size + self._room(), self.scaling_config.max_workers)
        if larger <= size:
            self._looked = now
            self._save_first.forget()
            return NoopDecision()
        if not self._save_first.saved(f"the group is to have {larger} workers"):
            return NoopDecision()  # asked again with the next look at the workers, in a second or two
        self._save_first.forget()
        self._looked = now
        return self._resize(larger)

    def _get_num_workers_for_resource_request(self) -> int:
        most: int = self.scaling_config.max_workers
        return most

    def _room(self) -> int:
        try:
            free, leaving = available_resources_per_node(), draining()
        except Exception:  # Ray's head gives no answer now
            return 0
        return room(free, leaving, self.scaling_config._resources_per_worker_not_none)

    def _resize(self, workers: int) -> ResizeDecision:
        wanted = self.scaling_config._resources_per_worker_not_none
        return ResizeDecision(num_workers=workers, resources_per_worker=wanted)


def room(free: Mapping[str, Mapping[str, float]], leaving: Collection[str], worker: Mapping[str, float]) -> int:
    """How many workers more fit on the nodes, by what is free on each; none on those that are to be taken away."""
    wanted = {kind: amount for kind, amount in worker.items() if amount > 0}
    return sum(
        min(int(node.get(kind, 0.0) // amount) for kind, amount in wanted.items())
        for name, node in free.items()
        if name not in leaving
    )
