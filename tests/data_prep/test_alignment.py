"""Where sentences end among the tokens of whole documents: where they end when each sentence is encoded by itself."""

import json
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_prep import engines, sentences, text_kernels, tokenizer
from data_prep.alignment import Aligner, _measure
from data_prep.engines import CheckedEncoder
from data_prep.token_batch import TokenBatch
from data_prep.tokenizer import Encoded, Tokenizer, TokenizerConfig

REAL = os.environ.get("ELECTRA_TEST_DATA") or None
NEEDS_REAL = pytest.mark.skipif(REAL is None, reason="ELECTRA_TEST_DATA names no folder with vocab/ and corpus/")
KINDS = {
    "uncased": TokenizerConfig(vocab_size=600),
    "cased": TokenizerConfig(vocab_size=600, lowercase=False),
    "bpe": TokenizerConfig(kind="bpe", vocab_size=600, lowercase=False),
}
PROSE = [
    "The ship left the harbour at dawn. Nobody waved! Was it too early? Mr. Smith (the captain) said: “No.” Then\n\n",
    "A heading\n\nThe second paragraph. It’s café-coloured, naïve and costs 3.50 €. Ω follows. 漢字 too. End of it.",
    "def f(x):\n    return x  # nothing. But see below.\n\n\nf(1)",
]


@pytest.fixture(scope="module")
def made() -> dict[str, Tokenizer]:
    return {kind: tokenizer.train(PROSE * 20, config) for kind, config in KINDS.items()}


class Spy(CheckedEncoder):
    """Counts the calls: one for the documents, and one for each that is encoded sentence by sentence."""

    calls = 0

    def encode(self, texts: list[str], keys: NDArray[np.uint64]) -> Encoded:  # type: ignore[override]
        self.calls += 1
        return super().encode(texts, keys)


def keys(texts: list[str]) -> NDArray[np.uint64]:
    return np.arange(1, len(texts) + 1, dtype=np.uint64)


def align(reference: Tokenizer, texts: list[str]) -> tuple[TokenBatch, int]:
    """By the reference; and for how many texts the count was not proved."""
    spy = Spy(reference, None)
    return Aligner(reference).batch(texts, keys(texts), spy), spy.calls - 1


def ends_of(batch: TokenBatch) -> list[list[int]]:
    """Of each document, counted from its beginning."""
    starts = [0, *batch.token_ends().tolist()]
    found = [batch.sentence_ends[a:b] for a, b in pairwise([0, *batch.document_ends.tolist()])]
    return [(ends - start).tolist() for ends, start in zip(found, starts, strict=False)]


def one_by_one(reference: Tokenizer, text: str) -> list[int]:
    """Where the sentences of a text end by the encoding of each; one sentence where that does not give its ids."""
    parts = reference.encode(sentences.split([text])[0])
    whole = reference.encode([text])[0]
    if not parts or [token for part in parts for token in part] != whole:
        return [len(whole)] if whole else []
    return np.unique([end for end in np.cumsum([len(part) for part in parts]).tolist() if end]).tolist()


def assert_exact(reference: Tokenizer, texts: list[str]) -> int:
    """Asserts ids, and ends wherever encoding sentences gives the ids of the text; returns how many texts these are."""
    batch, _ = align(reference, texts)
    encoded = reference.encode_flat(texts)
    assert np.array_equal(batch.ids, encoded.ids) and np.array_equal(batch.token_ends(), encoded.ends)
    assert np.array_equal(batch.keys, keys(texts)) and (np.diff(batch.sentence_ends, prepend=0) > 0).all()
    compared = 0
    for text, found in zip(texts, ends_of(batch), strict=True):
        parts = reference.encode(sentences.split([text])[0])
        if [token for part in parts for token in part] == reference.encode([text])[0]:
            assert found == one_by_one(reference, text), text
            compared += 1
    return compared


@pytest.mark.parametrize("kind", KINDS)
def test_prose(made: dict[str, Tokenizer], kind: str) -> None:
    texts = [*PROSE, "", " \n\n ", "Blanks. \n ", *PROSE]
    assert assert_exact(made[kind], texts) >= len(PROSE)
    assert align(made[kind], texts)[1] == 0  # no text is encoded twice
    first = ends_of(align(made[kind], texts)[0])[0]
    assert len(first) == 5  # … dawn. | Nobody waved! | … early? | Mr. Smith … “No.” | Then


def test_a_text_of_blanks_alone_has_no_sentence_but_maybe_tokens(made: dict[str, Tokenizer]) -> None:
    blank = ends_of(align(made["bpe"], ["One. Two", "   ", "", "Three"])[0])
    size = len(made["bpe"].encode(["   "])[0])
    assert size > 0 and blank[1] == [size] and blank[2] == []
    assert ends_of(align(made["uncased"], ["One. Two", "   ", "", "Three"])[0])[1:3] == [[], []]


# Words end where another kind of character begins, or not: what each tokenizer makes of these is for it to say.
PIECES = [
    *["word", "Word", "x" * 101, "9", "é", "e\u0301", "\u0301", "İ", "ß", "ﬁ", "漢", "字", "が", "か\u3099", "한"],
    *["\0", "\u200b", "\ufeff", "\u00ad", "\u200d", "\u2028", "\u3000", "\xa0", "\x85", "\x1c", "\ufffd", "\x07", "\t"],
    *["😀", "👩\u200d👧", "𝔘", "\U00020000", "\U000e0067", "[MASK]", "<mask>", "##x", "Ġ", "_", "-", "'s", "“", "”"],
    *[". ", ". A", "! B", "? 1", ".” C", " ", "  ", "\n", "\n\n", " \n\n", "e.g. D", "\u1100\u1161", "\r\n"],
]  # fmt: skip


@settings(derandomize=True, deadline=None, max_examples=150)
@given(texts=st.lists(st.lists(st.sampled_from(PIECES), max_size=20).map("".join), max_size=4))
@pytest.mark.parametrize("kind", KINDS)
def test_odd_characters(made: dict[str, Tokenizer], kind: str, texts: list[str]) -> None:
    assert_exact(made[kind], texts)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=4))
@pytest.mark.parametrize("kind", KINDS)
def test_any_text(made: dict[str, Tokenizer], kind: str, texts: list[str]) -> None:
    assert_exact(made[kind], [f"{text}. A{text}" for text in texts])


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_does_not_depend_on_its_batch(made: dict[str, Tokenizer], kind: str) -> None:
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(PIECES, size=rng.choice([0, 1, 30]))) for _ in range(200)]
    together = ends_of(align(made[kind], texts)[0])
    assert together == [ends_of(align(made[kind], [text])[0])[0] for text in texts]
    assert together[::-1] == ends_of(align(made[kind], texts[::-1])[0])


# Of one to four bytes, and of each class: a letter, alone, a blank, nothing, a letter made of two, an unheard-of one.
ODD = [
    *["é", "ß", "漢", "\xa0", "\u200b", "\u0301", "😀", "𝔘", "“", "\0", "\x07", "\x85", "\u2028", "-", " ", "x"],
]  # fmt: skip


@pytest.mark.parametrize("kind", ["uncased", "cased"])
def test_words_are_counted_the_same_wherever_a_stretch_ends(made: dict[str, Tokenizer], kind: str) -> None:
    """Characters at each place around the end of a stretch of bytes, and around the end of a sentence."""
    reference, size = made[kind], text_kernels.STRETCH
    measure = _measure(reference)
    assert measure is not None
    texts = [
        f"{before * at}{odd}{odd if at % 2 else after}{'b' * (at % 5)}. {odd}Zwei {odd}{after} drei, {'z' * size} y"
        for odd in ODD
        for at in (*range(4), *range(size - 6, size + 3), *range(2 * size - 5, 2 * size + 2))
        for before, after in (("a", "b"), (",", " "))
    ]
    located = sentences.locate(["", *texts])
    counts, countable = measure.count(located)
    assert countable.all()
    expected = []
    for text in range(1, len(texts) + 1):
        parts = located.strings(text)
        expected += [len(reference.words("".join(parts[: number + 1]))) for number in range(len(parts))]
    assert counts.tolist() == expected


def test_a_count_that_lies_is_found_out(made: dict[str, Tokenizer]) -> None:
    """A letter taken for something else: the totals differ, and the sentences are encoded one by one."""
    reference, texts = made["uncased"], [PROSE[0], "no such sign. At all: 123", PROSE[2]]
    for kind in (text_kernels.BLANK, text_kernels.ALONE, text_kernels.OTHER):
        aligner, spy = Aligner(reference), Spy(reference, None)
        assert aligner._measure is not None
        aligner.batch(texts, keys(texts), spy)
        spy.calls = 0
        aligner._measure._classes[ord("e")] = kind  # type: ignore[attr-defined]
        batch = aligner.batch(texts, keys(texts), spy)
        assert spy.calls == 3  # the batch, and the two texts with an "e" inside of words
        assert ends_of(batch) == [one_by_one(reference, text) for text in texts]


def test_tokens_that_spell_other_bytes_are_found_out(made: dict[str, Tokenizer]) -> None:
    reference = made["bpe"]
    aligner, spy = Aligner(reference), Spy(reference, None)
    assert aligner._measure is not None
    first, second, third = (set(ids) for ids in reference.encode(PROSE))
    aligner._measure.weights[min(second - first - third)] += 1
    batch = aligner.batch(PROSE, keys(PROSE), spy)
    assert spy.calls == 2 and ends_of(batch) == [one_by_one(reference, text) for text in PROSE]


def test_sentences_that_give_other_ids_leave_one_sentence(made: dict[str, Tokenizer]) -> None:
    """Without a measure, and with an encoder that says something else of a sentence than of a text."""

    class Liar(CheckedEncoder):
        def encode(self, texts: list[str], keys: NDArray[np.uint64]) -> Encoded:  # type: ignore[override]
            encoded = super().encode(texts, keys)
            return encoded if texts == PROSE else Encoded(encoded.ids + 1, encoded.ends)

    aligner = Aligner(made["uncased"])
    aligner._measure = None
    batch = aligner.batch(PROSE, keys(PROSE), Liar(made["uncased"], None))
    assert [len(ends) for ends in ends_of(batch)] == [1, 1, 1]
    honest = aligner.batch(PROSE, keys(PROSE), CheckedEncoder(made["uncased"], None))
    assert ends_of(honest) == [one_by_one(made["uncased"], text) for text in PROSE]


@NEEDS_REAL
@pytest.mark.parametrize("vocabulary", ["bert-base-uncased", "roberta-base", "uncased", "cased", "bpe"])
def test_real_text(made: dict[str, Tokenizer], vocabulary: str) -> None:
    import zstandard

    folder = Path(str(REAL))
    reference = made.get(vocabulary) or tokenizer.load(folder / "vocab" / vocabulary)
    for name in ("enwiki_sample", "factbook", "python_docs", "postgresql_docs", "novels98"):
        with open(folder / "corpus" / f"{name}.jsonl.zst", "rb") as file:
            content = zstandard.ZstdDecompressor().stream_reader(file).read(1_500_000)
        texts = [json.loads(line)["text"][:10_000] for line in content.split(b"\n")[:-1]][:8]
        assert assert_exact(reference, texts) == len(texts)
        batch, recounted = align(reference, texts)
        assert recounted == 0
        if isinstance(engine := engines.fast_engine(reference), engines.Engine):
            fast = Aligner(reference).batch(texts, keys(texts), CheckedEncoder(reference, engine))
            for field in ("ids", "sentence_ends", "document_ends", "keys"):
                assert np.array_equal(getattr(fast, field), getattr(batch, field))
