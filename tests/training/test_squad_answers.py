"""From spans to answers: against a loop written plainly over random spans, and rules one by one."""

import numpy as np
import pytest

from data_prep import tokenizer as tokenizers
from data_prep.tokenizer import Tokenizer
from tests.training.squad_cases import VOCABULARY, paragraph, toy
from training.squad_answers import Spans, answer
from training.squad_protocol import SpanProtocol
from training.squad_windows import Windows, cut

PROTOCOL = SpanProtocol(max_length=24, max_query=4, doc_stride=5, max_answer=3, beam=4, n_best=5)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return tokenizers.load(path)


def random_spans(windows: Windows, protocol: SpanProtocol, seed: int) -> Spans:
    """Any positions, in and out of the text; scores in quarters, so that some tie."""
    rng = np.random.default_rng(seed)
    n, k = len(windows.rows.labels), protocol.beam

    def scores(*shape: int) -> np.ndarray:
        return (rng.integers(-40, 0, shape) / 4).astype(np.float32)

    starts = np.stack([rng.permutation(24)[:k] for _ in range(n)])
    ends = np.stack([np.stack([rng.permutation(24)[:k] for _ in range(k)]) for _ in range(n)])
    return Spans(starts, scores(n, k), ends, scores(n, k, k), rng.normal(size=n).astype(np.float32))


def by_hand(windows: Windows, spans: Spans, protocol: SpanProtocol, q: int) -> tuple[list[tuple[str, float]], float]:
    """Texts with scores, and the smallest null score, token by token as the reference does."""
    text, which = windows.texts[q], [w for w in range(len(windows.rows.labels)) if windows.rows.labels[w] == q]

    def context_of(w: int, token: int) -> float:
        first, count = int(windows.first_W[w]), int(windows.count_W[w])
        if not first <= token < first + count:
            return -1.0
        return min(token - first, first + count - 1 - token) + 0.01 * count

    found = []
    for w in which:
        for i in range(protocol.beam):
            for j in range(protocol.beam):
                shift = int(windows.first_W[w] - windows.offset_W[w])
                start, end = int(spans.start_WK[w, i]) + shift, int(spans.end_WKJ[w, i, j]) + shift
                inside = context_of(w, start) >= 0 and context_of(w, end) >= 0
                if not inside or end < start or end - start + 1 > protocol.max_answer:
                    continue
                if max(which, key=lambda v, t=start: context_of(v, t)) == w:  # type: ignore[misc]
                    found.append((start, end, float(spans.start_score_WK[w, i]) + float(spans.end_score_WKJ[w, i, j])))
    best: list[tuple[str, float]] = []
    for start, end, score in sorted(found, key=lambda span: -span[2]):
        words = text.context[text.first_N[start] : text.end_N[end]]
        if len(best) < protocol.n_best and words not in [known for known, _ in best]:
            best.append((words, score))
    return best, min(float(spans.null_W[w]) for w in which)


@pytest.mark.parametrize("head", ["plain", "joint"])
def test_answers_equal_a_plain_loop(tokenizer: Tokenizer, head: str) -> None:
    protocol = SpanProtocol.model_validate(PROTOCOL.model_dump() | {"head": head})
    windows = cut(toy(30, 5, unanswerable=True, longest=50), tokenizer, protocol)
    spans = random_spans(windows, protocol, 0)
    answered = answer(windows, spans, protocol)
    assert [a.id for a in answered] == [q.id for q in windows.questions]
    several = 0
    for q, found in enumerate(answered):
        best, null = by_hand(windows, spans, protocol, q)
        assert [(a.text, a.score) for a in found.answers] == best
        assert found.best == (best[0][0] if best else "")
        expected = null if head == "joint" else null - (best[0][1] if best else 0.0)
        assert found.null_score == pytest.approx(expected)
        context = windows.texts[q].context
        assert all(context[a.first : a.end] == a.text for a in found.answers)
        several += len(best) > 1
    assert several > 10  # the comparison was of something


def spans_of(windows: Windows, *rows: tuple[int, int, float], null: float = 0.0) -> Spans:
    """The spans of a single window, as (first position, last position, score)."""
    spans = Spans.empty(1, 4)
    for k, (start, end, score) in enumerate(rows):
        spans.start_WK[0, k], spans.start_score_WK[0, k] = start, score
        spans.end_WKJ[0, k, 0], spans.end_score_WKJ[0, k, 0] = end, 0.0
    spans.null_W[:] = null
    return spans


def test_the_best_of_the_same_texts_stands_for_them_and_probabilities_are_a_softmax(tokenizer: Tokenizer) -> None:
    """Positions: cls what metal ? sep, then the text's tokens from 5 on. 'gold' is there twice; the span over cls, one
    of four tokens and one that ends before it starts do not count."""
    windows = cut([paragraph("gold silver gold copper wordaa", "gold")], tokenizer, PROTOCOL)
    spans = spans_of(windows, (5, 5, 1.0), (7, 7, 2.0), (6, 6, 0.0), (5, 8, 9.0))
    (found,) = answer(windows, spans, PROTOCOL)
    assert [(a.text, a.first, a.end, a.score) for a in found.answers] == [("gold", 12, 16, 2.0), ("silver", 5, 11, 0.0)]
    total = np.exp(2.0) + np.exp(0.0)
    assert [a.probability for a in found.answers] == pytest.approx([np.exp(2.0) / total, 1.0 / total])
    (none,) = answer(windows, spans_of(windows, (0, 0, 5.0), (7, 6, 5.0), (9, 10, 5.0), null=-3.0), PROTOCOL)
    assert (none.answers, none.best, none.null_score) == ((), "", -3.0)


def test_one_window_that_holds_the_answer_is_enough(tokenizer: Tokenizer) -> None:
    joint = SpanProtocol.model_validate(PROTOCOL.model_dump() | {"head": "joint"})
    windows = cut([paragraph(" ".join(["gold"] * 30), "gold")], tokenizer, joint)
    spans = Spans.empty(len(windows.rows.labels), 4)
    spans.null_W[:] = [4.0, -2.0, 3.0, 5.0][: len(spans.null_W)]
    assert len(spans.null_W) >= 3
    assert answer(windows, spans, joint)[0].null_score == -2.0
