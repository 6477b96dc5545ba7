"""From a budget to a run: steps, schedule and the mean cost of a step, decided once, before training.

A budget is model FLOPs. The manifest's totals make the mean cost of a row of the stream exact, so steps follow by one
division. A short run sees only a sample of the corpus, whose mean strays by a percent or more; the order is known
beforehand, so where the corpus is at hand, runs of at most `EXACT_ROWS` rows are planned from the rows they will read
(for longer ones, shuffled over all rows, the sampling error is below a tenth of a percent). Afterwards the ledger
measures and never steers.

A run that is given steps instead has the budget that so many average steps cost, one for all seeds of an arm.

A run that begins with the weights of others (`init_from`, the second of two stages) has their model FLOPs counted in
its budget; what is left pays for its steps (`training.beginning`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import ConfigError
from data_prep.manifest import Manifest, SplitStats
from data_prep.order import mixing_weights, order_of
from data_prep.reader import RowReader
from data_prep.rows import fragment_lengths, structure
from data_prep.storage import Location
from training.arms import ArmConfig, BertArm, ElectraTwoStageArm
from training.beginning import Beginning, beginning, second_stage
from training.checks import check_arm
from training.flops import Counts, train_flops
from training.masking import mask_counts
from training.run_folder import checkpoint_name, read_run_record, store
from training.settings import Identity, Placement, RunSpec, TrainingConfig, run_name
from training.sizes import EncoderConfig, ModelConfig

EXACT_ROWS = 1 << 18


def mean_counts(manifest: Manifest, arm: ArmConfig) -> Counts:
    """What an average row of the training stream costs by: exact means over the corpus, or over the sources in
    proportion to their weights."""
    weights = mixing_weights(manifest)
    if weights is None:
        return _mean_counts(manifest.train, arm, manifest.seq_len)
    total = Counts()
    for source, weight in zip(manifest.sources, weights, strict=True):
        total += _mean_counts(source.train, arm, manifest.seq_len).scaled(weight / sum(weights))
    return total


def _mean_counts(train: SplitStats, arm: ArmConfig, seq_len: int) -> Counts:
    lengths = np.arange(len(train.row_lengths), dtype=np.int64)
    histogram = np.asarray(train.row_lengths, dtype=np.int64)
    # a row of n real tokens has n - specials candidates; n ≥ 3 leaves room for k(n) in every row that holds text
    masked = int((mask_counts(lengths, arm.mask_prob, arm.max_predictions(seq_len)) * histogram).sum())
    pairs = train.rows_with_pair if isinstance(arm, BertArm) else 0
    return Counts(tokens=train.tokens, squares=train.sum_L2, masked=masked, pairs=pairs).scaled(1 / train.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The rows that a run reads, and what they cost its arm (which is resolved: a frozen generator has its size)."""

    arm: ArmConfig
    encoder: EncoderConfig
    training: TrainingConfig
    manifest: Manifest
    seed: int
    start: int  # position of the first row
    corpus_dir: Location | None  # None: the rows themselves are not at hand

    def mean(self) -> float:
        """Model FLOPs of an average step."""
        return self.training.global_batch * train_flops(self.arm, self.encoder, mean_counts(self.manifest, self.arm))

    def costs(self, steps: int) -> NDArray[np.float64] | None:
        """Model FLOPs of each of the first `steps` steps, from the rows they will read; None where the rows are not at
        hand, or are so many that the mean says as much."""
        if self.corpus_dir is None or steps * self.training.global_batch > EXACT_ROWS:
            return None
        reader = RowReader(self.corpus_dir, "train", self.manifest)
        order = order_of(self.manifest, "train", self.seed, self.training.order)
        positions = self.start + np.arange(steps * self.training.global_batch, dtype=np.int64).reshape(steps, -1)
        return np.array([self._cost(reader.rows(order.locate(step)[1])) for step in positions])

    def _cost(self, rows: NDArray[np.int64]) -> float:
        shape = structure(rows, self.manifest.special)
        slots = self.arm.max_predictions(self.manifest.seq_len)
        counts = Counts(
            tokens=int(shape.lengths.sum()),
            squares=int((fragment_lengths(shape.fragment) ** 2).sum()),
            masked=int(mask_counts(shape.lengths, self.arm.mask_prob, slots).sum()),
            pairs=int((shape.types.max(axis=1) == 1).sum()) if isinstance(self.arm, BertArm) else 0,
        )
        return train_flops(self.arm, self.encoder, counts)

    def steps_for(self, flops: float) -> tuple[int, float]:
        """The number of steps whose cost comes nearest to `flops`, and their mean cost; no step, and the cost of the
        first, where that is nearer."""
        mean = self.mean()
        steps = round(flops / mean)
        costs = self.costs(steps + 2 + steps // 4)
        if costs is None:
            return steps, mean
        spent = np.cumsum(costs)
        if spent[0] >= 2 * flops:
            return 0, float(spent[0])
        steps = int(np.abs(spent - flops).argmin()) + 1
        return steps, float(spent[steps - 1] / steps)

    def cost_of(self, steps: int) -> float:
        """The mean cost of the first `steps` steps."""
        costs = self.costs(steps)
        return self.mean() if costs is None else float(costs.mean())


def plan_runs(
    *,
    arm: ArmConfig,
    model: ModelConfig,
    training: TrainingConfig,
    manifest: Manifest,
    seed: int,
    budget: float | None = None,
    steps: int | None = None,
    corpus_dir: Location | None = None,
    runs_dir: Path | None = None,
) -> list[RunSpec]:
    """The runs of an arm at a budget of model FLOPs, or for a number of steps: one, or the two of `electra_two_stage`
    in the order they are trained in, each with half of the budget or of the steps. `runs_dir` is where earlier attempts
    lie. Errors as `plan_run`."""
    plan = partial(plan_run, model=model, training=training, manifest=manifest, seed=seed, corpus_dir=corpus_dir)

    def before(name: str) -> RunSpec | None:
        return None if runs_dir is None else read_run_record(runs_dir / name)

    name = run_name(arm.label, seed, budget=budget, steps=steps)
    if not isinstance(arm, ElectraTwoStageArm):
        return [plan(arm=arm, budget=budget, steps=steps, before=before(name))]
    if steps == 1:
        raise ConfigError(f"steps: arm {arm.label!r} has two stages and needs two steps or more")
    # named by the whole's length, like the run it is part of: halves of two budgets may have the same three digits
    first_name = run_name(arm.first_stage().label, seed, budget=budget, steps=steps)
    half = None if steps is None else steps // 2
    first = plan(
        arm=arm.first_stage(), budget=None if budget is None else budget / 2, steps=half, before=before(first_name)
    )
    second = plan(arm=arm, budget=budget, steps=None if steps is None or half is None else steps - half, first=first)
    last, elsewhere = checkpoint_name(first.steps), training.checkpoints.to is not None
    place = store(Path(first_name), training.checkpoints).sub(last)
    folders = [str(place) if elsewhere else f"../{first_name}/checkpoints/{last}"]
    placement = second.placement.model_copy(update={"init": {key: folders for key in second.identity.init}})
    return [
        first.model_copy(update={"name": first_name, "part_of": name}),
        second.model_copy(update={"name": name, "placement": placement}),
    ]


def plan_run(
    *,
    arm: ArmConfig,
    model: ModelConfig,
    training: TrainingConfig,
    manifest: Manifest,
    seed: int,
    budget: float | None = None,
    steps: int | None = None,
    corpus_dir: Location | None = None,
    first: RunSpec | None = None,
    before: RunSpec | None = None,
) -> RunSpec:
    """The run of an arm at a budget of model FLOPs, those of the runs it begins with included, or for a number of
    steps; exact for short runs where `corpus_dir` is given. An `electra_two_stage` arm is its second stage, and begins
    with `first` (`plan_runs` plans both). `before` is what an earlier attempt at this run was planned as.

    ConfigError where the budget does not pay for one step, where the arm cannot use the corpus, or where it cannot
    begin with what it names; CheckpointError where that was not trained yet.
    """
    name = run_name(arm.label, seed, budget=budget, steps=steps)
    check_arm(arm, model, manifest)
    encoder = model.encoder(manifest.vocab_size)
    if first is not None:
        begun = second_stage(arm, first)
    else:
        begun = beginning(arm, encoder, manifest, seed, corpus_dir=corpus_dir, before=before)
    stream = Stream(
        arm=begun.arm,
        encoder=encoder,
        training=training,
        manifest=manifest,
        seed=seed,
        start=begun.start,
        corpus_dir=corpus_dir,
    )
    if steps is not None:
        flops_per_step = stream.cost_of(steps)
        budget = begun.inherited_budget + steps * stream.mean()
    else:
        assert budget is not None
        steps, flops_per_step = _affordable(stream, budget, begun)
    identity = Identity(
        arm=begun.arm,
        model=encoder,
        optimizer=training.optimizer,
        order=training.order,
        global_batch=training.global_batch,
        steps=steps,
        schedule=training.schedule.planned(steps),
        seq_len=manifest.seq_len,
        seed=seed,
        start_position=begun.start,
        init=begun.identities,
        manifest_sha256=manifest.sha256,
        tokenizer_sha256=manifest.tokenizer_sha256,
    )
    placement = Placement(
        micro_batch=training.micro_batch,
        compute=training.compute,
        engine=training.engine,
        zero_stage=training.zero_stage,
        precision=training.precision,
        init=begun.folders,
        log_every=training.log_every,
        eval_every=training.eval_every,
        eval_rows=training.eval_rows,
        checkpoints=training.checkpoints,
        save_at=save_at(training.checkpoints.at_flops, begun.inherited, flops_per_step, steps),
        watchdog=training.watchdog,
        stability=training.stability,
        faults=training.faults,
    )
    return RunSpec(
        name=name,
        budget=budget,
        inherited=begun.inherited,
        inherited_budget=begun.inherited_budget,
        flops_per_step=flops_per_step,
        identity=identity,
        placement=placement,
    )


def save_at(at_flops: Sequence[float], inherited: float, flops_per_step: float, steps: int) -> list[int]:
    """The steps at which a run comes nearest to the model FLOPs named, which count what it began with; those that lie
    outside the run are left out, but for one within a step of its end, which is its last."""
    exact = [(flops - inherited) / flops_per_step for flops in at_flops]
    nearest = {min(round(step), steps) for step in exact if step < steps + 1}
    return sorted(step for step in nearest if step >= 1)


def _affordable(stream: Stream, budget: float, begun: Beginning) -> tuple[int, float]:
    label, left = stream.arm.label, budget - begun.inherited
    if left <= 0:
        raise ConfigError(
            f"budgets: the runs that arm {label!r} begins with took {begun.inherited:.3g} of its {budget:.3g} "
            "model FLOPs, and nothing is left; raise the budget"
        )
    steps, flops_per_step = stream.steps_for(left)
    if steps < 1:
        raise ConfigError(
            f"budgets: {left:.3g} model FLOPs do not pay for one step of arm {label!r} ({flops_per_step:.3g}); "
            "raise the budget or lower training.global_batch"
        )
    return steps, flops_per_step
