"""Rows: sentences put together again, layouts by the rules, no token lost, chance by document only."""

import itertools
import random
import time

import numpy as np
import pytest

from data_prep import packing
from data_prep.packing import SegmentPacker, SentencePacker, make_packer, pad_rows, split_sentences
from data_prep.rows import SpecialIds, fragment_lengths, structure

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)


def make_documents(count: int, seed: int = 0) -> list[list[list[int]]]:
    """Documents of 1 to 30 sentences of 0 to 90 tokens; every token of the corpus is different."""
    rng, tokens = random.Random(seed), itertools.count(10)
    return [
        [[next(tokens) for _ in range(rng.choice([0, 1, 5, 12, 25, 90]))] for _ in range(rng.randint(1, 30))]
        for _ in range(count)
    ]


def content(rows: list[list[int]]) -> list[int]:
    return [token for row in rows for token in row if token >= 10]


def flat(documents: list[list[list[int]]]) -> list[int]:
    return [token for document in documents for sentence in document for token in sentence]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three?", ["One.", " Two!", " Three?"]),
        ("Version 1.2 is out. It works.", ["Version 1.2 is out.", " It works."]),
        ("See e.g. The Times, i.e. This one.", ["See e.g. The Times, i.e. This one."]),
        ("Dr. J. R. Smith came. He left.", ["Dr. J. R. Smith came.", " He left."]),
        ('He said "Go." Then (he went.) And so on.', ['He said "Go."', " Then (he went.)", " And so on."]),
        ("and so on. but lower case", ["and so on. but lower case"]),
        ("A heading\n\nA paragraph. 3 more.", ["A heading", "\n\nA paragraph.", " 3 more."]),
        ("It ends etc.\n\nNew paragraph.", ["It ends etc.", "\n\nNew paragraph."]),
        ("no end", ["no end"]),
        ("Trailing blank. ", ["Trailing blank. "]),
        ("", []),
        ("  \n\n ", []),
        ("Wait... What?! Yes.", ["Wait...", " What?!", " Yes."]),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def test_sentences_join_to_the_text() -> None:
    rng = random.Random(0)
    for _ in range(500):
        text = (
            "".join(rng.choice(["a", "B", ". ", "! ", "\n", "\n\n", '"', " ", "e.g. ", "3"]) for _ in range(40)) + "x"
        )
        assert "".join(split_sentences(text)) == text


@pytest.mark.parametrize(
    "text",
    ["a" + "\n\u205f" * 100_000 + "b", "\n" * 200_000, "." * 200_000 + "a", "." + " " * 200_000 + "a", '!")' * 70_000],
    ids=["blank lines", "line feeds", "marks", "blanks", "quotes"],
)
def test_any_text_is_cut_in_linear_time(text: str) -> None:
    started = time.process_time()
    sentences = split_sentences(text)
    assert time.process_time() - started < 5  # quadratic, each of these takes minutes
    assert "".join(sentences) == (text if text.strip() else "")


def test_a_long_document_is_packed_in_linear_time() -> None:
    document = [list(range(10, 1_000_010))]
    started = time.process_time()
    rows = SegmentPacker(seq_len=32, special=SPECIAL, pair_separators=1, seed=0).add(document, 0)
    assert time.process_time() - started < 5  # 33,000 rows, each of which used to copy all that followed it
    assert content(rows) == document[0]


@pytest.mark.parametrize("layout", ["segments", "packed"])
@pytest.mark.parametrize("separators", [1, 2])
def test_every_token_lands_in_exactly_one_row_in_order(layout: packing.Layout, separators: int) -> None:
    documents = make_documents(40)
    packer = make_packer(layout, seq_len=64, special=SPECIAL, pair_separators=separators, seed=0)
    rows = [row for number, document in enumerate(documents) for row in packer.add(document, number)] + packer.flush()
    assert content(rows) == flat(documents)
    assert max(map(len, rows)) <= 64
    for row in rows:
        assert row[0] == SPECIAL.cls and row[-1] == SPECIAL.sep


def test_segments_are_one_fragment_of_one_document_with_at_most_two_segments() -> None:
    packer = SegmentPacker(seq_len=64, special=SPECIAL, pair_separators=1, seed=0)
    for number, document in enumerate(make_documents(60)):
        rows = packer.add(document, number)
        assert content(rows) == [token for sentence in document for token in sentence]
        for row in rows:
            assert row.count(SPECIAL.cls) == 1 and row.count(SPECIAL.sep) in (1, 2)
    assert packer.flush() == []


def test_two_separators_stand_between_the_segments_of_a_roberta_pair() -> None:
    packer = SegmentPacker(seq_len=64, special=SPECIAL, pair_separators=2, seed=0)
    rows = [row for number, document in enumerate(make_documents(60)) for row in packer.add(document, number)]
    pairs = [row for row in rows if row.count(SPECIAL.sep) > 1]
    assert pairs
    for row in pairs:
        first = row.index(SPECIAL.sep)
        assert row[first + 1] == SPECIAL.sep and row.count(SPECIAL.sep) == 3
    types = structure(pad_rows(pairs, 64, 0, np.dtype("<u4")), SPECIAL).types
    for row, types_L in zip(pairs, types, strict=True):
        first = row.index(SPECIAL.sep)
        assert not types_L[: first + 2].any() and types_L[first + 2 : len(row)].all()


def test_full_rows_follow_from_sentences_that_fit_exactly() -> None:
    """Ten-token sentences, rows of 43: A's target is 20, so A holds 10 or 20 tokens, below 30 after a carried rest."""
    document = [list(range(100 + 10 * i, 110 + 10 * i)) for i in range(40)]
    rows = SegmentPacker(seq_len=43, special=SPECIAL, pair_separators=1, seed=0).add(document, 0)
    full = [row for row in rows[:-1] if len(row) == 43]
    assert len(full) >= 0.8 * (len(rows) - 1)  # all but the random shorter targets
    first_segments = [row.index(SPECIAL.sep) - 1 for row in full if row.count(SPECIAL.sep) == 2]
    assert first_segments and max(first_segments) < 30
    assert rows[0].count(SPECIAL.sep) == 1 or first_segments[0] in (10, 20)
    assert len(rows[0]) == 43 and content(rows[:1]) == list(range(100, 100 + 43 - rows[0].count(SPECIAL.sep) - 1))


def test_shares_of_single_segments_and_of_short_targets() -> None:
    """One-token sentences: a row is short only by the 5 % coin, and has one segment only by the 10 % coin."""
    document = [[10 + i] for i in range(400_000)]
    rows = SegmentPacker(seq_len=32, special=SPECIAL, pair_separators=1, seed=1).add(document, 5)[:-1]
    n = len(rows)
    short = sum(len(row) < 30 for row in rows) / n
    single = sum(row.count(SPECIAL.sep) == 1 for row in rows if len(row) >= 30) / sum(len(row) >= 30 for row in rows)
    # targets 5..32 are equally likely (28 values); those of 27 and more fill 30 places with up to three special tokens
    assert abs(short - 0.05 * 22 / 28) < 4 * (0.05 / n) ** 0.5
    assert abs(single - 0.1) < 4 * (0.1 * 0.9 / n) ** 0.5


def test_rows_of_a_document_do_not_depend_on_its_neighbours_but_on_seed_and_document() -> None:
    documents = make_documents(5)

    def rows(order: list[int], seed: int) -> dict[int, list[list[int]]]:
        packer = SegmentPacker(seq_len=64, special=SPECIAL, pair_separators=1, seed=seed)
        return {number: packer.add(documents[number], number * 2**60) for number in order}

    assert rows([0, 1, 2, 3, 4], 0) == rows([4, 2, 0, 1, 3], 0)
    assert rows([0, 1, 2, 3, 4], 0) != rows([0, 1, 2, 3, 4], 1)


def test_packed_fragments_hold_whole_sentences_of_one_document() -> None:
    documents = [
        [[10] * 10, [11] * 20],  # fills 32 of 40 places
        [[12] * 30],  # needs a new row
        [[13] * 3],  # 8 places are left: too few to begin a fragment
        [[14] * 50],  # longer than a row: cut
    ]
    packer = SentencePacker(seq_len=40, special=SPECIAL)
    rows = [row for document in documents for row in packer.add(document, 0)] + packer.flush()
    assert rows == [
        [2, *[10] * 10, *[11] * 20, 3],
        [2, *[12] * 30, 3],
        [2, *[13] * 3, 3],
        [2, *[14] * 38, 3],
        [2, *[14] * 12, 3],
    ]
    packer = SentencePacker(seq_len=40, special=SPECIAL)
    rows = [row for document in ([[10] * 5, [11] * 4], [[12] * 6]) for row in packer.add(document, 0)] + packer.flush()
    assert rows == [[2, *[10] * 5, *[11] * 4, 3, 2, *[12] * 6, 3]]


def test_a_sentence_is_not_split_where_the_next_row_can_hold_it() -> None:
    packer = SentencePacker(seq_len=64, special=SPECIAL)
    documents = [[sentence for sentence in document if len(sentence) <= 62] for document in make_documents(40)]
    rows = [row for document in documents for row in packer.add(document, 0)] + packer.flush()
    row_of = {token: number for number, row in enumerate(rows) for token in row if token >= 10}
    for document in documents:
        for sentence in document:
            assert len({row_of[token] for token in sentence}) <= 1


def test_padding_stands_at_the_end_and_structure_agrees() -> None:
    rows = pad_rows([[2, 10, 3], [2, 11, 3, 2, 12, 13, 3]], 8, SPECIAL.pad, np.dtype("<u2"))
    assert rows.tolist() == [[2, 10, 3, 0, 0, 0, 0, 0], [2, 11, 3, 2, 12, 13, 3, 0]]
    assert rows.dtype == np.dtype("<u2")
    assert sorted(fragment_lengths(structure(rows, SPECIAL).fragment).tolist()) == [3, 3, 4]
