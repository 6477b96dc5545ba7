"""FLOPs of pre-training: two ledgers that are never mixed.

`model`: what the objective needs. Matmuls only, forward × 3; attention from the true fragment lengths, heads on the
weighted positions, embedding look-ups free. Budgets, matching and MFU use it.

`executed`: what was dispatched. Whole rows whatever they hold, every mask slot, filler rows. The difference is padding.
On the reference attention with dropout 0 it equals `torch.utils.flop_counter.FlopCounterMode` exactly.

Every figure is linear in four counts, so a ledger is one dot product and a corpus mean is exact. Sampling, softmax,
LayerNorm, activations and the optimizer are counted by neither.
"""

from dataclasses import dataclass, fields

from training.settings import ArmConfig, BertArm, ElectraArm, EncoderConfig

TRAIN_FACTOR = 3  # forward + gradients of inputs + gradients of weights, each one matmul of the same size


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
    """Forward FLOPs of one network as coefficients of `Counts`."""

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

    def train(self, counts: Counts) -> float:
        """Training FLOPs (forward and backward)."""
        forward = (
            self.token * counts.tokens
            + self.square * counts.squares
            + self.masked * counts.masked
            + self.pair * counts.pairs
        )
        return TRAIN_FACTOR * forward


def body_cost(config: EncoderConfig) -> Cost:
    """Projection (if any) and layers: 2·D·(4D + 2F) a token and layer, 4·D·ΣL² attention a layer."""
    D, F = config.hidden_size, config.intermediate_size
    project = 2 * config.embedding_size * D if config.embedding_size != D else 0
    return Cost(token=project + config.num_layers * 2 * D * (4 * D + 2 * F), square=config.num_layers * 4 * D)


def masked_head_cost(config: EncoderConfig) -> Cost:
    """Dense D→E and the word table E→V, at each masked position."""
    return Cost(masked=2 * config.embedding_size * (config.hidden_size + config.vocab_size))


def network_costs(arm: ArmConfig, model: EncoderConfig) -> dict[str, Cost]:
    """Forward cost of each network of an arm, by name: the columns of the ledger."""
    D = model.hidden_size
    match arm:
        case ElectraArm():
            generator = model.scaled(arm.generator_width, arm.generator_depth)
            return {
                "generator": body_cost(generator) + masked_head_cost(generator),
                "discriminator": body_cost(model) + Cost(token=2 * D * (D + 1)),
            }
        case BertArm():
            return {"encoder": body_cost(model) + masked_head_cost(model) + Cost(pair=2 * D * (D + 2))}
        case _:
            return {"encoder": body_cost(model) + masked_head_cost(model)}


def train_flops(arm: ArmConfig, model: EncoderConfig, counts: Counts) -> float:
    """Training FLOPs of all networks of an arm together."""
    return sum(cost.train(counts) for cost in network_costs(arm, model).values())


def executed_counts(rows: int, seq_len: int, slots: int) -> Counts:
    """The counts that fixed shapes dispatch for `rows` rows, filler included."""
    return Counts(tokens=rows * seq_len, squares=rows * seq_len**2, masked=rows * slots, pairs=rows)
