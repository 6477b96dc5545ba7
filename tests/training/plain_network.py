"""A transformer and its heads over one fragment, written out: no batch, no mask, no module of ours.

Only parameters are taken, by the canonical names of `training.network`. Sources: Vaswani et al. 2017, Devlin et al.
2019, google-research/electra (modeling.py, run_pretraining.py).
"""

import math

import torch
from torch import Tensor

from training.network import Network


class PlainNetwork:
    """A post-LN transformer and its heads over one fragment."""

    def __init__(self, network: Network) -> None:
        self.config, self.parameters = network.config, network.parameters()

    def linear(self, name: str, x: Tensor) -> Tensor:
        """x·Wᵀ + b."""
        return x @ self.parameters[f"{name}.weight"].T + self.parameters[f"{name}.bias"]

    def norm(self, name: str, x: Tensor) -> Tensor:
        """(x − mean) / √(variance + ε) · γ + β."""
        centred = x - x.mean(-1, keepdim=True)
        deviation = (centred.square().mean(-1, keepdim=True) + self.config.layer_norm_eps).sqrt()
        return centred / deviation * self.parameters[f"{name}.weight"] + self.parameters[f"{name}.bias"]

    def hidden(self, ids: list[int], types: list[int]) -> Tensor:
        """Hidden states `[n, D]` of a fragment's n tokens; positions are counted from 0."""
        words, places, kinds = (self.parameters[f"embeddings.{t}.weight"] for t in ("word", "position", "token_type"))
        rows = [
            words[token] + places[i] + kinds[min(kind, self.config.type_vocab - 1)]
            for i, (token, kind) in enumerate(zip(ids, types, strict=True))
        ]
        x = self.norm("embeddings.norm", torch.stack(rows))
        if "encoder.project.weight" in self.parameters:
            x = self.linear("encoder.project", x)
        for number in range(self.config.num_layers):
            x = self.layer(f"encoder.layers.{number}", x)
        return x

    def layer(self, name: str, x: Tensor) -> Tensor:
        """x ← LN(x + attention(x)), x ← LN(x + W₂·gelu(W₁·x))."""
        width = self.config.hidden_size // self.config.num_heads
        queries, keys, values = self.linear(f"{name}.qkv", x).split(self.config.hidden_size, dim=1)
        heads = []
        for head in range(self.config.num_heads):
            columns = slice(head * width, (head + 1) * width)
            scores = queries[:, columns] @ keys[:, columns].T / math.sqrt(width)
            heads.append(softmax(scores) @ values[:, columns])
        x = self.norm(f"{name}.attention_norm", x + self.linear(f"{name}.attention_out", torch.cat(heads, dim=1)))
        inner = gelu(self.linear(f"{name}.ffn_in", x))
        return self.norm(f"{name}.ffn_norm", x + self.linear(f"{name}.ffn_out", inner))

    def words(self, h: Tensor) -> Tensor:
        """Logits over the vocabulary from one hidden state."""
        inner = self.norm("heads.mlm.norm", gelu(self.linear("heads.mlm.dense", h)))
        return self.parameters["embeddings.word.weight"] @ inner + self.parameters["heads.mlm.bias"]

    def replaced(self, h: Tensor) -> Tensor:
        """The probability that a token is a replacement."""
        return sigmoid(self.linear("heads.rtd.out", gelu(self.linear("heads.rtd.dense", h)))[0])


def softmax(logits: Tensor) -> Tensor:
    """Probabilities along the last dimension."""
    raised = logits.exp()
    return raised / raised.sum(-1, keepdim=True)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e⁻ˣ)."""
    return 1 / (1 + (-x).exp())


def gelu(x: Tensor) -> Tensor:
    """x·Φ(x)."""
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2
