"""Repetition is measured as the paper describes it: the same fractions as a plain implementation with a Counter."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.clean import repair
from data_prep.installed_docs import documents, list_files
from data_prep.repetition import RepetitionBounds, Words, fractions

EVERYTHING = RepetitionBounds(
    duplicate_lines=1, duplicate_line_chars=1, duplicate_paragraphs=1, duplicate_paragraph_chars=1,
    top_ngram_chars=(1, 1, 1), duplicate_ngram_chars=(1, 1, 1, 1, 1, 1),
)  # fmt: skip


def reference(text: str) -> dict[str, float]:
    """Rae et al. 2021, A.1.1, word by word: one Counter a length, one flag a word."""
    found = {}
    for kind, separator in (("line", "\n"), ("paragraph", "\n\n")):
        counts = Counter(piece.strip() for piece in text.split(separator) if piece.strip())
        chars = sum(len(piece) * count for piece, count in counts.items())
        found[f"duplicate_{kind}s"] = sum(count - 1 for count in counts.values()) / max(counts.total(), 1)
        repeated = sum(len(piece) * (count - 1) for piece, count in counts.items())
        found[f"duplicate_{kind}_chars"] = repeated / max(chars, 1)
    words = text.split()
    total = max(sum(map(len, words)), 1)
    for n in range(2, 11):
        grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        counts = Counter(grams)
        inside = [False] * len(words)
        if n <= 4:
            name = f"top_{n}_gram"
            most = max(counts.values(), default=0)
            # Counter keeps the order of first occurrence, and max takes the first of the longest
            often = [gram for gram, count in counts.items() if count == most > 1]
            top = max(often, key=lambda gram: sum(map(len, gram)), default=None)
            places = [i for i, gram in enumerate(grams) if gram == top]
        else:
            name = f"duplicate_{n}_grams"
            first = {gram: i for i, gram in reversed(list(enumerate(grams)))}
            places = [i for i, gram in enumerate(grams) if first[gram] < i]
        for i in places:
            inside[i : i + n] = [True] * n
        found[name] = sum(len(word) for word, covered in zip(words, inside, strict=True) if covered) / total
    return found


def measured(text: str) -> dict[str, float]:
    return {name: fraction for name, fraction, _ in fractions(text, Words.of(text))}


def real_texts(most: int) -> Iterator[str]:
    for file in list_files(("stdlib", "numpy")):
        for _, _, text in documents(file.package, file.name, file.path.read_bytes()):
            if cleaned := repair(text):
                yield cleaned
                most -= 1
                if most == 0:
                    return


def test_fractions_of_real_text_are_those_of_the_reference() -> None:
    texts = list(real_texts(400))
    assert len(texts) == 400
    repetitive = 0
    for text in texts:
        expected = reference(text)
        assert measured(text) == expected
        repetitive += expected["duplicate_5_grams"] > 0.15
    assert repetitive > 5  # the comparison is not one of zeros


def test_fractions_of_random_text_are_those_of_the_reference() -> None:
    rng = random.Random(0)
    for _ in range(300):
        vocabulary = ["a", "bb", "ccc", "été", "日本", "word."][: rng.randint(1, 6)]
        text = "".join(
            rng.choice(vocabulary) + rng.choice([" "] * 8 + ["\n", "\n\n"]) for _ in range(rng.randint(1, 90))
        )
        text = repair(text)
        assert measured(text) == reference(text)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "cc", "\n", "\n\n"]), max_size=60))
def test_fractions_of_any_small_text_are_those_of_the_reference(pieces: list[str]) -> None:
    text = repair(" ".join(pieces))
    assert measured(text) == reference(text)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.text(max_size=60))
def test_words_are_what_split_gives(text: str) -> None:
    text = repair(text)
    words = Words.of(text)
    assert words.distinct.take(words.ids).to_pylist() == (text.split() or [""])
    assert words.chars == sum(map(len, text.split()))


@pytest.mark.parametrize(
    ("text", "name", "fraction"),
    [
        ("a\nb\na\na", "duplicate_lines", 2 / 4),
        ("aaa\nb\naaa", "duplicate_line_chars", 3 / 7),
        ("x y\n\nz\n\nx y\n\nx y", "duplicate_paragraphs", 2 / 4),
        ("xx\ny\n\nz\n\nxx\ny", "duplicate_paragraph_chars", 4 / 9),  # a line end inside a paragraph is a character
        ("aa bb cc aa bb", "top_2_gram", 8 / 10),
        ("a a a a", "top_2_gram", 1.0),  # overlapping occurrences, each character once
        ("a b c d", "top_2_gram", 0.0),  # what occurs once is not repeated
        ("a b x a b y cc dd z cc dd", "top_2_gram", 8 / 15),  # as frequent, but longer
        ("a b c d e a b c d e", "duplicate_5_grams", 5 / 10),  # the first occurrence is not a repeat
        ("a b c d e f a b c d e f", "duplicate_5_grams", 6 / 12),  # two overlapping repeats cover six words
        ("a b c d e f a b c d e f", "duplicate_6_grams", 6 / 12),
        ("a b c d e f a b c d e f", "duplicate_7_grams", 0.0),
    ],
)
def test_fractions_from_arithmetic(text: str, name: str, fraction: float) -> None:
    assert measured(text)[name] == fraction


def test_no_later_fraction_exceeds_what_is_promised() -> None:
    for text in real_texts(100):
        found = list(fractions(text, Words.of(text)))
        for i, (_, _, later) in enumerate(found):
            assert all(fraction <= later for _, fraction, _ in found[i + 1 :])


def test_the_first_bound_exceeded_is_the_reason_whatever_is_skipped() -> None:
    bounds = RepetitionBounds()
    limits = [
        bounds.duplicate_lines, bounds.duplicate_line_chars, bounds.duplicate_paragraphs,
        bounds.duplicate_paragraph_chars, *bounds.top_ngram_chars, *bounds.duplicate_ngram_chars,
    ]  # fmt: skip
    reasons = Counter()
    for text in real_texts(400):
        over = [
            name for (name, fraction), limit in zip(reference(text).items(), limits, strict=True) if fraction > limit
        ]
        reason = bounds.reason(text, Words.of(text))
        assert reason == (over[0] if over else None)
        reasons[reason] += 1
    assert len(reasons) > 3


def test_a_bound_of_one_is_off() -> None:
    passage = " ".join(f"word{i}" for i in range(60))
    text = f"{passage}, {' '.join(f'other{i}' for i in range(200))} {passage}"
    assert RepetitionBounds().reason(text, Words.of(text)) == "duplicate_5_grams"
    assert EVERYTHING.reason(text, Words.of(text)) is None
    assert EVERYTHING.reason("again " * 100, Words.of("again " * 100)) is None


def test_thresholds_are_those_of_the_paper() -> None:
    """Rae et al. 2021, Table A1."""
    assert RepetitionBounds().model_dump() == {
        "duplicate_lines": 0.30,
        "duplicate_line_chars": 0.20,
        "duplicate_paragraphs": 0.30,
        "duplicate_paragraph_chars": 0.20,
        "top_ngram_chars": (0.20, 0.18, 0.16),
        "duplicate_ngram_chars": (0.15, 0.14, 0.13, 0.12, 0.11, 0.10),
    }


@pytest.mark.parametrize("text", ["", "one", "\n\n", "x" * 1_000_000, "a " * 200_000])
def test_extremes_are_measured(text: str) -> None:
    assert all(0 <= fraction <= 1 for fraction in measured(text).values())
