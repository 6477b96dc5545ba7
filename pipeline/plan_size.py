"""How many parameters the networks of an arm have: a closed form, equal to what is built (a test holds it to that).

A part that two networks share is counted once, with the main network.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from training.arms import (
    AllTokensMlmArm,
    ArmConfig,
    BertArm,
    DetectionArm,
    ElectraAdversarialArm,
    ElectraTwoStageArm,
    FrozenGenerator,
    NetworkGenerator,
)
from training.flops import trained_generator
from training.sizes import EncoderConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Parameters of one network. `linear` are those of matmuls, which bf16 autocast keeps a second copy of, and the
    LayerNorms between them, a thousandth."""

    total: int
    linear: int
    frozen: bool = False

    @property
    def trained(self) -> int:
        return 0 if self.frozen else self.total


def sizes(arm: ArmConfig, model: EncoderConfig) -> Mapping[str, Size]:
    """The networks of an arm by name, as the columns of the FLOPs ledger, the main one first. A frozen generator must
    carry its size, as that of a planned run does."""
    main = "discriminator" if isinstance(arm, DetectionArm) else "encoder"
    found = {main: _size(_embeddings(model), _body(model) + _heads(arm, model), _heads_fine(arm, model))}
    if isinstance(arm, ElectraTwoStageArm):
        found["generator"] = _size(_embeddings(model), _body(model) + _masked_head(model), _masked_fine(model), True)
        return found
    generator = getattr(arm, "generator", None)
    if isinstance(generator, FrozenGenerator):
        assert generator.network is not None, "a planned run's frozen generator carries its size"
        config = generator.network.encoder(model.vocab_size)
        found["generator"] = _size(
            _embeddings(config), _body(config) + _masked_head(config), _masked_fine(config), True
        )
    elif isinstance(generator, NetworkGenerator):
        found["generator"] = _trained(generator, model)
        if isinstance(arm, ElectraAdversarialArm):
            width = trained_generator(generator, model).hidden_size
            found["baseline"] = Size(total=width, linear=0)
    return found


def _trained(generator: NetworkGenerator, model: EncoderConfig) -> Size:
    """A generator that is trained along, without what it shares."""
    config = trained_generator(generator, model)
    own_table = _embeddings(config) if generator.tying == "none" else 0
    own_body = 0 if generator.tying == "all" else _body(config)
    return _size(own_table, own_body + _masked_head(config), _masked_fine(config))


def _size(table: int, linear: int, fine: int, frozen: bool = False) -> Size:
    return Size(total=table + linear + fine, linear=linear, frozen=frozen)


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _norm(width: int) -> int:
    return 2 * width


def _embeddings(config: EncoderConfig) -> int:
    """Word, position and type tables, LayerNorm."""
    E = config.embedding_size
    return (config.vocab_size + config.max_positions + config.type_vocab) * E + _norm(E)


def _body(config: EncoderConfig) -> int:
    """The projection of the embeddings where there is one, and the layers, each with its two LayerNorms."""
    D, F = config.hidden_size, config.intermediate_size
    layer = _linear(D, 3 * D) + _linear(D, D) + _linear(D, F) + _linear(F, D) + 2 * _norm(D)
    project = _linear(config.embedding_size, D) if config.embedding_size != D else 0
    return project + config.num_layers * layer


def _masked_head(config: EncoderConfig) -> int:
    """The dense layer; the output matrix is the word table."""
    return _linear(config.hidden_size, config.embedding_size)


def _masked_fine(config: EncoderConfig) -> int:
    """LayerNorm, and one bias a word."""
    return _norm(config.embedding_size) + config.vocab_size


def _heads(arm: ArmConfig, model: EncoderConfig) -> int:
    """The dense layers of the main network's heads."""
    D = model.hidden_size
    if isinstance(arm, DetectionArm):
        return _linear(D, D)
    return _masked_head(model) + (_linear(D, D) if isinstance(arm, BertArm) else 0)


def _heads_fine(arm: ArmConfig, model: EncoderConfig) -> int:
    """What of them stays in fp32: last layers of one or two outputs, LayerNorm, biases of words."""
    D = model.hidden_size
    if isinstance(arm, DetectionArm):
        return _linear(D, 1)
    copy = _linear(D, 1) if isinstance(arm, AllTokensMlmArm) else 0
    return _masked_fine(model) + copy + (_linear(D, 2) if isinstance(arm, BertArm) else 0)
