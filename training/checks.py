"""What does not fit together, found when a run is planned: an arm and its corpus, or the networks it begins with.

Every check passes silently or raises a ConfigError that names the key. Torch-free.
"""

from typing import TYPE_CHECKING

from data_prep.errors import ConfigError
from data_prep.manifest import Manifest
from training.arms import ArmConfig, BertArm, FrozenGenerator, NetworkGenerator
from training.flops import trained_generator
from training.sizes import EncoderConfig, ModelConfig
from training.vocabulary import Vocabulary

if TYPE_CHECKING:
    from training.origin import Origin

# What two networks must share to be the same one: sizes, and the constant that every LayerNorm adds.
_SAME = (
    "embedding_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "intermediate_size",
    "max_positions",
    "type_vocab",
    "layer_norm_eps",
)


def check_arm(arm: ArmConfig, model: ModelConfig, manifest: Manifest) -> None:
    """That the arm can be built at this size and use this corpus."""
    if isinstance(arm, BertArm) and manifest.layout != "segments":
        raise ConfigError(
            f"arms: {arm.label!r} needs pairs of segments; set corpus.layout to 'segments' or drop the arm"
        )
    if manifest.seq_len > model.max_positions:
        raise ConfigError(
            f"model.max_positions: {model.max_positions} is less than the corpus's seq_len {manifest.seq_len}; "
            "raise it or prepare shorter rows"
        )
    generator = getattr(arm, "generator", None)
    if isinstance(generator, FrozenGenerator) and generator.init_from is None:
        raise ConfigError(
            f"arms: the frozen generator of {arm.label!r} has no weights; set generator.init_from to a run or a "
            "Hugging Face folder"
        )
    if isinstance(generator, NetworkGenerator):
        try:
            trained_generator(generator, model.encoder(manifest.vocab_size))
        except ValueError:
            raise ConfigError(
                f"arms: generator.width {generator.width} of {arm.label!r} makes a hidden size of "
                f"{round(generator.width * model.hidden_size)}, which does not split into heads of 64; choose a width "
                "that gives a multiple of 64"
            ) from None


def check_vocabulary(arm: ArmConfig, origin: "Origin", manifest: Manifest, corpus: Vocabulary | None) -> None:
    """That an origin's token ids mean what the corpus's do, as far as it can be known: of a run by its tokenizer, of a
    Hugging Face folder by the vocabulary in it, where `corpus`, the corpus's own, is at hand."""
    begins = f"arms: {arm.label!r} is to begin with {origin.folder}, "
    if origin.vocab_size != manifest.vocab_size:
        raise ConfigError(
            f"{begins}whose vocabulary has {origin.vocab_size} entries; the corpus's has {manifest.vocab_size}: "
            "prepare the corpus with that model's tokenizer"
        )
    if origin.tokenizer_sha256 not in (None, manifest.tokenizer_sha256):
        raise ConfigError(
            f"{begins}which was trained with another tokenizer; prepare the corpus with that one "
            "(corpus.tokenizer.path)"
        )
    if origin.pad not in (None, manifest.special.pad):
        raise ConfigError(
            f"{begins}whose config.json says pad_token_id {origin.pad}; the corpus's is {manifest.special.pad}: "
            "prepare the corpus with that model's tokenizer (corpus.tokenizer.path)"
        )
    if origin.vocabulary is None or corpus is None:
        return
    for token, number in sorted(corpus.items(), key=lambda entry: entry[1]):
        if origin.vocabulary.get(token) != number:
            raise ConfigError(
                f"{begins}whose vocabulary is another: {token!r} is {origin.vocabulary.get(token, 'no token')} there, "
                f"and {number} in the corpus; prepare the corpus with that model's tokenizer (corpus.tokenizer.path)"
            )


def check_sizes(arm: ArmConfig, origin: "Origin", encoder: EncoderConfig) -> None:
    """That the networks of an origin are of the sizes of those they are to fill. Shapes alone would not tell: heads
    have none, and the first layers of a deeper network fit."""
    generator = getattr(arm, "generator", None)
    trained = trained_generator(generator, encoder) if isinstance(generator, NetworkGenerator) else None
    main = origin.main
    if main is None and trained is None:
        main = origin.generator  # a generator alone fills the main network of an arm that trains none
    if main is not None:
        _check_same(arm, origin, main, encoder, "", "model")
    if origin.generator is not None and trained is not None:
        _check_same(arm, origin, origin.generator, trained, "generator's ", "generator.width, depth or tying")


def _check_same(
    arm: ArmConfig, origin: "Origin", theirs: EncoderConfig, ours: EncoderConfig, whose: str, key: str
) -> None:
    for name in _SAME:
        if getattr(theirs, name) != getattr(ours, name):
            raise ConfigError(
                f"arms: {arm.label!r} is to begin with {origin.folder}, whose {whose}{name} is "
                f"{getattr(theirs, name)}, and its own is {getattr(ours, name)}; set {key} alike, or drop init_from"
            )


def frozen_size(arm: ArmConfig, origin: "Origin", manifest: Manifest) -> ModelConfig:
    """The size of a frozen generator that begins with an origin."""
    if origin.masked is None:
        raise ConfigError(
            f"arms: the generator of {arm.label!r} is to be {origin.folder}, which holds no network that predicts "
            "masked tokens; name another in generator.init_from"
        )
    if origin.masked.max_positions < manifest.seq_len:
        raise ConfigError(
            f"arms: the generator of {arm.label!r} is to be {origin.folder}, which has {origin.masked.max_positions} "
            f"positions; the corpus's rows have {manifest.seq_len}"
        )
    return ModelConfig(**origin.masked.model_dump(exclude={"vocab_size"}))
