"""The layout `packed`: whole sentences of one document, best fit, nothing lost, no trace of batches."""

import itertools
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_prep.errors import DataError
from data_prep.packing import OPEN_ROWS, BestFitPacker, make_packer
from data_prep.rows import SpecialIds, fragment_lengths, structure
from data_prep.token_batch import TokenBatch
from tests.reference_packing import SentencePacker
from tests.token_batches import BERT, DTYPE, FIRST, ROBERTA, Lengths, fragments, lengths, pack, token_batch, token_lists

WORDS = np.zeros(2_000_000, dtype=np.bool_)  # every token is a word


def packer(
    seq_len: int, special: SpecialIds = BERT, continues: NDArray[np.bool_] = WORDS, open_rows: int = OPEN_ROWS
) -> BestFitPacker:
    return BestFitPacker(seq_len=seq_len, special=special, continues=continues, dtype=DTYPE, open_rows=open_rows)


def row_lengths(documents: Lengths, seq_len: int) -> list[list[int]]:
    """The lengths of the fragments of each row, special ids left out."""
    rows = pack(packer(seq_len), documents)
    return [(fragment_lengths(structure(row[None], BERT).fragment) - 2).tolist() for row in rows]


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    documents=lengths,
    seq_len=st.sampled_from([4, 8, 13, 32, 64, 512]),
    special=st.sampled_from([BERT, ROBERTA]),
    every=st.sampled_from([1, 3, 50]),
    open_rows=st.sampled_from([1, 2, OPEN_ROWS]),
)
def test_every_token_once_cut_where_it_may_be_cut(
    documents: Lengths, seq_len: int, special: SpecialIds, every: int, open_rows: int
) -> None:
    continues = np.arange(100_000) % every != 0  # words of `every` tokens
    rows = pack(packer(seq_len, special, continues, open_rows), documents)
    assert rows.dtype == DTYPE and rows.shape[1] == seq_len
    found = sorted(fragments(rows, special))
    assert [token for fragment in found for token in fragment] == list(range(FIRST, FIRST + sum(map(sum, documents))))
    sentences = [sentence for document in token_lists(documents) for sentence in document if sentence]
    sentence_of = {token: sentence for sentence in sentences for token in sentence}
    document_ends = {document[-1][-1] for document in token_lists([[n for n in d if n] for d in documents]) if document}
    for fragment, following in pairwise([*found, [-1]]):
        assert document_ends.isdisjoint(fragment[:-1])  # a fragment is of one document
        last, sentence = fragment[-1], sentence_of[fragment[-1]]
        if last != sentence[-1]:
            assert len(sentence) > seq_len - 2  # only such a sentence is cut,
            inside_a_word = continues[following[0]]
            word = list(itertools.takewhile(lambda token: continues[token], sentence[sentence.index(last) :: -1]))
            # and only such a word
            assert not inside_a_word or (len(fragment) == seq_len - 2 and len(word) >= len(fragment) - 1)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(documents=lengths, cuts=st.lists(st.integers(0, 10), max_size=4), seq_len=st.sampled_from([8, 32, 64]))
def test_batches_leave_no_trace(documents: Lengths, cuts: list[int], seq_len: int) -> None:
    cuts = sorted(min(cut, len(documents)) for cut in cuts)
    whole, parts = packer(seq_len, open_rows=3), packer(seq_len, open_rows=3)
    assert np.array_equal(pack(whole, documents), pack(parts, documents, cuts))
    # and a packer is as new after `flush`
    assert np.array_equal(pack(whole, documents), pack(parts, documents))
    assert len(parts.flush()) == 0


def naive_best_fit(sizes: list[int], seq_len: int, limit: int) -> list[list[int]]:
    """Rows as lists of the numbers of what is in them: of all open rows the one with the least sufficient room."""
    open_rows: list[list[int]] = []  # oldest first
    closed: list[list[int]] = []

    def room(row: list[int]) -> int:
        return seq_len - sum(sizes[n] for n in row)

    for number, size in enumerate(sizes):
        fitting = [row for row in open_rows if room(row) >= size]
        if not fitting and len(open_rows) == limit:
            closed.append(open_rows.pop(open_rows.index(min(open_rows, key=room))))
        row = min(fitting, key=room) if fitting else []
        if not fitting:
            open_rows.append(row)
        row.append(number)
        if room(row) < 3:
            closed.append(open_rows.pop([open_row is row for open_row in open_rows].index(True)))
    return closed + open_rows


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    sizes=st.lists(st.integers(1, 30), max_size=60),
    open_rows=st.sampled_from([1, 2, 5, OPEN_ROWS]),
)
def test_best_fit(sizes: list[int], open_rows: int) -> None:
    """Documents that fit a row are what a search through all open rows makes of them."""
    rows = pack(packer(32, open_rows=open_rows), [[size] for size in sizes])
    first_tokens = [FIRST, *(np.cumsum(sizes) + FIRST).tolist()][: len(sizes)]
    number = {token: n for n, token in enumerate(first_tokens)}
    found = [[number[fragment[0]] for fragment in fragments(row[None], BERT)] for row in rows]
    assert found == naive_best_fit([size + 2 for size in sizes], 32, open_rows)


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ([[21], [9, 9], [10], [3, 4]], [[21, 7], [18, 10]]),  # 23 + 9 = 20 + 12 = 32: no padding
        ([[30], [30]], [[30], [30]]),
        ([[20, 9, 20]], [[29], [20]]),  # whole sentences
        ([[20, 50, 9]], [[20], [30], [29]]),  # a sentence of 50 fills a row; its rest is a sentence like any other
        ([[0, 0], [], [0, 5, 0]], [[5]]),
        ([[10], [18, 12, 18]], [[10, 18], [30]]),  # 10 leaves room for 18, and the rest fills a row too
        ([[9], [17, 13, 2]], [[9, 2], [30]]),  # 17 would leave two places free: no reason to stop there
        ([[18], [10, 15, 20]], [[18], [25], [20]]),  # 10 would fill the row, but is too short to be cut off for it
    ],
)
def test_rows_that_follow_from_the_lengths(documents: Lengths, expected: list[list[int]]) -> None:
    assert sorted(row_lengths(documents, 32)) == sorted(expected)


def test_a_cut_sentence_is_cut_between_words() -> None:
    continues = np.zeros(200, dtype=np.bool_)
    continues[FIRST + 26 : FIRST + 33] = True  # the word that begins with token 25 would straddle the row's end at 30
    continues[FIRST + 60 : FIRST + 100] = True  # this one is longer than a row
    rows = pack(packer(32, continues=continues), [[100]])
    assert [len(fragment) for fragment in sorted(fragments(rows, BERT))] == [25, 30, 4, 30, 11]


def test_open_rows_are_bounded_and_the_fullest_goes_first() -> None:
    bounded = packer(32, open_rows=3)
    first = bounded.add(token_batch([[16], [26], [17]]))
    assert len(first) == 0
    rows = bounded.add(token_batch([[18]], first=100))  # fits none of them: 28 of 32 places are taken in the fullest
    assert [len(fragment) for fragment in fragments(rows, BERT)] == [26]
    assert [len(fragment) for fragment in fragments(bounded.flush(), BERT)] == [16, 17, 18]  # oldest first


def test_memory_does_not_grow_with_the_number_of_documents() -> None:
    bounded = packer(32, open_rows=4)
    slots = set()
    for _ in range(50):
        bounded.add(token_batch([[16], [17], [18], [19], [20], [21]]))
        slots.add(len(bounded._rows))
    assert max(slots) <= 4 + 6  # those open before a batch, and those it can complete


def test_fuller_rows_and_hardly_more_fragments_than_in_document_order() -> None:
    """Lengths like those of prose: sentences of about 25 tokens, documents of about 600."""
    rng = np.random.default_rng(0)
    documents = [rng.integers(5, 45, size=max(1, int(n))).tolist() for n in rng.lognormal(2.8, 0.9, size=3_000)]
    rows = pack(packer(512), documents)
    peer = SentencePacker(seq_len=512, special=BERT)
    peers = [row for document in token_lists(documents) for row in peer.add(document, 0)] + peer.flush()
    assert len(rows) < len(peers) and np.mean(rows == BERT.pad) < 0.02
    assert len(fragments(rows, BERT)) < 1.05 * sum(row.count(BERT.cls) for row in peers)


def test_an_id_that_would_wrap_is_refused() -> None:
    narrow = make_packer(
        "packed", seq_len=8, special=BERT, pair_separators=1, seed=0, continues=WORDS, dtype=np.dtype("<u2")
    )
    batch = TokenBatch(np.array([65_546]), np.array([1]), np.array([1]), np.array([0], dtype=np.uint64))
    with pytest.raises(DataError, match="65546"):
        narrow.add(batch)
