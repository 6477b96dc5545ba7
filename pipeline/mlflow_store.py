"""The few MLflow calls that mirroring needs, made idempotent and quick to fail.

A run is known by its `electra.run_key` tag, never by a stored id. Sending the same thing twice changes nothing, because
MLflow's own key of a metric is (run, name, step, time, value): a replayed point is the same row. Parameters go once.
Of two runs of one key, as a server makes them that answers too late and is asked again, the empty one is removed.
Requests are bounded (900 metrics, 90 parameters or tags). Under `quick_to_fail` a server that does not answer costs
seconds, not MLflow's default of four minutes, whatever it says of when to come back. Tags, parameters and sources of
data go without secrets (`data_prep.redact`).

Importing this module imports no MLflow; making a `Store` does.
"""

import logging
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.redact import redact

RUN_KEY = "electra.run_key"
_METRICS_PER_REQUEST = 900  # MLflow refuses more than 1000 entities
_FIELDS_PER_REQUEST = 90  # and more than 100 parameters or tags
_VALUE_CHARACTERS = 500  # what every supported server and database accepts
_KEY_CHARACTERS = 250
_RUNS_PER_PAGE = 200  # what a server with many runs finds within the time-out
_QUICK = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",  # it may name an hour
}
_PATIENT = {**_QUICK, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a metric; `time` in milliseconds since 1970."""

    name: str
    value: float
    time: int
    step: int


@dataclass(frozen=True, slots=True)
class DataSet:
    """What a run was trained on; MLflow tells two apart by name and digest. `source` and `profile` are JSON."""

    name: str
    digest: str
    kind: str  # of the source: local, s3, ...
    source: str
    profile: str


@contextmanager
def quick_to_fail(*, patient: bool = False) -> Iterator[None]:
    """Few retries and short time-outs, except where the environment asks for others; nothing stays behind. `patient`:
    somebody waits for this and for nothing else, so a server that is slow is given minutes."""
    mine = {name: value for name, value in (_PATIENT if patient else _QUICK).items() if name not in os.environ}
    os.environ.update(mine)
    noisy = logging.getLogger("urllib3.connectionpool")
    level = noisy.level
    noisy.setLevel(logging.ERROR)  # its warning for each retry; the caller says once that the server is away
    try:
        yield
    finally:
        noisy.setLevel(level)
        for name in mine:
            del os.environ[name]


def metric_name(name: str) -> str:
    """`name` in MLflow's alphabet, and as a path that names itself: `loss@x` → `loss_x`."""
    allowed = re.sub(r"[^\w\-. :/]", "_", name)
    return posixpath.normpath(allowed.strip("/"))[:_KEY_CHARACTERS]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings as dotted keys with text values: what MLflow calls parameters."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        else:
            flat[metric_name(name)] = _short(value)
    return flat


def _weight(run: Any) -> int:
    """How much a run holds besides its tags."""
    return len(run.data.params) + len(run.data.metrics)


def _short(value: Any) -> str:
    text = redact(str(value))
    return text if len(text) <= _VALUE_CHARACTERS else text[: _VALUE_CHARACTERS - 1] + "…"


class Store:
    """One MLflow experiment, and the runs of it that we made.

    Raises what MLflow raises; see `pipeline.tracking` for what becomes of it.
    """

    def __init__(self, uri: str, experiment: str, artifacts: Path | None) -> None:
        """Find or create the experiment; `artifacts` is where its files go in a store without a server.

        A store that was moved with its directory still names the old place for files: see `attach`.
        """
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        location = artifacts.as_uri() if artifacts else None
        found = self._client.get_experiment_by_name(experiment)
        if found is None:
            self._experiment_id = str(self._client.create_experiment(experiment, location))
        else:
            self._experiment_id = str(found.experiment_id)
        self._takes_files = found is None or location is None or found.artifact_location == location
        self._runs: dict[str, Any] = {}
        for run in self._all_runs():
            self._keep(run)

    def _all_runs(self) -> Iterator[Any]:
        token = None
        while True:
            page = self._client.search_runs([self._experiment_id], max_results=_RUNS_PER_PAGE, page_token=token)
            yield from (run for run in page if RUN_KEY in run.data.tags)
            token = page.token
            if not token:
                break

    def _keep(self, run: Any) -> None:
        """Know a run by its key; of two, the one that holds something, and the other goes if it holds nothing."""
        key = run.data.tags[RUN_KEY]
        known = self._runs.get(key, run)
        better, other = sorted((known, run), key=lambda one: (not _weight(one), one.info.run_id))
        self._runs[key] = better
        if better is not other and not _weight(other):
            self._client.delete_run(other.info.run_id)

    def keys(self, prefix: str) -> list[str]:
        """Keys of the runs there are that begin with `prefix`."""
        return [key for key in self._runs if key.startswith(prefix)]

    def has(self, key: str) -> bool:
        """Whether there is a run of that key."""
        return key in self._runs

    def finished(self, key: str) -> bool:
        """Whether there is a run of that key and it is closed as finished."""
        return key in self._runs and self._runs[key].info.status == "FINISHED"

    def tagged(self, key: str, name: str, value: str) -> bool:
        """Whether the run was given that tag with that value, before this store was opened."""
        return bool(self._runs[key].data.tags.get(name) == _short(value))

    def start_time(self, key: str) -> int:
        """When the run began, ms."""
        return int(self._runs[key].info.start_time)

    def open(self, key: str, *, name: str, start: int, tags: Mapping[str, str], parent: str | None = None) -> None:
        """Make sure the run exists and carries the tags; `start` in ms, `parent` another run's key."""
        wanted = {name: _short(value) for name, value in tags.items()} | {RUN_KEY: key}
        if parent is not None:
            wanted["mlflow.parentRunId"] = self._id(parent)
        if key not in self._runs:
            self._runs[key] = self._client.create_run(self._experiment_id, start_time=start, tags=wanted, run_name=name)
        else:
            self.tag(key, wanted)

    def tag(self, key: str, tags: Mapping[str, str]) -> None:
        """Set the tags that are not set to that already."""
        from mlflow.entities import RunTag

        known = self._runs[key].data.tags
        new = [RunTag(name, _short(value)) for name, value in tags.items() if known.get(name) != _short(value)]
        for start in range(0, len(new), _FIELDS_PER_REQUEST):
            self._client.log_batch(self._id(key), tags=new[start : start + _FIELDS_PER_REQUEST], synchronous=True)

    def describe(self, key: str, params: Mapping[str, str]) -> None:
        """Send the parameters that are not there. One that is there with another value cannot be changed in MLflow: the
        new value becomes the tag `now.NAME`."""
        from mlflow.entities import Param

        known = self._runs[key].data.params
        new = [Param(name, value) for name, value in params.items() if name not in known]
        for start in range(0, len(new), _FIELDS_PER_REQUEST):
            self._client.log_batch(self._id(key), params=new[start : start + _FIELDS_PER_REQUEST], synchronous=True)
        self.tag(key, {f"now.{name}": value for name, value in params.items() if known.get(name, value) != value})

    def use(self, key: str, data: DataSet) -> None:
        """Say what data set the run reads, where it does not say so already."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = self._runs[key].inputs
        known = [] if inputs is None else [one.dataset for one in inputs.dataset_inputs]
        if (data.name, data.digest) in [(one.name, one.digest) for one in known]:
            return
        dataset = Dataset(data.name, data.digest, data.kind, redact(data.source), profile=data.profile)
        context = [InputTag("mlflow.data.context", "training")]
        self._client.log_inputs(self._id(key), [DatasetInput(dataset, context)])

    def sent(self, key: str, name: str) -> set[tuple[int, int]]:
        """(step, time) of every point of a metric."""
        history = self._client.get_metric_history(self._id(key), metric_name(name))
        return {(point.step, point.timestamp) for point in history}

    def log(self, key: str, lines: Sequence[Sequence[Point]]) -> int:
        """Send lines of points, each line in one request where it fits, so that it arrives whole or not at all.
        Returns how many points were sent."""
        batch: list[Point] = []
        for line in lines:
            if batch and len(batch) + len(line) > _METRICS_PER_REQUEST:
                self._send(key, batch)
                batch = []
            batch.extend(line)
        self._send(key, batch)
        return sum(len(line) for line in lines)

    def _send(self, key: str, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(metric_name(p.name), p.value, p.time, p.step) for p in points]
        for start in range(0, len(metrics), _METRICS_PER_REQUEST):
            batch = metrics[start : start + _METRICS_PER_REQUEST]
            self._client.log_batch(self._id(key), metrics=batch, synchronous=True)

    def set_status(self, key: str, status: str, end: int) -> None:
        """Open (RUNNING) or close (FINISHED, KILLED) the run, `end` in ms, where it is not so already."""
        info = self._runs[key].info
        if status == "RUNNING":
            if info.status != status:
                self._client.update_run(self._id(key), status=status)
        elif (info.status, info.end_time) != (status, end):
            self._client.set_terminated(self._id(key), status=status, end_time=end)

    def attach(self, key: str, files: Sequence[Path]) -> None:
        """Copy files to the run's artifacts, replacing those of the same name; nothing where the directory was moved,
        because MLflow would write to the place it was moved from."""
        for path in files if self._takes_files else ():
            self._client.log_artifact(self._id(key), str(path))

    def _id(self, key: str) -> str:
        return str(self._runs[key].info.run_id)
