"""Questions and paragraphs as windows of tokens: `cls question sep part sep`, the parts of a long text overlapping.

As google-research/electra and BERT: the question is cut at `max_query` tokens, parts begin `doc_stride` tokens apart,
and a part that does not hold the whole answer has its start and end at position 0. Where several windows hold a token,
one has the *maximum context* for it. Unlike there, an answer is found by the characters of its tokens, not by white
space: its span is the fewest tokens that cover it, and a predicted span is a piece of the text itself, with capitals,
accents and blanks. Text that spells a special token stays text.

Shape suffixes: W windows, B windows of a batch, L positions, N tokens of a text.
"""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data_prep.tokenizer import Tokenizer
from training.squad import Paragraph, Question
from training.squad_protocol import SpanProtocol
from training.text_batches import Encoded

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph's tokens, and the characters of each: `context[first_N[i] : end_N[i]]`, blanks at its edges left
    out, accents behind it taken in."""

    context: str
    ids: list[int]
    first_N: Ints
    end_N: Ints


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of many questions; those of one question follow one another."""

    rows: Encoded  # its labels are the windows' questions
    offset_W: Ints  # position of the part's first token
    first_W: Ints  # that token's place in the text
    count_W: Ints  # tokens of the part
    start_W: Ints  # the answer's first position, 0 where it is not in the window or there is none
    end_W: Ints  # its last
    impossible_W: NDArray[np.float32]  # 1 where the question has no answer at all
    questions: list[Question]
    texts: list[Text]  # of each question; questions of a paragraph share theirs
    paragraph: Ints  # of each question: the number of its paragraph

    def of_question(self) -> list[Ints]:
        """The windows of each question in turn."""
        ends = np.searchsorted(self.rows.labels, np.arange(len(self.questions)), side="right")
        return [np.arange(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def batch(self, which_B: Ints, device: torch.device) -> dict[str, Tensor]:
        """`Encoded.batch`, and `start, end, impossible` `[B]` and `allowed` `[B, L]`: where an answer may start and
        end, which is the text, its closing separator and position 0."""
        batch = self.rows.batch(which_B, device)
        column_L = torch.arange(batch["ids"].shape[1], device=device)
        batch["allowed"] = (batch["types"] == 1) | (column_L == 0)
        for name, values in (("start", self.start_W), ("end", self.end_W), ("impossible", self.impossible_W)):
            batch[name] = torch.from_numpy(values[which_B]).to(device)
        return batch


def cut(paragraphs: Iterable[Paragraph], tokenizer: Tokenizer, protocol: SpanProtocol) -> Windows:
    """The windows of every question of the paragraphs, in their order."""
    made = _Maker(tokenizer, protocol)
    for number, paragraph in enumerate(paragraphs):
        text = locate(paragraph.context, tokenizer)
        queries = tokenizer.encode([question.text for question in paragraph.questions])
        for question, query in zip(paragraph.questions, queries, strict=True):
            made.add(question, query, text, number)
    return made.windows()


def locate(context: str, tokenizer: Tokenizer) -> Text:
    """The tokens of a text with their characters."""
    ids, places = tokenizer.located(context)
    trimmed = [_trimmed(context, first, end) for first, end in places]
    place_N2 = np.array(trimmed, dtype=np.int64).reshape(-1, 2)
    return Text(context, ids, place_N2[:, 0], place_N2[:, 1])


def _trimmed(context: str, first: int, end: int) -> tuple[int, int]:
    """Without blanks at the edges (byte-level BPE has them), with the accents behind (BERT's normaliser drops them)."""
    while first < end and context[first].isspace():
        first += 1
    while first < end and context[end - 1].isspace():
        end -= 1
    while first < end < len(context) and unicodedata.combining(context[end]):
        end += 1
    return first, end


def answer_tokens(question: Question, text: Text) -> tuple[int, int] | None:
    """First and last token of the fewest that cover the first annotated answer; None for no answer, or where its
    characters are in no token (control characters, say)."""
    if question.impossible:
        return None
    answer = question.answers[0]
    # a token of blanks alone is empty and overlaps nothing
    overlaps_N = (text.first_N < answer.start + len(answer.text)) & (text.end_N > answer.start)
    found = np.flatnonzero(overlaps_N & (text.first_N < text.end_N))
    return (int(found[0]), int(found[-1])) if len(found) else None


def parts(tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """First token and number of tokens of each part of a text: as many as there is room for, `stride` apart (less where
    that would leave tokens out), up to the first that reaches the end. A text without tokens has one empty part."""
    out = [(0, min(tokens, room))]
    while sum(out[-1]) < tokens:
        first = out[-1][0] + min(out[-1][1], stride)
        out.append((first, min(tokens - first, room)))
    return out


def max_context(first_W: Ints, count_W: Ints, tokens: int) -> Ints:
    """Of each token of a text `[N]`, the window of the question's that has the most on its poorer side of it; longer
    windows a little before shorter ones, then the earlier."""
    token_N = np.arange(tokens)
    left_WN = token_N[None, :] - first_W[:, None]
    right_WN = (first_W + count_W - 1)[:, None] - token_N[None, :]
    context_WN = np.minimum(left_WN, right_WN)
    score_WN = np.where(context_WN >= 0, context_WN + 0.01 * count_W[:, None], -np.inf)
    return score_WN.argmax(axis=0).astype(np.int64)


class _Maker:
    """Collects windows."""

    def __init__(self, tokenizer: Tokenizer, protocol: SpanProtocol) -> None:
        self._tokenizer, self._protocol = tokenizer, protocol
        self._rows: list[NDArray[np.int32]] = []
        self._columns: list[tuple[int, int, int, int, int, int, bool]] = []
        self._questions: list[Question] = []
        self._texts: list[Text] = []
        self._paragraph: list[int] = []

    def add(self, question: Question, query: list[int], text: Text, paragraph: int) -> None:
        special = self._tokenizer.special
        separators = [special.sep] * self._tokenizer.pair_separators
        head = [special.cls, *query[: self._protocol.max_query], *separators]
        room = self._protocol.max_length - len(head) - 1
        answer = answer_tokens(question, text)
        for first, count in parts(len(text.ids), room, self._protocol.doc_stride):
            row = [*head, *text.ids[first : first + count], special.sep]
            self._rows.append(np.asarray(row, dtype=np.int32))
            start, end = _within(answer, first, count, len(head))
            here = len(self._questions)
            self._columns.append((here, len(head), first, count, start, end, question.impossible))
        self._questions.append(question)
        self._texts.append(text)
        self._paragraph.append(paragraph)

    def windows(self) -> Windows:
        question, offset, first, count, start, end, impossible = np.array(self._columns, dtype=np.int64).T
        rows = Encoded(
            ids=np.concatenate(self._rows),
            starts=np.cumsum([0, *(len(row) for row in self._rows)]).astype(np.int64),
            second=offset,
            labels=question,
            pad=self._tokenizer.special.pad,
        )
        return Windows(
            rows, offset, first, count, start, end, impossible.astype(np.float32),
            self._questions, self._texts, np.array(self._paragraph, dtype=np.int64),
        )  # fmt: skip


def _within(answer: tuple[int, int] | None, first: int, count: int, offset: int) -> tuple[int, int]:
    """Positions of an answer in a window, (0, 0) where it is not wholly in it."""
    if answer is None or answer[0] < first or answer[1] >= first + count:
        return 0, 0
    return answer[0] - first + offset, answer[1] - first + offset
