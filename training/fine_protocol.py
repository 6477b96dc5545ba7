"""What every fine-tuning protocol says, whatever the task: how weights move, and under which name. Torch-free.

A protocol is stored with each score, all its numbers resolved; any other number is another protocol, with another
fingerprint. `plain` is one global setting for every model, each number free to choose. `electra_paper` is what
google-research/electra does (`configure_finetuning.py`, `run_finetuning.py`, `model/optimization.py`): it takes a
`size` and nothing else, so that the name says exactly what was done. Where the paper's table and that code differ, the
code is followed: weight decay .01 (the paper: 0) and, for small models, a rate of 1e-4 (the paper: 3e-4).
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from data_prep.settings import Settings

Size = Literal["small", "base", "large"]
HeadInit = Annotated[float, Field(gt=0.0)] | Literal["glorot"]

# the only numbers of the reference that depend on the model's size
PAPER_SIZES: dict[str, dict[str, float]] = {
    "small": {"learning_rate": 1e-4, "layer_decay": 0.8},
    "base": {"learning_rate": 1e-4, "layer_decay": 0.8},
    "large": {"learning_rate": 5e-5, "layer_decay": 0.9},
}


class FineProtocol(Settings):
    """The base of the protocols. `PAPER` are the numbers of `electra_paper` that are the same for every size."""

    PAPER: ClassVar[dict[str, Any]] = {
        "batch_size": 32,
        "max_train_examples": None,
        "warmup_fraction": 0.1,
        "weight_decay": 0.01,
        "layer_decay_offset": True,
        "grad_clip": 1.0,
        "adam": "reference_adam",
        "schedule": "reference",
        "loss": "sum",
        "head_init": "glorot",
    }

    name: Literal["plain", "electra_paper"] = "plain"
    size: Size | None = None  # electra_paper only: whose numbers
    learning_rate: Annotated[float, Field(gt=0.0)]
    epochs: PositiveInt = 2
    batch_size: PositiveInt = 16
    max_train_examples: PositiveInt | None = None  # of each task, chosen by a hash; None: all. Dev is always whole
    warmup_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01  # none on LayerNorm and biases
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # each layer learns at this share of the rate above it
    layer_decay_offset: bool = False  # google-research/electra: below the head, once more
    grad_clip: Annotated[float, Field(gt=0.0)] = 1.0  # global norm
    adam: Literal["adamw", "reference_adam"] = "adamw"
    schedule: Literal["linear", "reference"] = "linear"
    loss: Literal["mean", "sum"] = "mean"  # over a batch, before the clip
    head_init: HeadInit = 0.02  # truncated normal of this deviation

    @classmethod
    def paper(cls, size: str) -> dict[str, Any]:
        """Every number of `electra_paper` at a size."""
        return {**cls.PAPER, **PAPER_SIZES[size]}

    @model_validator(mode="before")
    @classmethod
    def _resolved(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("name") != "electra_paper":
            return given
        if given.get("size") not in PAPER_SIZES:
            raise ValueError(f"electra_paper needs size, one of {', '.join(PAPER_SIZES)}")
        return {**cls.paper(given["size"]), **given}

    @model_validator(mode="after")
    def _as_named(self) -> Self:
        if self.name == "plain":
            if self.size is not None:
                raise ValueError("size belongs to electra_paper; take it away, or name that protocol")
            return self
        for key, value in self.paper(str(self.size)).items():
            if getattr(self, key) != value:
                raise ValueError(f"electra_paper has {key} {value}; leave it out, or name the protocol plain")
        return self
