"""The arms of an experiment: one settings class an objective, each with only what that objective knows. Torch-free.

What draws the replacements is a part of its own (`generator:`): a network trained along, a frozen one, or chance. The
same classes describe a planned run, in which what depended on the outside is resolved: paths are gone (their contents
are named in the run's identity) and a frozen generator carries the size it was found to have.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, PositiveInt, Tag, model_validator

from data_prep.settings import Settings
from training.sizes import ModelConfig

Fraction = Annotated[float, Field(gt=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
MaskRate = Annotated[float, Field(gt=0.0, le=0.5)]  # above a half, short rows run out of words to mask


class NetworkGenerator(Settings):
    """A small masked language model, trained along with the network it corrupts rows for."""

    kind: Literal["network"] = "network"
    width: Fraction = 0.25  # of the main network's hidden size
    depth: Fraction = 1.0  # of its layers
    # What it shares with the main network. token: the word, position and type tables and their LayerNorm, as the
    # reference code does (the paper's text names the first two). all: its body too, which needs the same size. none:
    # nothing, with embeddings as narrow as its own body (the reference's untied_generator_embeddings).
    tying: Literal["all", "token", "none"] = "token"
    temperature: Positive = 1.0
    disallow_correct: bool = False  # never sample the true token

    @model_validator(mode="after")
    def _one_body_has_one_size(self) -> "NetworkGenerator":
        if self.tying == "all" and (self.width, self.depth) != (1.0, 1.0):
            raise ValueError("tying 'all' shares the whole body: set width and depth to 1.0, or tying to 'token'")
        return self


class UniformGenerator(Settings):
    """Replacements drawn from the whole vocabulary with equal chances; nothing is trained."""

    kind: Literal["uniform"] = "uniform"
    disallow_correct: bool = False


class FrozenGenerator(Settings):
    """A masked language model trained before and no longer: it costs its forward pass only."""

    kind: Literal["frozen"] = "frozen"
    init_from: Path | None = None  # a checkpoint, a run's folder, or a Hugging Face folder
    network: ModelConfig | None = None  # its size; found when the run is planned
    temperature: Positive = 1.0
    disallow_correct: bool = False


def _generator_kind(value: Any) -> str | None:
    """None for what is no generator at all; `kind: null` is a kind that there is none of."""
    if isinstance(value, dict):
        return str(value.get("kind", "network"))
    kind = getattr(value, "kind", None)
    return None if kind is None else str(kind)


GeneratorConfig = Annotated[
    Annotated[NetworkGenerator, Tag("network")]
    | Annotated[UniformGenerator, Tag("uniform")]
    | Annotated[FrozenGenerator, Tag("frozen")],
    Discriminator(_generator_kind),
]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str | Path) else value


class ArmBase(Settings):
    """What every arm says: its name in tables and plots, its peak learning rate, how much it masks, and where its
    weights begin (nothing: at random; several folders: each gives what the ones before it lack)."""

    name: Annotated[str, Field(default="", pattern=r"^[a-z0-9_-]*$")]
    learning_rate: Positive
    mask_prob: MaskRate = 0.15
    init_from: Annotated[
        list[Path], BeforeValidator(_listed, json_schema_input_type=list[Path] | Path), Field(default_factory=list)
    ]

    @property
    def label(self) -> str:
        """The arm's name; the objective's where none was given."""
        return self.name or str(getattr(self, "objective", ""))

    def max_predictions(self, seq_len: int) -> int:
        """Mask slots a row: int((p + .005) L), as google-research/electra."""
        return max(1, int((self.mask_prob + 0.005) * seq_len))


class DetectionArm(ArmBase):
    """What the arms that detect replaced tokens share."""

    discriminator_weight: Positive = 50.0  # λ of the paper: both losses are means


class ElectraArm(DetectionArm):
    """Replaced-token detection (Clark et al. 2020): a generator samples, the discriminator judges every token."""

    objective: Literal["electra"] = "electra"
    generator: GeneratorConfig = NetworkGenerator()
    generator_weight: Positive = 1.0


class Electra15Arm(DetectionArm):
    """The paper's ELECTRA 15 %: the discriminator learns from the masked positions only."""

    objective: Literal["electra_15"] = "electra_15"
    generator: GeneratorConfig = NetworkGenerator()
    generator_weight: Positive = 1.0

    @model_validator(mode="after")
    def _has_both_answers(self) -> "Electra15Arm":
        if self.generator.disallow_correct:
            raise ValueError("every token that electra_15 judges would be replaced: set disallow_correct to false")
        return self


class ElectraAdversarialArm(DetectionArm):
    """The paper's appendix F: the generator is trained by REINFORCE to fool the discriminator."""

    objective: Literal["electra_adversarial"] = "electra_adversarial"
    generator: NetworkGenerator = NetworkGenerator()
    generator_weight: Positive = 1.0  # of the policy's loss
    baseline_weight: Positive = 1.0  # of the learned baseline's loss; nothing else depends on it


class ElectraTwoStageArm(DetectionArm):
    """The paper's two-stage training: an `mlm` run of the same size, then a discriminator that starts from its weights
    while it samples, frozen. Two runs; the first has half of the budget."""

    objective: Literal["electra_two_stage"] = "electra_two_stage"
    temperature: Positive = 1.0
    disallow_correct: bool = False

    def first_stage(self) -> "MlmArm":
        """The arm of the first run."""
        name = f"{self.label}-first"
        return MlmArm(name=name, learning_rate=self.learning_rate, mask_prob=self.mask_prob, init_from=self.init_from)


class ReplaceMlmArm(ArmBase):
    """The paper's Replace MLM: masked language modelling with the generator's samples in place of [MASK]."""

    objective: Literal["replace_mlm"] = "replace_mlm"
    generator: GeneratorConfig = NetworkGenerator()
    generator_weight: Positive = 1.0


class AllTokensMlmArm(ArmBase):
    """The paper's All-Tokens MLM: as Replace MLM, predicting every token, with a mechanism that copies its input."""

    objective: Literal["all_tokens_mlm"] = "all_tokens_mlm"
    generator: GeneratorConfig = NetworkGenerator()
    generator_weight: Positive = 1.0


class MlmArm(ArmBase):
    """google-research/electra's own baseline: 85 % [MASK], 15 % kept, fresh masks every epoch, no next-sentence
    prediction."""

    objective: Literal["mlm"] = "mlm"


class BertArm(ArmBase):
    """BERT (Devlin et al. 2019): static 80/10/10 masks in ten versions, and next-sentence prediction."""

    objective: Literal["bert"] = "bert"
    mask_versions: PositiveInt = 10


class RobertaArm(ArmBase):
    """RoBERTa (Liu et al. 2019): dynamic 80/10/10 masks, no next-sentence prediction."""

    objective: Literal["roberta"] = "roberta"


ArmConfig = Annotated[
    ElectraArm
    | Electra15Arm
    | ElectraAdversarialArm
    | ElectraTwoStageArm
    | ReplaceMlmArm
    | AllTokensMlmArm
    | MlmArm
    | BertArm
    | RobertaArm,
    Field(discriminator="objective"),
]


def why_no_trunk(arm: ArmConfig) -> str | None:
    """Why the runs of an arm cannot share a trunk, in a sentence that says what to do; None where they can."""
    if isinstance(arm, ElectraTwoStageArm):
        return (
            f"arm {arm.label!r} has two stages, the first as long as half the budget, and its budgets share none; "
            "set training.schedule.branches to false, or leave the arm out"
        )
    generator = getattr(arm, "generator", None)
    if arm.init_from or (isinstance(generator, FrozenGenerator) and generator.init_from is not None):
        return (
            f"arm {arm.label!r} begins with the weights of others (init_from), which its budgets pay for; set "
            "training.schedule.branches to false, or leave init_from out"
        )
    return None
