"""The transformer over packed rows: a post-LN BERT encoder whose attention never leaves a fragment.

`Embeddings` (word + position + token type, LayerNorm) stand apart from `Encoder` (optional projection, layers), because
ELECTRA's generator and discriminator share the first and not the second. Attention has two back-ends behind one
function: `sdpa`, and `reference` (matmul-softmax-matmul) on which FLOPs are counted. Initialisation follows
google-research/electra: truncated normal, and Glorot for the embedding projection.

Shape suffixes: B rows, L row length, E embedding size, D hidden size, H heads.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.settings import EncoderConfig


def init_weights(module: nn.Module, std: float) -> None:
    """Truncated normal (±2σ) for Linear and Embedding weights, zeros for biases; LayerNorm keeps 1 and 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(part.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


class Embeddings(nn.Module):
    """Word, position and token-type tables, summed, normalised, dropped out."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.embedding_size)
        self.position = nn.Embedding(config.max_positions, config.embedding_size)
        self.token_type = nn.Embedding(config.type_vocab, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.type_vocab = config.type_vocab
        init_weights(self, config.init_range)

    def forward(self, ids_BL: Tensor, positions_BL: Tensor, types_BL: Tensor) -> Tensor:
        """`[B, L, E]` from token ids, positions within the fragment, and token types (clipped to the table)."""
        types_BL = types_BL.clamp(max=self.type_vocab - 1)
        x_BLE = self.word(ids_BL) + self.position(positions_BL) + self.token_type(types_BL)
        return self.dropout(self.norm(x_BLE))


def attention_mask(fragment_BL: Tensor, packed: bool) -> Tensor:
    """Which keys a query may see, True where allowed, broadcastable to `[B, H, L, L]`.

    One fragment a row needs a key mask only; `packed` rows need the block-diagonal one. No query is ever left without
    a key (a softmax over nothing is NaN): padding sees padding, a filler row sees itself.
    """
    if packed:
        return (fragment_BL[:, :, None] == fragment_BL[:, None, :])[:, None]
    real_BL = fragment_BL > 0
    filler_B1 = ~real_BL.any(dim=1, keepdim=True)
    return (real_BL | filler_B1)[:, None, None, :]


def attend(q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, mask: Tensor, dropout: float, backend: str) -> Tensor:
    """Scaled dot-product attention, `[B, H, L, K]`; `mask` is True where attention is allowed."""
    if backend == "sdpa":
        return F.scaled_dot_product_attention(q_BHLK, k_BHLK, v_BHLK, attn_mask=mask, dropout_p=dropout)
    scores_BHLL = q_BHLK @ k_BHLK.transpose(-1, -2) / math.sqrt(q_BHLK.shape[-1])
    scores_BHLL = scores_BHLL.masked_fill(~mask, torch.finfo(scores_BHLL.dtype).min)
    weights_BHLL = F.dropout(scores_BHLL.softmax(dim=-1), dropout, training=dropout > 0)
    return weights_BHLL @ v_BHLK


class Layer(nn.Module):
    """One post-LN block: fused QKV attention, then a GELU (erf) feed-forward."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_heads
        self.backend = config.attention
        self.attention_dropout = config.attention_dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.ffn_in = nn.Linear(width, config.intermediate_size)
        self.ffn_out = nn.Linear(config.intermediate_size, width)
        self.ffn_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BLD: Tensor, mask: Tensor, queries: int | None = None) -> Tensor:
        """`[B, L, D]` to `[B, L, D]`; with `queries`, only the first Q positions are computed: `[B, Q, D]`."""
        q, k, v = self._qkv(x_BLD, queries)
        dropout = self.attention_dropout if self.training else 0.0
        mixed_BHQK = attend(q, k, v, mask[:, :, :queries], dropout, self.backend)
        mixed_BQD = mixed_BHQK.transpose(1, 2).flatten(2)
        x_BQD = self.attention_norm(x_BLD[:, :queries] + self.dropout(self.attention_out(mixed_BQD)))
        update_BQD = self.ffn_out(F.gelu(self.ffn_in(x_BQD)))
        return self.ffn_norm(x_BQD + self.dropout(update_BQD))

    def _qkv(self, x_BLD: Tensor, queries: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries `[B, H, Q, K]`, keys and values `[B, H, L, K]`: one matmul, or two where few queries are wanted."""
        B, L, D = x_BLD.shape
        if queries is None:
            q, k, v = self.qkv(x_BLD).view(B, L, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
            return q, k, v
        q_weight, kv_weight = self.qkv.weight.split([D, 2 * D])
        q_bias, kv_bias = self.qkv.bias.split([D, 2 * D])
        q = F.linear(x_BLD[:, :queries], q_weight, q_bias).view(B, -1, self.heads, D // self.heads).transpose(1, 2)
        kv = F.linear(x_BLD, kv_weight, kv_bias).view(B, L, 2, self.heads, D // self.heads)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v


class Encoder(nn.Module):
    """A body over embedded rows: a projection where the embedding size differs, then the layers."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        differs = config.embedding_size != config.hidden_size
        self.project = nn.Linear(config.embedding_size, config.hidden_size) if differs else None
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        init_weights(self, config.init_range)
        if self.project is not None:  # a Dense without an initializer in the reference: Glorot uniform
            nn.init.xavier_uniform_(self.project.weight)

    def forward(self, x_BLE: Tensor, fragment_BL: Tensor, packed: bool = False, first: bool = False) -> Tensor:
        """`[B, L, D]`; `fragment_BL` numbers the fragments of a row from 1, 0 on padding. `packed` says that rows
        may hold more than one fragment, and costs a mask of `[B, 1, L, L]`. With `first`, the last layer computes the
        first position only, `[B, 1, D]`: what a classifier needs, for a third less work at two layers."""
        mask = attention_mask(fragment_BL, packed)
        x_BLD = x_BLE if self.project is None else self.project(x_BLE)
        *body, last = self.layers
        for layer in body:
            x_BLD = layer(x_BLD, mask)
        return last(x_BLD, mask, 1 if first else None)
