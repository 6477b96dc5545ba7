"""Whether a text reads like prose: the document bounds of Rae et al. 2021 (Gopher, section A.1.1), each optional.

Words are runs of characters between blanks, as written, so punctuation counts with the word it touches. The stop words
are English: where the corpus is in another language, `min_stop_words` has to be 0. Symbols per word, lengths in
characters, repetition and language are judged elsewhere.
"""

import re
import string
from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from data_prep.repetition import Words
from data_prep.settings import Settings

Ratio = Annotated[float, Field(ge=0.0, le=1.0)]


class QualityBounds(Settings):
    """Bounds on one document; the paper's values, but for the number of words: short documents and books are kept."""

    min_words: NonNegativeInt = 0  # the paper: 50
    max_words: PositiveInt | None = None  # the paper: 100,000
    min_word_length: NonNegativeFloat = 3.0  # mean, in characters
    max_word_length: PositiveFloat = 10.0
    max_bullet_lines: Ratio = 0.9  # of the lines that are not empty
    max_ellipsis_lines: Ratio = 0.3
    min_words_with_letter: Ratio = 0.8
    min_stop_words: Annotated[int, Field(ge=0, le=8)] = 2  # how many of the eight occur at all

    def reason(self, text: str, words: Words) -> str | None:
        """The first bound that the text breaks."""
        if len(words) < self.min_words:
            return "few_words"
        if self.max_words is not None and len(words) > self.max_words:
            return "many_words"
        return self._word_reason(words) or self._text_reason(text)

    def _word_reason(self, words: Words) -> str | None:
        if words.chars < self.min_word_length * len(words):
            return "short_words"
        if words.chars > self.max_word_length * len(words):
            return "long_words"
        if not _enough_with_letter(words, self.min_words_with_letter * len(words)):
            return "few_words_with_letter"
        return None

    def _text_reason(self, text: str) -> str | None:
        if not _enough_stop_words(text, self.min_stop_words):
            return "few_stop_words"
        lines = [stripped for line in text.split("\n") if (stripped := line.strip())]
        if sum(line.startswith(_BULLETS) for line in lines) > self.max_bullet_lines * len(lines):
            return "bullet_lines"
        if sum(line.endswith(_ELLIPSES) for line in lines) > self.max_ellipsis_lines * len(lines):
            return "ellipsis_lines"
        return None


_BULLETS = ("•", "‣", "◦", "▪", "●", "*", "-")
_ELLIPSES = ("...", "…")
_LETTER = re.compile(r"[^\W\d_]")
_STOP_WORD = re.compile(r"(?<!\S)(?:the|be|to|of|and|that|have|with)(?!\S)", re.IGNORECASE)


def _enough_with_letter(words: Words, needed: float) -> bool:
    """Words that are letters between punctuation are counted first: in prose they are enough, and cost least."""
    import pyarrow.compute as pc

    bare = pc.utf8_trim(words.distinct, characters=string.punctuation)
    plain = pc.utf8_is_alpha(bare).to_numpy(zero_copy_only=False)
    found = words.counts[plain].sum()
    if found >= needed:
        return True
    others = words.distinct.filter(~plain).to_pylist()
    with_letter = np.fromiter((_LETTER.search(word) is not None for word in others), bool, len(others))
    return bool(found + words.counts[~plain][with_letter].sum() >= needed)


def _enough_stop_words(text: str, needed: int) -> bool:
    """Reading stops at the last one needed: in English, within the first lines."""
    found: set[str] = set()
    matches = _STOP_WORD.finditer(text)
    while len(found) < needed:
        match = next(matches, None)
        if match is None:
            return False
        found.add(match[0].lower())
    return True
