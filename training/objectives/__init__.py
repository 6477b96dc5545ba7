"""From a batch of stored rows to losses and counts, one class an objective and one file a class."""

from training.objectives.all_tokens_mlm import AllTokensMlm
from training.objectives.base import Objective, Outputs, Setup, Term
from training.objectives.batch import Batch, HostBatch, RowBatch, counts, room_for_runs, to_device
from training.objectives.bert import Bert
from training.objectives.build import build
from training.objectives.electra import Detection, Electra
from training.objectives.electra_15 import Electra15
from training.objectives.electra_adversarial import ElectraAdversarial
from training.objectives.electra_two_stage import ElectraTwoStage
from training.objectives.mlm import MaskedLanguageModel, Mlm
from training.objectives.replace_mlm import ReplaceMlm
from training.objectives.roberta import Roberta

__all__ = [
    "AllTokensMlm",
    "Batch",
    "Bert",
    "Detection",
    "Electra",
    "Electra15",
    "ElectraAdversarial",
    "ElectraTwoStage",
    "HostBatch",
    "MaskedLanguageModel",
    "Mlm",
    "Objective",
    "Outputs",
    "ReplaceMlm",
    "Roberta",
    "RowBatch",
    "Setup",
    "Term",
    "build",
    "counts",
    "room_for_runs",
    "to_device",
]
