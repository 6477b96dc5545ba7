"""What the report says in words, and how figures place their labels."""

import dataclasses

import pytest

from pipeline import analysis, coverage, figure_parts, figures, gather, wording
from pipeline.statistics import Multiplier
from pipeline.suites import ArmMultiplier, Difference, Figure, Suite
from tests.pipeline import fake_experiment


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Suite]:
    """Both suites of a finished experiment."""
    folder = tmp_path_factory.mktemp("words") / "out"
    out = fake_experiment.write(folder, suites=("probes", "glue"), steps_logged=4)
    return {suite.name: suite for suite in analysis.analyse(gather.read(out)).suites}


@pytest.fixture
def probes(suites: dict[str, Suite]) -> Suite:
    return suites["probes"]


def test_unresolved_differences_are_said_to_be_noise(suites: dict[str, Suite]) -> None:
    sentences = wording.summary(suites["glue"])
    assert sum("within the noise the interval covers" in sentence for sentence in sentences) == 2
    assert "At 1.2 × 10¹² model FLOPs, the largest budget," in sentences[0]


def test_the_summary_speaks_of_a_budget_where_arms_can_be_compared(probes: Suite) -> None:
    cells = [cell for cell in probes.cells if cell.budget == 4e11 or cell.arm == "electra"]
    first = wording.summary(dataclasses.replace(probes, cells=cells))[0]
    assert first.startswith("At 4 × 10¹¹ model FLOPs, the largest budget that most arms were evaluated at,")


def test_the_only_budget_is_not_called_the_largest(probes: Suite) -> None:
    cells = [cell for cell in probes.cells if cell.budget == 4e11]
    first = wording.summary(dataclasses.replace(probes, cells=cells))[0]
    assert first.startswith("At 4 × 10¹¹ model FLOPs, the mean score × 100 over ")


@pytest.mark.parametrize(
    ("high", "sentence"),
    [(0.1, "electra: worse than a constant answer."), (0.99, "electra: not distinguishable from a constant answer.")],
)
def test_a_score_below_a_constant_answers_is_said_to_be_so(probes: Suite, high: float, sentence: str) -> None:
    poor = Figure(value=0.05, low=0.0, high=high)
    cells = [dataclasses.replace(cell, mean=poor if cell.arm == "electra" else cell.mean) for cell in probes.cells]
    assert sentence in wording.summary(dataclasses.replace(probes, cells=cells))


def test_bars_are_never_negative() -> None:
    """What matplotlib refuses: an interval that a rounding error puts beside its value."""
    figures = [Figure(value=0.5, low=0.25, high=0.75), Figure(value=0.1, low=0.1 + 1e-17, high=0.1 - 1e-16)]
    assert figure_parts.bars(figures) == [[25.0, 0.0], [25.0, 0.0]]


def difference(low: float, value: float, high: float) -> Difference:
    return Difference(
        arm="electra", baseline="bert", budget=1e12, seeds=1, difference=Figure(value=value, low=low, high=high)
    )


def test_a_difference_is_resolved_only_when_its_interval_leaves_out_zero() -> None:
    assert "more than what the interval covers" in wording.reading(difference(0.001, 0.02, 0.04))
    assert "more than what the interval covers" in wording.reading(difference(-0.04, -0.02, -0.001))
    assert "within the noise" in wording.reading(difference(-0.001, 0.02, 0.04))
    assert "within the noise" in wording.reading(difference(0.0, 0.02, 0.04))


def with_seeds(suite: Suite, seeds: list[int], tuned: tuple[int, int] = (1, 1)) -> Suite:
    cells = [
        dataclasses.replace(cell, seeds=count, finetune_seeds=tuned)
        for cell, count in zip(suite.cells, seeds, strict=True)
    ]
    return dataclasses.replace(suite, cells=cells)


def test_the_caution_says_what_the_intervals_hold(probes: Suite) -> None:
    once = wording.caution([with_seeds(probes, [1] * 6)])
    assert once == (
        "The intervals are over examples, and cover nothing else. Every arm was pre-trained once at a "
        "budget, so there they cannot tell an objective from the luck of one seed, and no arm is declared better here."
    )
    tuned = wording.caution([with_seeds(probes, [1] * 6, (2, 3))])
    assert "over examples and 2 to 3 fine-tuning seeds, and cover nothing else. Every arm was" in tuned
    thrice = wording.caution([with_seeds(probes, [3] * 6)])
    assert "examples and 3 pre-training seeds" in thrice
    assert "once" not in thrice and "nothing else" not in thrice


def test_one_cell_with_one_seed_is_named_and_the_others_are_not_called_so(probes: Suite) -> None:
    said = wording.caution([with_seeds(probes, [3, 3, 3, 3, 1, 3])])
    assert "examples and 1 to 3 pre-training seeds" in said
    assert "bert at 1.2 × 10¹² was pre-trained once, so there" in said
    assert "Every arm" not in said and "electra" not in said


def test_documents_are_said_to_be_drawn_where_they_are(probes: Suite, suites: dict[str, Suite]) -> None:
    grouped = dataclasses.replace(probes, grouped=True)
    assert wording.drawn([grouped]) == "documents (all examples of a document together)"
    assert wording.drawn([suites["glue"]]) == "examples"
    assert wording.drawn([grouped, suites["glue"]]) == "documents (all examples of a document together) or examples"


def test_an_arm_at_the_level_of_a_constant_answer_is_said(probes: Suite) -> None:
    weak = dataclasses.replace(probes.cells[-1], mean=Figure(value=0.3, low=0.28, high=0.32))
    sentences = wording.summary(dataclasses.replace(probes, cells=[*probes.cells[:-1], weak]))
    assert "roberta: not distinguishable from a constant answer." in sentences


def test_degenerate_fine_tunings_are_counted_in_the_summary(probes: Suite) -> None:
    first = dataclasses.replace(probes.cells[0], degenerate=2)
    sentences = wording.summary(dataclasses.replace(probes, cells=[first, *probes.cells[1:]]))
    assert any(sentence.startswith("2 of 18 fine-tunings gave one answer") for sentence in sentences)


@pytest.mark.parametrize(
    ("multiplier", "expected"),
    [
        (Multiplier(kind="equal", value=4.0, score=0.6, low=2.0, high=8.0), "bert needs 4.00 times the FLOPs"),
        (Multiplier(kind="equal", value=1.2, score=0.6, low=0.8, high=1.6), "which does not exclude equal need"),
        (Multiplier(kind="at least", value=3.0, score=0.6, low=2.5), "at least 3.00 times"),
        (Multiplier(kind="equal", value=1.2, score=0.6), "is not resolved"),
        (Multiplier(kind="undefined", value=None, score=0.6), "share no score"),
    ],
)
def test_multipliers_in_words(multiplier: Multiplier, expected: str) -> None:
    sentence = wording.multiplier_sentence(
        ArmMultiplier(arm="electra", baseline="bert", seeds=1, multiplier=multiplier)
    )
    assert expected in sentence


def test_the_simulated_coverage_stands_beside_intervals(probes: Suite) -> None:
    two = coverage.of(2)
    assert two is not None
    for kind in ("score", "difference", "multiplier"):
        assert wording.covered(2, kind) == f"{100 * two.share(kind):.0f} % at 2 seeds"
    assert wording.covered(4, "score").endswith("at 3 seeds")  # the next fewer that were simulated
    assert wording.covered(1, "score") == "no claim: one seed"
    said = wording.caution([with_seeds(probes, [2] * 6)])
    assert (
        f"simulated experiments with 2 seeds, such intervals held the truth in {100 * two.score:.0f} % (scores)" in said
    )
    assert "simulated" not in wording.caution([with_seeds(probes, [1] * 6)])


def test_numbers_in_words() -> None:
    assert wording.flops_text(4e11) == "4 × 10¹¹"
    assert wording.flops_text(1e12) == "10¹²"
    assert wording.flops_text(1.2e12, 4) == "1.200 × 10¹²"
    assert wording.flops_text(1e12, 4) == "1.000 × 10¹²"
    assert wording.points(-0.0123) == "−1.2"
    assert wording.change(0.0004) == "+0.04"
    assert wording.names(["a", "b", "c"]) == "a, b and c"


# --- drawing ----------------------------------------------------------------------------------------------------------


def test_labels_that_would_touch_are_moved_apart_as_little_as_needed() -> None:
    assert figure_parts.spread([0.0, 100.0], 10) == [0.0, 100.0]
    assert figure_parts.spread([50.0, 52.0], 10) == [46.0, 56.0]
    assert figure_parts.spread([52.0, 50.0, 51.0], 10) == [61.0, 41.0, 51.0]
    assert figure_parts.spread([0.0, 9.0, 40.0], 10) == pytest.approx([-0.5, 9.5, 40.0])


def test_an_arm_keeps_its_colour_when_others_are_missing(probes: Suite) -> None:
    alone = dataclasses.replace(probes, cells=[cell for cell in probes.cells if cell.arm == "roberta"])
    svg = figures.curve(alone)
    colour = figure_parts.COLOURS[fake_experiment.ARMS.index("roberta")].lower()
    assert colour in svg and figure_parts.COLOURS[0].lower() not in svg


def test_many_comparisons_are_told_in_one_sentence_each_kind(probes: Suite) -> None:
    arms = ("electra_15", "replace_mlm", "mlm", "roberta")
    noise, apart = Figure(value=0.0, low=-0.01, high=0.01), Figure(value=0.02, low=0.01, high=0.03)
    differences = [
        Difference(arm=arm, baseline="bert", budget=1.2e12, seeds=1, difference=apart if arm == "mlm" else noise)
        for arm in arms
    ]
    bounds = {"low": 1.2, "high": 2.0}
    multipliers = [
        ArmMultiplier(
            arm=arm,
            baseline="bert",
            seeds=1,
            multiplier=Multiplier(kind="equal", value=1.5, score=0.6, **(bounds if arm == "mlm" else {})),
        )
        for arm in arms
    ]
    told = wording.summary(dataclasses.replace(probes, differences=differences, multipliers=multipliers))
    assert [sentence.split(" scored")[0] for sentence in told if " scored " in sentence] == ["mlm"]
    rest = "ELECTRA 15 %, Replace MLM and roberta"
    assert f"The differences of {rest} from bert there are within the noise the intervals cover." in told
    assert told[-1] == f"No compute multiplier against bert is resolved for {rest}: none excludes 1."
    assert sum("needs 1.50 times the FLOPs" in sentence for sentence in told) == 1


@pytest.mark.parametrize(
    ("low", "high", "numbers"),
    [
        (8e10, 2.5e12, [1e11, 1e12]),
        (1e9, 9e12, [1e9, 1e10, 1e11, 1e12]),
        (1e5, 9e12, [1e5, 1e7, 1e9, 1e11]),
        (1.8e11, 6.2e11, [2e11, 5e11]),
        (3.1e11, 3.9e11, [3.477068e11]),
        (9e10, 3.5e11, [1e11, 3e11]),
    ],
)
def test_axes_carry_few_round_numbers(low: float, high: float, numbers: list[float]) -> None:
    assert figure_parts.round_numbers(low, high) == pytest.approx(numbers)
