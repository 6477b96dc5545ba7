"""`electra plan`: what an experiment's training takes, from its file alone: no GPU, no torch, some seconds.

Parameters and FLOPs are exact; steps, tokens and epochs are those of the prepared corpus, or of full rows where there
is none yet. Hours follow from a stated MFU, memory from closed forms (`pipeline.plan_memory`), money from a price that
the user may set. A plan that does not fit its GPUs is refused, with a setting that would.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data_prep.errors import ConfigError, PreflightError
from data_prep.manifest import Manifest
from pipeline import corpora
from pipeline.corpora import Reading, Readings
from pipeline.devices import GIB, Stated
from pipeline.experiment import Experiment
from pipeline.plan_memory import Memory, Setting, memory
from pipeline.plan_size import Size, sizes
from pipeline.plan_traffic import Traffic, checkpoint_bytes, traffic
from training.arms import ArmConfig
from training.flops import Counts, network_costs
from training.paper_flops import train_arm
from training.run import mean_counts
from training.settings import RunSpec
from training.sizes import EncoderConfig

STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Training FLOPs a token of one network: `model` ledger."""

    network: str
    layers: float  # matmuls, without attention's own
    attention: float
    outside: float  # heads, and the projection of embeddings

    @property
    def total(self) -> float:
        return self.layers + self.attention + self.outside


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmPlan:
    """One arm: what does not depend on how long it is trained."""

    config: ArmConfig
    model: EncoderConfig
    sizes: dict[str, Size]
    parts: list[Part]
    paper: float  # FLOPs a token by the ELECTRA paper's convention
    memory: Memory  # as configured
    traffic: Traffic
    step_seconds: float | None
    checkpoint: int  # bytes

    @property
    def arm(self) -> str:
        return self.config.label

    @property
    def parameters(self) -> int:
        return sum(one.total for one in self.sizes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The runs of an arm at a budget, of which there is one a seed; figures are of one."""

    arm: str
    budget: float
    seeds: int
    steps: int
    tokens: float
    epochs: float | None
    model_flops: float
    paper_flops: float
    seconds: float | None
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole plan. `assumed`: the corpus is not prepared, rows are taken to be full; `swept`: learning rates are to be
    searched for, which is not in it."""

    stated: Stated
    setting: Setting
    global_batch: int
    arms: list[ArmPlan]
    runs: list[RunPlan]
    assumed: bool
    swept: bool

    @property
    def seconds(self) -> float | None:
        """Of all runs, one after the other."""
        parts = [run.seconds for run in self.runs]
        return None if None in parts else sum(run.seeds * (run.seconds or 0.0) for run in self.runs)


def make(experiment: Experiment, out: Path, stated: Stated, corpus_tokens: float | None = None) -> Plan:
    """The plan of an experiment. ConfigError where it has fewer rows a step than GPUs, PreflightError where a GPU
    cannot hold what it would have to, both with the way out."""
    # means over all rows, as no one wants a plan to wait for the rows of short runs
    readings = {name: Reading(one.manifest) for name, one in corpora.found(experiment, out).items()}
    specs = experiment.runs(readings, out / "runs")
    read = {run: readings[name] for run, name in experiment.corpus_by_run(specs).items()}
    setting = _setting(experiment, readings, stated)
    batch = experiment.training.global_batch
    if batch < stated.gpus:
        raise ConfigError(
            f"--gpus: {stated.gpus} GPUs share {batch} rows a step; ask for {batch} at most, or raise "
            "training.global_batch"
        )
    arms = [_arm(spec, read[spec.name].manifest, stated, setting) for spec in _first_of_each(specs)]
    _refuse_misfits(specs, setting, stated)
    runs = list(_runs(specs, read, stated, corpus_tokens))
    return Plan(
        stated=stated,
        setting=setting,
        global_batch=batch,
        arms=arms,
        runs=runs,
        assumed=any(reading.assumed for reading in readings.values()),
        swept=experiment.sweep is not None,
    )


def _first_of_each(specs: Sequence[RunSpec]) -> list[RunSpec]:
    return list({spec.identity.arm.label: spec for spec in reversed(specs)}.values())[::-1]


def _setting(experiment: Experiment, readings: Readings, stated: Stated) -> Setting:
    """Packed where any arm's rows are, which need no less."""
    training, gpu = experiment.training, stated.device.peak is not None
    attention: str = training.compute.attention
    if attention == "auto":
        attention = "varlen" if gpu and stated.device.varlen and experiment.model.attention_dropout == 0 else "sdpa"
        if not gpu and experiment.model.attention_dropout > 0:
            attention = "reference"
    return Setting(
        stage=training.zero_stage if training.engine == "deepspeed" else 0,
        gpus=stated.gpus,
        micro_batch=min(training.micro_batch, -(-training.global_batch // stated.gpus)),
        checkpointing=training.compute.activation_checkpointing,
        attention=attention,
        bf16=training.precision == "bf16" or (training.precision == "auto" and gpu),
        packed=any(reading.manifest.layout == "packed" for reading in readings.values()),
        seq_len=experiment.corpus.seq_len,
    )


def _arm(spec: RunSpec, manifest: Manifest, stated: Stated, setting: Setting) -> ArmPlan:
    identity = spec.identity
    found = dict(sizes(identity.arm, identity.model))
    rows = -(-identity.global_batch // stated.gpus)
    return ArmPlan(
        config=identity.arm,
        model=identity.model,
        sizes=found,
        parts=parts(spec, mean_counts(manifest, identity.arm)),
        paper=train_arm(identity.arm, identity.model, identity.seq_len, 1.0) / identity.seq_len,
        memory=memory(identity.arm, identity.model, setting),
        traffic=traffic(
            list(found.values()),
            stated.device,
            stage=setting.stage,
            gpus=stated.gpus,
            accumulation=-(-rows // setting.micro_batch),
            bf16=setting.bf16,
        ),
        step_seconds=stated.seconds(spec.flops_per_step),
        checkpoint=checkpoint_bytes(list(found.values())),
    )


def parts(spec: RunSpec, row: Counts) -> list[Part]:
    """The `model` ledger of a token of the average row, by network and kind of work."""
    tokens = Counts(tokens=row.tokens)
    return [
        Part(
            network=name,
            layers=column.passes * column.layers.of(tokens) / row.tokens,
            attention=column.passes * (column.layers.of(row) - column.layers.of(tokens)) / row.tokens,
            outside=column.passes * column.outside.of(row) / row.tokens,
        )
        for name, column in network_costs(spec.identity.arm, spec.identity.model).items()
    ]


def _runs(
    specs: Sequence[RunSpec], read: Mapping[str, Reading], stated: Stated, corpus_tokens: float | None
) -> Iterator[RunPlan]:
    """One line an arm and budget."""
    groups: dict[tuple[str, float, int], list[RunSpec]] = {}
    for spec in specs:
        groups.setdefault((spec.identity.arm.label, spec.budget, spec.steps), []).append(spec)
    for (arm, budget, steps), own in groups.items():
        reading = read[own[0].name]
        known = corpus_tokens or (None if reading.assumed else float(reading.manifest.train.tokens))
        identity, done = own[0].identity, steps - own[0].first_step
        tokens = done * identity.global_batch * mean_counts(reading.manifest, identity.arm).tokens
        flops = own[0].flops_by(steps)
        seconds = stated.seconds(flops)
        yield RunPlan(
            arm=arm,
            budget=budget,
            seeds=len(own),
            steps=steps,
            tokens=tokens,
            epochs=None if known is None else tokens / known,
            model_flops=flops,
            paper_flops=train_arm(identity.arm, identity.model, identity.seq_len, done * identity.global_batch),
            seconds=seconds,
            cost=None if seconds is None else stated.cost(seconds),
        )


# --- what fits --------------------------------------------------------------------------------------------------------


def _refuse_misfits(specs: Sequence[RunSpec], setting: Setting, stated: Stated) -> None:
    room = stated.device.memory
    if room is None:
        return
    need, arm = max((_needed([spec], setting), spec.identity.arm.label) for spec in _first_of_each(specs))
    if need <= room:
        return
    what = f"{arm} needs about {need / GIB:.1f} GiB of a GPU, and {stated.device.name} has {room / GIB:.1f}"
    for other, change in alternatives(setting):
        smaller = _needed(specs, other)
        if smaller <= room:
            raise PreflightError(f"{what}; {smaller / GIB:.1f} GiB would do with {change}")
    raise PreflightError(f"{what}, and no setting fits; take a larger GPU, or a smaller model")


def _needed(specs: Sequence[RunSpec], setting: Setting) -> float:
    return max(memory(spec.identity.arm, spec.identity.model, setting).total for spec in _first_of_each(specs))


def alternatives(setting: Setting) -> Iterator[tuple[Setting, str]]:
    """Other settings with the same result, the cheapest in time first, each with the keys that make it."""
    micro = setting.micro_batch
    while micro > 1:
        micro //= 2
        yield replace(setting, micro_batch=micro), f"training.micro_batch={micro}"
    lean = replace(setting, checkpointing=True)
    key = "training.compute.activation_checkpointing=true"
    for micro in (setting.micro_batch, 1):
        yield replace(lean, micro_batch=micro), f"training.micro_batch={micro} {key}"
    for stage in range(setting.stage + 1, 4):
        yield (
            replace(lean, micro_batch=1, stage=stage),
            f"training.engine=deepspeed training.zero_stage={stage} training.micro_batch=1 {key}",
        )


def grids(plan: Plan) -> dict[str, list[tuple[Setting, Memory]]]:
    """Of every arm, memory by stage, checkpointing, and half, once and twice the micro-batch; nothing on a CPU, whose
    memory nobody has to fit."""
    if plan.stated.device.memory is None:
        return {}
    micro = plan.setting.micro_batch
    settings = [
        replace(plan.setting, stage=stage, checkpointing=checkpointing, micro_batch=one)
        for stage in STAGES
        for checkpointing in (False, True)
        for one in sorted({max(1, micro // 2), micro, 2 * micro})
    ]
    return {arm.arm: [(one, memory(arm.config, arm.model, one)) for one in settings] for arm in plan.arms}
