"""FLOPs of pre-training: two ledgers that are never mixed.

`model`: what the objective needs. Matmuls only, forward × 3 (× 1 where a network is frozen); attention from the true
fragment lengths, heads on the weighted positions, embedding look-ups free. Budgets, matching and MFU use it.

`executed`: what was dispatched. Whole rows whatever they hold, every mask slot, filler rows, and layers computed again
under activation checkpointing. The difference is padding and recomputation. On the reference attention with dropout 0
it equals `torch.utils.flop_counter.FlopCounterMode` exactly. Attention is counted as dispatched by the back-ends that
mask (reference, sdpa); varlen and flash skip what lies between fragments, which then stands in the padding column.

Every figure is linear in four counts, so a ledger is one dot product and a corpus mean is exact. Sampling, softmax,
LayerNorm, activations and the optimizer are counted by neither.
"""

from dataclasses import dataclass, fields

from training.arms import (
    AllTokensMlmArm,
    ArmConfig,
    BertArm,
    Electra15Arm,
    ElectraAdversarialArm,
    ElectraArm,
    ElectraTwoStageArm,
    FrozenGenerator,
    GeneratorConfig,
    NetworkGenerator,
    ReplaceMlmArm,
)
from training.settings import Compute
from training.sizes import EncoderConfig

TRAINED = 3  # forward + gradients of inputs + gradients of weights, each one matmul of the same size
ON_DETACHED = 2  # forward + gradients of weights: what reads a detached input
FROZEN = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a set of rows costs by: real tokens, Σ(fragment length)², masked positions, rows with a pair."""

    tokens: float = 0.0
    squares: float = 0.0
    masked: float = 0.0
    pairs: float = 0.0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def scaled(self, factor: float) -> "Counts":
        """These counts times a number."""
        return Counts(**{f.name: getattr(self, f.name) * factor for f in fields(self)})


@dataclass(frozen=True, slots=True)
class Cost:
    """Forward FLOPs as coefficients of `Counts`."""

    token: float = 0.0
    square: float = 0.0
    masked: float = 0.0
    pair: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.token + other.token,
            self.square + other.square,
            self.masked + other.masked,
            self.pair + other.pair,
        )

    def of(self, counts: Counts) -> float:
        """Forward FLOPs of these counts."""
        return (
            self.token * counts.tokens
            + self.square * counts.squares
            + self.masked * counts.masked
            + self.pair * counts.pairs
        )


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the ledger: what lies outside the layers, the layers, and how many passes training makes."""

    outside: Cost
    layers: Cost = Cost()
    passes: int = TRAINED

    def train(self, counts: Counts, again: int = 0) -> float:
        """Training FLOPs, with the layers of a trained network run `again` more times."""
        repeated = again if self.passes == TRAINED else 0
        return self.passes * (self.outside + self.layers).of(counts) + repeated * self.layers.of(counts)


def network_costs(arm: ArmConfig, model: EncoderConfig) -> dict[str, Column]:
    """The networks of an arm by name: the columns of the ledger."""
    D = model.hidden_size
    main = _project(model)
    match arm:
        case ElectraArm():
            generator = _generator(arm.generator, model)
            return generator | {"discriminator": Column(main + Cost(token=_detection(D)), _layers(model))}
        case Electra15Arm():
            generator = _generator(arm.generator, model)
            return generator | {"discriminator": Column(main + Cost(masked=_detection(D)), _layers(model))}
        case ElectraAdversarialArm():
            baseline = Cost(masked=2 * trained_generator(arm.generator, model).hidden_size)
            return {
                **_generator(arm.generator, model),
                "baseline": Column(baseline, passes=ON_DETACHED),
                "discriminator": Column(main + Cost(token=_detection(D)), _layers(model)),
            }
        case ElectraTwoStageArm():
            return {
                "generator": Column(main + _masked_head(model), _layers(model), FROZEN),
                "discriminator": Column(main + Cost(token=_detection(D)), _layers(model)),
            }
        case ReplaceMlmArm():
            generator = _generator(arm.generator, model)
            return generator | {"encoder": Column(main + _masked_head(model), _layers(model))}
        case AllTokensMlmArm():
            head = Cost(token=_vocabulary(model) + 2 * D)  # every position, and the copy gate
            return _generator(arm.generator, model) | {"encoder": Column(main + head, _layers(model))}
        case BertArm():
            head = _masked_head(model) + Cost(pair=2 * D * (D + 2))
            return {"encoder": Column(main + head, _layers(model))}
        case _:
            return {"encoder": Column(main + _masked_head(model), _layers(model))}


def trained_generator(settings: NetworkGenerator, model: EncoderConfig) -> EncoderConfig:
    """The size of a generator that is trained beside a main network of `model`."""
    if settings.tying == "all":
        return model
    config = model.scaled(settings.width, settings.depth)
    if settings.tying == "none":
        return config.model_copy(update={"embedding_size": config.hidden_size})
    return config


def _generator(settings: GeneratorConfig, model: EncoderConfig) -> dict[str, Column]:
    if isinstance(settings, NetworkGenerator):
        config, passes = trained_generator(settings, model), TRAINED
    elif isinstance(settings, FrozenGenerator):
        assert settings.network is not None, "a planned run's frozen generator carries its size"
        config, passes = settings.network.encoder(model.vocab_size), FROZEN
    else:
        return {}
    return {"generator": Column(_project(config) + _masked_head(config), _layers(config), passes)}


def _project(config: EncoderConfig) -> Cost:
    differs = config.embedding_size != config.hidden_size
    return Cost(token=2 * config.embedding_size * config.hidden_size) if differs else Cost()


def _layers(config: EncoderConfig) -> Cost:
    """2·D·(4D + 2F) a token and layer, 4·D·ΣL² attention a layer."""
    D, F = config.hidden_size, config.intermediate_size
    return Cost(token=config.num_layers * 2 * D * (4 * D + 2 * F), square=config.num_layers * 4 * D)


def _vocabulary(config: EncoderConfig) -> int:
    """Dense D→E and the word table E→V, at one position."""
    return 2 * config.embedding_size * (config.hidden_size + config.vocab_size)


def _masked_head(config: EncoderConfig) -> Cost:
    return Cost(masked=_vocabulary(config))


def _detection(D: int) -> int:
    """Dense D→D and D→1, at one position."""
    return 2 * D * (D + 1)


def train_flops(arm: ArmConfig, model: EncoderConfig, counts: Counts) -> float:
    """The `model` ledger: training FLOPs of all networks of an arm together."""
    return sum(column.train(counts) for column in network_costs(arm, model).values())


def executed_flops(
    arm: ArmConfig, model: EncoderConfig, *, rows: float, seq_len: int, compute: Compute | None = None
) -> float:
    """The `executed` ledger: what fixed shapes dispatch for so many rows, filler included."""
    slots = arm.max_predictions(seq_len)
    counts = Counts(tokens=rows * seq_len, squares=rows * seq_len**2, masked=rows * slots, pairs=rows)
    again = int(compute is not None and compute.activation_checkpointing)
    return sum(column.train(counts, again) for column in network_costs(arm, model).values())
