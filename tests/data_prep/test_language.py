"""The language of a text from a bounded sample, with nothing downloaded."""

import pytest
from pydantic import ValidationError

from data_prep.clean import CleaningConfig, clean
from data_prep.language import PIECE_CHARS, PIECES, identify, known, sample

# The Universal Declaration of Human Rights, article 1.
ARTICLE = {
    "en": "All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience "
    "and should act towards one another in a spirit of brotherhood.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen begabt "
    "und sollen einander im Geist der Brüderlichkeit begegnen.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de "
    "conscience et doivent agir les uns envers les autres dans un esprit de fraternité.",
    "es": "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de razón y "
    "conciencia, deben comportarse fraternalmente los unos con los otros.",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью и "
    "должны поступать в отношении друг друга в духе братства.",
    "ja": "すべての人間は、生れながらにして自由であり、かつ、尊厳と権利とについて平等である。",
}


@pytest.mark.parametrize("code", ARTICLE)
def test_names_the_language(code: str) -> None:
    found, probability = identify(ARTICLE[code])
    assert found == code
    assert probability >= 0.9


def test_text_without_letters_is_in_no_language() -> None:
    assert identify("12 345 - 67")[1] < 0.1


def test_the_sample_is_bounded_and_reaches_both_ends() -> None:
    text = "".join(chr(0x4E00 + i) for i in range(20_000))
    pieces = sample(text).split("\n")
    assert [len(piece) for piece in pieces] == [PIECE_CHARS] * PIECES
    assert pieces[0][0] == text[0]
    assert pieces[-1][-1] == text[-1]
    assert all(piece in text for piece in pieces)
    assert sample("short") == "short"


def test_cleaning_keeps_the_languages_asked_for() -> None:
    config = CleaningConfig(min_chars=0, languages=("en", "fr"))
    reasons = {code: clean(text, config)[1] for code, text in ARTICLE.items()}
    assert {code for code, reason in reasons.items() if reason is None} == {"en", "fr"}
    assert set(reasons.values()) == {None, "other_language"}
    strict = CleaningConfig(min_chars=0, min_letters=0, languages=("en",), min_language_probability=0.99)
    assert clean("12 345 - 67", strict) == ("", "uncertain_language")


def test_a_code_the_model_does_not_know_is_refused() -> None:
    assert {"en", "de", "zh"} <= known()
    with pytest.raises(ValidationError, match="english is not one"):
        CleaningConfig(languages=("en", "english"))
    with pytest.raises(ValidationError, match="the list is empty"):
        CleaningConfig(languages=())
