"""The settings a training run is made of: optimisation, what may differ between machines, and the run specification.

Model sizes are in `training.sizes`, arms in `training.arms`. Torch-free, so that planning and `--help` stay instant.
`Identity` is what must match for two attempts to be the same run; `Placement` is what may change from one attempt to
the next without changing the result.
"""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from data_prep.order import OrderConfig
from data_prep.settings import Settings
from training.arms import ArmConfig
from training.sizes import EncoderConfig

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]


class OptimizerConfig(Settings):
    """Decoupled weight decay, none on LayerNorm and bias, and one joint clip, for either kind of Adam."""

    # reference_adam: google-research/electra's, without bias correction. adamw: with it (Loshchilov & Hutter 2019).
    kind: Literal["reference_adam", "adamw"] = "reference_adam"
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    eps: Positive = 1e-6
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    grad_clip: Positive = 1.0  # one joint global norm over generator and discriminator


class ScheduleConfig(Settings):
    """How the learning rate moves, as fractions of a run's steps.

    linear: warm-up × a line that falls to 0 at the last step (google-research/electra). wsd: warm-up, then the peak,
    then a line to 0 over the last `decay_fraction` (warm-up–stable–decay; Hu et al. 2024).
    """

    kind: Literal["linear", "wsd"] = "linear"
    warmup_fraction: Fraction = 0.05  # the reference's 10k of 1M is .01
    decay_fraction: Fraction = 0.1  # wsd only
    # wsd only: the runs of smaller budgets are decays off the largest one's, their trunk, and pay for nothing else; the
    # warm-up is the smallest budget's in all of them (`training.branches`)
    branches: bool = False

    @model_validator(mode="after")
    def _parts_fit(self) -> "ScheduleConfig":
        if self.kind == "wsd" and self.warmup_fraction + self.decay_fraction > 1.0:
            raise ValueError("warmup_fraction and decay_fraction add up to more than 1; lower one of them")
        return self

    @model_validator(mode="after")
    def _branches_have_a_trunk(self) -> "ScheduleConfig":
        if self.branches and self.kind != "wsd":
            raise ValueError("branches need a rate that stays until the decay; set kind to wsd, or branches to false")
        if self.branches and not 0.0 < self.decay_fraction < 1.0:
            raise ValueError("branches are the decay and share the rest; set decay_fraction between 0 and 1")
        return self

    def planned(self, steps: int) -> "Schedule":
        """The integers of a run of `steps`."""
        decay = round(self.decay_fraction * steps) if self.kind == "wsd" else 0
        return Schedule(kind=self.kind, warmup_steps=round(self.warmup_fraction * steps), decay_steps=decay)


class Schedule(Settings):
    """A planned run's schedule, in steps."""

    kind: Literal["linear", "wsd"]
    warmup_steps: Annotated[int, Field(ge=0)]
    decay_steps: Annotated[int, Field(ge=0)]


class Compute(Settings):
    """How a network is computed: free to change, since results agree to rounding.

    attention. auto: the fastest that serves. reference: matmul, softmax, matmul, which FLOPs are counted on. sdpa:
    PyTorch's fused attention. varlen: torch.nn.attention.varlen (GPU; attention_dropout 0). flash: flash-attn (GPU,
    where it is installed).
    """

    attention: Literal["auto", "reference", "sdpa", "varlen", "flash"] = "auto"
    activation_checkpointing: bool = False  # a layer's activations are computed again instead of kept
    compile: bool = False  # each layer through torch.compile; on a GPU only, on the CPU it is slower and left off


class EngineConfig(Settings):
    """Who holds what of a run between steps, and in what precision it computes: free to change.

    engine. deepspeed: ZeRO, at stage 0 nothing is divided among ranks; at 1 the optimizer's state, at 2 gradients too,
    at 3 parameters too. ddp: PyTorch's own DistributedDataParallel, to which the stages are held.
    precision. bf16: matmuls in bfloat16, under autocast, of parameters kept in fp32. auto: bf16 on a GPU, fp32 on the
    CPU.
    """

    engine: Literal["deepspeed", "ddp"] = "deepspeed"
    zero_stage: Literal[0, 1, 2, 3] = 1  # of deepspeed
    precision: Literal["auto", "fp32", "bf16"] = "auto"


class CheckpointConfig(Settings):
    """When a run saves, where to, and which of its checkpoints it keeps (the newest always): free to change."""

    every: PositiveInt | None = None  # steps; None: at the end only
    at_flops: list[Positive] = Field(default_factory=list)  # model FLOPs: saved at the nearest step, and kept for good
    keep_last: PositiveInt = 2
    keep_every: PositiveInt | None = None  # steps: those at multiples of it are kept for good
    keep_best: bool = True  # that with the lowest held-out loss, of those evaluated at the step they were saved at
    to: str | None = None  # an s3:// or gs:// address, below which every run has its own; None: in the run's folder
    max_failures: PositiveInt = 5  # savings that fail in a row, over at least seven minutes, before the run ends


class WatchdogConfig(Settings):
    """When a run counts as hung, in seconds without progress of a rank: free to change."""

    first_step: Positive = 1800.0  # from the start, or from a resumption, to the end of its first step
    step: Positive = 300.0  # for each of: a step, an evaluation, a saving that is waited for
    heartbeat: Positive = 5.0  # between two signs of life of a rank


class StabilityConfig(Settings):
    """When a run goes back to a verified checkpoint and skips the rows that it had read since: free to change.

    Losses are means over `log_every` steps.
    """

    max_skipped: PositiveInt = 10  # steps in a row whose gradient is not finite
    spike_sigmas: Positive = 6.0  # a window's loss above the mean of those before it by so many standard deviations …
    spike_windows: PositiveInt = 2  # … in so many windows in a row
    history: Annotated[int, Field(ge=8)] = 128  # windows that the mean is taken over; fewer than 8 judge nothing
    max_rollbacks: PositiveInt = 3  # for one trouble, each to an earlier checkpoint, before the run ends as diverged


class Fault(Settings):
    """Something that goes wrong on purpose, for drills and tests, at a step (so many are completed) of one rank, or of
    all (`rank: all`).

    kill, stop: SIGKILL, SIGSTOP to itself. hang: the training thread sleeps. nan: the loss of the step is not a number.
    spike: the learning rate of the step is multiplied by 1000. full_disk: saving fails with ENOSPC. kill_in_save: it is
    killed while it writes its part of a checkpoint. kill_in_resume: killed after it has restored one.
    """

    kind: Literal["kill", "stop", "hang", "nan", "spike", "full_disk", "kill_in_save", "kill_in_resume"]
    step: Annotated[int, Field(ge=0)]
    rank: Annotated[int, Field(ge=0)] | Literal["all"] = 0  # a spike is always of all
    times: PositiveInt = 1  # over all attempts; from the step on, as soon as may be


class TrainingConfig(EngineConfig):
    """How every arm of an experiment is trained."""

    global_batch: PositiveInt
    micro_batch: PositiveInt
    schedule: ScheduleConfig = ScheduleConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    order: OrderConfig = OrderConfig()
    compute: Compute = Compute()
    log_every: PositiveInt = 20
    eval_every: PositiveInt | None = None  # None: at the end only
    eval_rows: PositiveInt = 512
    checkpoints: CheckpointConfig = CheckpointConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    stability: StabilityConfig = StabilityConfig()
    faults: list[Fault] = Field(default_factory=list)


class Identity(Settings):
    """What makes a run the run it is; an attempt with another identity is another run."""

    arm: ArmConfig
    model: EncoderConfig
    optimizer: OptimizerConfig
    order: OrderConfig
    global_batch: PositiveInt
    steps: PositiveInt
    schedule: Schedule
    seq_len: PositiveInt
    seed: int
    start_position: Annotated[int, Field(ge=0)] = 0  # in the stream: a second stage reads on where the first ended
    # What the first weights are, by what they are for ("weights", "generator"): `FINGERPRINT@STEP` of a run, or
    # `sha256:…` of a Hugging Face folder's weights. The paths are the placement's.
    init: dict[str, list[str]] = Field(default_factory=dict)
    manifest_sha256: str
    tokenizer_sha256: str


class Placement(EngineConfig):
    """What may change between attempts: recorded, never compared."""

    micro_batch: PositiveInt
    compute: Compute = Compute()
    init: dict[str, list[str]] = Field(default_factory=dict)  # folders, in the order of the identity's `init`
    # The folder of the run whose checkpoint this one's decay begins with. It is no part of the identity: up to there
    # the two have the same one, and a whole run of this identity comes to the same.
    trunk: str | None = None
    log_every: PositiveInt = 20
    eval_every: PositiveInt | None = None
    eval_rows: PositiveInt = 512
    checkpoints: CheckpointConfig = CheckpointConfig()
    save_at: list[PositiveInt] = Field(default_factory=list)  # steps: by `checkpoints.at_flops` and of branches
    watchdog: WatchdogConfig = WatchdogConfig()
    stability: StabilityConfig = StabilityConfig()
    faults: list[Fault] = Field(default_factory=list)


class RunSpec(Settings):
    """One training run: an arm at a budget with a seed."""

    name: str
    part_of: str | None = None  # the run that this one is the first stage of; it is no result by itself
    # Model FLOPs, those inherited included. Of a run planned in steps, what they cost on average over the corpus: as
    # this is the same for every seed, while the rows of a seed cost a little more or less.
    budget: Positive
    inherited: Annotated[float, Field(ge=0.0)] = 0.0  # of the runs it continues, model FLOPs
    inherited_budget: Annotated[float, Field(ge=0.0)] = 0.0  # the same as those runs were budgeted
    flops_per_step: Positive  # exact mean over the corpus, model FLOPs
    identity: Identity
    placement: Placement

    @property
    def steps(self) -> int:
        return self.identity.steps

    @property
    def first_step(self) -> int:
        """How many steps it finds done: 0, but for a decay branch, whose trunk has made all those before the decay."""
        return 0 if self.placement.trunk is None else self.steps - self.identity.schedule.decay_steps

    def flops_by(self, step: int) -> float:
        """Model FLOPs, by the mean, that the run itself has done by a step."""
        return max(0, step - self.first_step) * self.flops_per_step


def run_name(label: str, seed: int, *, budget: float | None = None, steps: int | None = None) -> str:
    """`electra-4.00e+11-s0` or `electra-1000000steps-s0`: what a run and its folder are called, by what it was planned
    from."""
    if (budget is None) == (steps is None):
        raise ValueError("a run needs a budget or a number of steps, and not both")
    length = f"{steps}steps" if budget is None else budget_name(budget)
    return f"{label}-{length}-s{seed}"


def budget_name(budget: float) -> str:
    """Three digits: `4.00e+11`."""
    return f"{budget:.2e}"
