"""The packers and the sentence rules in plain Python, one sentence and one token list at a time: what
data_prep.sentences, data_prep.packing and data_prep.segments are compared with, and measured against.

The sentence rules and `SegmentPacker` define the right answer; `SentencePacker` fills rows in document order, and best
fit is to need fewer.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep import keyed
from data_prep.rows import SpecialIds

Tokens = list[int]

SINGLE_SEGMENT = 0.1  # share of rows with A only
SHORT_TARGET = 0.05  # share of rows with a random shorter target length
SHORTEST_TARGET = 5
# A fragment shorter than this at the end of a packed row is not begun: it would be little but special tokens.
SHORTEST_FRAGMENT = 16

# Linear in any text: a run of marks is tried from its beginning only, and an empty line ends at its own line feed.
_BOUNDARY = re.compile(r"(?<![.!?])[.!?]++[\"'”’)\]]*+(?=\s)|\n(?=[^\S\n]*\n)")
_VISIBLE = re.compile(r"\S")
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|cf|vs|etc|al|fig|figs|eq|eqs|ref|refs|sec|ch|no|nos|vol|pp?|ed|eds|approx|resp|incl|dept|est|inc|ltd|co|corp"
    r"|mr|mrs|ms|dr|prof|st|sr|jr|gen|col|rev|hon|capt|lt|sgt|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)|\b(?-i:[A-Z]))\.$",
    re.IGNORECASE,
)
_OPENING = re.compile(r"\s+[\"'“‘(\[]*[A-Z0-9\u00c0-\u00de\u0370-\uffff]")


def split_sentences(text: str) -> list[str]:
    """Cut a text into sentences; blanks stay with the sentence that follows, so joining them gives the text back.

    A boundary is `.`, `!` or `?` before white space and a capital, a digit or an opening mark, unless an abbreviation
    or an initial precedes it; an empty line always is one.
    """
    sentences, start, visible = [], 0, _first_visible(text, 0)
    for match in _BOUNDARY.finditer(text):
        end = match.end() if match.group()[0] != "\n" else match.start()
        if end <= visible:  # nothing but blanks since the last boundary
            continue
        if match.group()[0] != "\n":
            paragraph_ends = text.startswith("\n\n", end)
            if not paragraph_ends and (
                not _OPENING.match(text, end) or _ABBREVIATION.search(text, max(start, end - 8), end)
            ):
                continue
        sentences.append(text[start:end])
        start, visible = end, _first_visible(text, end)
    if visible < len(text):
        sentences.append(text[start:])
    elif sentences:
        sentences[-1] += text[start:]
    return sentences


def _first_visible(text: str, start: int) -> int:
    """Where the first character that is no white space stands, from `start` on; the length of the text without one."""
    found = _VISIBLE.search(text, start)
    return found.start() if found is not None else len(text)


def pad_rows(rows: Sequence[Tokens], seq_len: int, pad: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """`[n, seq_len]`, padding at the end of each row."""
    out = np.full((len(rows), seq_len), pad, dtype=dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


class _Coins:
    """Uniform numbers of one document, one after the other."""

    def __init__(self, seed: int, document: int) -> None:
        self._seed, self._document = seed, document
        self._block, self._numbers = 0, iter(list[float]())

    def __call__(self) -> float:
        for number in self._numbers:
            return number
        key = keyed.key("segments", self._seed, self._block)
        rows = np.array([self._document], dtype=np.uint64).view(np.int64)
        self._block, self._numbers = self._block + 1, iter(keyed.uniforms(key, rows, 64)[0].tolist())
        return next(self._numbers)


class SegmentPacker:
    """`cls A sep (B sep)`: the reference's rules, with two differences, both so that no text is lost or reordered.

    What a row has no room for is carried on to the next row of the document instead of being discarded, and once B has
    begun no later sentence joins A. A document's end ends a row.
    """

    def __init__(self, *, seq_len: int, special: SpecialIds, pair_separators: int, seed: int) -> None:
        self.seq_len, self.special, self.seed = seq_len, special, seed
        self.separator = [special.sep] * pair_separators

    def add(self, sentences: Sequence[Tokens], document: int) -> list[Tokens]:
        """Rows of one document; `document` is its 64-bit content key."""
        coins = _Coins(self.seed, document)
        tokens = [token for sentence in sentences for token in sentence]
        rows: list[Tokens] = []
        # tokens[start:end] waits for a row; its sentences end at `ends`, and what was carried over counts as one
        start = end = 0
        ends: list[int] = []
        target = self.seq_len
        for sentence in sentences:
            if not sentence:
                continue
            end += len(sentence)
            ends.append(end)
            while end - start >= target:
                row, start = self._row(tokens, start, ends, target, coins)
                rows.append(row)
                ends = [end] if start < end else []
                target = self._next_target(coins)
        while start < end:
            row, start = self._row(tokens, start, ends, target, coins)
            rows.append(row)
            ends = [end]
        return rows

    def flush(self) -> list[Tokens]:
        """Nothing: rows never wait for another document."""
        return []

    def _next_target(self, coins: _Coins) -> int:
        if coins() < SHORT_TARGET:
            return SHORTEST_TARGET + int(coins() * (self.seq_len - SHORTEST_TARGET + 1))
        return self.seq_len

    def _row(self, tokens: Tokens, start: int, ends: Sequence[int], target: int, coins: _Coins) -> tuple[Tokens, int]:
        """One row of the sentences from `start` on that end at `ends`, and where what it had no room for begins."""
        overhead = 2 + len(self.separator)  # cls, and the separators after A and B
        first_target = self.seq_len * 1000 if coins() < SINGLE_SEGMENT else (target - overhead) // 2
        split = start  # where A ends and B begins
        for end in ends:
            fits = end - start < first_target
            if split > start and not fits and not (split - start < first_target and coins() < 0.5):
                break
            split = end
        a_end = min(split, start + self.seq_len - 2)
        b_end = min(ends[-1], a_end + max(0, self.seq_len - (a_end - start) - overhead))
        a, b = tokens[start:a_end], tokens[a_end:b_end]
        row = [self.special.cls, *a, self.special.sep]
        if b:
            row = [self.special.cls, *a, *self.separator, *b, self.special.sep]
        return row, b_end


class SentencePacker:
    """Fragments `cls … sep`, filled with whole sentences in text order; a sentence longer than a row is cut."""

    def __init__(self, *, seq_len: int, special: SpecialIds) -> None:
        self.seq_len, self.special = seq_len, special
        self._row: Tokens = []

    def add(self, sentences: Sequence[Tokens], document: int) -> list[Tokens]:
        """Rows completed by one document."""
        rows: list[Tokens] = []
        fragment: Tokens = []
        for piece in self._pieces(sentences):
            if fragment and len(self._row) + len(fragment) + len(piece) + 2 > self.seq_len:
                self._close(fragment)
                fragment = []
            if not fragment and not self._room(len(piece)):
                rows += self.flush()
            fragment = fragment + piece
        if fragment:
            self._close(fragment)
        return rows

    def flush(self) -> list[Tokens]:
        """The unfinished row, if there is one."""
        rows = [self._row] if self._row else []
        self._row = []
        return rows

    def _pieces(self, sentences: Sequence[Tokens]) -> Iterator[Tokens]:
        for sentence in sentences:
            for start in range(0, len(sentence), self.seq_len - 2):
                yield sentence[start : start + self.seq_len - 2]

    def _room(self, length: int) -> bool:
        """Whether a new fragment that begins with `length` tokens fits the unfinished row."""
        left = self.seq_len - len(self._row)
        return left >= length + 2 and (not self._row or left >= SHORTEST_FRAGMENT)

    def _close(self, fragment: Tokens) -> None:
        self._row = [*self._row, self.special.cls, *fragment, self.special.sep]
