"""How large an encoder is: the sizes the papers name, and any other by its numbers. Torch-free.

`model: {size: small}` in an experiment file stands for the numbers of `SIZES`; any of them may be set beside it.
"""

from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, PositiveInt, model_validator
from pydantic_core import PydanticCustomError

from data_prep.settings import Settings

Dropout = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0)]

HEAD_SIZE = 64  # a generator's heads, as google-research/electra cuts them

# tiny: BERT-Tiny (Turc et al. 2019). The others: google-research/electra, util/training_utils.py and
# configure_pretraining.py (Small keeps its embeddings at 128); Base and Large are BERT's (Devlin et al. 2019).
SIZES: dict[str, dict[str, int]] = {
    name: {
        "embedding_size": embedding,
        "hidden_size": hidden,
        "num_layers": layers,
        "num_heads": hidden // HEAD_SIZE,
        "intermediate_size": 4 * hidden,
    }
    for name, embedding, hidden, layers in (
        ("tiny", 128, 128, 2),
        ("small", 128, 256, 12),
        ("base", 768, 768, 12),
        ("large", 1024, 1024, 24),
    )
}


def _about_size(message: str) -> PydanticCustomError:
    """An error of the key `size`, which is no field that pydantic could name."""
    return PydanticCustomError("model_size", "{message}", {"message": message, "key": "size"})


def _with_size(schema: dict[str, Any]) -> None:
    """`size` in the JSON schema, in place of the numbers that it stands for."""
    numbers = next(iter(SIZES.values()))
    schema["properties"] = {"size": {"enum": list(SIZES), "title": "Size"}, **schema["properties"]}
    required = schema.pop("required")
    schema["anyOf"] = [{"required": required}, {"required": ["size", *(key for key in required if key not in numbers)]}]


class ModelConfig(Settings):
    """The size of an encoder; the vocabulary comes with the corpus."""

    model_config = ConfigDict(json_schema_extra=_with_size)
    shorthands: ClassVar[tuple[str, ...]] = ("size",)  # keys that stand for several others

    embedding_size: PositiveInt
    hidden_size: PositiveInt
    num_layers: PositiveInt
    num_heads: PositiveInt
    intermediate_size: PositiveInt
    max_positions: PositiveInt = 512
    type_vocab: PositiveInt = 2
    dropout: Dropout = 0.1
    attention_dropout: Dropout = 0.1
    layer_norm_eps: Positive = 1e-12
    init_range: Positive = 0.02

    @model_validator(mode="before")
    @classmethod
    def _named_size(cls, values: Any) -> Any:
        """`size: NAME` as the numbers it stands for."""
        if not isinstance(values, dict) or "size" not in values:
            return values
        name, numbers = values["size"], {key: value for key, value in values.items() if key != "size"}
        if not isinstance(name, str) or name not in SIZES:
            raise _about_size(f"no size is called {name!r}; there are {', '.join(SIZES)}")
        if SIZES[name].keys() <= numbers.keys():  # nothing is left for the name to say
            for key, value in SIZES[name].items():
                if numbers[key] != value:
                    raise _about_size(
                        f"every number of size {name!r} is set beside it, and {key} is {numbers[key]}, not {value}; "
                        "drop size or the numbers"
                    )
        return {**SIZES[name], **numbers}

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> "ModelConfig":
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        return self

    def encoder(self, vocab_size: int) -> "EncoderConfig":
        """This size with a vocabulary."""
        return EncoderConfig(**{**self.model_dump(), "vocab_size": vocab_size})


class EncoderConfig(ModelConfig):
    """Everything needed to build one encoder."""

    vocab_size: PositiveInt

    def scaled(self, width: float, depth: float) -> "EncoderConfig":
        """A generator's body: `width` of the hidden size in heads of 64, four times that in the feed-forward,
        `depth` of the layers (google-research/electra, `get_generator_config`)."""
        hidden = round(self.hidden_size * width)
        body = {
            "hidden_size": hidden,
            "num_heads": max(1, hidden // HEAD_SIZE),
            "intermediate_size": 4 * hidden,
            "num_layers": max(1, round(self.num_layers * depth)),
        }
        return EncoderConfig(**{**self.model_dump(), **body})
