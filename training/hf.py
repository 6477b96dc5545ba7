"""Name maps from our ELECTRA networks to the Hugging Face models that carry the same weights.

Guarantees: every parameter of the Hugging Face model is set from ours (a missing or unexpected name is an error), and
tied weights stay tied. Positions, token types and the layout of a row are the caller's business: Hugging Face models
know one fragment a row. Not here: BERT and RoBERTa, and the way back.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from data_prep.errors import CheckError
from data_prep.rows import SpecialIds
from training.encoder import Embeddings, Encoder
from training.objectives import Electra
from training.settings import EncoderConfig

_EMBEDDINGS = {
    "word": "word_embeddings",
    "position": "position_embeddings",
    "token_type": "token_type_embeddings",
    "norm": "LayerNorm",
}
_LAYER = {
    "attention_out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "ffn_in": "intermediate.dense",
    "ffn_out": "output.dense",
    "ffn_norm": "output.LayerNorm",
}


def electra_config(config: EncoderConfig, special: SpecialIds) -> ElectraConfig:
    """The Hugging Face configuration of one of our encoders."""
    return ElectraConfig(
        vocab_size=config.vocab_size,
        embedding_size=config.embedding_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        intermediate_size=config.intermediate_size,
        hidden_act="gelu",
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.attention_dropout,
        max_position_embeddings=config.max_positions,
        type_vocab_size=config.type_vocab,
        initializer_range=config.init_range,
        layer_norm_eps=config.layer_norm_eps,
        pad_token_id=special.pad,
        bos_token_id=special.cls,
        eos_token_id=special.sep,
    )


def body_names(embeddings: Embeddings, encoder: Encoder) -> dict[str, Tensor]:
    """`electra.*` tensors of an `ElectraModel`, the fused QKV taken apart."""
    found: dict[str, Tensor] = {}
    for ours, theirs in _EMBEDDINGS.items():
        for kind, tensor in embeddings.get_submodule(ours).named_parameters():
            found[f"electra.embeddings.{theirs}.{kind}"] = tensor
    if encoder.project is not None:
        for kind, tensor in encoder.project.named_parameters():
            found[f"electra.embeddings_project.{kind}"] = tensor
    for index, layer in enumerate(encoder.layers):
        prefix = f"electra.encoder.layer.{index}"
        for kind, tensor in layer.get_submodule("qkv").named_parameters():
            for part, piece in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                found[f"{prefix}.attention.self.{part}.{kind}"] = piece
        for ours, theirs in _LAYER.items():
            for kind, tensor in layer.get_submodule(ours).named_parameters():
                found[f"{prefix}.{theirs}.{kind}"] = tensor
    return found


def discriminator(objective: Electra, special: SpecialIds) -> ElectraForPreTraining:
    """The discriminator with its replaced-token head, in evaluation mode."""
    model = ElectraForPreTraining(electra_config(objective.config, special))
    names = body_names(objective.embeddings, objective.discriminator)
    for ours, theirs in (("dense", "dense"), ("out", "dense_prediction")):
        for kind, tensor in objective.discriminator_head.get_submodule(ours).named_parameters():
            names[f"discriminator_predictions.{theirs}.{kind}"] = tensor
    return _filled(model, names, tied=())


def generator(objective: Electra, special: SpecialIds) -> ElectraForMaskedLM:
    """The generator with its masked-token head, tied to the word table, in evaluation mode."""
    config = objective.config.scaled(objective.arm.generator_width, objective.arm.generator_depth)
    model = ElectraForMaskedLM(electra_config(config, special))
    names = body_names(objective.embeddings, objective.generator)
    for ours, theirs in (("dense", "dense"), ("norm", "LayerNorm")):
        for kind, tensor in objective.generator_head.get_submodule(ours).named_parameters():
            names[f"generator_predictions.{theirs}.{kind}"] = tensor
    names["generator_lm_head.bias"] = objective.generator_head.bias
    return _filled(model, names, tied=("generator_lm_head.weight",))


def _filled(model: Any, names: dict[str, Tensor], tied: tuple[str, ...]) -> Any:
    """Load every tensor; `tied` names follow the word table and must be the only ones missing."""
    state = {name: tensor.detach().clone() for name, tensor in names.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - set(tied):
        raise CheckError(
            f"the {type(model).__name__} of the installed transformers has other parameters (missing {missing}, "
            f"unexpected {unexpected}); install the pinned version"
        )
    model.tie_weights()
    with torch.no_grad():
        for name in tied:
            if model.get_parameter(name).data_ptr() != model.get_input_embeddings().weight.data_ptr():
                raise CheckError(
                    f"{name} is not tied to the word table in the installed transformers; install the pinned version"
                )
    return model.eval()
