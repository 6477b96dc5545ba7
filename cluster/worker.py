"""What every training process does, however it was started: its runs, one after another.

An assignment is small and travels as JSON. Each run resumes from its own newest checkpoint and is skipped when done.
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from cluster.config import ClusterConfig
from cluster.stop import stop_on_signals
from data_prep.errors import PreflightError, StoppedError, StoreError
from data_prep.integrity import verify
from data_prep.manifest import load
from data_prep.redact import redact_logs
from data_prep.settings import Settings
from data_prep.storage import Location, folder
from training import requests
from training.requests import Inbox
from training.settings import RunSpec

if TYPE_CHECKING:
    import torch

OnProgress = Callable[[RunSpec, dict[str, Any]], None]


class Assignment(Settings):
    """What a group of processes is to train."""

    specs: list[RunSpec]
    corpora: dict[str, str] = Field(default_factory=dict)  # by run
    runs_dir: Path = Path()
    threads: int = 1
    use_gpu: bool = False
    profile: int = 0  # steps of the first run to trace

    def run_dir(self, spec: RunSpec) -> Path:
        return self.runs_dir / spec.name


def assign(
    specs: Sequence[RunSpec],
    corpora: Mapping[str, Location],
    runs_dir: Path,
    config: ClusterConfig,
    profile: int = 0,
) -> Assignment:
    """The runs that are not done. `corpora`: what each reads, by its name. DataError where a shard is not what the
    manifest says; StoppedError where a stop was asked for before any of them could begin."""
    waiting = [spec for spec in specs if not (runs_dir / spec.name / "done.json").exists()]
    read = {spec.name: folder(corpora[spec.name]).location for spec in waiting}
    if waiting:
        _heed_a_stop(runs_dir, waiting[0])
    for corpus in map(folder, dict.fromkeys(read.values())):
        verify(corpus, load(corpus))
    return Assignment(
        specs=waiting,
        corpora=read,
        runs_dir=runs_dir.resolve(),
        threads=config.threads_per_worker,
        use_gpu=config.use_gpu,
        profile=profile,
    )


def _heed_a_stop(runs_dir: Path, first: RunSpec) -> None:
    asked = requests.read(runs_dir)
    if asked is not None and asked.what == "stop":
        raise StoppedError(
            f"{first.name}: stopped before it was started ({asked.reason}); the same command again trains it"
        )


def work(assignment: Assignment, device: "torch.device", *, rank: int, local_rank: int, world_size: int) -> None:
    """Train the assigned runs as one rank of a process group that exists. An OSError becomes a PreflightError, a
    StoreError where an object store raised it.

    A signal to this process asks all ranks to save and stop, where this is its main thread (Ray Train's workers train
    in another; there the driver hears the signals); so does a request in the runs' folder.
    """
    import torch

    redact_logs()
    # what DeepSpeed reads of its surroundings
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": str(world_size)}
    os.environ["DS_ACCELERATOR"] = device.type
    torch.set_num_threads(assignment.threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    inbox = Inbox(assignment.runs_dir if rank == 0 else None)
    with stop_on_signals(lambda reason: inbox.post("stop", reason)):
        for number, spec in enumerate(assignment.specs):
            _train(assignment, spec, device, inbox, assignment.profile if number == 0 else 0)
        asked = inbox.poll()
    if rank == 0 and asked is not None and asked[0] == "stop":  # too late for any run: what follows training heeds it
        with contextlib.suppress(OSError):
            requests.ask(assignment.runs_dir, *asked)


def _train(assignment: Assignment, spec: RunSpec, device: "torch.device", inbox: Inbox, profile: int) -> None:
    from training.loop import train

    run_dir = assignment.run_dir(spec)
    try:
        train(spec, folder(assignment.corpora[spec.name]), run_dir, device, profile=profile, inbox=inbox)
    except OSError as error:
        raise _refused(error, run_dir) from None


def _refused(error: OSError, run_dir: Path) -> PreflightError:
    if error.errno is None:  # an object store's: pyarrow gives those no number
        return StoreError(f"{run_dir.name}: {' '.join(str(error).split())}; run again when the store answers")
    place = error.filename or run_dir
    return PreflightError(f"{place}: {error.strerror}; free the space or correct the permissions")
