"""Tokenizers: training is deterministic, text never becomes a special token, transformers agree."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from pydantic import ValidationError
from tokenizers import models, pre_tokenizers

from data_prep import installed_docs, pieces, tokenizer, vocabularies
from data_prep.errors import DataError
from data_prep.tokenizer import Tokenizer, TokenizerConfig

ROOT = Path(__file__).resolve().parents[2]
WORDPIECE = TokenizerConfig(vocab_size=1500, sample_bytes=400_000)
BPE = TokenizerConfig(kind="bpe", vocab_size=1500, lowercase=False, sample_bytes=400_000)
ODD = [
    "Literal [MASK] and [SEP], [CLS]x[PAD] too",
    "<mask> </s><s> <pad> <unk>",
    "naïve Café — “quoted” … ﬁ ß İ",
    "a" * 99,
    "a" * 150,
    "日本語 한국어 עברית",
    "x\u200by z\u0301",
    "  spaces \n\n and\ttabs ",
    "🙂 👩\u200d👩\u200d👧",
    "don't I'll 3.14 1,000",
    "",
]


def corpus() -> list[str]:
    texts: list[str] = []
    for file in installed_docs.list_files(("stdlib",)):
        texts += [prose for _, _, prose in installed_docs.documents("stdlib", file.name, file.path.read_bytes())]
        if sum(map(len, texts)) > 400_000:
            break
    return texts


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return corpus()


@pytest.fixture(scope="module")
def wordpiece(texts: list[str]) -> Tokenizer:
    return tokenizer.train(texts, WORDPIECE)


@pytest.fixture(scope="module")
def bpe(texts: list[str]) -> Tokenizer:
    return tokenizer.train(texts, BPE)


@pytest.mark.parametrize("config", [WORDPIECE, BPE], ids=["wordpiece", "bpe"])
def test_training_does_not_depend_on_order_threads_or_process(
    texts: list[str], config: TokenizerConfig, tmp_path: Path
) -> None:
    shuffled = texts[:]
    random.Random(1).shuffle(shuffled)
    here = tokenizer.train(texts, config).save(tmp_path / "a")
    assert tokenizer.train(shuffled, config).save(tmp_path / "b") == here
    sample, out = tmp_path / "sample.json", tmp_path / "c"
    sample.write_text(json.dumps(texts))
    program = (
        "import json, sys; from pathlib import Path; from data_prep import tokenizer as t;"
        "texts, config, out = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2], Path(sys.argv[3]);"
        "print(t.train(texts, t.TokenizerConfig.model_validate_json(config)).save(out))"
    )
    there = subprocess.run(
        [sys.executable, "-c", program, str(sample), config.model_dump_json(), str(out)],
        cwd=ROOT, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert there.stdout.strip() == here


def test_characters_beyond_the_alphabet_leave_the_vocabulary_deterministic() -> None:
    """A vocabulary of 300 affords 73 characters; 150 occur once each, and tie for the places the 26 letters leave."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    scripts = [(0x3B1, 17), (0x10D0, 33), (0x561, 38), (0x1200, 62)]  # Greek, Georgian, Armenian, Ethiopic
    rare = [chr(first + i) for first, count in scripts for i in range(count)]
    assert len(set(rare)) == 150
    rng = random.Random(0)
    words = ["".join(rng.choice(letters) for _ in range(rng.randint(2, 9))) for _ in range(400)]
    texts = [" ".join(words), *(f"{words[i]}{character}{words[i + 1]}" for i, character in enumerate(rare))]
    config = TokenizerConfig(vocab_size=300)
    program = (
        "import json, sys; from data_prep import tokenizer as t; config = t.TokenizerConfig(vocab_size=300);"
        "sys.stdout.buffer.write(t.train(json.loads(sys.argv[1]), config).files()['vocab.txt'])"
    )
    here = tokenizer.train(texts, config).files()["vocab.txt"]
    for seed in ("0", "1", "2", "3"):
        there = subprocess.run(
            [sys.executable, "-c", program, json.dumps(texts)],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True,
        )  # fmt: skip
        assert there.stdout == here
    entries = here.decode().splitlines()
    # 295 entries after the special tokens: 295 // 4 = 73 characters, the letters and the 47 smallest of those that tie
    assert {entry for entry in entries if len(entry) == 1} == {*letters, *sorted(rare)[: 73 - 26]}
    assert len(entries) == 300


@pytest.mark.parametrize("special", [True, False], ids=["one word", "not declared special"])
def test_a_tokenizer_that_makes_special_tokens_of_text_is_refused(tmp_path: Path, special: bool) -> None:
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "[", "]", "mask"]
    made = tokenizers.Tokenizer(models.WordPiece({entry: i for i, entry in enumerate(entries)}, unk_token="[UNK]"))
    if special:  # white space alone ends a word, so "[MASK]" is one, and an entry
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        made.add_special_tokens(entries[:5])
    else:
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.add_special_tokens(entries[:4])
        made.add_tokens(["[MASK]"])
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    with pytest.raises(DataError, match=r"tokenizer\.json makes a special token of the text '\[[A-Z]+\]'"):
        tokenizer.load(path)


def test_wordpiece_declares_exactly_five_special_tokens(wordpiece: Tokenizer, tmp_path: Path) -> None:
    wordpiece.save(tmp_path)
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    assert [token["content"] for token in state["added_tokens"]] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = (tmp_path / "vocab.txt").read_text().split("\n")[:-1]
    assert vocabulary[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(vocabulary) == len(set(vocabulary)) == wordpiece.vocab_size == 1500
    assert (wordpiece.special.pad, wordpiece.special.unk, wordpiece.special.cls) == (0, 1, 2)
    assert (wordpiece.special.sep, wordpiece.special.mask, wordpiece.pair_separators) == (3, 4, 1)


def test_wordpiece_knows_every_word_made_of_its_alphabet(wordpiece: Tokenizer, texts: list[str]) -> None:
    vocabulary = wordpiece.files()["vocab.txt"].decode().splitlines()
    alphabet = {token for token in vocabulary if len(token) == 1} | {" ", "\n"}
    assert set("abcdefghijklmnopqrstuvwxyz0123456789.,()'-") < alphabet
    known = [text for text in texts if set(text.lower()) <= alphabet and max(map(len, text.split())) <= 100]
    assert len(known) > 0.9 * len(texts)
    assert not any(wordpiece.special.unk in ids for ids in wordpiece.encode(known))
    assert wordpiece.encode(["a" * 100])[0] != [1] == wordpiece.encode(["a" * 101])[0]
    assert wordpiece.decode(wordpiece.encode(["Return the number of lines."])[0]) == "return the number of lines."


def test_bpe_takes_roberta_roles_and_any_bytes(bpe: Tokenizer) -> None:
    assert (bpe.special.cls, bpe.special.pad, bpe.special.sep, bpe.special.unk, bpe.special.mask) == (0, 1, 2, 3, 4)
    assert bpe.pair_separators == 2
    for text, ids in zip(ODD, bpe.encode(ODD), strict=True):
        assert bpe.decode(ids) == text


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_text_never_becomes_a_special_token(kind: str, request: pytest.FixtureRequest) -> None:
    made: Tokenizer = request.getfixturevalue(kind)
    forbidden = {made.special.cls, made.special.sep, made.special.pad, made.special.mask}
    for text, ids in zip(ODD, made.encode(ODD), strict=True):
        assert not forbidden & set(ids), text
    assert len(made.encode(["[MASK]"])[0]) > 1 and len(made.encode(["<mask>"])[0]) > 1


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_transformers_load_it_and_agree(
    kind: str, request: pytest.FixtureRequest, texts: list[str], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    made: Tokenizer = request.getfixturevalue(kind)
    assert made.save(tmp_path) == tokenizer.fingerprint(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    plain = [text for text in texts[:200] + ODD[2:]]
    assert theirs(plain, add_special_tokens=False)["input_ids"] == made.encode(plain)
    special = made.special
    roles = (theirs.cls_token_id, theirs.sep_token_id, theirs.pad_token_id, theirs.mask_token_id, theirs.unk_token_id)
    assert roles == (special.cls, special.sep, special.pad, special.mask, special.unk)
    a, b = made.encode(["one text", "another"])
    separators = [special.sep] * made.pair_separators
    assert theirs("one text", "another")["input_ids"] == [special.cls, *a, *separators, *b, special.sep]


def test_a_saved_tokenizer_loads_as_itself_from_any_of_its_files(wordpiece: Tokenizer, tmp_path: Path) -> None:
    wordpiece.save(tmp_path)
    expected = wordpiece.encode(ODD)
    for path in (tmp_path, tmp_path / "tokenizer.json", tmp_path / "vocab.txt"):
        loaded = tokenizer.load(path)
        assert loaded.encode(ODD) == expected
        assert loaded.special == wordpiece.special


def test_a_cased_vocabulary_keeps_case_and_accents(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nÉté\nete\n", encoding="utf-8")
    assert tokenizer.load(tmp_path / "vocab.txt", lowercase=False).encode(["Été ete"]) == [[5, 6]]
    assert tokenizer.load(tmp_path / "vocab.txt", lowercase=True).encode(["Été ete"]) == [[6, 6]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n", r"lacks the special token \[MASK\]"),
        ("vocab.txt", "the\nof\n", r"neither \[CLS\] nor <s>"),
        ("vocab.txt", "[CLS]\nthe\nthe\n", "an entry twice"),
        ("tokenizer.json", "{}", "not a tokenizer.json"),
    ],
)
def test_unusable_vocabularies_are_data_errors(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        tokenizer.load(tmp_path / name)


def test_missing_and_empty_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        tokenizer.load(tmp_path / "none.json")
    with pytest.raises(DataError, match="no text to learn from"):
        tokenizer.train([""], WORDPIECE)
    with pytest.raises(ValidationError, match="keeps case"):
        TokenizerConfig(kind="bpe")


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_flat_arrays_hold_what_tokenizers_gives(kind: str, request: pytest.FixtureRequest, texts: list[str]) -> None:
    made: Tokenizer = request.getfixturevalue(kind)
    long = " ".join(texts)  # is cut in pieces, and makes more than one batch
    assert len(long) > 3 * pieces.LONG
    chosen = [*ODD, long, *texts[:50], "", long]
    expected = [made._tokenizer.encode(text, add_special_tokens=False).ids for text in chosen]
    flat = made.encode_flat(chosen)
    assert flat.ids.dtype == np.uint16 and flat.ends.dtype == np.int64
    assert flat.ids.tolist() == [i for ids in expected for i in ids]
    assert np.diff(flat.ends, prepend=0).tolist() == [len(ids) for ids in expected]
    assert made.encode(chosen) == expected


def test_a_large_vocabulary_takes_four_bytes_an_id() -> None:
    """0xFFFF stays free in two bytes, so 65,535 entries are one too many."""
    for size, dtype in ((0xFFFE, np.uint16), (0xFFFF, np.uint32), (70_000, np.uint32)):
        entries = [*vocabularies.BERT_ROLES.values(), *(f"w{i}" for i in range(size - 5))]
        vocabulary = {entry: number for number, entry in enumerate(entries)}
        made = Tokenizer(vocabularies.wordpiece(vocabulary, lowercase=True), "test")
        assert made.vocab_size == size
        flat = made.encode_flat([f"w{size - 6} w0", "w1"])
        assert (flat.ids.dtype, flat.ids.tolist(), flat.ends.tolist()) == (dtype, [size - 1, 5, 6], [2, 3])


def test_tokens_that_go_on_with_a_word(wordpiece: Tokenizer, bpe: Tokenizer) -> None:
    entries = wordpiece.files()["vocab.txt"].decode().splitlines()
    assert wordpiece.continues.shape == (1500,) and wordpiece.continues.dtype == np.bool_
    assert wordpiece.continues.tolist() == [entry.startswith("##") for entry in entries]
    assert 300 < wordpiece.continues.sum() < 1200
    for text in ("return the number of files", "Return\nthe number\tof files"):
        for made, number in ((wordpiece, 5), (bpe, 4)):  # the first word of a text has no blank to begin it in BPE
            ids = made.encode_flat([text]).ids
            assert (~made.continues[ids]).sum() == number
    assert bpe.continues.shape == (1500,) and not bpe.continues[bpe.special.all()].any()
    vocabulary = json.loads(bpe.files()["tokenizer.json"])["model"]["vocab"]
    assert bpe.continues[vocabulary["a"]] and bpe.continues[vocabulary[","]] and not bpe.continues[vocabulary["Ġa"]]
