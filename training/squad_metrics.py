"""Exact match and F1 of answers, as the official evaluation scripts of SQuAD 1.1 and 2.0 compute them.

Held to the scripts' output to the digit: percentages, summed in file order, under the scripts' own names. They differ
in small ways, kept here: in 1.1 a question without a prediction scores 0 and an F1 without common words is 0; in 2.0
annotated answers that are nothing but articles and punctuation do not count, an unanswerable question wants the empty
answer, and two empty answers have F1 1.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from data_prep.errors import DataError
from training.squad import Paragraph, Question

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

Scores = dict[str, float]  # by question id, in file order


def normalized(text: str) -> str:
    """Lower case, without ASCII punctuation and English articles, words parted by one blank."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def word_f1(gold: str, prediction: str, *, empty_agree: bool) -> float:
    """Harmonic mean of precision and recall over words. `empty_agree`: two texts without words agree (2.0)."""
    gold_words, words = normalized(gold).split(), normalized(prediction).split()
    if empty_agree and not (gold_words and words):
        return float(gold_words == words)
    common = sum((Counter(gold_words) & Counter(words)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(words), common / len(gold_words)
    return (2 * precision * recall) / (precision + recall)


def score_1(paragraphs: Iterable[Paragraph], predictions: Mapping[str, str]) -> Scores:
    """`exact_match` and `f1` in percent, as evaluate-v1.1.py."""
    exact, f1 = question_scores_1(paragraphs, predictions)
    return {
        "exact_match": 100.0 * sum(exact.values()) / len(exact),
        "f1": 100.0 * sum(f1.values()) / len(f1),
    }


def question_scores_1(paragraphs: Iterable[Paragraph], predictions: Mapping[str, str]) -> tuple[Scores, Scores]:
    """Exact match and F1 of each question, the best over its annotated answers (1.1)."""
    exact, f1 = {}, {}
    for question in _questions(paragraphs):
        golds = [answer.text for answer in question.answers]
        prediction = predictions.get(question.id)
        if prediction is None:
            exact[question.id] = f1[question.id] = 0.0
            continue
        exact[question.id] = _exact(golds, prediction)
        f1[question.id] = max(word_f1(gold, prediction, empty_agree=False) for gold in golds)
    return exact, f1


def score_2(
    paragraphs: Iterable[Paragraph],
    predictions: Mapping[str, str],
    null_scores: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Everything evaluate-v2.0.py prints: `exact`, `f1`, `total`, of all questions and of those with (`HasAns_`) and
    without (`NoAns_`) an answer, and with `null_scores` also `best_exact`, `best_f1` and their `_thresh`. A question
    whose null score is above `threshold` counts as said to have no answer. DataError for a missing prediction."""
    questions = list(_questions(paragraphs))
    answerable = {question.id: not question.impossible for question in questions}
    raw_exact, raw_f1 = question_scores_2(questions, predictions)
    nulls = null_scores or {}
    exact = thresholded(raw_exact, nulls, answerable, threshold)
    f1 = thresholded(raw_f1, nulls, answerable, threshold)
    out = _means(exact, f1, list(answerable), "")
    for prefix, wanted in (("HasAns_", True), ("NoAns_", False)):
        if ids := [i for i, has in answerable.items() if has is wanted]:
            out |= _means(exact, f1, ids, prefix)
    if null_scores is not None:
        for name, raw in (("exact", raw_exact), ("f1", raw_f1)):
            best = best_threshold(predictions, raw, nulls, answerable)
            out[f"best_{name}"], out[f"best_{name}_thresh"] = best.percent, best.threshold
    return out


def question_scores_2(questions: Iterable[Question], predictions: Mapping[str, str]) -> tuple[Scores, Scores]:
    """Exact match and F1 of each question before any threshold (2.0). DataError for a missing prediction."""
    exact, f1 = {}, {}
    for question in questions:
        if question.id not in predictions:
            raise DataError(f"there is no prediction for question {question.id!r}: predict every question of the file.")
        golds = [answer.text for answer in question.answers if normalized(answer.text)] or [""]
        exact[question.id] = _exact(golds, predictions[question.id])
        f1[question.id] = max(word_f1(gold, predictions[question.id], empty_agree=True) for gold in golds)
    return exact, f1


def thresholded(
    scores: Scores, null_scores: Mapping[str, float], answerable: Mapping[str, bool], threshold: float
) -> Scores:
    """The scores where every question with a null score above the threshold is answered with nothing."""
    return {
        i: float(not answerable[i]) if null_scores.get(i, 0.0) > threshold else score for i, score in scores.items()
    }


@dataclass(frozen=True, slots=True)
class Best:
    """The best score that any threshold gives, in percent, and the lowest threshold that gives it (0.0 where that is to
    answer nothing). `answered` are the questions that are answered there, `scores` what each question then scores: of
    null scores that are alike some may be and some not, which no threshold says."""

    percent: float
    threshold: float
    answered: frozenset[str]
    scores: Scores


def best_threshold(
    predictions: Mapping[str, str], scores: Scores, null_scores: Mapping[str, float], answerable: Mapping[str, bool]
) -> Best:
    """The best threshold as the official script finds it: from nothing answered, the questions are answered one by one
    in the order of their null scores, those of file order where they are alike."""
    current = best = float(sum(not has for has in answerable.values()))
    threshold, taken = 0.0, 0
    order = [i for i in sorted(null_scores, key=lambda i: null_scores[i]) if i in scores]
    for count, i in enumerate(order, start=1):
        if answerable[i]:
            current += scores[i]
        elif predictions[i]:
            current -= 1
        if current > best:
            best, threshold, taken = current, null_scores[i], count
    answered = frozenset(order[:taken])
    there = {i: _there(i, i in answered, predictions, scores, answerable) for i in scores}
    return Best(100.0 * best / len(scores), threshold, answered, there)


def _there(
    i: str, answered: bool, predictions: Mapping[str, str], scores: Scores, answerable: Mapping[str, bool]
) -> float:
    """What one question scores: the script takes an unanswerable one for wrong once anything is said, were it 'the'."""
    if answerable[i]:
        return scores[i] if answered else 0.0
    return float(not (answered and predictions[i]))


def _questions(paragraphs: Iterable[Paragraph]) -> Iterator[Question]:
    return (question for paragraph in paragraphs for question in paragraph.questions)


def _exact(golds: list[str], prediction: str) -> float:
    return float(normalized(prediction) in map(normalized, golds))


def _means(exact: Scores, f1: Scores, ids: list[str], prefix: str) -> dict[str, float]:
    return {
        f"{prefix}exact": 100.0 * sum(exact[i] for i in ids) / len(ids),
        f"{prefix}f1": 100.0 * sum(f1[i] for i in ids) / len(ids),
        f"{prefix}total": len(ids),
    }
