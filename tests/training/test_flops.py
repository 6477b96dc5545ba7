"""The ledgers against PyTorch's own counter, and against hand arithmetic."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from data_prep.errors import ConfigError
from data_prep.order import OrderConfig, order_of
from data_prep.reader import RowReader
from data_prep.rows import fragment_lengths, structure
from tests.training.synthetic import SEQ_LEN, SPECIAL, VOCAB, make_rows, partners_within, write_corpus
from training.flops import Counts, executed_counts, network_costs, train_flops
from training.loader import Loader
from training.masking import RowKeys
from training.objectives import RowBatch, build, counts, to_device
from training.run import mean_counts, plan_run
from training.settings import ArmConfig, BertArm, ElectraArm, EncoderConfig, ModelConfig, RobertaArm, TrainingConfig

MODEL = ModelConfig(
    embedding_size=16,
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    intermediate_size=48,
    max_positions=64,
    dropout=0.0,
    attention_dropout=0.0,
    attention="reference",
)
ENCODER = MODEL.encoder(VOCAB)
ARMS = [ElectraArm(learning_rate=1e-3), BertArm(learning_rate=1e-3), RobertaArm(learning_rate=1e-3)]


def prepared(arm: ArmConfig, rows: np.ndarray, seq_len: int = SEQ_LEN, packed: bool = False):  # type: ignore[no-untyped-def]
    objective = build(arm, ENCODER, SPECIAL, seq_len=seq_len, packed=packed)

    index = np.arange(len(rows))
    batch = RowBatch(rows, structure(rows, SPECIAL), RowKeys(0, np.zeros_like(index), index), partners_within(rows))
    return objective, objective.prepare(batch)


def counted(objective: torch.nn.Module, host: dict[str, np.ndarray]) -> int:
    """FLOPs of forward and backward by PyTorch's counter."""
    with FlopCounterMode(display=False) as counter:
        outputs = objective(to_device(host, torch.device("cpu")))
        torch.stack(list(outputs.sums.values())).sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.label)
def test_executed_equals_the_counter(arm: ArmConfig) -> None:
    rows = make_rows(7, seed=5)
    objective, host = prepared(arm, rows)
    expected = train_flops(arm, ENCODER, executed_counts(len(rows), SEQ_LEN, arm.max_predictions(SEQ_LEN)))
    assert counted(objective, host) == expected


@pytest.mark.parametrize("packed", [False, True], ids=["segments", "packed"])
@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.label)
def test_model_equals_the_counter_summed_over_fragments_at_their_own_length(arm: ArmConfig, packed: bool) -> None:
    """Every fragment alone, at its own length, with exactly the mask slots that weigh something."""
    if packed and isinstance(arm, BertArm):
        pytest.skip("BERT's pairs exist in layout 'segments' only")
    rows = make_rows(6, seed=9, packed=packed)
    objective, host = prepared(arm, rows, packed=packed)
    total = 0
    for row in range(len(rows)):
        for fragment in range(1, int(host["fragment"][row].max()) + 1):
            piece = cut(host, row, fragment)
            if "pair_weights" in piece and piece["pair_weights"].sum() == 0:
                piece_flops = counted(objective, piece) - 3 * 2 * 32 * (32 + 2)  # the pair head weighs nothing here
            else:
                piece_flops = counted(objective, piece)
            total += piece_flops
    totals = counts(host)
    model_counts = Counts(
        tokens=totals["real"],
        squares=float((fragment_lengths(host["fragment"]) ** 2).sum()),
        masked=totals["masked"],
        pairs=totals.get("pairs", 0),
    )
    assert total == train_flops(arm, ENCODER, model_counts)


def cut(host: dict[str, np.ndarray], row: int, fragment: int) -> dict[str, np.ndarray]:
    columns = np.flatnonzero(host["fragment"][row] == fragment)
    slots = (host["mask_weights"][row] > 0) & np.isin(host["mask_positions"][row], columns)
    piece = {}
    for name, array in host.items():
        if name.startswith("pair_"):
            piece[name] = array[row : row + 1]
        elif name.startswith("mask_") or name == "uniforms":
            piece[name] = array[row : row + 1, slots]
        else:
            piece[name] = array[row : row + 1, columns]
    piece["mask_positions"] = piece["mask_positions"] - columns[0]
    piece["fragment"] = np.ones_like(piece["fragment"])
    return piece


def test_electra_large_costs_what_the_shapes_say() -> None:
    """Forward MFLOP a token of ELECTRA-Large at 512 tokens, 25 % masked, against arithmetic done by hand:
    discriminator GEMMs 604.0 + attention 50.3 + head 2.1, generator GEMMs 37.7 + attention 12.6 + projection 0.5 +
    masked head 15.8."""
    large = EncoderConfig(
        vocab_size=30522, embedding_size=1024, hidden_size=1024, num_layers=24, num_heads=16, intermediate_size=4096
    )
    costs = network_costs(ElectraArm(learning_rate=2e-4, mask_prob=0.25), large)
    per_token = Counts(tokens=1, squares=512, masked=0.25)
    millions = {name: cost.train(per_token) / 3 / 1e6 for name, cost in costs.items()}
    assert millions["discriminator"] == pytest.approx(604.0 + 50.3 + 2.1, abs=0.1)
    assert millions["generator"] == pytest.approx(37.7 + 12.6 + 0.5 + 15.8, abs=0.3)


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.label)
def test_the_planned_mean_is_exact_over_an_epoch(arm: ArmConfig, tmp_path: Path) -> None:
    """Every row once: the sum of the steps' counts is the manifest's mean times the rows."""
    manifest = write_corpus(tmp_path, rows=120)
    objective = build(arm, ENCODER, SPECIAL, seq_len=SEQ_LEN, packed=False)
    reader, order = RowReader(tmp_path, "train", manifest), order_of(manifest, "train", 0, OrderConfig())
    loader = Loader(reader, objective, SPECIAL, order, global_batch=24, micro_batch=5)
    total = Counts()
    for step in loader.steps(0, 5):
        total = total + step.flop_counts
    mean = mean_counts(manifest, arm)
    assert train_flops(arm, ENCODER, total) == pytest.approx(120 * train_flops(arm, ENCODER, mean), rel=1e-12)


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.label)
def test_the_planned_mean_of_mixed_sources_goes_by_their_weights(arm: ArmConfig, tmp_path: Path) -> None:
    """Turn and turn about, 80 positions are one epoch of the source of 40 rows and two of the source of 20."""
    manifest = write_corpus(tmp_path, sources=[(40, 3), (20, 3)])
    objective = build(arm, ENCODER, SPECIAL, seq_len=SEQ_LEN, packed=False)
    reader, order = RowReader(tmp_path, "train", manifest), order_of(manifest, "train", 0, OrderConfig(window_shards=1))
    total = Counts()
    for step in Loader(reader, objective, SPECIAL, order, global_batch=16, micro_batch=5).steps(0, 5):
        total = total + step.flop_counts
    mean = mean_counts(manifest, arm)
    assert train_flops(arm, ENCODER, total) == pytest.approx(80 * train_flops(arm, ENCODER, mean), rel=1e-12)
    unweighted = mean_counts(manifest.model_copy(update={"sources": []}), arm)
    assert unweighted.tokens == manifest.train.tokens / 60 != mean.tokens


def test_arms_at_one_budget_plan_equal_flops(tmp_path: Path) -> None:
    """Steps × mean cost misses the budget by half a step at most, whatever the arm."""
    manifest = write_corpus(tmp_path, rows=120)
    training = TrainingConfig(global_batch=24, micro_batch=8)
    for arm in ARMS:
        spec = plan_run(arm=arm, model=MODEL, training=training, manifest=manifest, budget=2e9, seed=0)
        assert abs(spec.steps * spec.flops_per_step - 2e9) <= spec.flops_per_step / 2


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.label)
def test_short_runs_are_planned_from_the_rows_they_will_read(arm: ArmConfig, tmp_path: Path) -> None:
    """The ledger's sum over the planned steps is the planned sum, and misses the budget by half a step at most."""
    manifest = write_corpus(tmp_path, sources=[(60, 2), (60, 1)])
    training = TrainingConfig(global_batch=7, micro_batch=7, order=OrderConfig(window_shards=1))
    spec = plan_run(arm=arm, model=MODEL, training=training, manifest=manifest, budget=3e8, seed=5, corpus_dir=tmp_path)
    objective = build(arm, ENCODER, SPECIAL, seq_len=SEQ_LEN, packed=False)
    reader, order = RowReader(tmp_path, "train", manifest), order_of(manifest, "train", 5, training.order)
    loader = Loader(reader, objective, SPECIAL, order, global_batch=7, micro_batch=7)
    costs = [train_flops(arm, ENCODER, step.flop_counts) for step in loader.steps(0, spec.steps)]
    assert sum(costs) == pytest.approx(spec.steps * spec.flops_per_step, rel=1e-12)
    assert abs(sum(costs) - 3e8) <= max(costs) / 2


def test_a_budget_below_one_step_is_refused(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path, rows=40)
    training = TrainingConfig(global_batch=8, micro_batch=8)
    with pytest.raises(ConfigError, match="do not pay for one step"):
        plan_run(arm=ARMS[0], model=MODEL, training=training, manifest=manifest, budget=1.0, seed=0)
