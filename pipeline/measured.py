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

from data_prep.manifest import Manifest
from data_prep.storage import Location
from pipeline.assumed import assumed_manifest
from pipeline.estimate import finished_rates, shape_of
from training.settings import RunSpec

if TYPE_CHECKING:
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


def measure(experiment: "Experiment", manifest: Manifest | None, corpus: Location | None, out: Path) -> Measured:
    """Measure every arm and every task of an experiment in `out`, but for arms that have finished runs there. Its sweep
    has the same arms, and the same tasks or fewer.

    Raises as planning does, and DataError where the data of a suite is missing.
    """
    used = manifest if manifest is not None else assumed_manifest(experiment.corpus)
    specs = list({shape_of(spec): spec for spec in experiment.runs(used)}.values())
    known = finished_rates(out)
    untried = [spec for spec in specs if shape_of(spec) not in known]
    workers, threads = max(1, experiment.cluster.num_workers), experiment.cluster.threads_per_worker
    busy = os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1)
    with tempfile.TemporaryDirectory(prefix="electra-measure-") as folder:
        steps = _train(untried, used, corpus, workers, threads, Path(folder), busy) if untried else []
        units = _evaluate(experiment, specs, used, corpus)
    return Measured(step_seconds=dict(zip(map(shape_of, untried), steps, strict=True)), unit_seconds=units, busy=busy)


def _train(
    specs: Sequence[RunSpec],
    manifest: Manifest,
    corpus: Location | None,
    workers: int,
    threads: int,
    folder: Path,
    busy: bool,
) -> list[float]:
    values = [spec.model_dump(mode="json") for spec in specs]
    shared = (values, manifest.model_dump(mode="json"), None if corpus is None else str(corpus), str(folder / "store"))
    with _processes(workers) as pool:
        ranks = [
            pool.submit(_measure_training, *shared, rank, workers, threads, ARM_SECONDS, busy)
            for rank in range(workers)
        ]
        return max((rank.result() for rank in ranks), key=sum)


def _evaluate(
    experiment: "Experiment", specs: Sequence[RunSpec], manifest: Manifest, corpus: Location | None
) -> dict[tuple[str, str], dict[str, float]]:
    values = {shape_of(spec): spec.model_dump(mode="json") for spec in specs if spec.part_of is None}
    config = experiment.evaluation.model_dump(mode="json")
    tokenizer = experiment.corpus.tokenizer.model_dump(mode="json")
    where = None if corpus is None else str(corpus)
    with _processes(1) as pool:
        args = (values, config, tokenizer, manifest.model_dump(mode="json"), where)
        return pool.submit(_measure_evaluation, *args).result()


def _measure_training(*args: Any) -> list[float]:
    from pipeline.measured_training import measure

    return measure(*args)


def _measure_evaluation(*args: Any) -> dict[tuple[str, str], dict[str, float]]:
    from pipeline.measured_evaluation import measure

    return measure(*args)


def _processes(count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
