"""Cleaning: repair what can be repaired, reject what is not running text, and say why.

Repaired, each step optional: mis-decoded text (ftfy), control characters, line ends and runs of blanks. Lone surrogates
are always repaired, because they cannot be stored. Rejected, each with its own reason: too short, too long, too few
letters, too many symbols, not like prose (quality.py), repetitive (repetition.py), another language (language.py).
Every input gives either a text that encodes to UTF-8 or a reason, in time linear in its length; a step that is off
leaves its aspect untouched. Duplicates between documents are judged elsewhere.
"""

import importlib.util
import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from data_prep import language
from data_prep.quality import QualityBounds
from data_prep.repetition import RepetitionBounds, Words
from data_prep.settings import Settings

Ratio = Annotated[float, Field(ge=0.0, le=1.0)]


class CleaningConfig(Settings):
    """Repairs and bounds of one document; lengths are in characters after repair."""

    repair_encoding: bool = False  # ftfy: "â€œ" back to quotation marks
    control_characters: bool = True  # NUL, escape codes, byte order marks become blanks
    whitespace: bool = True  # one kind of line end, single blanks, at most one empty line
    min_chars: NonNegativeInt = 200
    max_chars: PositiveInt | None = None
    min_letters: Ratio = 0.6  # letters among the characters that are not blank; 0: off
    max_symbols: Ratio = 0.1  # "#" and ellipses per word, as in Rae et al. 2021 (Gopher); 1: off
    quality: QualityBounds | None = None  # Gopher's document bounds, for English from the web; {}: the paper's values
    repetition: RepetitionBounds | None = None  # Gopher's repetition bounds; {}: the paper's values
    languages: tuple[str, ...] | None = None  # ISO 639 codes to keep, such as [en]; null: any
    min_language_probability: Ratio = 0.5  # below it a text is in no language worth keeping

    @field_validator("repair_encoding")
    @classmethod
    def _can_repair(cls, wanted: bool) -> bool:
        if wanted and importlib.util.find_spec("ftfy") is None:
            raise ValueError("repair_encoding needs the package ftfy: pip install ftfy")
        return wanted

    @field_validator("languages")
    @classmethod
    def _can_identify(cls, wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if wanted is None:
            return None
        if not language.installed():
            raise ValueError("languages needs the package py3langid: pip install py3langid")
        if not wanted or (unknown := sorted(set(wanted) - language.known())):
            named = f"{', '.join(unknown)} is not one" if wanted else "the list is empty"
            raise ValueError(f"languages takes ISO 639 codes such as en or de, and {named}")
        return wanted


def clean(text: str, config: CleaningConfig) -> tuple[str, str | None]:
    """(clean text, None), or ("", the reason it was rejected)."""
    (data,), (reason,) = clean_batch([text], config)
    return ("", reason) if reason else (data.decode(), None)


def clean_batch(texts: Sequence[str], config: CleaningConfig) -> tuple[list[bytes], list[str | None]]:
    """The repaired texts in UTF-8, and the reasons: None where a text is kept. All are looked at in one pass over their
    bytes; only those that need it are touched."""
    from data_prep.document_kernels import BLANK, CONTROL, EDGE, WIDE, oddities

    try:
        encoded = list(map(str.encode, texts))
    except UnicodeEncodeError:
        texts = list(map(_without_surrogates, texts))
        encoded = list(map(str.encode, texts))
    steps = CONTROL * config.control_characters | (BLANK | WIDE | EDGE) * config.whitespace
    repaired = list(texts)
    for number, odd in enumerate(oddities(encoded).tolist()):
        if config.repair_encoding and not texts[number].isascii():
            repaired[number] = repair(
                texts[number],
                fix_encoding=True,
                control_characters=config.control_characters,
                whitespace=config.whitespace,
            )
        elif odd & steps:
            repaired[number] = _tidy(texts[number], odd, config.control_characters, config.whitespace)
        else:
            continue
        encoded[number] = repaired[number].encode()
    return encoded, _reasons(repaired, encoded, config)


# --- Repair ---


def repair(text: str, *, fix_encoding: bool = False, control_characters: bool = True, whitespace: bool = True) -> str:
    """The text without surrogates and control characters, with `\\n` line ends and single blanks; idempotent."""
    from data_prep.document_kernels import oddities

    while True:
        before = text
        text = _without_surrogates(text)
        if fix_encoding and not text.isascii() and (fixed := _fix_encoding(text)) != text:
            text = _without_surrogates(fixed)
        text = _tidy(text, int(oddities([text.encode()])[0]), control_characters, whitespace)
        # what the later steps change can show mis-decoded text that was hidden; without that step one round is enough
        if not fix_encoding or text == before:
            return text


def _tidy(text: str, odd: int, control_characters: bool, whitespace: bool) -> str:
    """What of the steps that are on a text needs by its bits of `oddities`."""
    from data_prep.document_kernels import CONTROL, EDGE, WIDE

    if control_characters and odd & CONTROL:
        text = _CONTROL.sub(" ", text)
    if not whitespace or not odd:
        return text
    return text.strip(" \n") if odd == EDGE else _normal_whitespace(text, wide=bool(odd & WIDE))


def _without_surrogates(text: str) -> str:
    """Text that can be stored: two escapes of a pair become its character, a lone half becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _fix_encoding(text: str) -> str:
    """Mis-decoded text back to what was meant, line by line, and nothing else of what ftfy can do."""
    import ftfy

    only_encoding = ftfy.TextFixerConfig(
        unescape_html=False,
        remove_terminal_escapes=False,
        fix_latin_ligatures=False,
        fix_character_width=False,
        uncurl_quotes=False,
        fix_line_breaks=False,
        fix_surrogates=False,
        remove_control_chars=False,
        normalization=None,
    )
    return ftfy.fix_text(text, only_encoding)


def _normal_whitespace(text: str, *, wide: bool) -> str:
    """`\\n` line ends, single blanks, none beside line ends, at most one empty line; nothing at either end."""
    if wide:
        text = _WIDE_BLANK.sub(" ", _WIDE_LINE_END.sub("\n", text))
    text = text.replace("\r\n", "\n")
    for mark, plain in _MARKS:
        text = text.replace(mark, plain)
    text = _BLANKS.sub(" ", text)
    text = text.replace(" \n", "\n").replace("\n ", "\n")
    return _PARAGRAPH.sub("\n\n", text).strip(" \n")


# Control characters but those that end lines or separate words: they belong to whitespace.
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff]")
_WIDE_LINE_END = re.compile(r"[\x85\u2028\u2029]")
_WIDE_BLANK = re.compile(r"[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_MARKS = (("\r", "\n"), ("\x0b", "\n"), ("\x0c", "\n"), ("\t", " "))
_BLANKS = re.compile("  +")
_PARAGRAPH = re.compile("\n\n\n+")


# --- Rejection ---


def _reasons(texts: Sequence[str], encoded: Sequence[bytes], config: CleaningConfig) -> list[str | None]:
    few_letters = _too_few_letters(encoded, config.min_letters)
    return [_reason(text, few, config) for text, few in zip(texts, few_letters, strict=True)]


def _reason(text: str, few_letters: bool, config: CleaningConfig) -> str | None:
    """The first of the reasons. Only bounds that are on cost time."""
    if not text or text.isspace():
        return "empty"
    if len(text) < config.min_chars:
        return "too_short"
    if config.max_chars is not None and len(text) > config.max_chars:
        return "too_long"
    if few_letters:
        return "few_letters"
    if config.max_symbols < 1 and _too_many_symbols(text, config.max_symbols):
        return "many_symbols"
    if config.quality is not None or config.repetition is not None:
        words = Words.of(text)
        for bounds in (config.quality, config.repetition):
            if bounds is not None and (reason := bounds.reason(text, words)):
                return reason
    return None if config.languages is None else _language_reason(text, config, config.languages)


def _language_reason(text: str, config: CleaningConfig, wanted: tuple[str, ...]) -> str | None:
    code, probability = language.identify(text)
    if probability < config.min_language_probability:
        return "uncertain_language"
    return None if code in wanted else "other_language"


def _too_few_letters(encoded: Sequence[bytes], least: float) -> list[bool]:
    if least == 0.0:
        return [False] * len(encoded)
    from data_prep.document_kernels import count_letters

    letters, visible = count_letters(encoded)
    few: list[bool] = (letters < least * visible).tolist()
    return few


def _too_many_symbols(text: str, most: float) -> bool:
    """Words are counted no further than would be enough for the symbols found, so a book is not split into words."""
    symbols = sum(map(text.count, _SYMBOLS))
    if symbols == 0 or most == 0.0:
        return symbols > 0
    return symbols > most * len(text.split(maxsplit=int(symbols / most) + 1))


_SYMBOLS = ("#", "...", "…")
