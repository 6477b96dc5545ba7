"""The transformer over packed rows: a post-LN BERT encoder whose attention never leaves a fragment.

`Embeddings` (word + position + token type, LayerNorm) stand apart from `Encoder` (optional projection, layers), because
ELECTRA's generator and discriminator share the first and not the second. How attention is computed is
`training.attention`'s. Initialisation follows google-research/electra: truncated normal, and Glorot for the embedding
projection.

Shape suffixes: B rows, L row length, Q positions computed, E embedding size, D hidden size, H heads, K head size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from training.attention import Backend, Layout, attend, first_layout, layout, resolve
from training.dropout import Dropout
from training.settings import Compute
from training.sizes import EncoderConfig


def at_least_float32(x: Tensor) -> Tensor:
    """Half precision as float32; float32 and float64 as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


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
        self.dropout = Dropout(config.dropout)
        self.type_vocab = config.type_vocab
        init_weights(self, config.init_range)

    def forward(self, ids_BL: Tensor, positions_BL: Tensor, types_BL: Tensor) -> Tensor:
        """`[B, L, E]` from token ids, positions within the fragment, and token types (clipped to the table)."""
        types_BL = types_BL.clamp(max=self.type_vocab - 1)
        x_BLE = self.word(ids_BL) + self.position(positions_BL) + self.token_type(types_BL)
        return self.dropout(self.norm(x_BLE))


class Layer(nn.Module):
    """One post-LN block: fused QKV attention, then a GELU (erf) feed-forward."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_heads
        self.attention_dropout = config.attention_dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.ffn_in = nn.Linear(width, config.intermediate_size)
        self.ffn_out = nn.Linear(config.intermediate_size, width)
        self.ffn_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BLD: Tensor, rows: Layout, queries: int | None = None) -> Tensor:
        """`[B, L, D]` to `[B, L, D]`; with `queries`, only the first Q positions are computed: `[B, Q, D]`."""
        q, k, v = self._qkv(x_BLD, queries)
        mixed_BQHK = attend(q, k, v, rows, self.attention_dropout if self.training else 0.0)
        update_BQD = self.attention_out(mixed_BQHK.flatten(2))
        x_BQD = self.attention_norm(x_BLD[:, :queries] + self.dropout(update_BQD))
        update_BQD = self.ffn_out(F.gelu(self.ffn_in(x_BQD)))
        return self.ffn_norm(x_BQD + self.dropout(update_BQD))

    def _qkv(self, x_BLD: Tensor, queries: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries `[B, Q, H, K]`, keys and values `[B, L, H, K]`: one matmul, or two where few queries are wanted."""
        B, L, D = x_BLD.shape
        if queries is None:
            q, k, v = self.qkv(x_BLD).view(B, L, 3, self.heads, D // self.heads).unbind(2)
            return q, k, v
        q_weight, kv_weight = self.qkv.weight.split([D, 2 * D])
        q_bias, kv_bias = self.qkv.bias.split([D, 2 * D])
        q = F.linear(x_BLD[:, :queries], q_weight, q_bias).view(B, queries, self.heads, D // self.heads)
        k, v = F.linear(x_BLD, kv_weight, kv_bias).view(B, L, 2, self.heads, D // self.heads).unbind(2)
        return q, k, v


class Encoder(nn.Module):
    """A body over embedded rows: a projection where the embedding size differs, then the layers."""

    def __init__(self, config: EncoderConfig, compute: Compute = Compute()) -> None:  # noqa: B008
        super().__init__()
        differs = config.embedding_size != config.hidden_size
        self.project = nn.Linear(config.embedding_size, config.hidden_size) if differs else None
        self.compute = compute
        self.attention_dropout = config.attention_dropout
        self.head_size = config.hidden_size // config.num_heads
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        init_weights(self, config.init_range)
        if self.project is not None:  # a Dense without an initializer in the reference: Glorot uniform
            nn.init.xavier_uniform_(self.project.weight)

    def forward(
        self, x_BLE: Tensor, fragment_BL: Tensor, packed: bool = False, first: bool = False, runs: int | None = None
    ) -> Tensor:
        """`[B, L, D]`; `fragment_BL` numbers the fragments of a row from 1, 0 on padding. `packed` says that rows
        may hold more than one fragment. With `first`, the last layer computes the first position only, `[B, 1, D]`:
        what a classifier needs, for a third less work at two layers. `runs` is `layout`'s. ConfigError where
        `compute.attention` cannot serve here."""
        x_BLD = x_BLE if self.project is None else self.project(x_BLE)
        backend = self._backend(x_BLD)
        rows = layout(fragment_BL, packed=packed, backend=backend, runs=runs)
        *body, last = self.layers
        for layer in body:
            x_BLD = self._run(layer, x_BLD, rows)
        if first:
            return self._run(last, x_BLD, first_layout(fragment_BL, backend=backend), 1)
        return self._run(last, x_BLD, rows)

    def _backend(self, x_BLD: Tensor) -> Backend:
        device = x_BLD.device
        autocast = torch.is_autocast_enabled(device.type)
        backend, _ = resolve(
            self.compute.attention,
            device=device,
            dtype=torch.get_autocast_dtype(device.type) if autocast else x_BLD.dtype,
            dropout=self.attention_dropout if self.training else 0.0,
            head_size=self.head_size,
        )
        return backend

    def _run(self, layer: nn.Module, x_BLD: Tensor, rows: Layout, queries: int | None = None) -> Tensor:
        """One layer; with activation checkpointing its inside is computed again in the backward pass, from the same
        random state, so that gradients are the same bit for bit."""
        if self.compute.activation_checkpointing and self.training and torch.is_grad_enabled():
            again: Tensor = checkpoint(layer, x_BLD, rows, queries, use_reentrant=False)
            return again
        out: Tensor = layer(x_BLD, rows, queries)
        return out
