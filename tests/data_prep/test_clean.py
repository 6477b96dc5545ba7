"""Cleaning repairs or rejects, is idempotent, and never leaves what later steps choke on."""

import re
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.clean import CleaningConfig, clean, clean_batch, repair
from data_prep.document_kernels import count_letters

LOOSE = CleaningConfig(min_chars=0, min_letters=0.0, max_symbols=1.0)
NOTHING = LOOSE.model_copy(update={"control_characters": False, "whitespace": False})
EVERYTHING = CleaningConfig(
    repair_encoding=True, min_chars=20, max_chars=100, quality={}, repetition={}, languages=("en",)
)


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


ODD = st.text(
    st.one_of(
        st.characters(),  # any code point, lone surrogates among them
        st.sampled_from(
            "ab \n\r\t\x00\x0b\x1c\x1f\x85\x9d\xa0\u2028\u2029\u200b\u202e\u0301\u3000\ufeff\ud800\udc00אâ€œÃ©"
        ),
    ),
    max_size=40,
)


@settings(derandomize=True, max_examples=500, deadline=None)
@given(ODD, st.booleans(), st.booleans(), st.booleans())
def test_any_string_comes_out_encodable_and_stays_as_it_is(
    raw: str, encoding: bool, controls: bool, blanks: bool
) -> None:
    steps = {"fix_encoding": encoding, "control_characters": controls, "whitespace": blanks}
    text = repair(raw, **steps)
    text.encode()
    assert repair(text, **steps) == text
    if controls:
        assert not any(unicodedata.category(c) == "Cc" and c not in "\n\t\r\x0b\x0c\x85" for c in text)
    if blanks:
        assert text == text.strip(" \n")
        assert not re.search(r"[\t\r\x0b\x0c\x85\u2028\u2029\u00a0\u3000]|  | \n|\n |\n{3}", text)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(ODD)
def test_a_step_that_is_off_leaves_its_aspect_alone(raw: str) -> None:
    stored = raw.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert repair(raw, control_characters=False, whitespace=False) == stored
    # one step at a time touches only its own characters: the others come through in their order
    controls = re.sub(r"[^\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff]", "", stored)
    assert (
        re.sub(r"[^\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff]", "", repair(raw, control_characters=False)) == controls
    )
    only_controls = repair(raw, whitespace=False)
    assert len(only_controls) == len(stored)
    assert all(after in (before, " ") for before, after in zip(stored, only_controls, strict=True))


@settings(derandomize=True, max_examples=300, deadline=None)
@given(ODD.map(lambda text: text * 3))
def test_every_config_gives_a_text_or_a_reason(raw: str) -> None:
    for config in (CleaningConfig(), LOOSE, NOTHING, EVERYTHING):
        text, reason = clean(raw, config)
        text.encode()
        assert (text == "") == (reason is not None)
        if reason is None:
            assert clean(text, config) == (text, None)


@settings(derandomize=True, max_examples=500, deadline=None)
@given(st.lists(ODD.map(lambda text: text * 2) | st.sampled_from(["plain words", ""]), max_size=6))
def test_a_batch_is_cleaned_as_each_text_by_itself(texts: list[str]) -> None:
    only_controls = LOOSE.model_copy(update={"whitespace": False})
    for config in (LOOSE, NOTHING, only_controls, LOOSE.model_copy(update={"repair_encoding": True}), EVERYTHING):
        encoded, reasons = clean_batch(texts, config)
        for text, data, reason in zip(texts, encoded, reasons, strict=True):
            repaired = repair(
                text,
                fix_encoding=config.repair_encoding,
                control_characters=config.control_characters,
                whitespace=config.whitespace,
            )
            assert data.decode() == repaired and reason == clean(repaired, config)[1]
            assert clean(text, config) == ("" if reason else repaired, reason)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(ODD, ODD)
def test_controls_and_blanks_are_replaced_as_their_definitions_say(first: str, second: str) -> None:
    """Character by character, by Unicode's own properties."""
    text = (first + " " + second).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    line_ends = "\r\x0b\x0c\x85\u2028\u2029"
    controls = [c for c in set(text) if unicodedata.category(c) == "Cc" and c not in line_ends + "\n\t"]
    for control in [*controls, "\ufeff"]:
        text = text.replace(control, " ")
    plain = "".join("\n" if c in line_ends else c for c in text.replace("\r\n", "\n"))
    plain = "".join(" " if c.isspace() and c != "\n" else c for c in plain)
    lines = [" ".join(filter(None, line.split(" "))) for line in plain.split("\n")]
    expected = re.sub("\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
    assert clean_batch(["a", text, "b"], LOOSE)[0][1].decode() == expected


def test_letters_and_blanks_are_those_of_python_for_every_character() -> None:
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    letters, visible = count_letters([character.encode() for character in characters])
    assert letters.tolist() == list(map(str.isalpha, characters))
    assert visible.tolist() == [not character.isspace() for character in characters]
    text = "".join(characters)
    _, together, _ = zip(*count_letters([b"a", text.encode(), b" "]), strict=True)
    assert together == (letters.sum(), visible.sum())


def test_every_control_character_and_blank_is_seen_by_the_quick_look() -> None:
    """The quick look at the UTF-8 bytes decides whether the characters are looked at: it must miss none."""
    for code in (*range(0x3100), *range(0xFE00, 0x10000)):
        character = chr(code)
        control = unicodedata.category(character) == "Cc" or character == "\ufeff"
        kept = f"é{character}b"
        if control or (character.isspace() and character != " "):
            assert repair(kept) == ("é\nb" if character in "\n\r\x0b\x0c\x85\u2028\u2029" else "é b"), hex(code)
        else:
            assert repair(kept) == kept, hex(code)
        if not 0xD800 <= code < 0xE000:  # in a batch nothing else would have the text looked at
            beside = f"plain words{character}"
            assert clean_batch(["a", beside, "b"], LOOSE)[0][1].decode() == clean(beside, LOOSE)[0], hex(code)


def test_runs_of_megabytes_of_blanks_shrink() -> None:
    blanks = " \t\u00a0" * 1_000_000
    assert repair(f"a{blanks}b") == "a b"
    assert repair("a" + "\n \r\n" * 1_000_000 + "b") == "a\n\nb"
    assert clean(f"{blanks}\n" * 3, LOOSE) == ("", "empty")


def test_mojibake_is_repaired_on_request_only() -> None:
    pytest.importorskip("ftfy")
    mojibake = "âœ” It doesnâ€™t work"
    assert repair(mojibake, fix_encoding=True) == "✔ It doesn’t work"
    assert repair(mojibake) == mojibake
    untouched = "“&amp;” ﬁ Ａ e\u0301"  # the encoding and nothing else: no entities, ligatures, widths, accents
    assert repair(untouched, fix_encoding=True) == untouched


@pytest.mark.parametrize(
    ("text", "config", "reason"),
    [
        ("", LOOSE, "empty"),
        ("short", CleaningConfig(), "too_short"),
        ("a" * 201, CleaningConfig(max_chars=200), "too_long"),
        ("abc 123 456", CleaningConfig(min_chars=0), "few_letters"),  # 3 letters of 9
        ("one # two # three", CleaningConfig(min_chars=0), "many_symbols"),  # 2 symbols in 5 words
        ("# a ... b … c #", CleaningConfig(min_chars=0, min_letters=0.0, max_symbols=0.5), "many_symbols"),  # 4 in 7
        ("# a ... b … c #", CleaningConfig(min_chars=0, min_letters=0.0, max_symbols=0.6), None),
        ("a b c d e f g h i #", CleaningConfig(min_chars=0, min_letters=0.0), None),  # 1 in 10 is not more than 0.1
        ("a b c d e f g h #", CleaningConfig(min_chars=0, min_letters=0.0), "many_symbols"),
        ("a b c #", CleaningConfig(min_chars=0, min_letters=0.0, max_symbols=0.0), "many_symbols"),
        ("été 日本\u3000²", CleaningConfig(min_chars=0, min_letters=0.84), "few_letters"),  # 5 letters of 6
        ("été 日本\u3000²", CleaningConfig(min_chars=0, min_letters=0.83), None),
        ("a b c d e f of to", CleaningConfig(min_chars=0, quality={}), "short_words"),
        ("the same words again and again, " * 9, CleaningConfig(repetition={}), "top_2_gram"),
        (" \n ", LOOSE, "empty"),
        ("A fair sentence.", CleaningConfig(min_chars=16), None),
        ("Ein längerer Satz über Öl.", CleaningConfig(min_chars=0), None),
        ("これは日本語の文です", CleaningConfig(min_chars=0), None),
    ],
)
def test_reasons(text: str, config: CleaningConfig, reason: str | None) -> None:
    assert clean(text, config)[1] == reason


def test_gives_a_text_or_a_reason() -> None:
    assert clean("  fine \x00 text ", LOOSE) == ("fine text", None)
    assert clean("\x00", LOOSE) == ("", "empty")
