"""From a Hugging Face folder to tensors by our canonical names, without building a transformers model.

Reads config.json and safetensors only (`training.hf_config` says what is refused). Guarantees: every tensor of the body
is used, and every one that our network needs is there with the shape config.json promises; values are copied, never
computed, in the precision they are stored in. Not carried: a pooler without next-sentence head, and heads for tasks.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from data_prep.errors import CheckpointError, ConfigError
from training.encoder import Embeddings, Encoder
from training.heads import MaskedTokenHead, NextSentenceHead, ReplacedTokenHead
from training.hf_config import CONFIG, HuggingFaceFolder, describe
from training.hf_names import BODY, POSITIONS, Family, Role, known_heads, names, tied
from training.network import Network, fill
from training.sizes import EncoderConfig

_OLD_NAMES = {"gamma": "weight", "beta": "bias"}  # of a LayerNorm, from the days of TensorFlow
_BUFFERS = ("position_ids", "token_type_ids")  # counted, not learned
_WHOLLY_OURS = ("embeddings", "embeddings_project", "encoder")  # parts of a body in which we know every tensor
_HEADS = {"mlm": MaskedTokenHead, "rtd": ReplacedTokenHead, "nsp": NextSentenceHead}


@dataclass(frozen=True, slots=True)
class Imported:
    """A Hugging Face model in our terms: `tensors` by the canonical names of `training.network`, and the heads they
    hold; `lacked` are those its family can have and this folder does not."""

    role: Role
    config: EncoderConfig
    tensors: dict[str, Tensor]
    heads: tuple[str, ...]
    lacked: tuple[str, ...]

    def network(self) -> Network:
        """A network of its own with these weights, in fp32 on the CPU, in evaluation mode."""
        network = _blank(self.config, self.heads)
        for module in (network.embeddings, network.encoder, *network.heads.values()):
            module.to_empty(device="cpu").eval()
        fill(network, self.tensors, "the imported folder")
        return network


def read(folder: Path) -> Imported:
    """The model in a folder. CheckpointError where files are missing or do not hold what config.json promises,
    ConfigError where our encoder cannot be that model."""
    found = describe(folder)
    family = found.architecture.family
    stored = _untied(found, _stored(found, family))
    heads = _whole_heads(found, stored)
    lookup = names(family, found.config, heads)
    used = {name for parts in lookup.values() for name in parts}
    if missing := sorted(used - stored.keys()):
        raise CheckpointError(f"{folder}: {_some(missing)} is missing from its weights; get the folder anew.")
    body = tuple(f"{family}.{part}." for part in _WHOLLY_OURS)
    if unknown := sorted(name for name in stored.keys() - used if name.startswith(body)):
        raise ConfigError(f"{folder}: {_some(unknown)} has no place in our encoder; choose another model.")
    tensors = {ours: _joined(folder, ours, [stored[name] for name in parts]) for ours, parts in lookup.items()}
    tensors[POSITIONS] = tensors[POSITIONS][found.leading_rows :].clone()
    _check_shapes(found, tensors, heads)
    lacked = tuple(head for head in known_heads(family) if head not in heads)
    return Imported(found.architecture.role, found.config, tensors, heads, lacked)


def _some(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{items[0]} (with {len(items) - 1} more)"


def _stored(found: HuggingFaceFolder, family: Family) -> dict[str, Tensor]:
    """Every tensor of the weights files by its full, present-day name."""
    stored: dict[str, Tensor] = {}
    for path in found.files:
        try:
            tensors = load_file(path)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}); get it anew.") from None
        for raw, tensor in tensors.items():
            name = _present_name(raw, family)
            if name.endswith(_BUFFERS):
                continue
            if name in stored:
                raise CheckpointError(f"{path}: {raw} stands twice in the folder's weights; get it anew.")
            if not tensor.is_floating_point():
                raise ConfigError(f"{path}: {raw} is quantized ({tensor.dtype}); choose a model in full precision.")
            stored[name] = tensor
    return stored


def _present_name(name: str, family: Family) -> str:
    start, _, last = name.rpartition(".")
    if last in _OLD_NAMES:
        name = f"{start}.{_OLD_NAMES[last]}"
    return f"{family}.{name}" if name.split(".")[0] in BODY else name


def _untied(found: HuggingFaceFolder, stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without second names of one tensor. ConfigError where they are not one: our output layer is the word table."""
    kept = dict(stored)
    for alias, name in tied(found.architecture.family).items():
        if alias not in kept:
            continue
        tensor = kept.pop(alias)
        original = kept.setdefault(name, tensor)
        if original.dtype != tensor.dtype or not torch.equal(original, tensor):
            raise ConfigError(f"{found.folder}: {alias} is not tied to {name}, as ours is; choose another model.")
    return kept


def _whole_heads(found: HuggingFaceFolder, stored: dict[str, Tensor]) -> tuple[str, ...]:
    """The heads the class must have, and those the folder holds besides, complete."""
    family = found.architecture.family

    def whole(head: str) -> bool:
        lookup = names(family, found.config, [head])
        return all(part in stored for ours, parts in lookup.items() if ours.startswith("heads.") for part in parts)

    return tuple(head for head in known_heads(family) if head in found.architecture.heads or whole(head))


def _joined(folder: Path, ours: str, parts: list[Tensor]) -> Tensor:
    if len({part.shape for part in parts}) > 1:
        shapes = ", ".join(str(tuple(part.shape)) for part in parts)
        raise CheckpointError(f"{folder}: the parts of {ours} are {shapes} and must be alike; get the folder anew.")
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _check_shapes(found: HuggingFaceFolder, tensors: dict[str, Tensor], heads: tuple[str, ...]) -> None:
    """That config.json tells the truth about the body and the heads."""
    for name, parameter in _blank(found.config, heads).parameters().items():
        if tensors[name].shape != parameter.shape:
            raise CheckpointError(
                f"{found.folder}: {name} is {tuple(tensors[name].shape)} and {CONFIG} promises "
                f"{tuple(parameter.shape)}; get the folder anew."
            )


def _blank(config: EncoderConfig, heads: tuple[str, ...]) -> Network:
    """A network without values: none is drawn at random to be overwritten, and the caller's generator stays."""
    with torch.device("meta"):
        return Network(config, Embeddings(config), Encoder(config), {head: _HEADS[head](config) for head in heads})
