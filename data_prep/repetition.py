"""Repetition inside one document, measured and bounded as in Rae et al. 2021 (Gopher, section A.1.1, Table A1).

The paper leaves some choices open; these are taken, and the tests hold them against a plain Counter implementation:

- A word is a run of characters between blanks, as written. Characters are those of the words, without blanks.
- Lines and paragraphs are stripped, empty ones ignored. A repeat is every occurrence after the first, so a fraction is
  what would go if each were kept once; the same for duplicate n-grams.
- Duplicate n-grams (n = 5..10): the characters lying in any repeat of an n-gram, each counted once however many
  overlapping repeats hold it (the paper's "taking care not to count characters that occur in overlapping n-grams more
  than once"). It does not depend on where a greedy scan happens to start, unlike counts that skip ahead after a match.
- Top n-gram (n = 2..4): the characters lying in any occurrence of the most frequent n-gram, each counted once; the
  longest of equally frequent ones, then the first in the text. One that occurs once makes no repetition.

n-grams are compared exactly, by rank, never by hash: the n-gram at a place is the pair of (n-1)-grams at it and at the
next, and only places whose (n-1)-gram occurs again can hold an n-gram that does, so the work shrinks with n. Fractions
are ratios of whole numbers and depend on the text alone. Repetition between documents is not judged here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from data_prep.settings import Settings

Ratio = Annotated[float, Field(ge=0.0, le=1.0)]

TOP = range(2, 5)
DUPLICATE = range(5, 11)


class RepetitionBounds(Settings):
    """The largest fraction of a document that may be repetition; 1.0 switches a bound off."""

    duplicate_lines: Ratio = 0.30  # of the lines
    duplicate_line_chars: Ratio = 0.20  # of the characters
    duplicate_paragraphs: Ratio = 0.30  # of the paragraphs
    duplicate_paragraph_chars: Ratio = 0.20  # of the characters
    top_ngram_chars: tuple[Ratio, Ratio, Ratio] = (0.20, 0.18, 0.16)  # n = 2, 3, 4
    duplicate_ngram_chars: tuple[Ratio, Ratio, Ratio, Ratio, Ratio, Ratio] = (  # n = 5, 6, 7, 8, 9, 10
        0.15,
        0.14,
        0.13,
        0.12,
        0.11,
        0.10,
    )

    def reason(self, text: str, words: "Words") -> str | None:
        """The first bound that the text exceeds."""
        lines = (self.duplicate_lines, self.duplicate_line_chars)
        paragraphs = (self.duplicate_paragraphs, self.duplicate_paragraph_chars)
        bounds = (*lines, *paragraphs, *self.top_ngram_chars, *self.duplicate_ngram_chars)
        for i, (name, fraction, later) in enumerate(fractions(text, words)):
            if fraction > bounds[i]:
                return name
            if later <= min(bounds[i:]):
                return None
        return None


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a text as numbers; Arrow's kernels split and number them without a Python object for each."""

    distinct: Any  # pyarrow.LargeStringArray
    ids: NDArray[np.int64]  # of each word, into distinct
    counts: NDArray[np.int64]  # of each distinct word
    lengths: NDArray[np.int64]  # of each distinct word, in characters
    chars: int  # of all words

    @classmethod
    def of(cls, text: str) -> "Words":
        """Words are what Unicode blanks and line ends separate: `text.split()`, where control characters are gone."""
        import pyarrow as pa
        import pyarrow.compute as pc

        split = pc.ascii_split_whitespace if text.isascii() else pc.utf8_split_whitespace
        words = split(pa.array([text.strip()], pa.large_string())).values  # a blank at an end would make an empty word
        numbered = words.dictionary_encode()
        distinct = numbered.dictionary
        ids = numbered.indices.to_numpy()
        counts = np.bincount(ids, minlength=len(distinct))
        lengths = pc.utf8_length(distinct).to_numpy()
        return cls(distinct, ids.astype(np.int64), counts, lengths, int(counts @ lengths))

    def __len__(self) -> int:
        return len(self.ids)


class _Places(NamedTuple):
    """Where n-grams stand that occur more than once: word positions in ascending order, and which n-gram is there."""

    at: NDArray[np.int64]
    gram: NDArray[np.int64]  # into counts
    counts: NDArray[np.int64]  # occurrences of each n-gram


def fractions(text: str, words: Words) -> Iterator[tuple[str, float, float]]:
    """(name of the bound, fraction, what no later fraction exceeds), in the order of the settings, cheap ones first."""
    lines = _piece_fractions(text.split("\n"))
    # paragraphs cannot repeat where no line does
    paragraphs = _piece_fractions(re.split(r"\n\s*\n", text)) if lines[0] else lines
    for kind, (share, chars) in (("line", lines), ("paragraph", paragraphs)):
        yield f"duplicate_{kind}s", share, 1.0
        yield f"duplicate_{kind}_chars", chars, 1.0
    yield from _ngram_fractions(words)


def _piece_fractions(raw: list[str]) -> tuple[float, float]:
    """By number and by characters: the share of pieces that have occurred before."""
    pieces = [stripped for piece in raw if (stripped := piece.strip())]
    distinct = set(pieces)
    if len(distinct) == len(pieces):
        return 0.0, 0.0
    chars = sum(map(len, pieces))
    return (len(pieces) - len(distinct)) / len(pieces), (chars - sum(map(len, distinct))) / chars


def _ngram_fractions(words: Words) -> Iterator[tuple[str, float, float]]:
    """The fractions for n = 2, 3, 4 (top) and 5 … 10 (duplicate).

    What (n+1)-grams cover that occur more than once, n-grams that do cover too; the same holds of repeats alone.
    """
    ends = np.zeros(len(words) + 1, np.int64)  # characters before each word, and in all
    words.lengths.take(words.ids).cumsum(out=ends[1:])
    chars = max(words.chars, 1)
    at = (words.counts > 1).take(words.ids).nonzero()[0]
    places = _Places(at, words.ids.take(at), words.counts)
    for n in TOP:
        places = _extend(places)
        yield f"top_{n}_gram", _covered(_top(places, n, ends), n, ends) / chars, _covered(places.at, n, ends) / chars
    for n in DUPLICATE:
        places = _extend(places)
        fraction = _covered(_repeats(places), n, ends) / chars
        yield f"duplicate_{n}_grams", fraction, fraction


def _extend(places: _Places) -> _Places:
    """From repeated (n-1)-grams to repeated n-grams."""
    at, gram, counts = places
    left = (at[1:] - at[:-1] == 1).nonzero()[0]  # both halves occur more than once
    if not len(left):
        return _Places(left, left, left)
    keys = gram.take(left) * len(counts) + gram.take(left + 1)
    order = keys.argsort()
    ranked = keys.take(order)
    new = np.zeros(len(keys), bool)
    np.not_equal(ranked[1:], ranked[:-1], out=new[1:])
    ranks = new.cumsum()
    counts = np.bincount(ranks)
    gram = np.empty_like(ranks)
    gram[order] = ranks
    kept = (counts > 1).take(gram).nonzero()[0]
    return _Places(at.take(left.take(kept)), gram.take(kept), counts)


def _top(places: _Places, n: int, ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the most frequent n-gram stands; of several the longest, then the first in the text."""
    at, gram, counts = places
    if not len(at):
        return at
    often = (counts == counts.max()).take(gram).nonzero()[0]
    starts = at.take(often)
    longest = often[(ends.take(starts + n) - ends.take(starts)).argmax()]
    return at[gram == gram[longest]]


def _repeats(places: _Places) -> NDArray[np.int64]:
    """Where n-grams stand that have stood earlier."""
    at, gram, counts = places
    first = np.empty_like(counts)
    first[gram[::-1]] = at[::-1]  # the last value given, the earliest place, stays
    return at[at != first.take(gram)]


def _covered(at: NDArray[np.int64], n: int, ends: NDArray[np.int64]) -> int:
    """Characters in the n-grams at these ascending places, each counted once."""
    if not len(at):
        return 0
    stops = at + n
    np.minimum(stops[:-1], at[1:], out=stops[:-1])
    return int((ends.take(stops) - ends.take(at)).sum())
