"""Training on Ray's own Prometheus endpoint: what runs say of themselves, for dashboards and alarms.

Set by the driver, from the metric lines that it follows, so they appear at the metrics port of the driver's node (which
`ray start --metrics-export-port` chooses, and Ray's service discovery names) some ten seconds later, with `ray_` before
their names. A line is of all ranks together, so a run is all that a value is told by. They last as long as the driver:
the record is in the run's folder. What cannot be exposed is left out with one warning, and never ends training.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cluster.worker import OnProgress
from training.settings import RunSpec

# By the names of a metric line's values. Names and meanings: docs/operations.md.
GAUGES = {
    "train/loss": ("electra_loss", "Training loss, the mean since the metric line before"),
    "heldout/loss": ("electra_heldout_loss", "Loss on held-out rows"),
    "tokens_per_second": ("electra_tokens_per_second", "Tokens that training reads a second, all workers together"),
    "mfu": ("electra_mfu", "Model FLOPs a second as a share of what the devices can do"),
    "data_wait": ("electra_data_wait", "Share of the time that steps wait for data"),
    "flops": ("electra_flops", "Model FLOPs that count"),
}
STEP = ("electra_step", "Steps that are done")
STEPS = ("electra_steps", "Steps that are planned")
RESTARTS = ("electra_restarts", "Worker groups that were lost and started again by this driver")
_TAGS = ("run",)
_LOG = logging.getLogger(__name__)


class Exposed:
    """The metrics of the runs of one driver. Needs a running Ray; loads it."""

    def __init__(self) -> None:
        from ray.util.metrics import Counter, Gauge

        self._failed = False
        self._step, self._steps = (Gauge(*names, tag_keys=_TAGS) for names in (STEP, STEPS))
        self._gauges = {key: Gauge(*names, tag_keys=_TAGS) for key, names in GAUGES.items()}
        self._restarts = Counter(*RESTARTS, tag_keys=_TAGS)

    def following(self, on_progress: OnProgress) -> OnProgress:
        """`on_progress`, and the same line here before it."""

        def both(spec: RunSpec, line: dict[str, Any]) -> None:
            self.progress(spec, line)
            on_progress(spec, line)

        return both

    def progress(self, spec: RunSpec, line: Mapping[str, Any]) -> None:
        """A run's newest metric line."""
        tags = {"run": spec.name}
        with self._said_once():
            self._step.set(line["step"], tags=tags)
            self._steps.set(spec.steps, tags=tags)
            for key, gauge in self._gauges.items():
                gauge.set(line["values"].get(key), tags=tags)

    def restarted(self, run: str) -> None:
        """The group that trained a run was lost, and another one is begun."""
        with self._said_once():
            self._restarts.inc(tags={"run": run})

    @contextmanager
    def _said_once(self) -> Iterator[None]:
        """Whatever Ray raises (its node may be gone) must not end training, nor stay unknown."""
        try:
            yield
        except Exception as error:
            if not self._failed:
                _LOG.warning("metrics are not exposed (%s: %s); training goes on", type(error).__name__, error)
            self._failed = True
