"""The heads of pre-training: masked tokens, replaced tokens, next sentence.

Each takes hidden states and returns logits. The masked-token head's output matrix is the word table handed in at call
time, so tying is a fact of the call and survives any engine. Initialisation as the reference: truncated normal, Glorot
for the replaced-token head's last layer.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.encoder import at_least_float32, init_weights
from training.sizes import EncoderConfig


def gather_positions(h_BLD: Tensor, positions_BK: Tensor) -> Tensor:
    """`h[b, positions[b, k]]` as `[B, K, D]`."""
    return h_BLD.gather(1, positions_BK[:, :, None].expand(-1, -1, h_BLD.shape[-1]))


class FineLinear(nn.Linear):
    """A layer of one or two outputs, computed in fp32 or better whatever autocast says: a logit rounded to bf16 moves
    in steps of .03 at 5, and the matmul costs nothing."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            bias = None if self.bias is None else at_least_float32(self.bias)
            return F.linear(at_least_float32(x), at_least_float32(self.weight), bias)


class MaskedTokenHead(nn.Module):
    """Dense to the embedding size, GELU, LayerNorm, then the word table and a bias."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        init_weights(self, config.init_range)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, h_BKD: Tensor, words_VE: Tensor) -> Tensor:
        """Logits `[B, K, V]` at gathered positions."""
        return F.linear(self.norm(F.gelu(self.dense(h_BKD))), words_VE, self.bias)


class ReplacedTokenHead(nn.Module):
    """Dense, GELU, one logit a token: positive where the token looks replaced."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.out = FineLinear(config.hidden_size, 1)
        init_weights(self, config.init_range)
        nn.init.xavier_uniform_(self.out.weight)

    def forward(self, h_BLD: Tensor) -> Tensor:
        """Logits `[B, L]`."""
        return self.out(F.gelu(self.dense(h_BLD))).squeeze(-1)


class CopyHead(nn.Module):
    """One logit a token: how far the input is to be copied (a sigmoid layer, Clark et al. 2020, section 3.5)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.out = FineLinear(config.hidden_size, 1)
        init_weights(self, config.init_range)

    def forward(self, h_BLD: Tensor) -> Tensor:
        """Logits `[B, L]`."""
        return self.out(h_BLD).squeeze(-1)


class NextSentenceHead(nn.Module):
    """BERT's pooler (dense, tanh, on the first position) and a two-way classifier: 0 follows, 1 is exchanged."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.out = FineLinear(config.hidden_size, 2)
        init_weights(self, config.init_range)

    def forward(self, h_BLD: Tensor) -> Tensor:
        """Logits `[B, 2]`."""
        return self.out(torch.tanh(self.pooler(h_BLD[:, 0])))
