"""A very long text encoded in pieces has the ids it has whole, and takes little memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from data_prep import pieces, vocabularies
from data_prep.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
LETTERS = "abcdefghijklmnopqrstuvwxyzé0123456789.,'!?[]<>/-ß日本"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "##he", "##er", "ab", "##ab", "11", "##s"]
TWINS = [f"##{letter}" for letter in LETTERS]


def wordpiece(*, lowercase: bool, chinese: bool = True) -> Tokenizer:
    entries = [*SPECIALS, *LETTERS, *TWINS, *WORDS]
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    return Tokenizer(vocabularies.wordpiece(vocabulary, lowercase=lowercase, chinese=chinese), "test")


def byte_bpe(*, prefix_space: bool) -> Tokenizer:
    """All bytes, and merges that reach over blanks as soon as the splitting lets them."""
    from tokenizers.pre_tokenizers import ByteLevel

    merges = [("Ġ", "a"), ("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("Ċ", "Ċ"), ("Ċ", "Ġ"), ("t", "h"), ("'", "s"), ("Ġ", "'")]
    merges += [("Ġ", "t"), ("Ġ", "Ċ"), ("č", "Ċ"), ("1", "1")]
    entries = [*vocabularies.ROBERTA_ROLES.values(), *sorted(ByteLevel.alphabet()), *(a + b for a, b in merges)]
    model = models.BPE({entry: number for number, entry in enumerate(entries)}, merges)
    return Tokenizer(vocabularies.byte_bpe(model, prefix_space=prefix_space), "test")


FORMS = {
    "uncased": wordpiece(lowercase=True),
    "cased": wordpiece(lowercase=False),
    "no ideographs": wordpiece(lowercase=True, chinese=False),
    "bpe": byte_bpe(prefix_space=False),
    "bpe with a prefix": byte_bpe(prefix_space=True),
}
# Words, marks and every kind of blank, so that runs of mixed blanks are common; and any character at all.
BLANKS = [
    " ",
    "  ",
    "\n",
    "\t",
    "\r",
    "\x85",
    "\u00a0",
    "\u2028",
    "\u3000",
    "\x1c",
    "\u180e",
    "\u200b",
    "\x00",
    "\ufeff",
]
PARTS = ["a", "the", "ab", "é", "e\u0301", "\u0301", "\u0308", "日", "本", "ß", "İ", "Σ", "ﬁ", "1", "11", "٣", "½", "_"]
MARKS = ["'s", "'", "!", ".", "[MASK]", "<mask>", "🙂", "\u200d", "##ab", "ก", "ำ"]
ATOMS = st.sampled_from([*BLANKS, *BLANKS, *PARTS, *MARKS])
TEXTS = st.lists(st.one_of(ATOMS, ATOMS, st.characters(exclude_categories=["Cs"])), min_size=10, max_size=40).map(
    "".join
)


@pytest.mark.parametrize("form", FORMS)
def test_pieces_have_the_ids_of_the_whole(form: str) -> None:
    tokenizer = FORMS[form]
    cutter = pieces.cutter(tokenizer.state())
    assert cutter is not None
    cuts = 0

    @settings(max_examples=400, derandomize=True, deadline=None)
    @given(TEXTS, st.integers(1, 9))
    def exact(text: str, length: int) -> None:
        nonlocal cuts
        parts = list(cutter.cut(text, length))
        assert "".join(parts) == text
        cuts += len(parts) - 1
        assert [i for ids in tokenizer.encode(parts) for i in ids] == tokenizer.encode([text])[0]

    exact()
    assert cuts > 100  # it is about texts that are cut


def test_a_cut_elsewhere_is_not_exact() -> None:
    """What the test above would find: byte-level BPE keeps a blank with the word after it, and runs of blanks."""
    bpe = FORMS["bpe"]
    for left, right in (("x ", "ab"), ("x  ", "ab"), ("x ", "    ab"), ("x\n\n", "ab"), ("t", "he")):
        assert bpe.encode([left])[0] + bpe.encode([right])[0] != bpe.encode([left + right])[0], (left, right)


@pytest.mark.parametrize("run", [99, 100, 101, 102, 5_000])
@pytest.mark.parametrize("around", ["{}", "é{}", "{}\u0301s", "the {} the", "{}!{}", "日{}本", "ab\u0301{}\u200b{}"])
def test_a_word_too_long_for_wordpiece_is_shortened_to_the_same_unknown(run: int, around: str) -> None:
    text = around.replace("{}", "ab"[run % 2] * run)
    for form in ("uncased", "cased", "no ideographs"):
        cutter = pieces.cutter(FORMS[form].state())
        assert cutter is not None
        parts = list(cutter.cut(text, 10))
        assert [i for ids in FORMS[form].encode(parts) for i in ids] == FORMS[form].encode([text])[0]
        assert sum(map(len, parts)) <= 2 * 101 + 20


def test_only_forms_that_can_be_cut_are_cut() -> None:
    state = FORMS["bpe"].state()
    assert pieces.cutter(state) is not None
    unlike = [
        state | {"normalizer": {"type": "NFC"}},
        state | {"pre_tokenizer": {"type": "Whitespace"}},
        state | {"pre_tokenizer": None},
        state | {"pre_tokenizer": state["pre_tokenizer"] | {"use_regex": False}},
        state | {"added_tokens": [{"content": "two words", "special": False}]},
        FORMS["cased"].state() | {"normalizer": {"type": "Lowercase"}},
    ]
    assert [pieces.cutter(other) for other in unlike] == [None] * len(unlike)


@pytest.mark.parametrize("form", ["uncased", "bpe"])
def test_a_long_text_takes_little_memory(form: str, tmp_path: Path) -> None:
    """Three million characters, a million tokens or more: whole they take some 450 bytes each, 400 MB."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(FORMS[form].files()["tokenizer.json"])
    program = (
        "import json, resource, sys; from pathlib import Path; from data_prep import tokenizer as t\n"
        "made = t.load(Path(sys.argv[1])); peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000\n"
        "text = 'the ab\\n11 ' * 300_000; before = peak(); encoded = made.encode_flat([text])\n"
        "print(json.dumps([len(encoded.ids), encoded.ids.tolist()[:3], peak() - before]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        cwd=ROOT, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    count, first, megabytes = json.loads(done.stdout)
    unit = FORMS[form].encode(["the ab\n11 the ab\n11 "])[0]
    assert first == unit[:3] and count >= 3 * 300_000
    assert megabytes < 200
