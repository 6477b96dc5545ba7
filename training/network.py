"""One network of an objective as others see it: what a Hugging Face model or another run takes over, or fills.

Tensors go by canonical names, the same for every objective: `embeddings.word.weight`, `encoder.layers.0.qkv.weight`,
`heads.mlm.dense.weight`. A head is called by what it predicts: `mlm`, `rtd`, `nsp`, `copy`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from data_prep.errors import ConfigError
from training.sizes import EncoderConfig

if TYPE_CHECKING:
    from training.encoder import Embeddings, Encoder


@dataclass(frozen=True, slots=True)
class Network:
    """Embeddings, body and heads; live modules, parts of which another network may share."""

    config: EncoderConfig
    embeddings: "Embeddings"
    encoder: "Encoder"
    heads: dict[str, nn.Module]

    def parameters(self) -> dict[str, nn.Parameter]:
        """Every parameter by its canonical name."""
        parts: dict[str, nn.Module] = {"embeddings": self.embeddings, "encoder": self.encoder}
        parts |= {f"heads.{name}": head for name, head in self.heads.items()}
        return {
            f"{part}.{name}": parameter
            for part, module in parts.items()
            for name, parameter in module.named_parameters()
        }


def fill(network: Network, tensors: Mapping[str, Tensor], source: str) -> list[str]:
    """Copy what `tensors` holds into the network; the names they lack, which keep their values. Tensors for heads the
    network does not have are left alone. ConfigError where one has another shape, naming both."""
    lacked = []
    with torch.no_grad():
        for name, parameter in network.parameters().items():
            if name not in tensors:
                lacked.append(name)
                continue
            if tensors[name].shape != parameter.shape:
                raise ConfigError(
                    f"{source}: {name} is {tuple(tensors[name].shape)} and this arm's network wants "
                    f"{tuple(parameter.shape)}; set `model` to the size it was trained with, or drop init_from"
                )
            parameter.copy_(tensors[name])
    return lacked
