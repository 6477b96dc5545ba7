"""The experiments in configs/experiments/: what each compares, ELECTRA's own numbers, and a plan that matches."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline import experiment_check, sweep
from pipeline.config import load
from pipeline.console import Console
from pipeline.experiment import Experiment
from training.arms import NetworkGenerator

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "experiments"
SIZES = ("tiny", "small", "base", "large")
ARMS: dict[str, list[str]] = {
    "bert_roberta_electra": ["electra", "bert", "roberta"],
    "paper_ablation": ["electra", "all_tokens_mlm", "replace_mlm", "electra_15", "mlm"],
    "generator_size": ["uniform", "eighth", "quarter", "half", "three_quarters", "whole"],
    "weight_tying": ["tie_none", "tie_token", "tie_all"],
}
NAMES = [f"{name}-{size}" for name in ARMS for size in SIZES]

# layers, hidden, feed-forward, heads, embeddings; row length, vocabulary, batch; of ELECTRA (Clark et al. 2020)
NUMBERS: dict[str, Sequence[int]] = {
    "small": (12, 256, 1024, 4, 128, 128, 30522, 128),
    "base": (12, 768, 3072, 12, 768, 512, 30522, 256),
    "large": (24, 1024, 4096, 16, 1024, 512, 30522, 2048),
}
WARM_UP = {"small": 10_000 / 1_000_000, "base": 10_000 / 766_000, "large": 10_000 / 400_000}


def shipped(name: str) -> Experiment:
    return load(FOLDER / f"{name}.yaml", model=Experiment)


def test_every_experiment_ships_at_every_size_and_nothing_else() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_is_compared_over_a_factor_of_ten_with_equal_sweeps(name: str) -> None:
    found = shipped(name)
    assert found.name == name
    assert [arm.label for arm in found.arms] == ARMS[name.rpartition("-")[0]]
    assert found.budgets is not None
    assert len(found.budgets) == 3
    assert found.budgets[-1] / found.budgets[0] == pytest.approx(10, rel=0.01)
    assert found.sweep is not None
    assert len({len(rates) for rates in found.sweep.rates.values()}) == 1
    assert found.sweep.unequal is None
    assert all(arm.learning_rate in found.sweep.rates[arm.label] for arm in found.arms)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("tiny")])
def test_its_numbers_are_electras(name: str) -> None:
    found, size = shipped(name), name.rpartition("-")[2]
    model = found.model
    sizes = (model.num_layers, model.hidden_size, model.intermediate_size, model.num_heads, model.embedding_size)
    rows = (found.corpus.seq_len, found.corpus.tokenizer.vocab_size, found.training.global_batch)
    assert (*sizes, *rows) == NUMBERS[size]
    assert found.training.schedule.warmup_fraction == pytest.approx(WARM_UP[size], rel=0.01)
    optimizer = found.training.optimizer
    assert (optimizer.kind, optimizer.beta1, optimizer.beta2, optimizer.eps) == ("reference_adam", 0.9, 0.999, 1e-6)
    assert (optimizer.weight_decay, optimizer.grad_clip) == (0.01, 1.0)
    assert (model.dropout, model.attention_dropout) == (0.1, 0.1)
    assert (found.evaluation.protocol.name, found.evaluation.protocol.size) == ("electra_paper", size)


@pytest.mark.parametrize(("size", "width", "masked"), [("small", 64, 0.15), ("base", 256, 0.15), ("large", 256, 0.25)])
def test_electra_has_its_own_generator_and_mask_rate(size: str, width: int, masked: float) -> None:
    found = shipped(f"bert_roberta_electra-{size}")
    electra: Any = found.arms[0]
    assert isinstance(electra.generator, NetworkGenerator)
    assert round(found.model.hidden_size * electra.generator.width) == width
    assert (electra.mask_prob, found.arms[1].mask_prob, found.arms[2].mask_prob) == (masked, 0.15, 0.15)


def test_the_tiny_curve_is_the_one_that_was_asked_for() -> None:
    found = shipped("bert_roberta_electra-tiny")
    assert (found.model.num_layers, found.model.hidden_size, found.corpus.seq_len) == (2, 128, 64)
    assert (found.corpus.tokenizer.vocab_size, found.seeds, found.evaluation.seeds) == (8192, 2, 2)
    assert (found.evaluation.suites, found.evaluation.pairs) == (["glue", "blimp"], 100)
    assert found.evaluation.tasks == ["CoLA", "MRPC", "RTE", "SST-2"]
    protocol = found.evaluation.protocol
    assert (protocol.name, protocol.max_train_examples) == ("plain", 10_000)


@pytest.mark.parametrize("name", NAMES)
def test_its_plan_is_matched_and_so_is_its_sweep(name: str, tmp_path: Path) -> None:
    """Before any corpus is prepared, at the shipped size; the sweep's runs are planned as well."""
    stream = io.StringIO()
    found = experiment_check.check(shipped(name), tmp_path / "nothing", Console(stream, interactive=False))
    assert {one["kind"] for one in found["findings"]} >= {"rows", "budget", "schedule", "sweep", "settings"}
    assert all(one["ok"] for one in found["findings"])
    assert not (tmp_path / "nothing").exists()
    wanted = shipped(name).sweep
    assert wanted is not None
    one = sweep.as_experiment(shipped(name), tmp_path)
    assert len(one.arms) == sum(map(len, wanted.rates.values()))
    if wanted.choose_by != "heldout_loss":  # by the loss nothing is evaluated
        assert one.evaluation.suites == [wanted.choose_by]
