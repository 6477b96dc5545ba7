"""Texts → sentences, by rules alone, at a nanosecond a character.

A boundary is `.`, `!` or `?` (with what closes quotes and brackets) before white space and a capital, a digit or an
opening mark, unless an abbreviation or an initial precedes it; an empty line always is one. Blanks stay with the
sentence that follows, those at the end with the last one, so joining the sentences of a text gives the text back; a
text of blanks alone has none. Sentences of a text do not depend on the texts beside it. Linear in any text.

All texts of a batch are one array of UTF-8, gone through once (`text_kernels.find_sentences`); here are the tables of
what a character is. No language model, no language but European ones: where no capital follows a mark, sentences are
long, and rows cut them at words.
"""

import functools
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]

_ABBREVIATIONS = (
    "cf vs etc al fig figs eq eqs ref refs sec ch no nos vol p pp ed eds approx resp incl dept est inc ltd co corp "
    "mr mrs ms dr prof st sr jr gen col rev hon capt lt sgt jan feb mar apr jun jul aug sep sept oct nov dec"
)
_NUL = b"\0"  # stands between texts: neither blank, mark nor word


class _Characters(NamedTuple):
    """Tables over all code points, and one of the abbreviations as numbers, the last letter in the lowest byte."""

    flags: NDArray[np.uint8]
    letters: NDArray[np.uint8]  # the lower-case ASCII letter a character is equal to; 1: other word character; 0: none
    abbreviations: NDArray[np.uint64]


class Located(NamedTuple):
    """Texts in UTF-8, and where their sentences are; positions are those in `data`."""

    data: NDArray[np.uint8]  # a NUL, then each text and a NUL
    text_ends: Positions  # [t]
    ends: Positions  # [s] of all sentences, in order
    document_ends: Positions  # [t] where the sentences of each text end in `ends`

    def text_starts(self) -> Positions:
        """Where each text begins, `[t]`."""
        return np.append(1, self.text_ends[:-1] + 1)[: len(self.text_ends)]

    def strings(self, text: int) -> list[str]:
        """The sentences of a text."""
        first = self.document_ends[text - 1] if text else 0
        start = int(self.text_ends[text - 1]) + 1 if text else 1
        content = self.data[start : self.text_ends[text]].tobytes()
        places = [0, *(self.ends[first : self.document_ends[text]] - start).tolist()]
        return [content[begin:end].decode("utf-8", "surrogatepass") for begin, end in pairwise(places)]


def split(texts: Sequence[str]) -> tuple[list[str], Positions]:
    """All sentences of all texts, and per text where its sentences end in that list."""
    located = locate(texts)
    return [part for text in range(len(texts)) for part in located.strings(text)], located.document_ends


def locate(texts: Sequence[str]) -> Located:
    """Where the sentences of all texts are."""
    from data_prep import text_kernels

    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    data = np.frombuffer(_NUL.join([b"", *encoded, b""]), dtype=np.uint8)
    text_ends = np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)) + 1)
    ends = np.empty(len(data) // 2 + len(texts), dtype=np.int64)
    document_ends = np.empty(len(texts), dtype=np.int64)
    found = text_kernels.find_sentences(data, text_ends, *_characters(), ends, document_ends)
    return Located(data, text_ends, ends[:found].copy(), document_ends)


@functools.cache
def _characters() -> _Characters:
    """Made of the patterns once, on first use."""
    everything = np.arange(0x110000, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    flags = np.zeros(len(everything), dtype=np.uint8)
    letters = np.zeros(len(everything), dtype=np.uint8)
    for flag, pattern in _classes().items():
        flags[_matching(pattern, everything)] |= np.uint8(flag)
    letters[_matching(r"\w", everything)] = 1
    for place in _matching("(?i:[a-z])", everything):  # not ASCII alone: "ſ" is equal to "s"
        letters[place] = next(code for code in range(ord("a"), ord("z") + 1) if _equal(chr(code), everything[place]))
    return _Characters(flags, letters, _hashed(_ABBREVIATIONS.split()))


def _hashed(words: Sequence[str]) -> NDArray[np.uint64]:
    from data_prep import text_kernels

    table = np.zeros(text_kernels.SLOTS, dtype=np.uint64)
    for word in words:
        number = np.uint64(int.from_bytes(word.encode(), "big"))
        slot = text_kernels.hash_slot(number)
        while table[slot]:
            slot = (slot + 1) % text_kernels.SLOTS
        table[slot] = number
    return table


def _classes() -> dict[int, str]:
    """What a character is, one pattern a flag.

    White space from U+1680 on begins a sentence like all that script has there; a curly opening quote does as well, so
    that only the ASCII openers need a capital behind them.
    """
    from data_prep import text_kernels as flags

    return {
        flags.SPACE: r"\s",
        flags.NARROW_SPACE: r"[^\S\u0370-\uffff]",
        flags.IN_LINE: r"[^\S\n]",
        flags.FEED: r"\n",
        flags.MARK: r"[.!?]",
        flags.CLOSER: r"[\"'”’)\]]",
        flags.OPENER: r"[\"'(\[]",
        flags.BEGINS: r"[A-Z0-9\u00c0-\u00de\u0370-\uffff]",
    }


def _equal(letter: str, character: str) -> bool:
    return re.fullmatch(letter, character, re.IGNORECASE) is not None


def _matching(pattern: str, text: str) -> Positions:
    """Where the characters of a class stand."""
    runs = [match.span() for match in re.finditer(f"{pattern}+", text)]
    return np.concatenate([np.arange(start, end) for start, end in runs])
