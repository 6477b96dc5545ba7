"""How an experiment is sent to a cluster: the `cluster.submit` section, the same for Ray Jobs, KubeRay and Slurm.

One section describes the machines, the shared volume, the limits and what is handed on; each backend takes what it
knows (`cluster.render`, `cluster.jobs`), and says so where something it needs is not set. Guarantees: no value of a
secret can stand here (only names of variables), and nothing here is part of a run's identity. Loads neither torch nor
ray. Not here: what only one backend can refuse (`cluster.render.rules`).
"""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from data_prep.errors import ConfigError
from data_prep.redact import is_clean, is_secret_name
from data_prep.settings import Settings

Backend = Literal["ray", "kuberay", "slurm", "local"]
# An RFC 1123 label: Kubernetes' names of most things.
Label = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
Memory = Annotated[str, Field(pattern=r"^[1-9][0-9]*(Mi|Gi|Ti)$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
# A word for a command line of Slurm, which knows no quotes in its comments.
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:+-]*$")]
AbsolutePath = Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./-]*$")]

# What a job's working directory never holds, whatever else is excluded; shards, checkpoints and runs are on the volume.
ALWAYS_EXCLUDED = (".git", ".venv", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", "runs", "mlruns")


class SharedVolume(Settings):
    """What every machine sees under the same path: corpus, checkpoints, records."""

    path: AbsolutePath = "/shared"
    claim: Label | None = None  # KubeRay: the PersistentVolumeClaim mounted there (ReadWriteMany)


class Machine(Settings):
    """Of a pod or a Slurm node; requested and, on Kubernetes, its limit."""

    cpus: PositiveInt = 4
    memory: Memory = "16Gi"
    node_selector: dict[str, str] = Field(default_factory=dict)  # Kubernetes labels
    tolerations: list[str] = Field(default_factory=list)  # keys of Kubernetes taints, whatever their value and effect


class WorkerGroup(Machine):
    """So many machines alike. Slurm knows one group: its nodes, the first of which is the head as well."""

    name: Label = "workers"
    replicas: PositiveInt = 1
    min_replicas: NonNegativeInt | None = None  # KubeRay: below `replicas`, Ray's autoscaler takes and gives back
    gpus: NonNegativeInt = 0

    @model_validator(mode="after")
    def _fits(self) -> "WorkerGroup":
        if self.min_replicas is not None and self.min_replicas > self.replicas:
            raise ValueError(f"min_replicas {self.min_replicas} is more than replicas {self.replicas}; lower it")
        return self


class SlurmConfig(Settings):
    """What only Slurm knows; nodes, CPUs, GPUs and memory are the worker group's."""

    partition: Word | None = None
    account: Word | None = None
    constraint: Word | None = None
    time_minutes: PositiveInt = 24 * 60  # of one allocation; the job saves and is queued again before it is over
    # Run by the script on the first node before anything else, such as `module load cuda`.
    setup: list[Annotated[str, Field(pattern=r"^[^\n\r]+$")]] = Field(default_factory=list)


class SubmitConfig(Settings):
    """Everything about sending. `retries` and the names of queues mean what the chosen backend makes of them."""

    backend: Backend = "ray"
    image: Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._/:@-]*$")] | None = None  # see cluster/Dockerfile
    python: Annotated[str, Field(pattern=r"^[A-Za-z0-9_./-]+$")] = "python"  # over there, with this project installed
    namespace: Label | None = None  # Kubernetes; None: that of the context in use
    # Of the working directory sent to Ray Jobs, beside ALWAYS_EXCLUDED; as in .gitignore.
    excludes: list[str] = Field(default_factory=list)
    # Handed on with the values they have here; readable by all who see the cluster.
    env: list[VariableName] = Field(default_factory=list)
    # Names only: the nodes, a Kubernetes Secret, or Slurm's --export have the values.
    secrets: list[VariableName] = Field(default_factory=list)
    secret_name: Label | None = None  # KubeRay: the Secret with a key for each of `secrets`
    shared: SharedVolume = SharedVolume()
    queue: Label | None = None  # Kueue's LocalQueue
    priority: Word | None = None  # Kueue's WorkloadPriorityClass, or without a queue the pods'; Slurm's QOS
    head: Machine = Machine()
    worker_groups: list[WorkerGroup] = Field(default_factory=lambda: [WorkerGroup()], min_length=1)
    deadline_seconds: PositiveInt | None = None  # KubeRay: of the whole job, retries included
    start_seconds: PositiveInt | None = None  # until it must have started; it waits in a queue outside of this
    keep_seconds: NonNegativeInt = 600  # KubeRay: that the pods of an ended job stay, for their logs
    # From the request to stop to the kill. More than a checkpoint takes: else it is lost.
    stop_seconds: Annotated[int, Field(ge=30)] = 300
    retries: NonNegativeInt = 3  # of a job that ended unfinished; each goes on from the newest verified checkpoint
    slurm: SlurmConfig = SlurmConfig()

    @field_validator("env")
    @classmethod
    def _no_secrets(cls, names: list[str]) -> list[str]:
        for name in names:
            if is_secret_name(name):
                raise ValueError(f"the values of `env` can be read, and {name} names a secret; list it in `secrets`")
        return names

    @field_validator("worker_groups")
    @classmethod
    def _distinct_groups(cls, groups: list[WorkerGroup]) -> list[WorkerGroup]:
        names = [group.name for group in groups]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two groups are called '{name}'; give each its own name")
        return groups

    def environment(self, here: dict[str, str]) -> dict[str, str]:
        """The variables of every job, from those of `here`: those of `env` that are set, and Ray's time to stop.
        ConfigError where a value holds a secret, as an address may."""
        handed = {name: here[name] for name in self.env if name in here}
        for name, value in handed.items():
            if not is_clean(value):
                raise ConfigError(
                    f"cluster.submit.env: the value of {name} holds a secret, which all who see the cluster could "
                    "read; list it in cluster.submit.secrets, and set it on the nodes"
                )
        return {**handed, "RAY_JOB_STOP_WAIT_TIME_S": str(self.stop_seconds)}
