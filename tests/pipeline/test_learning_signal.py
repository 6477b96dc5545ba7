"""How much a row can teach: the paper's figures, and those of an experiment worked out by hand."""

import math
from pathlib import Path

import pytest

from data_prep import manifest as manifests
from pipeline import figures_training, gather, learning_signal
from tests.pipeline import fake_experiment


def test_the_figures_of_the_paper_s_recipe() -> None:
    """76 of 512 positions against all of them, 6.7 times as many; at most 1,132 bits against 512, 0.45 times as many;
    a third of a bit a label at 6 % replaced."""
    words, labels = learning_signal.paper()
    assert (words.positions, labels.positions) == (76, 512)
    assert labels.positions / words.positions == pytest.approx(6.7, abs=0.05)
    assert words.most == pytest.approx(1132.2, abs=0.05)
    assert labels.most / words.most == pytest.approx(0.45, abs=0.005)
    assert learning_signal.entropy(0.06) == pytest.approx(0.3274, abs=5e-5)
    assert labels.measured == pytest.approx(512 * 0.3274, rel=1e-3)


def test_the_entropy_of_a_label() -> None:
    assert [learning_signal.entropy(rate) for rate in (0.0, 0.5, 1.0)] == [0.0, 1.0, 0.0]


def test_rows_of_the_corpus_and_the_last_evaluation_decide(out: Path) -> None:
    """Rows of 120 tokens, of which round(.15 × 120) = 18 are masked; a vocabulary of 8,192 is 13 bits."""
    name = "electra-4.00e+11-s0"
    held = {"heldout/replaced_rate": 0.1, "heldout/rtd_label_entropy": 0.3, "heldout/rtd_information": -0.05}
    fake_experiment.change(out / "runs" / name / "done.json", heldout=held)
    electra, bert, roberta = learning_signal.signals(gather.read(out))[:3]
    assert (electra.arm, electra.tokens, electra.positions, electra.most) == ("electra", 120, 120, 120)
    assert electra.measured == pytest.approx(120 * 0.3 / math.log(2))
    assert electra.explained == pytest.approx(-0.05 * 120 * 0.3 / math.log(2))
    assert (bert.positions, bert.most, bert.measured, bert.explained) == (18, 18 * 13, None, None)
    assert (roberta.positions, roberta.most) == (18, 18 * 13)


@pytest.mark.parametrize(
    ("objective", "positions", "bits"),
    [
        ("electra_15", 18, 1),
        ("replace_mlm", 18, 13),
        ("all_tokens_mlm", 120, 13),
        ("electra_adversarial", 120, 1),
        ("electra_two_stage", 120, 1),
    ],
)
def test_objectives_differ_in_positions_and_in_bits(out: Path, objective: str, positions: int, bits: int) -> None:
    path = out / "runs" / "electra-4.00e+11-s0" / "run.json"
    identity = gather.read_spec(path.parent)["identity"]
    arm = {**identity["arm"], "objective": objective}
    fake_experiment.change(path, objective=objective, identity={**identity, "arm": arm})
    found = learning_signal.signals(gather.read(out))[0]
    assert (found.positions, found.most) == (positions, positions * bits)


def test_of_masked_positions_the_replaced_share_is_of_those_judged(out: Path) -> None:
    """ELECTRA 15 % judges 18 of 120 tokens: a tenth of all is two thirds of them."""
    run = out / "runs" / "electra-4.00e+11-s0"
    identity = gather.read_spec(run)["identity"]
    arm = {**identity["arm"], "objective": "electra_15"}
    fake_experiment.change(run / "run.json", objective="electra_15", identity={**identity, "arm": arm})
    fake_experiment.change(run / "done.json", heldout={"heldout/replaced_rate": 0.1})
    assert learning_signal.signals(gather.read(out))[0].replaced == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("rates", "reach"),
    [([0.1, 0.05], 0.13), ([0.05, 0.2], 0.26), ([0.95, 0.6], 1.0), ([0.02, 0.01], 0.08), ([0.0, 0.0], 0.08)],
)
def test_the_axis_of_shares_holds_every_evaluation_and_the_paper_s(rates: list[float], reach: float) -> None:
    one = learning_signal.Along(run="r", arm="electra", flops=[1.0, 2.0], rates=rates, bits=[0.1, 0.1])
    assert figures_training.label_reach([one]) == pytest.approx(reach)


def test_nothing_is_said_of_a_corpus_that_is_not_there(out: Path) -> None:
    (out / "corpus" / manifests.FILE_NAME).unlink()
    contents = gather.read(out)
    assert learning_signal.signals(contents) == [] and learning_signal.along(contents) == []
