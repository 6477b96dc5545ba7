"""Exact duplicates: the first of a group stays, whatever the order of the rest."""

import sys
import unicodedata

import numpy as np
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import dedup
from data_prep.document_kernels import stable


def hashes(texts: list[str]) -> list[bytes]:
    return dedup.text_hashes([text.encode() for text in texts])


def hashed(texts: list[str]) -> np.ndarray:
    return dedup.words(np.frombuffer(b"".join(hashes(texts)), dtype="V16"))


def test_normalisation_ignores_case_blanks_controls_and_compatibility_forms() -> None:
    same = ["The ﬁle…", "the  file...", "THE\nFILE ...", "the\u00a0file\u2026", "\tthe\x00 \x7ffile. . .", "Ｔhe file…"]
    assert len(set(hashes(same))) == 1
    different = ["the files", "the file", "the fílé", "the f\u200bile", "THÉ FILE", "thé file", "\U0001f600", ""]
    assert len(set(hashes(different))) == len(different)


def test_hash_is_xxh3_128() -> None:
    """The empty input's XXH3-128, as published with the algorithm's reference implementation."""
    assert [value.hex() for value in hashes(["", " \n"])] == ["99aa06d3014798d86001c324468d497f"] * 2
    assert hashes([]) == []


JOINING = "e\u0301\u0327\u1100\u1161\u11a8가각\u3099\U00011099\U000110ba"  # alone, or with what stands before
MIXED = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from(JOINING),
        st.sampled_from("aZ@[`{ \t\n\x00\x1f\x7f\x80\x85\xa0éÉ“…ﬁ①のハ\U0001f600\U0002f800"),
    ),
    max_size=30,
)


@settings(derandomize=True, max_examples=1_000, deadline=None)
@given(st.lists(MIXED, max_size=5))
def test_every_text_is_hashed_by_its_definition_whatever_stands_beside_it(texts: list[str]) -> None:
    left_out = {code: None for code in (*range(0x21), 0x7F)}
    lower = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
    assert hashes(texts) == [
        xxhash.xxh3_128_digest(unicodedata.normalize("NFKC", text).translate(left_out | lower).encode())
        for text in texts
    ]


def test_no_character_called_stable_changes_or_joins_another() -> None:
    """From the decompositions of the whole of Unicode: whatever composes with what is before it is not stable."""
    table = stable()
    joining = set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))  # Hangul, composed by arithmetic
    for code in range(sys.maxunicode + 1):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            joining.add(int(parts[1], 16))
        if code < len(table) and table[code] and not 0xD800 <= code < 0xE000:
            assert unicodedata.combining(chr(code)) == 0 and unicodedata.normalize("NFKC", chr(code)) == chr(code)
    assert len(joining) > 100 and not any(table[code] for code in joining if code < len(table))
    assert all(table[ord(character)] for character in "aÉ“”‘’–—жあ漢\U0001f600") and not table[ord("…")]


def test_first_of_each_group_stays() -> None:
    texts = ["a", "b", "a", "c", "A", "b", "d"]
    assert dedup.duplicates(hashed(texts)).tolist() == [False, False, True, False, True, True, False]
    assert dedup.duplicates(hashed([])).tolist() == []


def test_both_words_of_the_hash_count() -> None:
    words = np.array([[1, 2], [1, 3], [2, 2], [1, 2]], dtype=np.uint64)
    assert dedup.duplicates(words).tolist() == [False, False, False, True]


def test_budget_ends_where_the_total_would_pass_it() -> None:
    assert dedup.over_budget(np.array([4, 3, 5, 1]), 8).tolist() == [False, False, True, True]
    assert dedup.over_budget(np.array([4, 4]), 8).tolist() == [False, False]
