"""The settings a training run is made of: model size, arm, optimisation, and the run specification itself.

Torch-free, so that planning and `--help` stay instant. `Identity` is what must match for two attempts to be the same
run; `Placement` is what may change from one attempt to the next without changing the result.
"""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from data_prep.order import OrderConfig
from data_prep.settings import Settings

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
MaskRate = Annotated[float, Field(gt=0.0, le=0.5)]  # above a half, short rows run out of words to mask
Dropout = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0)]


class ModelConfig(Settings):
    """The size of an encoder; the vocabulary comes with the corpus."""

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
    attention: Literal["sdpa", "reference"] = "sdpa"

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> "ModelConfig":
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        return self

    def encoder(self, vocab_size: int) -> "EncoderConfig":
        """This size with a vocabulary."""
        return EncoderConfig(vocab_size=vocab_size, **self.model_dump())


class EncoderConfig(ModelConfig):
    """Everything needed to build one encoder."""

    vocab_size: PositiveInt

    def scaled(self, width: float, depth: float) -> "EncoderConfig":
        """A generator's body: `width` of the hidden size in heads of 64, four times that in the feed-forward,
        `depth` of the layers (google-research/electra, `get_generator_config`)."""
        hidden = round(self.hidden_size * width)
        body = {
            "hidden_size": hidden,
            "num_heads": max(1, hidden // 64),
            "intermediate_size": 4 * hidden,
            "num_layers": max(1, round(self.num_layers * depth)),
        }
        return EncoderConfig(**{**self.model_dump(), **body})


class ArmBase(Settings):
    """What every arm says: its name in tables and plots, its peak learning rate, how much it masks."""

    name: Annotated[str, Field(default="", pattern=r"^[a-z0-9_-]*$")]
    learning_rate: Positive
    mask_prob: MaskRate = 0.15

    @property
    def label(self) -> str:
        """The arm's name; the objective's where none was given."""
        return self.name or str(getattr(self, "objective", ""))

    def max_predictions(self, seq_len: int) -> int:
        """Mask slots a row: int((p + .005) L), as google-research/electra."""
        return max(1, int((self.mask_prob + 0.005) * seq_len))


class ElectraArm(ArmBase):
    """Replaced-token detection (Clark et al. 2020): a small generator samples, the discriminator judges every token."""

    objective: Literal["electra"] = "electra"
    generator_width: Annotated[float, Field(gt=0.0, le=1.0)] = 0.25
    generator_depth: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    generator_weight: Positive = 1.0
    discriminator_weight: Positive = 50.0
    temperature: Positive = 1.0


class BertArm(ArmBase):
    """BERT (Devlin et al. 2019): static 80/10/10 masks in ten versions, and next-sentence prediction."""

    objective: Literal["bert"] = "bert"
    mask_versions: PositiveInt = 10


class RobertaArm(ArmBase):
    """RoBERTa (Liu et al. 2019): dynamic 80/10/10 masks, no next-sentence prediction."""

    objective: Literal["roberta"] = "roberta"


ArmConfig = Annotated[ElectraArm | BertArm | RobertaArm, Field(discriminator="objective")]


class OptimizerConfig(Settings):
    """Adam as in the reference code: no bias correction, decoupled decay, none on LayerNorm and bias."""

    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    eps: Positive = 1e-6
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    grad_clip: Positive = 1.0  # one joint global norm over generator and discriminator


class TrainingConfig(Settings):
    """How every arm of an experiment is trained."""

    global_batch: PositiveInt
    micro_batch: PositiveInt
    warmup_fraction: Fraction = 0.05  # of the run's steps; the reference's 10k of 1M is .01
    optimizer: OptimizerConfig = OptimizerConfig()
    order: OrderConfig = OrderConfig()
    zero_stage: Literal[1, 2] = 1
    log_every: PositiveInt = 20
    eval_every: PositiveInt | None = None  # None: at the end only
    eval_rows: PositiveInt = 512
    checkpoint_every: PositiveInt | None = None  # None: at the end only


class Identity(Settings):
    """What makes a run the run it is; an attempt with another identity is another run."""

    arm: ArmConfig
    model: EncoderConfig
    optimizer: OptimizerConfig
    order: OrderConfig
    global_batch: PositiveInt
    steps: PositiveInt
    warmup_steps: Annotated[int, Field(ge=0)]
    seq_len: PositiveInt
    seed: int
    manifest_sha256: str
    tokenizer_sha256: str


class Placement(Settings):
    """What may change between attempts: recorded, never compared."""

    micro_batch: PositiveInt
    zero_stage: Literal[1, 2] = 1
    log_every: PositiveInt = 20
    eval_every: PositiveInt | None = None
    eval_rows: PositiveInt = 512
    checkpoint_every: PositiveInt | None = None


class RunSpec(Settings):
    """One training run: an arm at a budget with a seed."""

    name: str
    budget: Positive  # model FLOPs
    flops_per_step: Positive  # exact mean over the corpus, model FLOPs
    identity: Identity
    placement: Placement

    @property
    def steps(self) -> int:
        return self.identity.steps


def run_name(label: str, budget: float, seed: int) -> str:
    """`electra-4.00e+11-s0`: what a run and its folder are called."""
    return f"{label}-{budget_name(budget)}-s{seed}"


def budget_name(budget: float) -> str:
    """Three digits: `4.00e+11`."""
    return f"{budget:.2e}"
