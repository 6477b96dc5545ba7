"""Which run is exported where none is named, and what its card says; the export itself is in test_quickstart.py."""

import typing
from pathlib import Path

import pytest

from data_prep import manifest as manifests
from data_prep.errors import DataError
from pipeline.export_sources import DETECTORS, chosen_run
from pipeline.gather import read_done
from pipeline.model_card import Provenance, card
from pipeline.proof import auto_class
from pipeline.wording import OBJECTIVES
from tests.pipeline import fake_experiment
from training.arms import ArmConfig, DetectionArm
from training.hf_names import ARCHITECTURES


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return fake_experiment.write(tmp_path / "out", steps_logged=2)


def provenance(out: Path, run: Path) -> Provenance:
    return Provenance.collect(out, run, read_done(run), manifests.load(out / "corpus"))


def objectives() -> dict[str, type]:
    """Every arm's settings by the name of its objective."""
    union, _ = typing.get_args(ArmConfig)
    return {arm.model_fields["objective"].default: arm for arm in typing.get_args(union)}


def test_detectors_are_the_arms_that_detect() -> None:
    assert set(DETECTORS) == {name for name, arm in objectives().items() if issubclass(arm, DetectionArm)}


def test_every_objective_has_words() -> None:
    assert OBJECTIVES.keys() == objectives().keys()


def test_the_largest_detector_is_exported(out: Path) -> None:
    assert chosen_run(out).name == "electra-1.20e+12-s0"
    (out / "runs" / "electra-1.20e+12-s0" / "done.json").unlink()
    assert chosen_run(out).name == "electra-4.00e+11-s0"


def test_without_a_detector_the_largest_run_of_the_first_arm(out: Path) -> None:
    for run in out.glob("runs/*/run.json"):
        fake_experiment.change(run, objective="mlm")
    assert chosen_run(out).name == "electra-1.20e+12-s0"  # its name only
    (out / "runs" / "electra-1.20e+12-s0" / "done.json").unlink()
    assert chosen_run(out).name == "bert-1.20e+12-s0"


def test_a_first_stage_is_never_exported(out: Path) -> None:
    first, second = fake_experiment.make_two_stage(out)
    assert chosen_run(out).name == second
    for path in out.glob("runs/*/done.json"):
        if path.parent.name != first:
            path.unlink()
    with pytest.raises(DataError, match="no finished run; run `electra train` first"):
        chosen_run(out)


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if "For" in name])
def test_the_auto_class_loads_the_architecture(architecture: str) -> None:
    """As transformers' own tables have it."""
    from transformers.models.auto import modeling_auto

    table = {
        "AutoModelForPreTraining": modeling_auto.MODEL_FOR_PRETRAINING_MAPPING_NAMES,
        "AutoModelForMaskedLM": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    }[auto_class(architecture)]
    assert architecture in table.values()


@pytest.mark.parametrize(
    ("kind", "objective", "architecture", "parts"),
    [
        (
            "discriminator",
            "electra_15",
            "ElectraForPreTraining",
            ("feature-extraction", "section 3.5"),
        ),
        ("generator", "electra", "ElectraForMaskedLM", ("fill-mask", "proposes the replacements")),
        ("encoder", "bert", "BertForPreTraining", ("feature-extraction", "BERT (Devlin", "AutoModelForPreTraining")),
        ("encoder", "mlm", "BertForMaskedLM", ("fill-mask", "AutoModelForMaskedLM")),
    ],
)
def test_a_card_says_what_it_lies_beside(
    out: Path, kind: str, objective: str, architecture: str, parts: tuple[str, ...]
) -> None:
    run = out / "runs" / "electra-4.00e+11-s0"
    fake_experiment.change(run / "run.json", objective=objective)
    text = card(kind, architecture, provenance(out, run))
    for part in (f"# out: {kind}", f"- {objective}\n- {kind}\n", *parts):
        assert part in text, part
    assert ("## Evaluation" in text) == (kind != "generator")


def test_a_card_without_earlier_weights_has_no_rows_on_them(out: Path) -> None:
    run = out / "runs" / "electra-4.00e+11-s0"
    text = card("discriminator", "ElectraForPreTraining", provenance(out, run))
    assert "began with" not in text and "inherited" not in text


def test_a_card_says_whose_weights_a_run_began_with_and_what_was_its_own(out: Path) -> None:
    run = out / "runs" / "electra-4.00e+11-s0"
    origin = {"/home/somebody/first/runs/bert-900steps-s0/checkpoints/step-00000900": f"{'ab' * 32}@900"}
    fake_experiment.begin_with(run, {**origin, "/home/somebody/theirs": f"sha256:{'cd' * 32}"}, flops=1e11)
    fake_experiment.change(run / "done.json", flops_counted=4e11, tokens=3_000_000, seconds=40.0)
    text = card("discriminator", "ElectraForPreTraining", provenance(out, run))
    for row in (
        "| tokens | 3,000,000 |",
        "| training FLOPs (matmuls, everything included) | 4.000e+11 of a budget of 4.000e+11 |",
        "| began with | run `bert-900steps-s0`, step 900, identity `abababababababab`; cost inherited |",
        "| began with | Hugging Face folder `theirs`, weights `cdcdcdcdcdcdcdcd`; cost unknown, in no figure here |",
        "| of all that, this run's own | 3.000e+11 FLOPs, 2,000,000 tokens, 30 s |",
        "| of all that, inherited | 1.000e+11 FLOPs, 1,000,000 tokens, 10 s |",
        "| hardware | 2 CPU process(es) on x86_64, 30 s |",
    ):
        assert f"\n{row}\n" in text, row
    assert "somebody" not in text
