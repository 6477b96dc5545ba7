"""From the likeliest spans of windows to one question's answers.

As google-research/electra (`finetune/qa/qa_metrics.py`) and BERT: a span counts where it lies in the text, is at most
`max_answer` tokens long and starts at a token for which its window has the maximum context; spans are ranked by the sum
of their two scores, the best of those with the same text stands for them, and `n_best` are kept with their softmax. The
null score is the smallest over the windows: one window that holds the answer is enough. With the joint head it is the
answerability logit itself; with the plain head, the score of position 0 less that of the best span. An answer's text
is cut from the paragraph by its characters. Pure numpy.

Shape suffixes: W windows of a question, K starts, J ends of each start, S spans.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.squad_protocol import SpanProtocol
from training.squad_windows import Ints, Text, Windows, max_context

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Spans:
    """The likeliest spans of every window (`span_heads.Beam`); a window with fewer has scores of −∞."""

    start_WK: Ints
    start_score_WK: Floats
    end_WKJ: Ints
    end_score_WKJ: Floats
    null_W: Floats

    @staticmethod
    def empty(windows: int, beam: int) -> "Spans":
        """Room for the spans of so many windows."""
        return Spans(
            np.zeros((windows, beam), dtype=np.int64),
            np.full((windows, beam), -np.inf, dtype=np.float32),
            np.zeros((windows, beam, beam), dtype=np.int64),
            np.full((windows, beam, beam), -np.inf, dtype=np.float32),
            np.zeros(windows, dtype=np.float32),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """A piece of the paragraph: `context[first:end] == text`. Probabilities of a question's answers add up to 1."""

    text: str
    first: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True, slots=True)
class Answered:
    """What is said of one question: the answers, best first (none, where no span counts), and the null score."""

    id: str
    answers: tuple[Answer, ...]
    null_score: float

    @property
    def best(self) -> str:
        """The text of the best answer; nothing where there is none."""
        return self.answers[0].text if self.answers else ""


def answer(windows: Windows, spans: Spans, protocol: SpanProtocol) -> list[Answered]:
    """The answers to every question of the windows, in their order."""
    return [_answered(windows, spans, number, which, protocol) for number, which in enumerate(windows.of_question())]


def _answered(windows: Windows, spans: Spans, number: int, which_W: Ints, protocol: SpanProtocol) -> Answered:
    text = windows.texts[number]
    first_S, last_S, score_S = _ranked(windows, spans, which_W, text, protocol.max_answer)
    found: dict[str, tuple[int, int, float]] = {}
    for first, last, score in zip(first_S.tolist(), last_S.tolist(), score_S.tolist(), strict=True):
        if len(found) == protocol.n_best:
            break
        place = int(text.first_N[first]), int(text.end_N[last])
        if words := text.context[place[0] : place[1]]:
            found.setdefault(words, (*place, score))
    null = float(np.nan_to_num(spans.null_W[which_W]).min())  # a diverged model's is still a number, for the file
    if protocol.head == "plain":
        null -= max((score for _, _, score in found.values()), default=0.0)
    return Answered(windows.questions[number].id, _with_probabilities(found), null)


def _ranked(
    windows: Windows, spans: Spans, which_W: Ints, text: Text, max_answer: int
) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """First and last token of the text and score `[S]` of the spans that count, best first; ties keep the order of
    window, start and end."""
    first_W, count_W = windows.first_W[which_W], windows.count_W[which_W]
    to_text_W11 = (first_W - windows.offset_W[which_W])[:, None, None]
    start_WK1 = spans.start_WK[which_W][:, :, None] + to_text_W11
    end_WKJ = spans.end_WKJ[which_W] + to_text_W11
    score_WKJ = spans.start_score_WK[which_W][:, :, None].astype(np.float64) + spans.end_score_WKJ[which_W]
    lowest_W11, highest_W11 = first_W[:, None, None], (first_W + count_W - 1)[:, None, None]
    inside_WKJ = (start_WK1 >= lowest_W11) & (end_WKJ <= highest_W11) & (start_WK1 <= end_WKJ)
    counts_WKJ = inside_WKJ & (end_WKJ - start_WK1 < max_answer) & np.isfinite(score_WKJ)
    w_S, k_S, j_S = np.nonzero(counts_WKJ)
    owner_N = max_context(first_W, count_W, len(text.ids))
    start_S = start_WK1[w_S, k_S, 0]
    owned_S = owner_N[start_S] == w_S
    start_S, end_S, score_S = start_S[owned_S], end_WKJ[w_S, k_S, j_S][owned_S], score_WKJ[w_S, k_S, j_S][owned_S]
    order_S = np.argsort(-score_S, kind="stable")
    return start_S[order_S], end_S[order_S], score_S[order_S]


def _with_probabilities(found: dict[str, tuple[int, int, float]]) -> tuple[Answer, ...]:
    """The found answers with the softmax of their scores."""
    if not found:
        return ()
    score_S = np.array([score for _, _, score in found.values()])
    probability_S = np.exp(score_S - score_S.max())
    probability_S /= probability_S.sum()
    return tuple(
        Answer(text, first, end, score, probability)
        for (text, (first, end, score)), probability in zip(found.items(), probability_S.tolist(), strict=True)
    )
