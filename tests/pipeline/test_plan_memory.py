"""Memory: the model part is what engines hold, activations are what autograd saves, a checkpoint is its file."""

from pathlib import Path

import pytest
import torch

from pipeline.plan_memory import BF16, FP32, Setting, held, layer, memory
from pipeline.plan_size import sizes
from pipeline.plan_traffic import checkpoint_bytes
from tests.training.runs import ELECTRA
from tests.training.saved import engine, local, saver, take
from tests.training.synthetic import VOCAB, write_corpus
from training.arms import ElectraArm, RobertaArm
from training.encoder import Encoder
from training.settings import Compute, Placement
from training.sizes import EncoderConfig, ModelConfig

ROWS, LENGTH = 3, 20


def model(layers: int = 2, *, dropout: float = 0.0, attention_dropout: float = 0.0) -> EncoderConfig:
    return EncoderConfig(
        embedding_size=32, hidden_size=32, num_layers=layers, num_heads=4, intermediate_size=112, max_positions=64,
        dropout=dropout, attention_dropout=attention_dropout, vocab_size=50,
    )  # fmt: skip


def setting(**changed: object) -> Setting:
    values = {
        "stage": 1, "gpus": 1, "micro_batch": ROWS, "checkpointing": False, "attention": "sdpa", "bf16": False,
        "packed": False, "seq_len": LENGTH,
    }  # fmt: skip
    return Setting(**{**values, **changed})  # type: ignore[arg-type]


def saved_bytes(config: EncoderConfig, one: Setting) -> int:
    """The storage that autograd keeps of an encoder's forward pass, each once, parameters and their casts left out."""
    compute = Compute(attention=one.attention, activation_checkpointing=one.checkpointing)  # type: ignore[arg-type]
    encoder = Encoder(config, compute).train()
    weights = {tuple(p.shape) for p in encoder.parameters() if p.ndim == 2}
    weights |= {shape[::-1] for shape in weights}  # as a matmul saves them
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tuple(tensor.shape) not in weights:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    inputs = torch.randn(ROWS, LENGTH, config.hidden_size, requires_grad=True)
    fragment = torch.ones(ROWS, LENGTH, dtype=torch.long)
    if one.packed:
        fragment[:, LENGTH // 2 :] = 2
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=one.bf16),
    ):
        outputs = encoder(inputs, fragment, one.packed)
    assert outputs.shape == inputs.shape
    own = {p.untyped_storage().data_ptr() for p in encoder.parameters()}
    return sum(size for pointer, size in kept.items() if pointer not in own)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(
    ("attention", "bf16", "attention_dropout"),
    [("sdpa", False, 0.0), ("sdpa", True, 0.0), ("reference", False, 0.0), ("reference", False, 0.1)],
)
def test_a_layer_keeps_what_the_formula_says(
    attention: str, bf16: bool, attention_dropout: float, dropout: float, packed: bool
) -> None:
    rates = {"dropout": dropout, "attention_dropout": attention_dropout}
    one = setting(attention=attention, bf16=bf16, packed=packed)
    of_one = saved_bytes(model(3, **rates), one) - saved_bytes(model(2, **rates), one)
    assert of_one == layer(model(**rates), one)


def test_a_layer_of_fp32_by_hand() -> None:
    # 60 tokens of 32: six matmul and two LayerNorm inputs of 32, two of 112; statistics; one number a token and head
    assert layer(model(), setting()) == 60 * 4 * (6 * 32 + 2 * 112 + 2 * 32 + 4 + 4)


def test_activation_checkpointing_keeps_one_input_a_layer() -> None:
    one = setting(checkpointing=True)
    assert saved_bytes(model(3), one) - saved_bytes(model(2), one) == 60 * 32 * FP32
    arm = RobertaArm(learning_rate=1e-3)
    assert memory(arm, model(5), one).activations - memory(arm, model(2), one).activations == 3 * 60 * 32 * FP32


def test_logits_go_by_the_slots_of_every_head_that_has_some() -> None:
    # int((.15 + .005) × 20) = 3 slots a row; in fp32 the matmul's, the loss's own and their gradient
    assert memory(RobertaArm(learning_rate=1e-3), model(), setting()).logits == ROWS * 3 * 50 * 3 * FP32
    half = memory(ElectraArm(learning_rate=1e-3), model(), setting(bf16=True)).logits
    assert half == ROWS * 3 * 50 * (BF16 + 3 * FP32)


def test_stages_divide_one_thing_more_each() -> None:
    one = list(sizes(RobertaArm(learning_rate=1e-3), model()).values())
    P = one[0].total
    assert held(one, 0, 8) == (4 * P, 0, 8 * P, 4 * P)
    assert held(one, 1, 8) == (4 * P, P / 2, P, 4 * P + P / 2)
    assert held(one, 2, 8) == (4 * P, P / 2, P, P / 2)
    weights, *rest = held(one, 3, 8)
    assert (weights, rest) == (4 * P + P / 2, [P / 2, P, P / 2])  # so small that all are gathered at once


SMALL = ModelConfig(
    embedding_size=16, hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, max_positions=64, dropout=0.1
)


@pytest.mark.slow
@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("stage", [None, 0, 1, 2, 3])
def test_the_model_part_is_what_an_engine_holds(stage: int | None) -> None:
    kind = {"engine": "ddp"} if stage is None else {"engine": "deepspeed", "zero_stage": stage}
    with engine(model=SMALL, placement=Placement.model_validate({"micro_batch": 8, **kind})) as built:
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for piece in [*built.held(), *built.weights()]
            for tensor in piece.tensors.values()
        }
    weights, master, states, _ = held(list(sizes(ELECTRA, SMALL.encoder(VOCAB)).values()), stage or 0, 1)
    assert sum(storages.values()) == pytest.approx(weights + master + states, rel=1e-3)  # ZeRO fills up to 4 numbers


@pytest.mark.usefixtures("process_group")
def test_a_checkpoint_is_as_large_as_planned(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    write_corpus(corpus)
    wide = SMALL.model_copy(update={"embedding_size": 256, "hidden_size": 256, "intermediate_size": 1024})
    with engine(model=wide) as built:
        written = take(saver(local(tmp_path), built, corpus), 1)
    planned = checkpoint_bytes(list(sizes(ELECTRA, wide.encoder(VOCAB)).values()))
    assert written.saved and written.bytes == pytest.approx(planned, rel=0.01)
