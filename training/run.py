"""From a budget to a run: steps, warm-up and the mean cost of a step, decided once, before training.

A budget is model FLOPs. The manifest's totals make the mean cost of a row of the stream exact, so steps follow by one
division. A short run sees only a sample of the corpus, whose mean strays by a percent or more; the order is known
beforehand, so where the corpus is at hand, runs of at most `EXACT_ROWS` rows are planned from the rows they will read
(for longer ones, shuffled over all rows, the sampling error is below a tenth of a percent). Afterwards the ledger
measures and never steers.
"""

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import ConfigError
from data_prep.manifest import Manifest, SplitStats
from data_prep.order import mixing_weights, order_of
from data_prep.reader import RowReader
from data_prep.rows import fragment_lengths, structure
from data_prep.storage import Location
from training.flops import Counts, train_flops
from training.masking import mask_counts
from training.settings import (
    ArmConfig,
    BertArm,
    ElectraArm,
    EncoderConfig,
    Identity,
    ModelConfig,
    Placement,
    RunSpec,
    TrainingConfig,
    run_name,
)

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


def step_costs(
    arm: ArmConfig,
    encoder: EncoderConfig,
    manifest: Manifest,
    corpus_dir: Location,
    training: TrainingConfig,
    steps: int,
    seed: int,
) -> NDArray[np.float64]:
    """Model FLOPs of each of the first `steps` steps of the stream, from the rows they will read."""
    reader = RowReader(corpus_dir, "train", manifest)
    order, global_batch = order_of(manifest, "train", seed, training.order), training.global_batch
    slots = arm.max_predictions(manifest.seq_len)
    costs = np.empty(steps)
    for step in range(steps):
        _, rows = order.locate(np.arange(step * global_batch, (step + 1) * global_batch, dtype=np.int64))
        shape = structure(reader.rows(rows), manifest.special)
        pairs = int((shape.types.max(axis=1) == 1).sum()) if isinstance(arm, BertArm) else 0
        counts = Counts(
            tokens=int(shape.lengths.sum()),
            squares=int((fragment_lengths(shape.fragment) ** 2).sum()),
            masked=int(mask_counts(shape.lengths, arm.mask_prob, slots).sum()),
            pairs=pairs,
        )
        costs[step] = train_flops(arm, encoder, counts)
    return costs


def plan_run(
    *,
    arm: ArmConfig,
    model: ModelConfig,
    training: TrainingConfig,
    manifest: Manifest,
    budget: float,
    seed: int,
    corpus_dir: Location | None = None,
) -> RunSpec:
    """The run of an arm at a budget of model FLOPs; exact for short runs where `corpus_dir` is given. ConfigError where
    the budget does not pay for one step, or where the arm cannot use the corpus."""
    _check(arm, model, manifest)
    encoder = model.encoder(manifest.vocab_size)
    flops_per_step = training.global_batch * train_flops(arm, encoder, mean_counts(manifest, arm))
    steps = round(budget / flops_per_step)
    horizon = steps + 2 + steps // 4
    if corpus_dir is not None and horizon * training.global_batch <= EXACT_ROWS:
        spent = np.cumsum(step_costs(arm, encoder, manifest, corpus_dir, training, horizon, seed))
        steps = int(np.abs(spent - budget).argmin()) + 1 if spent[0] < 2 * budget else 0
        flops_per_step = float(spent[steps - 1] / steps) if steps else float(spent[0])
    if steps < 1:
        raise ConfigError(
            f"budgets: {budget:.3g} model FLOPs do not pay for one step of arm {arm.label!r} ({flops_per_step:.3g}); "
            "raise the budget or lower training.global_batch"
        )
    identity = Identity(
        arm=arm,
        model=encoder,
        optimizer=training.optimizer,
        order=training.order,
        global_batch=training.global_batch,
        steps=steps,
        warmup_steps=round(training.warmup_fraction * steps),
        seq_len=manifest.seq_len,
        seed=seed,
        manifest_sha256=manifest.sha256,
        tokenizer_sha256=manifest.tokenizer_sha256,
    )
    placement = Placement(
        micro_batch=training.micro_batch,
        zero_stage=training.zero_stage,
        log_every=training.log_every,
        eval_every=training.eval_every,
        eval_rows=training.eval_rows,
        checkpoint_every=training.checkpoint_every,
    )
    name = run_name(arm.label, budget, seed)
    return RunSpec(name=name, budget=budget, flops_per_step=flops_per_step, identity=identity, placement=placement)


def _check(arm: ArmConfig, model: ModelConfig, manifest: Manifest) -> None:
    if isinstance(arm, BertArm) and manifest.layout != "segments":
        raise ConfigError(
            f"arms: {arm.label!r} needs pairs of segments; set corpus.layout to 'segments' or drop the arm"
        )
    if isinstance(arm, ElectraArm):
        try:
            model.encoder(manifest.vocab_size).scaled(arm.generator_width, arm.generator_depth)
        except ValueError:
            raise ConfigError(
                f"arms: generator_width {arm.generator_width} of hidden_size {model.hidden_size} does not split into "
                "heads of 64; choose a width that gives a multiple of the number of heads"
            ) from None
    if manifest.seq_len > model.max_positions:
        raise ConfigError(
            f"model.max_positions: {model.max_positions} is less than the corpus's seq_len {manifest.seq_len}; "
            "raise it or prepare shorter rows"
        )
