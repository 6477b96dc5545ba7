"""FLOPs as the ELECTRA paper counts them (Clark et al. 2020, appendix; google-research/electra, flops_computation.py).

A ledger of its own, for standing beside the paper's tables and never to be mixed with `training.flops`: every operation
of the forward pass is counted (a matmul as 2·m·n a token, LayerNorm 5, activation 8, dropout 4, softmax 5 an element),
the backward pass as much again, embedding look-ups as dense products with the vocabulary, and the output softmax on
15.625 % of the positions whatever the mask share. Its oddities are kept, because the published figures have them: the
attention's LayerNorm costs 5 a token instead of 5 a channel. Rows are full: padding is not known here.
"""

from dataclasses import dataclass

from training.settings import ArmConfig, ElectraArm, EncoderConfig

ACTIVATION, DROPOUT, LAYER_NORM, SOFTMAX = 8, 4, 5, 5  # operations an element
OUTPUT_FRACTION = 0.15625  # 80 of 512 positions go through the output softmax
HEAD_SIZE = 64
DIRECTIONS = 2  # forward and backward, counted alike


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """One network in the paper's terms; where `embedding_size` is None it is `hidden_size`."""

    hidden_size: int
    num_layers: int
    seq_len: int
    vocab_size: int = 30_522
    embedding_size: int | None = None
    output_fraction: float = OUTPUT_FRACTION

    @property
    def _embedding(self) -> int:
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    def layers(self) -> float:
        """Forward FLOPs of all layers over a row."""
        D, L, heads = self.hidden_size, self.seq_len, self.hidden_size // HEAD_SIZE
        projections = 3 * (2 * D * D + D)
        scores = 2 * D * L + (SOFTMAX + DROPOUT + 1) * L * heads  # 1: the scale
        attended = 2 * D * L + 2 * D * D + D + DROPOUT * D + D + LAYER_NORM
        F = 4 * D
        feed_forward = 2 * D * F + ACTIVATION * F + F + 2 * D * F + D + DROPOUT * D + D + LAYER_NORM * D
        return self.num_layers * L * (projections + scores + attended + feed_forward)

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

    def train(self, rows: float, *, discriminator: bool = False) -> float:
        """Training on so many rows, with the head of a discriminator or of a masked language model."""
        head = self.binary_head() if discriminator else self.masked_head()
        return DIRECTIONS * rows * (self.layers() + self.inputs() + head)


def train_electra(
    discriminator: Transformer, *, generator_hidden_size: int, generator_layers: int, rows: float
) -> float:
    """Training a discriminator with a generator whose embeddings it shares."""
    generator = Transformer(
        hidden_size=generator_hidden_size,
        num_layers=generator_layers,
        seq_len=discriminator.seq_len,
        vocab_size=discriminator.vocab_size,
        embedding_size=discriminator.embedding_size or discriminator.hidden_size,
        output_fraction=discriminator.output_fraction,
    )
    return discriminator.train(rows, discriminator=True) + generator.train(rows)


def train_arm(arm: ArmConfig, model: EncoderConfig, seq_len: int, rows: float) -> float:
    """Training an arm on so many full rows. As in the paper, next-sentence prediction counts for nothing, and a network
    has heads of 64 and four times its width in the feed-forward, whatever `model` says."""
    network = Transformer(
        hidden_size=model.hidden_size,
        num_layers=model.num_layers,
        seq_len=seq_len,
        vocab_size=model.vocab_size,
        embedding_size=model.embedding_size,
    )
    if not isinstance(arm, ElectraArm):
        return network.train(rows)
    generator = model.scaled(arm.generator_width, arm.generator_depth)
    return train_electra(
        network, generator_hidden_size=generator.hidden_size, generator_layers=generator.num_layers, rows=rows
    )
