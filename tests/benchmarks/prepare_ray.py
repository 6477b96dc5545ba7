"""What Ray costs: `python -m tests.benchmarks.prepare_ray [MEGABYTES]`, wall time, on a machine that is quiet.

The documents and rows stages in this process, one unit after the other, and then under an embedded Ray with two CPUs,
whose workers have run a unit before (imports and compiled kernels come once a worker). The figure is the rate under Ray
as a share of twice the single rate.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from cluster.session import session
from data_prep import storage
from data_prep.corpus import CorpusConfig
from data_prep.plan import make_plan
from pipeline.prepare_stages import Stages
from tests.benchmarks.prepare import CONTROL_ONLY, Road, config
from tests.benchmarks.texts import write_jsonl

UNIT_BYTES = 32_000_000


def with_vocabulary(path: Path, vocabulary: Path) -> CorpusConfig:
    """Many units, and a vocabulary that is there already."""
    return config(path, "packed", CONTROL_ONLY, vocabulary).model_copy(update={"unit_bytes": UNIT_BYTES})


def alone(settings: CorpusConfig, folder: Path) -> tuple[float, float]:
    """Wall seconds of the two stages in this process."""
    road = Road(settings, folder)
    documents = wall(road.documents)[0]
    sha256 = road.tokenizer()
    verdict = road.verdict(sha256)
    return documents, wall(lambda: road.rows(sha256, verdict))[0]


def under_ray(settings: CorpusConfig, folder: Path) -> tuple[float, float]:
    """The same as units of a running Ray."""
    corpus = storage.folder(folder)
    corpus.prepare()
    with ExitStack() as stack:
        stages = Stages(settings, corpus, make_plan(settings, 0), None, None, lambda: None, stack)
        documents_seconds, documents = wall(stages.documents)
        removals = stages.removals(documents)
        made = stages.tokenizer(documents, removals)
        stages.engine(documents, made)  # beforehand, so that the rows alone are timed
        rows_seconds, _ = wall(lambda: stages.rows(documents, removals, made))
    return documents_seconds, rows_seconds


def wall(work: Callable[[], Any]) -> tuple[float, Any]:
    """(seconds, result)."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def main() -> None:
    """Print the rates and their ratio."""
    megabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 384.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, small = folder / "text.jsonl", folder / "small.jsonl"
        size = write_jsonl(path, megabytes) / 1e6
        write_jsonl(small, 2 * UNIT_BYTES / 1e6 + 4)
        first = Road(config(small, "packed", CONTROL_ONLY), folder / "vocabulary")
        first.documents()
        first.tokenizer()
        vocabulary = folder / "vocabulary" / "tokenizer"
        alone(with_vocabulary(small, vocabulary), folder / "warm")
        single = alone(with_vocabulary(path, vocabulary), folder / "single")
        with session(num_cpus=2):
            under_ray(with_vocabulary(small, vocabulary), folder / "warm-ray")
            double = under_ray(with_vocabulary(path, vocabulary), folder / "ray")
        print(f"{size:.0f} MB in units of {UNIT_BYTES / 1e6:.0f} MB; MB a second of wall time")
        cases = [
            ("documents", single[0], double[0]),
            ("rows", single[1], double[1]),
            ("both", sum(single), sum(double)),
        ]
        for stage, one, two in cases:
            print(f"  {stage:<12}{size / one:8.1f} alone{size / two:8.1f} under Ray with 2 CPUs{one / two / 2:8.1%}")


if __name__ == "__main__":
    main()
