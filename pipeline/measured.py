"""Rates of this machine's CPUs, measured: a few steps of every arm, a few fine-tuning steps of every task.

Training is measured as it will run: as many processes of as many threads, the same engine, rows of the corpus where it
is prepared and full ones elsewhere. Evaluation is measured in one process of one thread, as a unit runs, on a part of
each task's texts. Networks are fresh: time does not depend on what weights hold. Each is a process of its own, so this
one imports no torch.
"""

import multiprocessing
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.corpora import MAIN, Reading, Readings
from pipeline.estimate import finished_rates, shape_of
from training.settings import RunSpec

if TYPE_CHECKING:
    from cluster.config import ClusterConfig
    from pipeline.experiment import Experiment

ARM_SECONDS = 5.0  # of steps, an arm


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds a training step by `shape_of`, and seconds a unit of evaluation by (suite, task) and `shape_of`; a task
    that is fine-tuned on costs every arm the same, since main networks are of one size."""

    step_seconds: dict[str, float]
    unit_seconds: dict[tuple[str, str], dict[str, float]]
    busy: bool = False  # the machine had other work, and training was measured in CPU seconds, waiting left out

    @property
    def source(self) -> str:
        """What times made of it go by."""
        return "measured here, in CPU seconds of a busy machine" if self.busy else "measured here"


def measure(experiment: "Experiment", readings: Readings, out: Path) -> Measured:
    """Measure every arm and every task of an experiment in `out`, but for arms that have finished runs there. Its sweep
    has the same arms, and the same tasks or fewer.

    Raises as planning does, and DataError where the data of a suite is missing.
    """
    specs, known = experiment.runs(readings), finished_rates(out)
    read = experiment.corpus_by_run(specs)
    steps: dict[str, float] = {}
    units: dict[tuple[str, str], dict[str, float]] = {}
    busy = os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1)
    for name, reading in readings.items():
        own = list({shape_of(spec): spec for spec in specs if read[spec.name] == name}.values())
        untried = [spec for spec in own if shape_of(spec) not in known]
        if untried:
            steps |= dict(zip(map(shape_of, untried), _train(untried, reading, experiment.cluster, busy), strict=True))
        for unit, seconds in _evaluate(experiment, own, name, readings).items():
            units.setdefault(unit, {}).update(seconds)
    return Measured(step_seconds=steps, unit_seconds=units, busy=busy)


def _train(specs: Sequence[RunSpec], reading: Reading, cluster: "ClusterConfig", busy: bool) -> list[float]:
    values = [spec.model_dump(mode="json") for spec in specs]
    workers, threads = max(1, cluster.num_workers), cluster.threads_per_worker
    with tempfile.TemporaryDirectory(prefix="electra-measure-") as folder, _processes(workers) as pool:
        shared = (values, reading.manifest.model_dump(mode="json"), _where(reading), str(Path(folder) / "store"))
        ranks = [
            pool.submit(_measure_training, *shared, rank, workers, threads, ARM_SECONDS, busy)
            for rank in range(workers)
        ]
        return max((rank.result() for rank in ranks), key=sum)


def _where(reading: Reading) -> str | None:
    return None if reading.place is None else str(reading.place)


def _evaluate(
    experiment: "Experiment", specs: Sequence[RunSpec], name: str, readings: Readings
) -> dict[tuple[str, str], dict[str, float]]:
    """With the tokenizer of one corpus, of the runs on it. Probes are those of `corpus:`."""
    values = {shape_of(spec): spec.model_dump(mode="json") for spec in specs if spec.part_of is None}
    config = experiment.evaluation.model_dump(mode="json")
    tokenizer = experiment.corpus_configs()[name].tokenizer.model_dump(mode="json")
    manifest = readings[name].manifest.model_dump(mode="json")
    with _processes(1) as pool:
        args = (values, config, tokenizer, manifest, _where(readings[name]), _where(readings[MAIN]))
        return pool.submit(_measure_evaluation, *args).result()


def _measure_training(*args: Any) -> list[float]:
    from pipeline.measured_training import measure

    return measure(*args)


def _measure_evaluation(*args: Any) -> dict[tuple[str, str], dict[str, float]]:
    from pipeline.measured_evaluation import measure

    return measure(*args)


def _processes(count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
