"""The layout `segments`: row by row what the plain implementation makes, chance by (seed, document) only."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_prep.packing import make_packer
from data_prep.rows import SpecialIds, structure
from data_prep.segments import SegmentPacker
from tests import reference_packing as reference
from tests.token_batches import BERT, DTYPE, FIRST, ROBERTA, Lengths, fragments, lengths, pack, token_batch, token_lists


def packer(
    seq_len: int, special: SpecialIds = BERT, separators: int = 1, seed: int = 0, discard: bool = False
) -> SegmentPacker:
    return SegmentPacker(
        seq_len=seq_len,
        special=special,
        pair_separators=separators,
        seed=seed,
        dtype=DTYPE,
        discard_overflow=discard,
    )


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    documents=lengths,
    keys=st.lists(st.integers(0, 2**64 - 1), min_size=10, max_size=10),
    seq_len=st.sampled_from([8, 13, 32, 64, 512]),
    family=st.sampled_from([(BERT, 1), (ROBERTA, 2)]),
    seed=st.integers(0, 3),
)
def test_rows_are_those_of_the_plain_implementation(
    documents: Lengths, keys: list[int], seq_len: int, family: tuple[SpecialIds, int], seed: int
) -> None:
    special, separators = family
    plain = reference.SegmentPacker(seq_len=seq_len, special=special, pair_separators=separators, seed=seed)
    rows = [
        row for document, key in zip(token_lists(documents), keys, strict=False) for row in plain.add(document, key)
    ]
    ours = packer(seq_len, special, separators, seed)
    got = ours.add(token_batch(documents, keys=keys[: len(documents)]))
    assert np.array_equal(got, reference.pad_rows(rows, seq_len, special.pad, DTYPE))
    assert ours.discarded_tokens == 0 and ours.flush().shape == (0, seq_len)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    documents=lengths,
    cuts=st.lists(st.integers(0, 10), max_size=4),
    seq_len=st.sampled_from([8, 32, 64]),
    discard=st.booleans(),
)
def test_batches_leave_no_trace(documents: Lengths, cuts: list[int], seq_len: int, discard: bool) -> None:
    cuts = sorted(min(cut, len(documents)) for cut in cuts)
    whole, parts = packer(seq_len, discard=discard), packer(seq_len, discard=discard)
    assert np.array_equal(pack(whole, documents), pack(parts, documents, cuts))
    assert whole.discarded_tokens == parts.discarded_tokens


@pytest.mark.parametrize(("special", "separators"), [(BERT, 1), (ROBERTA, 2)])
def test_every_token_once_and_in_order(special: SpecialIds, separators: int) -> None:
    rng = np.random.default_rng(0)
    documents = [rng.choice([0, 1, 5, 12, 25, 90], size=20).tolist() for _ in range(60)]
    rows = pack(packer(64, special, separators), documents)
    found = fragments(rows, special)
    assert len(found) == len(rows)
    assert [token for fragment in found for token in fragment] == list(range(FIRST, FIRST + sum(map(sum, documents))))
    assert set((rows == special.sep).sum(axis=1).tolist()) == {1, 1 + separators}
    pairs = rows[(rows == special.sep).sum(axis=1) > 1]
    for row, types_L in zip(pairs, structure(pairs, special).types, strict=True):
        first = row.tolist().index(special.sep)
        assert (row[first : first + separators] == special.sep).all() and row[first + separators] >= FIRST
        assert not types_L[: first + separators].any()
        assert np.array_equal(types_L[first + separators :], row[first + separators :] != special.pad)


def test_a_long_document_of_one_sentence() -> None:
    rows = packer(32).add(token_batch([[1_000_000]]))
    assert [token for fragment in fragments(rows[:50], BERT) for token in fragment] == list(range(10, 10 + 50 * 30))
    assert np.array_equal(rows[rows >= FIRST], np.arange(FIRST, FIRST + 1_000_000))


def test_full_rows_follow_from_sentences_that_fit_exactly() -> None:
    """Ten-token sentences, rows of 43: A's target is 20, so A holds 10 or 20 tokens, below 30 after a carried rest."""
    rows = packer(43).add(token_batch([[10] * 40]))
    full = rows[:-1][(rows[:-1] != BERT.pad).all(axis=1)]
    assert len(full) >= 0.8 * (len(rows) - 1)  # all but the random shorter targets
    first_segments = [row.index(BERT.sep) - 1 for row in full.tolist() if row.count(BERT.sep) == 2]
    assert first_segments and max(first_segments) < 30


def test_shares_of_single_segments_and_of_short_targets() -> None:
    """One-token sentences: a row is short only by the 5 % coin, and has one segment only by the 10 % coin."""
    rows = packer(32, seed=1).add(token_batch([[1] * 400_000], keys=[5]))[:-1]
    lengths_n, seps = (rows != BERT.pad).sum(axis=1), (rows == BERT.sep).sum(axis=1)
    n = len(rows)
    # targets 5..32 are equally likely (28 values); those of 27 and more fill 30 places with up to three special tokens
    assert abs((lengths_n < 30).mean() - 0.05 * 22 / 28) < 4 * (0.05 / n) ** 0.5
    assert abs((seps[lengths_n >= 30] == 1).mean() - 0.1) < 4 * (0.1 * 0.9 / n) ** 0.5


def test_rows_of_a_document_depend_on_seed_and_document_only() -> None:
    rng = np.random.default_rng(1)
    documents = [rng.choice([1, 5, 12, 25], size=40).tolist() for _ in range(5)]

    def rows(order: list[int], seed: int) -> dict[int, NDArray[np.uint32]]:
        made = packer(64, seed=seed)
        return {n: made.add(token_batch([documents[n]], keys=[n * 2**61])) for n in order}

    first, again, other = rows([0, 1, 2, 3, 4], 0), rows([4, 2, 0, 1, 3], 0), rows([0, 1, 2, 3, 4], 1)
    assert all(np.array_equal(first[n], again[n]) for n in range(5))
    assert not all(np.array_equal(first[n], other[n]) for n in range(5))


def discarding(document: list[list[int]], key: int, seed: int, seq_len: int) -> list[list[int]]:
    """build_pretraining_dataset's ExampleBuilder on one document, sentence by sentence, except that no sentence joins A
    after B has begun, and that a document begins with the full target."""
    coins = reference._Coins(seed, key)
    rows: list[list[int]] = []
    current: list[list[int]] = []
    target = seq_len

    def create() -> None:
        first_target = 100_000 if coins() < 0.1 else (target - 3) // 2
        a: list[int] = []
        b: list[int] = []
        for sentence in current:
            if not b and (not a or len(a) + len(sentence) < first_target or (len(a) < first_target and coins() < 0.5)):
                a = a + sentence
            else:
                b = b + sentence
        a = a[: seq_len - 2]
        b = b[: max(0, seq_len - len(a) - 3)]
        rows.append([BERT.cls, *a, BERT.sep, *([*b, BERT.sep] if b else [])])

    for sentence in filter(None, document):
        current.append(sentence)
        if sum(map(len, current)) >= target:
            create()
            current = []
            target = seq_len
            if coins() < 0.05:
                target = 5 + int(coins() * (seq_len - 4))
    if current:
        create()
    return rows


@settings(derandomize=True, deadline=None, max_examples=200)
@given(documents=lengths, seed=st.integers(0, 5), seq_len=st.sampled_from([8, 32, 64, 512]))
def test_overflow_is_discarded_as_the_reference_does_and_counted(documents: Lengths, seed: int, seq_len: int) -> None:
    ours = packer(seq_len, seed=seed, discard=True)
    rows = pack(ours, documents)
    expected = [
        row for key, document in enumerate(token_lists(documents)) for row in discarding(document, key, seed, seq_len)
    ]
    assert np.array_equal(rows, reference.pad_rows(expected, seq_len, BERT.pad, DTYPE))
    assert ours.discarded_tokens == sum(map(sum, documents)) - int((rows >= FIRST).sum())


def test_what_is_discarded_by_arithmetic() -> None:
    """Sentences of 12 for rows of 32: three reach the target; 29 or 30 places hold tokens, so 6 or 7 of 36 are lost."""
    ours = make_packer(
        "segments",
        seq_len=32,
        special=BERT,
        pair_separators=1,
        seed=0,
        continues=np.zeros(0, dtype=np.bool_),
        dtype=DTYPE,
        discard_overflow=True,
    )
    rows = ours.add(token_batch([[12, 12, 12]]))
    assert len(rows) == 1 and ours.discarded_tokens == 36 - (32 - 1 - int((rows == BERT.sep).sum()))
    starts = ours.add(token_batch([[30] * 50], keys=[7]))[:, 1].tolist()
    assert all((after - before) % 30 == 0 for before, after in pairwise(starts))  # rows begin with sentences
