"""What Hugging Face calls our parameters: one table, read in both directions.

A canonical name (`training.network`) stands for one tensor there, or for several joined along their first dimension
(the fused QKV). Covers the models of `ARCHITECTURES`; what a head is called there depends on the family. Torch-free.

RoBERTa counts positions from `pad + 1` (fairseq's convention), so its position table has rows in front that no token
ever reads: `leading_rows`. Ours counts from 0 for every family.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from training.sizes import EncoderConfig

Family = Literal["electra", "bert", "roberta"]
Role = Literal["discriminator", "generator", "encoder"]
POSITIONS = "embeddings.position.weight"
BODY = ("embeddings", "embeddings_project", "encoder", "pooler")  # base models save these without the family's prefix


@dataclass(frozen=True, slots=True)
class Architecture:
    """A Hugging Face model class: its family, what it was trained as, and the heads it cannot be without."""

    family: Family
    role: Role
    heads: tuple[str, ...] = ()


ARCHITECTURES = {
    "ElectraForPreTraining": Architecture("electra", "discriminator", ("rtd",)),
    "ElectraForMaskedLM": Architecture("electra", "generator", ("mlm",)),
    "ElectraModel": Architecture("electra", "encoder"),  # a body alone does not say which of the two it was
    "BertForPreTraining": Architecture("bert", "encoder", ("mlm", "nsp")),
    "BertForMaskedLM": Architecture("bert", "encoder", ("mlm",)),
    "BertModel": Architecture("bert", "encoder"),
    "RobertaForMaskedLM": Architecture("roberta", "encoder", ("mlm",)),
    "RobertaModel": Architecture("roberta", "encoder"),
}

_EMBEDDINGS = {
    "word.weight": "word_embeddings.weight",
    "position.weight": "position_embeddings.weight",
    "token_type.weight": "token_type_embeddings.weight",
    "norm.weight": "LayerNorm.weight",
    "norm.bias": "LayerNorm.bias",
}
_LAYER = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention_out": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "ffn_in": ("intermediate.dense",),
    "ffn_out": ("output.dense",),
    "ffn_norm": ("output.LayerNorm",),
}
# The next-sentence head holds BERT's pooler; its label 0 is "B follows A" there as here.
_HEADS: dict[Family, dict[str, dict[str, str]]] = {
    "electra": {
        "rtd": {"dense": "discriminator_predictions.dense", "out": "discriminator_predictions.dense_prediction"},
        "mlm": {"dense": "generator_predictions.dense", "norm": "generator_predictions.LayerNorm"},
    },
    "bert": {
        "mlm": {"dense": "cls.predictions.transform.dense", "norm": "cls.predictions.transform.LayerNorm"},
        "nsp": {"pooler": "bert.pooler.dense", "out": "cls.seq_relationship"},
    },
    "roberta": {"mlm": {"dense": "lm_head.dense", "norm": "lm_head.layer_norm"}},
}
_OUTPUT_BIAS = {"electra": "generator_lm_head.bias", "bert": "cls.predictions.bias", "roberta": "lm_head.bias"}
_TIED = {
    "electra": {"generator_lm_head.weight": "word"},
    "bert": {"cls.predictions.decoder.weight": "word", "cls.predictions.decoder.bias": "bias"},
    "roberta": {"lm_head.decoder.weight": "word", "lm_head.decoder.bias": "bias"},
}


def known_heads(family: Family) -> tuple[str, ...]:
    """The heads a family has names for."""
    return tuple(_HEADS[family])


def names(family: Family, config: EncoderConfig, heads: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Canonical name → the Hugging Face tensors it is joined from, for a body and the given heads."""
    found: dict[str, tuple[str, ...]] = {
        f"embeddings.{ours}": (f"{family}.embeddings.{theirs}",) for ours, theirs in _EMBEDDINGS.items()
    }
    if config.embedding_size != config.hidden_size:
        found |= _module("encoder.project", (f"{family}.embeddings_project",))
    for index in range(config.num_layers):
        for ours, parts in _LAYER.items():
            prefix = f"{family}.encoder.layer.{index}"
            found |= _module(f"encoder.layers.{index}.{ours}", tuple(f"{prefix}.{part}" for part in parts))
    for head in heads:
        for ours, theirs in _HEADS[family][head].items():
            found |= _module(f"heads.{head}.{ours}", (theirs,))
        if head == "mlm":
            found["heads.mlm.bias"] = (_OUTPUT_BIAS[family],)
    return found


def _module(ours: str, theirs: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return {f"{ours}.{kind}": tuple(f"{name}.{kind}" for name in theirs) for kind in ("weight", "bias")}


def tied(family: Family) -> dict[str, str]:
    """Hugging Face tensors that are another one under a second name: alias → the name it is known by."""
    originals = {"word": f"{family}.embeddings.word_embeddings.weight", "bias": _OUTPUT_BIAS[family]}
    return {alias: originals[of] for alias, of in _TIED[family].items()}


def leading_rows(family: Family, pad: int) -> int:
    """Rows of a Hugging Face position table before the one of a fragment's first token."""
    return pad + 1 if family == "roberta" else 0
