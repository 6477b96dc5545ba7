"""Where an experiment runs: an embedded Ray or a cluster, how many training workers, and how failures are got over."""

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from cluster.submit_config import SubmitConfig
from data_prep.settings import Settings

Seconds = Annotated[float, Field(gt=0.0)]


class ClusterConfig(Settings):
    """Placement of an experiment. Nothing here changes a result beyond the rounding of sums."""

    address: str | None = None  # of an existing Ray; None starts one on this machine and ends it afterwards
    num_cpus: Annotated[int, Field(ge=1)] | None = None  # of the embedded Ray; None: what the machine has
    # Training processes; 0: this very process and no Ray, for a debugger. A launcher other than Ray has its own number.
    num_workers: NonNegativeInt = 2
    # Of Ray: begin and go on with so few where no more are to be had, and grow when they are; None: all or nothing
    min_workers: PositiveInt | None = None
    resize_seconds: Seconds = 60.0  # between two looks at whether there is room to grow; growing saves and restarts
    threads_per_worker: PositiveInt = 1
    use_gpu: bool = False  # one GPU a worker, NCCL instead of gloo
    max_failures: PositiveInt = 3  # of Ray's workers, in a row and without a new checkpoint, before training ends
    reconnect_seconds: Seconds = 600.0  # for an existing Ray to come back after its head has gone
    submit: SubmitConfig = SubmitConfig()

    @model_validator(mode="after")
    def _fits(self) -> "ClusterConfig":
        if self.min_workers is not None and self.min_workers > self.num_workers:
            raise ValueError(
                f"min_workers {self.min_workers} is more than num_workers {self.num_workers}; lower it, or leave it out"
            )
        return self

    @property
    def fewest(self) -> int:
        """Workers without which nothing is trained."""
        return self.num_workers if self.min_workers is None else self.min_workers
