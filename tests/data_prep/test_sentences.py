"""Sentences by the rules, those of the plain implementation to the letter, whatever the text and its neighbours."""

import os
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import sentences
from tests.reference_packing import split_sentences

DATA = os.environ.get("ELECTRA_TEST_DATA") or None


def split(texts: list[str]) -> list[list[str]]:
    """The sentences of each text."""
    found, ends = sentences.split(texts)
    assert len(ends) == len(texts) and (not texts or ends[-1] == len(found))
    return [found[start:end] for start, end in pairwise([0, *ends.tolist()])]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three?", ["One.", " Two!", " Three?"]),
        ("Version 1.2 is out. It works.", ["Version 1.2 is out.", " It works."]),
        ("See e.g. The Times, i.e. This one.", ["See e.g. The Times, i.e. This one."]),
        ("Dr. J. R. Smith came. He left.", ["Dr. J. R. Smith came.", " He left."]),
        ('He said "Go." Then (he went.) And so on.', ['He said "Go."', " Then (he went.)", " And so on."]),
        ("He said “Go.” “And you?” ‘No.’", ["He said “Go.”", " “And you?”", " ‘No.’"]),
        ("and so on. but lower case", ["and so on. but lower case"]),
        ("A heading\n\nA paragraph. 3 more.", ["A heading", "\n\nA paragraph.", " 3 more."]),
        ("A heading\n \t\n lower case", ["A heading", "\n \t\n lower case"]),
        ("It ends etc.\n\nNew paragraph.", ["It ends etc.", "\n\nNew paragraph."]),
        ("Ça va. Être. 漢字. Ω.", ["Ça va.", " Être.", " 漢字.", " Ω."]),
        ("Approx. 3, resp. Four. Capt. Ahab. Sept. 5.", ["Approx. 3, resp. Four.", " Capt. Ahab.", " Sept. 5."]),
        ("A biplane. The cap. Xylem op. 5", ["A biplane.", " The cap.", " Xylem op.", " 5"]),
        ("no end", ["no end"]),
        ("Trailing blank. ", ["Trailing blank. "]),
        ("Trailing lines.\n\n\n", ["Trailing lines.\n\n\n"]),
        ("", []),
        ("  \n\n ", []),
        ("\n\n Leading. Blanks", ["\n\n Leading.", " Blanks"]),
        ("Wait... What?! Yes.", ["Wait...", " What?!", " Yes."]),
        ("A NUL.\0 Is text. \0", ["A NUL.\0 Is text. \0"]),
    ],
)
def test_the_rules(text: str, expected: list[str]) -> None:
    assert split([text]) == [expected]
    assert split(["Before. The", text, "\n\nAfter. It"])[1] == expected


def test_no_texts() -> None:
    assert split([]) == []
    assert split(["", " ", "\n"]) == [[], [], []]


# What the rules look at, what is easily taken for it (letters that equal an ASCII one without case, wide blanks that
# begin a sentence, code points that share their low byte with a mark), and what no codec likes.
PIECES = [
    *["a", "B", "é", "É", "ß", "Ω", "漢", "😀", "\ud800", "_", "3", "\0", "ſ", "ı", "İ", "K", "ﬆ", "Į", "ȡ", "Ŀ"],
    *[". ", "! ", "? ", ".", "...", "?!", '." ', ".” ", ".)] ", ".’ B", '"', "'", "(", "[", "“", "‘"],
    *[" ", "  ", "\t", "\n", "\n\n", "\r\n", "\x85", "\x1c", "\u2028", "\u3000", " \u3000", "\xa0", "\n\u205f"],
    *["e.g. ", "i.e. ", "E.G. A", "Dr. ", "édr. A", "ſt. X", "etc.\n\n", "J. R. S", "xfig. 3", "figs. 3", "fıgs. 3"],
]


@settings(derandomize=True, deadline=None, max_examples=400)
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=25).map("".join), max_size=5))
def test_the_plain_implementation_says_the_same_of_what_the_rules_look_at(texts: list[str]) -> None:
    assert split(texts) == [split_sentences(text) for text in texts]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.text(st.characters(), max_size=60), max_size=4))
def test_and_of_any_text(texts: list[str]) -> None:
    assert split(texts) == [split_sentences(text) for text in texts]


def test_sentences_join_to_the_text_and_neighbours_do_not_matter() -> None:
    rng = random.Random(0)
    texts = ["".join(rng.choices(PIECES, k=rng.choice([0, 1, 40]))) for _ in range(300)]
    alone = [split([text])[0] for text in texts]
    for text, found in zip(texts, alone, strict=True):
        assert "".join(found) == (text if text.strip() else "")
    assert split(texts) == alone


@pytest.mark.parametrize(
    "text",
    [
        *["a" + "\n\u205f" * 100_000 + "b", "\n" * 200_000, "." * 200_000 + "a", "." + " " * 200_000 + "A"],
        *['!")' * 70_000, "a." + '"' * 200_000 + " A", "a. " + "(" * 200_000 + "A", "\n" + " " * 200_000 + "\n"],
        "A. " * 70_000,
    ],
    ids=["blank lines", "line feeds", "marks", "blanks", "quotes", "closers", "openers", "one line", "initials"],
)
def test_long_runs(text: str) -> None:
    """Each of these takes minutes, or all memory, where the work on a run is quadratic in its length."""
    assert split([text, text]) == [split_sentences(text)] * 2


@pytest.mark.skipif(DATA is None, reason="ELECTRA_TEST_DATA names no folder with the real corpora (corpus/*.jsonl.zst)")
@pytest.mark.parametrize("name", ["enwiki_sample", "factbook", "python_docs", "postgresql_docs", "novels98"])
def test_real_text(name: str) -> None:
    import json

    import zstandard

    with open(Path(str(DATA)) / "corpus" / f"{name}.jsonl.zst", "rb") as file:
        content = zstandard.ZstdDecompressor().stream_reader(file).read(8_000_000)
    texts = [json.loads(line)["text"] for line in content.split(b"\n")[:-1]]
    assert len(texts) > 5
    assert split(texts) == [split_sentences(text) for text in texts]
