"""Where an experiment runs: an embedded Ray or a cluster, and how many training workers."""

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from data_prep.settings import Settings


class ClusterConfig(Settings):
    """Placement of an experiment. Nothing here changes a result beyond the rounding of sums."""

    address: str | None = None  # of an existing Ray; None starts one on this machine and ends it afterwards
    num_cpus: Annotated[int, Field(ge=1)] | None = None  # of the embedded Ray; None: what the machine has
    # Training processes; 0: this very process and no Ray, for a debugger. A launcher other than Ray has its own number.
    num_workers: NonNegativeInt = 2
    threads_per_worker: PositiveInt = 1
    use_gpu: bool = False  # one GPU a worker, NCCL instead of gloo
