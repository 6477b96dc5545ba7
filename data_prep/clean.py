"""Cleaning: repair what can be repaired, reject what is not running text, and say why.

Repaired: lone surrogates, control characters, line ends, runs of blanks; optionally mis-decoded text (ftfy). Rejected,
with a reason: too short, too long, too few letters, too many symbols. Every input gives either a text or a reason.
Language, repetition and duplicates are judged elsewhere.
"""

import importlib.util
import re
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from data_prep.settings import Settings

Ratio = Annotated[float, Field(ge=0.0, le=1.0)]


class CleaningConfig(Settings):
    """Bounds on one document, in characters after repair."""

    repair_encoding: bool = False  # ftfy: "â€œ" back to quotation marks
    min_chars: NonNegativeInt = 200
    max_chars: PositiveInt | None = None
    min_letters: Ratio = 0.6  # letters among the characters that are not blank
    max_symbols: Ratio = 0.1  # "#" and ellipses per word, as in Rae et al. 2021 (Gopher)

    @field_validator("repair_encoding")
    @classmethod
    def _can_repair(cls, wanted: bool) -> bool:
        if wanted and importlib.util.find_spec("ftfy") is None:
            raise ValueError("repair_encoding needs the package ftfy: pip install ftfy")
        return wanted


_SURROGATE = re.compile("[\ud800-\udfff]")
_LINE_END = re.compile(r"\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\ufeff]")
_BLANKS = re.compile(r"[ \t\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]+")
_BESIDE_LINE_END = re.compile(r" ?\n ?")
_PARAGRAPH = re.compile(r"\n{3,}")
_SYMBOL = re.compile(r"#|\.\.\.|…")


def clean(text: str, config: CleaningConfig) -> tuple[str, str | None]:
    """(clean text, None), or ("", the reason it was rejected)."""
    text = repair(text, fix_encoding=config.repair_encoding)
    reason = reject_reason(text, config)
    return ("", reason) if reason else (text, None)


def repair(text: str, *, fix_encoding: bool = False) -> str:
    """The text without surrogates and control characters, with `\\n` line ends and single blanks; idempotent."""
    if _SURROGATE.search(text):
        # a pair written as two escapes becomes the character it means; a lone half becomes U+FFFD
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if fix_encoding:
        import ftfy

        text = ftfy.fix_text(text)
    text = _LINE_END.sub("\n", text)
    text = _CONTROL.sub(" ", text)
    text = _BLANKS.sub(" ", text)
    text = _BESIDE_LINE_END.sub("\n", text)
    return _PARAGRAPH.sub("\n\n", text).strip()


def reject_reason(text: str, config: CleaningConfig) -> str | None:
    """Why a repaired text is not kept; None when it is."""
    if not text:
        return "empty"
    if len(text) < config.min_chars:
        return "too_short"
    if config.max_chars is not None and len(text) > config.max_chars:
        return "too_long"
    words = text.split()
    visible = sum(map(len, words))
    if sum(map(str.isalpha, text)) < config.min_letters * visible:
        return "few_letters"
    if len(_SYMBOL.findall(text)) > config.max_symbols * len(words):
        return "many_symbols"
    return None
