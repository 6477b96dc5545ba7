"""SQuAD's metrics: the official scripts' own output on real files to the last digit, and cases by hand."""

import json
from typing import Any

import pytest

from data_prep.errors import DataError
from tests.training.squad_cases import needs_real, paragraph, squad_folder
from training.squad import Gold, Paragraph, Question, read_squad
from training.squad_metrics import best_threshold, normalized, question_scores_2, score_1, score_2, word_f1


def judged(name: str) -> Any:
    return json.loads((squad_folder() / "eval" / name).read_text())


@needs_real
@pytest.mark.parametrize("kind", ["gold", "empty", "noisy"])
def test_the_official_scripts_output_to_the_last_digit(kind: str) -> None:
    expected = judged("expected.json")
    first = read_squad(squad_folder() / "dev-v1.1.subset.json", "1.1")
    assert score_1(first, judged(f"pred-v1.{kind}.json")) == expected[f"v1.{kind}"]
    second = read_squad(squad_folder() / "dev-v2.0.subset.json", "2.0")
    predictions, nulls = judged(f"pred-v2.{kind}.json"), judged(f"na-prob-v2.{kind}.json")
    assert score_2(second, predictions) == expected[f"v2.{kind}"]
    assert score_2(second, predictions, nulls) == expected[f"v2.{kind}+na_prob"]


def test_normalisation_by_hand() -> None:
    assert normalized("  The U.S.A.'s\tAn-swer,\na thing!") == "usas answer thing"
    assert normalized("Theory of a theme") == "theory of theme"  # articles are whole words
    assert normalized("the") == normalized("...") == normalized("") == ""
    assert normalized("«Café»") == "«café»"  # ASCII punctuation only


def test_f1_by_hand() -> None:
    # 2 words in common (one of the two 'b's), 3 predicted, 4 annotated: 2·(2/3)(2/4) / (2/3 + 2/4) = 4/7
    assert word_f1("b b c d", "b x c", empty_agree=True) == pytest.approx(4 / 7)
    assert word_f1("b", "c", empty_agree=True) == 0.0
    # two texts without words: the scripts of the two versions differ
    assert word_f1("the", "a", empty_agree=True) == 1.0
    assert word_f1("the", "a", empty_agree=False) == 0.0
    assert word_f1("the", "b", empty_agree=True) == word_f1("b", "", empty_agree=True) == 0.0


def test_the_best_of_several_annotated_answers_counts_and_a_missing_prediction_is_0_in_1_1() -> None:
    text = "the old copper mine"
    golds = Gold("copper", 8), Gold("old copper mine", 4)
    side = [Paragraph("A", text, (Question("a", "?", golds), Question("b", "?", golds)))]
    # 'old copper': of 'copper' P 1/2 R 1 = 2/3, of 'old copper mine' P 1 R 2/3 = 4/5
    assert score_1(side, {"a": "an old copper"}) == {"exact_match": 0.0, "f1": pytest.approx(100 * 0.8 / 2)}
    with pytest.raises(DataError, match="no prediction for question 'b'"):
        score_2(side, {"a": "copper"})


def test_the_best_threshold_by_hand() -> None:
    """In the order of null scores, .1 is right, .2 unanswerable but answered, .3 right, .4 wrong: from 1 right when
    nothing is answered to 2, 1, 2, 2; the first of the best is at .1."""
    side = [paragraph("gold silver tin", "gold", None, "silver", "tin", key="")]
    predictions = {"0": "gold", "1": "tin", "2": "silver", "3": "gold"}
    nulls = {"0": 0.1, "1": 0.2, "2": 0.3, "3": 0.4}
    scores = score_2(side, predictions, nulls, threshold=0.25)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (50.0, 0.1)
    # at .25 questions 2 and 3 are answered with nothing: 0 right, 1 wrong, 2 and 3 wrong
    assert [scores[f"{part}exact"] for part in ("", "HasAns_", "NoAns_")] == pytest.approx([25.0, 100 / 3, 0.0])
    assert (scores["total"], scores["HasAns_total"], scores["NoAns_total"]) == (4, 3, 1)
    nothing = score_2(side, predictions, {"0": 9.0, "1": 1.0, "2": 9.0, "3": 9.0}, threshold=0.0)
    assert (nothing["exact"], nothing["NoAns_exact"]) == (25.0, 100.0)
    # 1 (wrong) first: 0, then 0 right, 2 right, 3 wrong: 1, 2, 2, and 2 is reached at the tied 9.0
    assert (nothing["best_exact"], nothing["best_exact_thresh"]) == (50.0, 9.0)


def test_where_null_scores_are_alike_the_best_answers_some_of_them() -> None:
    """All have the null score 1: in file order right (2 of 4 with the unanswerable), wrong, right (3), answered in vain
    (2). The best is at the third, and no threshold parts it from the fourth."""
    predictions = {"a": "gold", "b": "tin", "c": "iron", "d": "the"}
    answerable = {"a": True, "b": True, "c": True, "d": False}
    scores = {"a": 1.0, "b": 0.0, "c": 1.0, "d": 1.0}  # 'the' is as good as nothing, until it is said
    best = best_threshold(predictions, scores, dict.fromkeys(predictions, 1.0), answerable)
    assert (best.percent, best.threshold, best.answered) == (75.0, 1.0, {"a", "b", "c"})
    assert best.scores == {"a": 1.0, "b": 0.0, "c": 1.0, "d": 1.0}
    first = best_threshold(predictions, scores, {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0}, answerable)
    assert (first.percent, first.answered) == (50.0, {"a", "b", "c", "d"})
    assert first.scores == {"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.0}
    nothing = best_threshold(dict.fromkeys("ad", "x"), {"a": 0.0, "d": 0.0}, {"a": -9.0, "d": -9.0}, answerable)
    assert (nothing.threshold, nothing.answered, nothing.scores) == (0.0, frozenset(), {"a": 0.0, "d": 1.0})


@needs_real
@pytest.mark.parametrize("kind", ["gold", "empty", "noisy"])
def test_what_questions_score_at_the_best_threshold_makes_the_official_best(kind: str) -> None:
    side = read_squad(squad_folder() / "dev-v2.0.subset.json", "2.0")
    questions = [question for paragraph in side for question in paragraph.questions]
    answerable = {question.id: not question.impossible for question in questions}
    predictions = judged(f"pred-v2.{kind}.json")
    nulls = {i: round(value, 1) for i, value in judged(f"na-prob-v2.{kind}.json").items()}  # many alike
    assert len(set(nulls.values())) < 20
    official = score_2(side, predictions, nulls)
    for name, raw in zip(("exact", "f1"), question_scores_2(questions, predictions), strict=True):
        best = best_threshold(predictions, raw, nulls, answerable)
        mean = 100 * sum(best.scores.values()) / len(questions)
        assert mean == pytest.approx(best.percent, abs=1e-9) == official[f"best_{name}"]


def test_versions_without_either_kind_of_question_leave_its_part_out() -> None:
    assert not any(name.startswith("NoAns") for name in score_2([paragraph("tin", "tin")], {"q0": "tin"}))
    assert not any(name.startswith("HasAns") for name in score_2([paragraph("tin", None)], {"q0": ""}))
