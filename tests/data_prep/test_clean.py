"""Cleaning repairs or rejects, is idempotent, and never leaves what later steps choke on."""

import random
import unicodedata

import pytest

from data_prep.clean import CleaningConfig, clean, reject_reason, repair

LOOSE = CleaningConfig(min_chars=0, min_letters=0.0, max_symbols=1.0)


@pytest.mark.parametrize(
    ("raw", "repaired"),
    [
        ("a\x00b\x07c", "a b c"),
        ("a\r\nb\rc\u2028d", "a\nb\nc\nd"),
        ("  a \t\u00a0 b  \n\n\n\n c ", "a b\n\nc"),
        ("\ufeffa", "a"),
        ("a\n\u205f\n\u1680\n\u205f\nb", "a\n\nb"),
        ("x\ud83d\ude00y", "x\U0001f600y"),  # a pair written as two escapes
        ("x\ud800y", "x\ufffdy"),
    ],
)
def test_repairs(raw: str, repaired: str) -> None:
    assert repair(raw) == repaired


def test_any_string_comes_out_encodable_without_controls_and_stays_as_it_is() -> None:
    rng = random.Random(0)
    for _ in range(300):
        raw = "".join(
            chr(rng.choice([rng.randrange(0x20), rng.randrange(0x300), rng.randrange(0x110000)])) for _ in range(40)
        )
        text = repair(raw)
        text.encode()
        assert not any(unicodedata.category(character) == "Cc" and character != "\n" for character in text)
        assert repair(text) == text


def test_mojibake_is_repaired_on_request_only() -> None:
    pytest.importorskip("ftfy")
    mojibake = "âœ” It doesnâ€™t work"
    assert repair(mojibake, fix_encoding=True) == "✔ It doesn't work"
    assert repair(mojibake) == mojibake


@pytest.mark.parametrize(
    ("text", "config", "reason"),
    [
        ("", LOOSE, "empty"),
        ("short", CleaningConfig(), "too_short"),
        ("a" * 201, CleaningConfig(max_chars=200), "too_long"),
        ("abc 123 456", CleaningConfig(min_chars=0), "few_letters"),  # 3 letters of 9
        ("one # two # three", CleaningConfig(min_chars=0), "many_symbols"),  # 2 symbols in 5 words
        ("A fair sentence.", CleaningConfig(min_chars=16), None),
        ("Ein längerer Satz über Öl.", CleaningConfig(min_chars=0), None),
        ("これは日本語の文です", CleaningConfig(min_chars=0), None),
    ],
)
def test_reasons(text: str, config: CleaningConfig, reason: str | None) -> None:
    assert reject_reason(text, config) == reason


def test_gives_a_text_or_a_reason() -> None:
    assert clean("  fine \x00 text ", LOOSE) == ("fine text", None)
    assert clean("\x00", LOOSE) == ("", "empty")
