"""Protocols: what each name means in numbers, what it refuses, and that every number is part of the identity."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from training.protocol import EvaluationConfig, Protocol

# google-research/electra, configure_finetuning.py and run_finetuning.py, written out
PAPER = {
    "epochs": 3, "epochs_of": {"RTE": 10, "STS-B": 10}, "batch_size": 32, "max_length": 128, "max_train_examples": None,
    "warmup_fraction": 0.1, "weight_decay": 0.01, "layer_decay_offset": True, "grad_clip": 1.0, "dropout": 0.1,
    "adam": "reference_adam", "schedule": "reference", "loss": "sum", "head_init": "glorot",
    "doubled": ["MRPC", "STS-B"],
}  # fmt: skip


@pytest.mark.parametrize(("size", "rate", "decay"), [("small", 1e-4, 0.8), ("base", 1e-4, 0.8), ("large", 5e-5, 0.9)])
def test_the_papers_protocol_is_every_number_of_its_size(size: str, rate: float, decay: float) -> None:
    protocol = Protocol.model_validate({"name": "electra_paper", "size": size})
    expected = {"name": "electra_paper", "size": size, "learning_rate": rate, "layer_decay": decay, **PAPER}
    assert protocol.model_dump(mode="json") == expected
    assert Protocol.model_validate(protocol.model_dump(mode="json")) == protocol  # as a worker gets it
    assert [protocol.epochs_for(task) for task in ("CoLA", "RTE", "STS-B", "MNLI")] == [3, 10, 10, 3]


def test_sizes_and_names_are_different_protocols() -> None:
    prints = {
        Protocol.model_validate({"name": "electra_paper", "size": s}).fingerprint() for s in ("small", "base", "large")
    }
    assert len(prints | {Protocol().fingerprint()}) == 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "electra_paper"}, "electra_paper needs size, one of small, base, large"),
        ({"name": "electra_paper", "size": "tiny"}, "electra_paper needs size, one of small, base, large"),
        ({"name": "electra_paper", "size": "small", "learning_rate": 3e-4}, "electra_paper has learning_rate 0.0001"),
        (
            {"name": "electra_paper", "size": "small", "max_train_examples": 9},
            "has max_train_examples None; leave it out",
        ),
        ({"name": "electra_paper", "size": "small", "doubled": []}, "electra_paper has doubled"),
        ({"name": "plain", "size": "small"}, "size belongs to electra_paper"),
        ({"size": "small"}, "size belongs to electra_paper"),
        ({"name": "electra"}, "'plain' or 'electra_paper'"),
        ({"layer_decay": 0.0}, "greater than 0"),
        ({"epochs_of": {"RTe": 10}}, "no task is called 'RTe'; there are sentence_order"),
        ({"doubled": ["MRPC", "STS"]}, "no task is called 'STS'"),
    ],
)
def test_a_name_is_refused_what_it_does_not_mean(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Protocol.model_validate(given)


def test_every_number_of_a_protocol_changes_its_fingerprint() -> None:
    changes: dict[str, object] = {
        "learning_rate": 2e-3, "epochs": 7, "batch_size": 32, "max_length": 64, "max_train_examples": 10,
        "warmup_fraction": 0.2, "weight_decay": 0.0, "grad_clip": 2.0, "dropout": 0.0, "head_init": "glorot",
        "layer_decay": 0.9, "layer_decay_offset": True, "epochs_of": {"RTE": 3}, "doubled": ["MRPC"],
        "adam": "reference_adam", "schedule": "reference", "loss": "sum",
    }  # fmt: skip
    assert set(changes) | {"name", "size"} == set(Protocol.model_fields)
    prints = {Protocol.model_validate({name: value}).fingerprint() for name, value in changes.items()}
    assert len(prints | {Protocol().fingerprint()}) == len(changes) + 1


def test_an_unknown_task_and_a_folder_without_its_suite_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"no task is called 'CoLa'; there are sentence_order, .*CoLA"):
        EvaluationConfig.model_validate({"tasks": ["CoLa"]})
    with pytest.raises(ValidationError, match="no task is called 'MNLI-mm'"):  # it is a side of MNLI
        EvaluationConfig.model_validate({"suites": ["glue"], "tasks": ["MNLI-mm"]})
    with pytest.raises(ValidationError, match="suites does not name it; add glue to suites"):
        EvaluationConfig(glue_dir=Path("glue"))
    assert EvaluationConfig(suites=["glue"], glue_dir=Path("glue"), tasks=["CoLA"]).tasks == ["CoLA"]
