"""The document bounds of Gopher, each with its own reason, each switched off by itself."""

import pytest

from data_prep.quality import QualityBounds
from data_prep.repetition import Words

OFF = {
    "min_words": 0,
    "max_words": None,
    "min_word_length": 0.0,
    "max_word_length": 1e9,
    "max_bullet_lines": 1.0,
    "max_ellipsis_lines": 1.0,
    "min_words_with_letter": 0.0,
    "min_stop_words": 0,
}
PROSE = "The keeper of the light went to the rocks and waited with a lantern that nobody else could have carried."


def reason(text: str, **bounds: object) -> str | None:
    return QualityBounds(**{**OFF, **bounds}).reason(text, Words.of(text))


@pytest.mark.parametrize(
    ("text", "bound", "within", "beyond", "name"),
    [
        ("one two three", "min_words", 3, 4, "few_words"),
        ("one two three", "max_words", 3, 2, "many_words"),
        ("ab abcd", "min_word_length", 3.0, 3.1, "short_words"),  # mean 3
        ("ab abcd", "max_word_length", 3.0, 2.9, "long_words"),
        ("- a\n* b\nplain\n\n• c", "max_bullet_lines", 0.75, 0.74, "bullet_lines"),  # 3 of 4 lines
        ("a...\nb\nc…\n\nd", "max_ellipsis_lines", 0.5, 0.49, "ellipsis_lines"),
        ("word 12 x1 -- 日本", "min_words_with_letter", 0.6, 0.61, "few_words_with_letter"),  # 3 of 5
        ("The cat and the hat", "min_stop_words", 2, 3, "few_stop_words"),  # "the" is one, however often
        ("there, then: toast", "min_stop_words", 0, 1, "few_stop_words"),  # parts of words are none
    ],
)
def test_each_bound(text: str, bound: str, within: object, beyond: object, name: str) -> None:
    assert reason(text, **{bound: within}) is None
    assert reason(text, **{bound: beyond}) == name


def test_the_papers_values_keep_prose_and_reject_what_they_are_for() -> None:
    bounds = QualityBounds()
    assert bounds.reason(PROSE, Words.of(PROSE)) is None
    for text, name in [
        ("a b c d e f of to", "short_words"),
        ("aaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbb", "long_words"),
        ("The number of 1000 2000 3000 4000", "few_words_with_letter"),
        ("Der Wärter stieg auf den Turm hinauf.", "few_stop_words"),
    ]:
        assert bounds.reason(text, Words.of(text)) == name
