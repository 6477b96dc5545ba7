"""The ledgers against PyTorch's own counter, and against hand arithmetic."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from data_prep.errors import ConfigError
from data_prep.order import OrderConfig, order_of
from data_prep.reader import RowReader
from data_prep.rows import fragment_lengths
from tests.training.cases import ARMS, CASES, ENCODER, VARIANTS, Prepared, prepared
from tests.training.synthetic import MODEL, SEQ_LEN, SPECIAL, write_corpus
from training.arms import ArmConfig, ElectraArm
from training.flops import Counts, executed_flops, network_costs, train_flops
from training.loader import Loader
from training.objectives import HostBatch, Objective, build, counts, to_device
from training.run import mean_counts, plan_run
from training.settings import Compute, TrainingConfig
from training.sizes import EncoderConfig

REFERENCE = Compute(attention="reference")  # PyTorch's counter has no formula for fused attention on the CPU

# Every arm in either layout, and every generator of another size or with other passes in one of them.
LAYOUTS = [(name, packed) for name in ARMS for packed in (False, True) if not (packed and name == "bert")]
LAYOUTS += [(name, True) for name in VARIANTS if not name.endswith(("temperature", "disallow_correct"))]
LAYOUT_IDS = [f"{name}-{'packed' if packed else 'segments'}" for name, packed in LAYOUTS]
# What a mean depends on: pairs for BERT, all four counts otherwise alike.
PLANNED: list[ArmConfig] = [ARMS["electra"], ARMS["all_tokens_mlm"], ARMS["bert"]]


def counted(objective: Objective, host: HostBatch) -> int:
    """FLOPs of forward and backward by PyTorch's counter."""
    with FlopCounterMode(display=False) as counter:
        outputs = objective(to_device(host, torch.device("cpu")))
        torch.stack(list(outputs.sums.values())).sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize(("name", "packed"), LAYOUTS, ids=LAYOUT_IDS)
def test_executed_equals_the_counter(name: str, packed: bool) -> None:
    """Whole rows, all mask slots, a row of filler; with activation checkpointing, the layers once more."""
    for again in (False, True):
        compute = Compute(attention="reference", activation_checkpointing=again)
        case = prepared(CASES[name], packed=packed, count=3, compute=compute)
        host = {field: np.concatenate([array, np.zeros_like(array[:1])]) for field, array in case.host.items()}
        expected = executed_flops(case.arm, ENCODER, rows=4, seq_len=SEQ_LEN, compute=compute)
        assert counted(case.objective, host) == expected


def test_activation_checkpointing_costs_the_layers_of_trained_networks_once_more() -> None:
    """By hand, for 2 rows of 32 tokens, two layers of 32 (feed-forward 64) and 8 (feed-forward 32, the generator's):
    2·D·(4D + 2F)·tokens + 4·D·rows·32² a layer."""
    again = Compute(activation_checkpointing=True)
    main = 2 * (2 * 32 * (4 * 32 + 2 * 64) * 64 + 4 * 32 * 2 * 32**2)
    generator = 2 * (2 * 8 * (4 * 8 + 2 * 32) * 64 + 4 * 8 * 2 * 32**2)
    for name, extra in {"electra": main + generator, "electra_two_stage": main, "mlm": main}.items():
        kept, repeated = (
            executed_flops(ARMS[name], ENCODER, rows=2, seq_len=32, compute=compute) for compute in (Compute(), again)
        )
        assert repeated - kept == extra


@pytest.mark.parametrize(("name", "packed"), LAYOUTS, ids=LAYOUT_IDS)
def test_model_equals_the_counter_summed_over_fragments_at_their_own_length(name: str, packed: bool) -> None:
    """Every fragment alone, at its own length, with exactly the mask slots that weigh something."""
    case = prepared(CASES[name], packed=packed, count=3, compute=REFERENCE)
    total = 0
    for row in range(len(case.host["ids"])):
        for fragment in range(1, int(case.host["fragment"][row].max()) + 1):
            total += counted(case.objective, cut(case, row, fragment))
    found = counts(case.host)
    if "pairs" in found:  # the counter sees the pair head on rows without a pair, where it weighs nothing
        D = ENCODER.hidden_size
        total -= (len(case.host["ids"]) - found["pairs"]) * 3 * 2 * D * (D + 2)
    needed = Counts(
        tokens=found["real"],
        squares=float((fragment_lengths(case.host["fragment"]) ** 2).sum()),
        masked=found["masked"],
        pairs=found.get("pairs", 0),
    )
    assert total == train_flops(case.arm, ENCODER, needed)


def cut(case: Prepared, row: int, fragment: int) -> HostBatch:
    host = case.host
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
    columns = network_costs(ElectraArm(learning_rate=2e-4, mask_prob=0.25), large)
    per_token = Counts(tokens=1, squares=512, masked=0.25)
    millions = {name: column.train(per_token) / 3 / 1e6 for name, column in columns.items()}
    assert millions["discriminator"] == pytest.approx(604.0 + 50.3 + 2.1, abs=0.1)
    assert millions["generator"] == pytest.approx(37.7 + 12.6 + 0.5 + 15.8, abs=0.3)


@pytest.mark.parametrize("arm", PLANNED, ids=lambda arm: arm.label)
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


@pytest.mark.parametrize("arm", PLANNED, ids=lambda arm: arm.label)
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
    for arm in PLANNED:
        spec = plan_run(arm=arm, model=MODEL, training=training, manifest=manifest, budget=2e9, seed=0)
        assert abs(spec.steps * spec.flops_per_step - 2e9) <= spec.flops_per_step / 2


@pytest.mark.parametrize("arm", PLANNED, ids=lambda arm: arm.label)
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
        plan_run(arm=PLANNED[0], model=MODEL, training=training, manifest=manifest, budget=1.0, seed=0)
