"""What the tests of objectives, ledgers and golden runs go through: the nine arms, and every kind of generator."""

from dataclasses import dataclass

import numpy as np
import torch

from data_prep.rows import SpecialIds, structure
from tests.training.synthetic import MODEL, SEQ_LEN, SPECIAL, VOCAB, make_rows, partners_within, with_ids
from training.arms import (
    AllTokensMlmArm,
    ArmConfig,
    BertArm,
    DetectionArm,
    Electra15Arm,
    ElectraAdversarialArm,
    ElectraArm,
    ElectraTwoStageArm,
    FrozenGenerator,
    MlmArm,
    NetworkGenerator,
    ReplaceMlmArm,
    RobertaArm,
    UniformGenerator,
)
from training.masking import RowKeys
from training.objectives import HostBatch, Objective, RowBatch, build
from training.settings import Compute
from training.sizes import EncoderConfig, ModelConfig

RATE = 1e-3
ENCODER = MODEL.encoder(VOCAB)
ROBERTA = SpecialIds(cls=0, pad=1, sep=2, unk=3, mask=VOCAB - 1)  # where RoBERTa's vocabulary has them

# One of each objective, with weights that are not the defaults, so that a weight that is not used shows.
ARMS: dict[str, ArmConfig] = {
    "electra": ElectraArm(learning_rate=RATE, generator_weight=0.7, discriminator_weight=30.0),
    "electra_15": Electra15Arm(learning_rate=RATE, generator_weight=0.7, discriminator_weight=30.0),
    "electra_adversarial": ElectraAdversarialArm(
        learning_rate=RATE, generator_weight=0.7, discriminator_weight=30.0, baseline_weight=0.4
    ),
    "electra_two_stage": ElectraTwoStageArm(learning_rate=RATE, discriminator_weight=30.0),
    "replace_mlm": ReplaceMlmArm(learning_rate=RATE, generator_weight=0.7),
    "all_tokens_mlm": AllTokensMlmArm(learning_rate=RATE, generator_weight=0.7),
    "mlm": MlmArm(learning_rate=RATE),
    "bert": BertArm(learning_rate=RATE),
    "roberta": RobertaArm(learning_rate=RATE),
}

_ALL = NetworkGenerator(tying="all", width=1.0)
_NONE = NetworkGenerator(tying="none", width=0.5, depth=0.5)
_UNIFORM = UniformGenerator()
_FROZEN = FrozenGenerator(  # a network of a size of its own
    network=ModelConfig(
        embedding_size=12,
        hidden_size=24,
        num_layers=1,
        num_heads=3,
        intermediate_size=40,
        max_positions=64,
        dropout=0.0,
        attention_dropout=0.0,
    )
)

# Every kind of generator, and what else an arm may be told about it.
VARIANTS: dict[str, ArmConfig] = {
    "electra, tying all": ElectraArm(learning_rate=RATE, generator=_ALL),
    "electra, tying none": ElectraArm(learning_rate=RATE, generator=_NONE),
    "electra, uniform": ElectraArm(learning_rate=RATE, generator=_UNIFORM),
    "electra, frozen": ElectraArm(learning_rate=RATE, generator=_FROZEN),
    "electra, temperature": ElectraArm(learning_rate=RATE, generator=NetworkGenerator(temperature=0.6)),
    "electra, disallow_correct": ElectraArm(learning_rate=RATE, generator=NetworkGenerator(disallow_correct=True)),
    "electra, frozen at a temperature": ElectraArm(
        learning_rate=RATE, generator=_FROZEN.model_copy(update={"temperature": 1.7, "disallow_correct": True})
    ),
    "electra_15, tying all": Electra15Arm(learning_rate=RATE, generator=_ALL),
    "electra_15, uniform": Electra15Arm(learning_rate=RATE, generator=_UNIFORM),
    "electra_adversarial, temperature": ElectraAdversarialArm(
        learning_rate=RATE, generator=NetworkGenerator(tying="none", temperature=0.6, disallow_correct=True)
    ),
    "electra_adversarial, tying all": ElectraAdversarialArm(learning_rate=RATE, generator=_ALL),
    "electra_two_stage, temperature": ElectraTwoStageArm(learning_rate=RATE, temperature=1.7, disallow_correct=True),
    "replace_mlm, tying all": ReplaceMlmArm(learning_rate=RATE, generator=_ALL),
    "replace_mlm, frozen": ReplaceMlmArm(learning_rate=RATE, generator=_FROZEN),
    "all_tokens_mlm, tying none": AllTokensMlmArm(learning_rate=RATE, generator=_NONE),
    "all_tokens_mlm, uniform": AllTokensMlmArm(learning_rate=RATE, generator=_UNIFORM),
}
CASES = ARMS | VARIANTS
_WITH_GENERATOR = DetectionArm | ReplaceMlmArm | AllTokensMlmArm
SAMPLING = [  # the cases in which a network samples
    name
    for name, arm in CASES.items()
    if isinstance(arm, _WITH_GENERATOR) and not isinstance(getattr(arm, "generator", None), UniformGenerator)
]
LAYOUTS = [(name, packed) for name in CASES for packed in (False, True) if not (packed and name == "bert")]
LAYOUT_IDS = [f"{name}-{'packed' if packed else 'segments'}" for name, packed in LAYOUTS]


@dataclass(frozen=True, slots=True)
class Prepared:
    """An arm's objective and a batch for it."""

    arm: ArmConfig
    objective: Objective
    host: HostBatch
    special: SpecialIds


def prepared(
    arm: ArmConfig,
    *,
    packed: bool = False,
    count: int = 6,
    special: SpecialIds = SPECIAL,
    separators: int = 1,
    model: EncoderConfig = ENCODER,
    compute: Compute | None = None,
) -> Prepared:
    """A freshly initialised objective and a batch: the first rows of a synthetic shard, whose keys are their places."""
    torch.manual_seed(0)
    objective = build(arm, model, special, seq_len=SEQ_LEN, packed=packed, compute=compute)
    shard = with_ids(make_rows(100, seed=11, packed=packed, separators=separators), special)  # holds partners for pairs
    rows, index = shard[:count], np.arange(count)
    keys = RowKeys(1, index * 0, index)
    host = objective.prepare(RowBatch(rows, structure(rows, special), keys, partners_within(shard, special, index)))
    return Prepared(arm, objective, host, special)
