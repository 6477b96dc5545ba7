"""From an arm's settings to its objective."""

from data_prep.rows import SpecialIds
from training.arms import (
    AllTokensMlmArm,
    ArmConfig,
    BertArm,
    Electra15Arm,
    ElectraAdversarialArm,
    ElectraArm,
    ElectraTwoStageArm,
    MlmArm,
    ReplaceMlmArm,
    RobertaArm,
)
from training.objectives.all_tokens_mlm import AllTokensMlm
from training.objectives.base import Objective, Setup
from training.objectives.bert import Bert
from training.objectives.electra import Electra
from training.objectives.electra_15 import Electra15
from training.objectives.electra_adversarial import ElectraAdversarial
from training.objectives.electra_two_stage import ElectraTwoStage
from training.objectives.mlm import Mlm
from training.objectives.replace_mlm import ReplaceMlm
from training.objectives.roberta import Roberta
from training.settings import Compute
from training.sizes import EncoderConfig

CLASSES: dict[type, type[Objective]] = {
    ElectraArm: Electra,
    Electra15Arm: Electra15,
    ElectraAdversarialArm: ElectraAdversarial,
    ElectraTwoStageArm: ElectraTwoStage,
    ReplaceMlmArm: ReplaceMlm,
    AllTokensMlmArm: AllTokensMlm,
    MlmArm: Mlm,
    BertArm: Bert,
    RobertaArm: Roberta,
}


def build(
    arm: ArmConfig,
    model: EncoderConfig,
    special: SpecialIds,
    *,
    seq_len: int,
    packed: bool,
    compute: Compute | None = None,
) -> Objective:
    """The objective of an arm, initialised from the global torch generator (seed it first)."""
    setup = Setup(model=model, special=special, seq_len=seq_len, packed=packed, compute=compute or Compute())
    return CLASSES[type(arm)](arm, setup)
