"""Who goes and why: only a document that stays makes others duplicates, so no text is lost by the order of reasons."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.removals import decide, uninteresting
from data_prep.tables import Columns


def columns(contents: Sequence[int], sizes: Sequence[int] | None = None) -> Columns:
    """Documents of one unit; equal contents are copies."""
    n = len(contents)
    return Columns(
        hashes=np.array([[content, content * 7] for content in contents], dtype=np.uint64).reshape(-1, 2),
        bytes=np.array(sizes if sizes is not None else [10] * n, dtype=np.int64),
        unit=np.zeros(n, dtype=np.int64),
        row=np.arange(n, dtype=np.int64),
    )


def decided(
    contents: Sequence[int],
    *,
    sizes: Sequence[int] | None = None,
    sources: Sequence[int] | None = None,
    near: dict[int, int] | None = None,
    contaminated: Sequence[int] = (),
    max_bytes: Sequence[int | None] = (None,),
    drop_duplicates: bool = True,
) -> list[str]:
    """Reasons, shortened to a letter; "." stays."""
    reasons: Any = np.full(len(contents), "", dtype=object)
    reasons[list(contaminated)] = "contaminated:RTE"
    groups = np.full(len(contents), -1, dtype=np.int64)
    for document, group in (near or {}).items():
        groups[document] = group
    found = decide(
        columns(contents, sizes),
        reasons,
        groups,
        np.array(sources if sources is not None else [0] * len(contents), dtype=np.int64),
        max_bytes,
        drop_duplicates=drop_duplicates,
    )
    return [reason[:1] or "." for reason in found.tolist()]


def test_the_first_copy_stays() -> None:
    assert decided([1, 2, 1, 3, 2, 1]) == [".", ".", "d", ".", "d", "d"]
    assert decided([1, 2, 1], drop_duplicates=False) == [".", ".", "."]


def test_of_a_group_of_near_duplicates_the_first_stays() -> None:
    assert decided([1, 2, 3, 4, 5], near={1: 1, 3: 1, 4: 1}) == [".", ".", ".", "n", "n"]


def test_a_copy_of_a_contaminated_document_elsewhere_is_judged_for_itself() -> None:
    # a clean near duplicate of a leaky text stays, and makes the next one go
    assert decided([1, 2, 3], near={1: 1, 2: 1}, contaminated=[0]) == ["c", ".", "n"]
    assert decided([1, 1, 2], contaminated=[0]) == ["c", ".", "."]


def test_what_a_budget_cuts_from_one_source_another_may_keep() -> None:
    assert decided([1, 2, 3, 3, 1], sources=[0, 0, 0, 1, 1], max_bytes=[20, None]) == [".", ".", "o", ".", "d"]
    near = {2: 2, 3: 2}
    assert decided([1, 2, 3, 4, 1], sources=[0, 0, 0, 1, 1], near=near, max_bytes=[20, None]) == [
        ".",
        ".",
        "o",
        ".",
        "d",
    ]


def test_copies_belong_to_the_group_of_the_one_that_was_searched() -> None:
    # 2 is a copy of 0, which was searched and is nearly 1; 0 goes by the budget, so of 1 and 2 the first stays
    found = decided([5, 6, 5], sources=[0, 1, 1], near={0: 0, 1: 0}, max_bytes=[5, None])
    assert found == ["o", ".", "n"]


def test_a_budget_counts_what_is_kept_alone() -> None:
    assert decided([1, 1, 1, 2, 3], sizes=[10, 10, 10, 10, 10], max_bytes=[20]) == [".", "d", "d", ".", "o"]


@settings(derandomize=True, max_examples=300)
@given(st.data())
def test_every_text_that_is_clean_and_within_budget_is_kept_once(data: st.DataObject) -> None:
    """No document goes as a duplicate unless one of its group stays, and no group keeps two."""
    n = data.draw(st.integers(1, 30))
    contents = data.draw(st.lists(st.integers(1, 8), min_size=n, max_size=n))
    sources = sorted(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
    first_of = {content: contents.index(content) for content in contents}
    group_of = {content: data.draw(st.sampled_from([-1, 1, 2])) for content in sorted(set(contents))}
    members = [first_of[content] for content in sorted(first_of) if group_of[content] > 0]
    keepers = {
        g: min(m for m in members if group_of[contents[m]] == g) for g in {group_of[contents[m]] for m in members}
    }
    near = {m: keepers[group_of[contents[m]]] for m in members}
    contaminated = data.draw(st.sets(st.integers(0, n - 1)))
    limits = data.draw(st.lists(st.sampled_from([None, 10, 25]), min_size=3, max_size=3))
    found = decided(contents, sources=sources, near=near, contaminated=sorted(contaminated), max_bytes=limits)
    kept = [i for i in range(n) if found[i] == "."]
    assert len({contents[i] for i in kept}) == len(kept)
    kept_groups = [group_of[contents[i]] for i in kept if group_of[contents[i]] > 0]
    assert len(set(kept_groups)) == len(kept_groups)
    for i in range(n):
        if found[i] == "d":
            assert any(contents[j] == contents[i] for j in kept) or any(
                found[j] in "no" and contents[j] == contents[i] and sources[j] == sources[i] for j in range(i)
            )
        if found[i] == "n":
            assert any(group_of[contents[j]] == group_of[contents[i]] for j in kept) or any(
                found[j] == "o" and group_of[contents[j]] == group_of[contents[i]] for j in range(i)
            )
        assert (found[i] == "c") == (i in contaminated)
    for source, limit in enumerate(limits):
        assert limit is None or 10 * sum(sources[i] == source for i in kept) <= limit


@pytest.mark.parametrize(("drop", "expected"), [(True, [1, 2]), (False, [1])])
def test_contaminated_documents_and_copies_are_not_searched(drop: bool, expected: list[int]) -> None:
    reasons: Any = np.array(["", "contaminated:RTE", ""], dtype=object)
    assert uninteresting(columns([4, 5, 4]), reasons, drop_duplicates=drop).tolist() == expected
