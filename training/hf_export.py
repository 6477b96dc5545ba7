"""From one of our networks to the Hugging Face model that carries the same weights.

Guarantees: every parameter of the Hugging Face model is set from ours (a missing or unexpected name is an error), tied
weights stay tied, and the model owns its values. Positions, token types and the layout of a row are the caller's
business: Hugging Face models know one fragment a row. Left behind: the copy mechanism of `all_tokens_mlm`, and the
next-sentence head of a network whose embeddings are narrower than its body (`left_behind` says so).

Shape suffixes: P rows of a position table, E embedding size.
"""

import copy
from typing import Any

import torch
import transformers
from torch import Tensor

from data_prep.errors import CheckError
from data_prep.rows import SpecialIds
from training.hf_names import ARCHITECTURES, POSITIONS, Architecture, leading_rows, names, tied
from training.network import Network

_CONFIGS = {
    "electra": transformers.ElectraConfig,
    "bert": transformers.BertConfig,
    "roberta": transformers.RobertaConfig,
}


def architecture(network: Network, pair_separators: int, *, generator: bool = False) -> str:
    """The Hugging Face class for a network; the first that fits.

    ElectraForPreTraining for what detects replaced tokens; ElectraForMaskedLM for generators, and for any masked
    language model whose embeddings are narrower than its body, since no other class here has the projection;
    BertForPreTraining where there is a next-sentence head; RobertaForMaskedLM where the tokenizer is RoBERTa's (two
    separators in a pair, no token types), because its tokenizer and positions belong together; BertForMaskedLM
    otherwise, whatever the objective that trained it.
    """
    if "rtd" in network.heads:
        return "ElectraForPreTraining"
    if generator or network.config.embedding_size != network.config.hidden_size:
        return "ElectraForMaskedLM"
    if "nsp" in network.heads:
        return "BertForPreTraining"
    return "RobertaForMaskedLM" if pair_separators == 2 else "BertForMaskedLM"


def left_behind(network: Network, name: str) -> list[str]:
    """The heads of a network that the class `name` has no place for."""
    return [head for head in network.heads if head not in ARCHITECTURES[name].heads]


def cast(network: Network, dtype: torch.dtype) -> Network:
    """A copy of a network in another precision. CheckError naming the first parameter that it cannot hold, or that
    holds no numbers to begin with."""
    config, embeddings, encoder, heads = copy.deepcopy(
        (network.config, network.embeddings, network.encoder, network.heads)
    )
    for module in (embeddings, encoder, *heads.values()):
        module.to(dtype)
    found = Network(config, embeddings, encoder, heads)
    before = network.parameters()
    for name, parameter in found.parameters().items():
        if parameter.isfinite().all():
            continue
        if not before[name].isfinite().all():
            raise CheckError(f"{name} of the checkpoint holds values that are no numbers; choose an earlier checkpoint")
        largest, word = float(before[name].detach().abs().max()), str(dtype).removeprefix("torch.")
        raise CheckError(f"{name} holds {largest:.3g}, which {word} cannot; export with --dtype bf16, or fp32")
    return found


def build_model(network: Network, name: str, special: SpecialIds) -> Any:
    """A transformers model of class `name` with the network's weights, in their precision, in evaluation mode.

    CheckError where the installed transformers has other parameters than we know.
    """
    target = ARCHITECTURES[name]
    model = getattr(transformers, name)(_config(network, target, special))
    model.to(next(iter(network.parameters().values())).dtype)
    aliases = tied(target.family) if "mlm" in target.heads else {}
    missing, unexpected = model.load_state_dict(_state(network, target, special), strict=False)
    if unexpected or set(missing) - aliases.keys():
        raise CheckError(
            f"the {name} of the installed transformers has other parameters (missing {missing}, "
            f"unexpected {unexpected}); install the pinned version"
        )
    model.tie_weights()
    for alias, original in aliases.items():
        if model.get_parameter(alias).data_ptr() != model.get_parameter(original).data_ptr():
            raise CheckError(
                f"{alias} is not tied to {original} in the installed transformers; install the pinned version"
            )
    return model.eval()


def _config(network: Network, target: Architecture, special: SpecialIds) -> Any:
    config = network.config
    own = {"embedding_size": config.embedding_size} if target.family == "electra" else {}
    return _CONFIGS[target.family](
        **own,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        intermediate_size=config.intermediate_size,
        hidden_act="gelu",  # the exact one, by erf
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.attention_dropout,
        max_position_embeddings=config.max_positions + leading_rows(target.family, special.pad),
        type_vocab_size=config.type_vocab,
        initializer_range=config.init_range,
        layer_norm_eps=config.layer_norm_eps,
        pad_token_id=special.pad,
        bos_token_id=special.cls,
        eos_token_id=special.sep,
    )


def _state(network: Network, target: Architecture, special: SpecialIds) -> dict[str, Tensor]:
    """Our tensors under their Hugging Face names, fused ones taken apart."""
    ours = {name: parameter.detach() for name, parameter in network.parameters().items()}
    front_PE = ours[POSITIONS].new_zeros(leading_rows(target.family, special.pad), network.config.embedding_size)
    ours[POSITIONS] = torch.cat([front_PE, ours[POSITIONS]])
    return {
        theirs: piece
        for name, parts in names(target.family, network.config, target.heads).items()
        for theirs, piece in zip(parts, ours[name].chunk(len(parts)), strict=True)
    }
