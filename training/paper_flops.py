"""FLOPs as the ELECTRA paper counts them (Clark et al. 2020, appendix; google-research/electra, flops_computation.py).

A ledger of its own, for standing beside the paper's tables and never to be mixed with `training.flops`: every operation
of the forward pass is counted (a matmul as 2·m·n a token, LayerNorm 5, activation 8, dropout 4, softmax 5 an element),
the backward pass as much again, embedding look-ups as dense products with the vocabulary, and the output softmax on
15.625 % of the positions whatever the mask share. Its oddities are kept, because the published figures have them: the
attention's LayerNorm costs 5 a token instead of 5 a channel, its output and its weighted average are counted as if the
heads together were as wide as the network, and the networks that follow its own (GPT, RoBERTa, ALBERT, T5) are counted
as if they were BERT. Rows are full: padding is not known here.
"""

from dataclasses import dataclass, replace

from training.arms import (
    AllTokensMlmArm,
    ArmConfig,
    Electra15Arm,
    ElectraAdversarialArm,
    ElectraArm,
    ElectraTwoStageArm,
    FrozenGenerator,
    GeneratorConfig,
    NetworkGenerator,
    ReplaceMlmArm,
)
from training.flops import trained_generator
from training.sizes import HEAD_SIZE, EncoderConfig

ACTIVATION, DROPOUT, LAYER_NORM, SOFTMAX = 8, 4, 5, 5  # operations an element
OUTPUT_FRACTION = 0.15625  # 80 of 512 positions go through the output softmax
DIRECTIONS = 2  # forward and backward, counted alike

# Training of networks of quite another kind: the script, too, holds only what TensorFlow counted.
COUNTED_BY_TENSORFLOW = {
    # ten epochs of the 768,648,884 words of LM1B; 568,093,262,680 FLOPs forward for 20 rows of 128 words
    "ELMo": DIRECTIONS * 10 * 768_648_884 * 568_093_262_680 / (20 * 128),
    # 500,000 steps of 8192 rows; 15,064,773,691,518 FLOPs forward for 32 rows
    "XLNet": DIRECTIONS * 500_000 * 8192 * 15_064_773_691_518 / 32,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """One network in the paper's terms. Where they are None, `embedding_size` is `hidden_size`, `feed_forward_size` is
    four times that, and heads are of 64. A `decoder` attends twice, to itself and to an encoder."""

    hidden_size: int
    num_layers: int
    seq_len: int
    vocab_size: int = 30_522
    embedding_size: int | None = None
    feed_forward_size: int | None = None
    num_heads: int | None = None
    head_size: int | None = None
    decoder: bool = False
    output_fraction: float = OUTPUT_FRACTION

    @property
    def _embedding(self) -> int:
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    def layers(self) -> float:
        """Forward FLOPs of all layers over a row."""
        attention = self._attention() * (2 if self.decoder else 1)
        return self.num_layers * self.seq_len * (attention + self._feed_forward())

    def _attention(self) -> int:
        """Of a token in a layer. A: width of all heads together."""
        D, L = self.hidden_size, self.seq_len
        heads = max(1, D // HEAD_SIZE) if self.num_heads is None else self.num_heads
        A = D if self.head_size is None else heads * self.head_size
        projections = 3 * (2 * D * A + A)
        scores = 2 * A * L + (SOFTMAX + DROPOUT + 1) * L * heads  # 1: the scale
        attended = 2 * D * L + 2 * D * D + D + DROPOUT * D + D + LAYER_NORM  # D, not A; LayerNorm once: the oddities
        return projections + scores + attended

    def _feed_forward(self) -> int:
        """Of a token in a layer."""
        D = self.hidden_size
        F = 4 * D if self.feed_forward_size is None else self.feed_forward_size
        return 2 * D * F + ACTIVATION * F + F + 2 * D * F + D + DROPOUT * D + D + LAYER_NORM * D

    def inputs(self) -> float:
        """Forward FLOPs of the embeddings: words and positions as dense products, and the projection if any."""
        D, E, L = self.hidden_size, self._embedding, self.seq_len
        words = 2 * E * self.vocab_size
        others = 2 * E * (L + 2) + 2 * E + (LAYER_NORM + DROPOUT) * E
        return L * (words + others + (2 * D * E + D if D != E else 0))

    def masked_head(self) -> float:
        """Forward FLOPs of the hidden layer and the softmax over the vocabulary, at a share of the positions."""
        D, E, V = self.hidden_size, self._embedding, self.vocab_size
        a_position = 2 * D * E + E + (ACTIVATION + LAYER_NORM) * E + 2 * E * V + SOFTMAX * V + 2 * V
        return self.output_fraction * self.seq_len * a_position

    def binary_head(self) -> float:
        """Forward FLOPs of a binary classification of every position."""
        D = self.hidden_size
        return self.seq_len * (2 * D * D + D + ACTIVATION * D + 2 * D)

    def infer(self) -> float:
        """One row through the network and the binary head: the paper's inference figure."""
        return self.layers() + self.inputs() + self.binary_head()

    def sample(self, rows: float) -> float:
        """The forward pass of a masked language model over so many rows: a generator that is not trained."""
        return rows * (self.layers() + self.inputs() + self.masked_head())

    def train(self, rows: float) -> float:
        """Training a masked language model on so many rows."""
        return DIRECTIONS * self.sample(rows)

    def train_discriminator(self, rows: float) -> float:
        """Training a discriminator of every position on so many rows."""
        return DIRECTIONS * rows * self.infer()


def train_arm(arm: ArmConfig, model: EncoderConfig, seq_len: int, rows: float) -> float:
    """Training an arm on so many full rows; of `electra_two_stage`, its second run.

    As in the paper, whatever `model` says: heads are of 64, a feed-forward is four times as wide as its network, and
    next-sentence prediction counts for nothing. For the arms the paper gives no figure for, in its manner: a
    discriminator's head is on every position also where the loss is not (ELECTRA 15 %); a frozen generator costs its
    forward pass, one that draws by chance nothing; All-Tokens MLM has its output softmax on every position, and the
    binary head there for its copy mechanism; the learned baseline of adversarial training counts for nothing.
    """
    network = _transformer(model, seq_len)
    match arm:
        case ElectraArm() | Electra15Arm() | ElectraAdversarialArm():
            return network.train_discriminator(rows) + _generator(arm.generator, model, seq_len, rows)
        case ElectraTwoStageArm():
            return network.train_discriminator(rows) + network.sample(rows)
        case ReplaceMlmArm():
            return network.train(rows) + _generator(arm.generator, model, seq_len, rows)
        case AllTokensMlmArm():
            main = replace(network, output_fraction=1.0).train(rows) + DIRECTIONS * rows * network.binary_head()
            return main + _generator(arm.generator, model, seq_len, rows)
        case _:
            return network.train(rows)


def _generator(settings: GeneratorConfig, model: EncoderConfig, seq_len: int, rows: float) -> float:
    if isinstance(settings, NetworkGenerator):
        return _transformer(trained_generator(settings, model), seq_len).train(rows)
    if isinstance(settings, FrozenGenerator):
        assert settings.network is not None, "a planned run's frozen generator carries its size"
        return _transformer(settings.network.encoder(model.vocab_size), seq_len).sample(rows)
    return 0.0


def _transformer(config: EncoderConfig, seq_len: int) -> Transformer:
    return Transformer(
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        seq_len=seq_len,
        vocab_size=config.vocab_size,
        embedding_size=config.embedding_size,
    )
