"""Exact duplicates: the first of a group stays, whatever the order of the rest."""

import numpy as np

from data_prep import dedup


def hashed(texts: list[str]) -> np.ndarray:
    return dedup.words(np.frombuffer(b"".join(map(dedup.text_hash, texts)), dtype="V16"))


def test_normalisation_ignores_case_blanks_and_compatibility_forms() -> None:
    same = ["The ﬁle", "the  file", "THE\nFILE ", "the\u00a0file"]
    assert len({dedup.text_hash(text) for text in same}) == 1
    assert dedup.text_hash("the files") != dedup.text_hash("the file")


def test_hash_is_xxh3_128() -> None:
    """The empty input's XXH3-128, as published with the algorithm's reference implementation."""
    assert dedup.text_hash("").hex() == "99aa06d3014798d86001c324468d497f"


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
