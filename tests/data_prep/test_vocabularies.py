"""Every form of a vocabulary is read as `transformers` reads it, and what cannot be read is one sentence."""

import json
import os
from pathlib import Path

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from data_prep import storage, tokenizer, vocabularies
from data_prep.errors import DataError

REAL = os.environ.get("ELECTRA_TEST_DATA") or None
NEEDS_REAL = pytest.mark.skipif(REAL is None, reason="ELECTRA_TEST_DATA names no folder with vocab/")
VOCAB = Path(str(REAL)) / "vocab"
ENTRIES = [*vocabularies.BERT_ROLES.values(), "Été", "Ete", "été", "ete", "日", "本", "日本", "[", "]"]
TEXT = "Été été 日本 [MASK]"
MERGES = [("Ġ", "a"), ("a", "b"), ("Ġa", "b")]
BYTES = [*vocabularies.ROBERTA_ROLES.values(), *sorted(ByteLevel.alphabet()), *(a + b for a, b in MERGES)]


def write(folder: Path, **files: str) -> Path:
    """A folder with these files; `_` in a name stands for the dot."""
    for name, content in files.items():
        stem, _, suffix = name.rpartition("_")
        (folder / f"{stem}.{suffix}").write_text(content, encoding="utf-8")
    return folder


def bert(folder: Path, **config: object) -> Path:
    names = {"tokenizer_config_json": json.dumps({"tokenizer_class": "BertTokenizer", **config})} if config else {}
    return write(folder, vocab_txt="".join(f"{entry}\n" for entry in ENTRIES), **names)


def roberta(folder: Path, **files: str) -> Path:
    vocabulary = json.dumps({entry: number for number, entry in enumerate(BYTES)})
    merges = "".join(f"{a} {b}\n" for a, b in MERGES)
    return write(folder, vocab_json=vocabulary, merges_txt="#version: 0.2\n" + merges, **files)


@NEEDS_REAL
def test_the_published_vocabularies_give_the_published_ids() -> None:
    """ "hello world" is 7592 2088 in BERT's uncased vocabulary, and "Hello world" 31414 232 in RoBERTa's."""
    for path in (VOCAB / "bert-base-uncased", VOCAB / "bert-base-uncased" / "vocab.txt"):
        uncased = tokenizer.load(path)
        assert uncased.encode(["Hello world"]) == [[7592, 2088]]
        assert uncased.special.model_dump() == {"cls": 101, "sep": 102, "pad": 0, "mask": 103, "unk": 100}
        assert uncased.vocab_size == 30_522
    for path in (VOCAB / "roberta-base", VOCAB / "roberta-base" / "vocab.json"):
        bpe = tokenizer.load(path)
        assert bpe.encode(["Hello world"]) == [[31414, 232]]
        assert bpe.special.model_dump() == {"cls": 0, "sep": 2, "pad": 1, "mask": 50264, "unk": 3}
        assert (bpe.vocab_size, bpe.pair_separators) == (50_265, 2)
    with pytest.raises(DataError, match=r"gpt2 is a folder without a vocabulary; give a tokenizer\.json, "):
        tokenizer.load(VOCAB / "gpt2")


@NEEDS_REAL
def test_transformers_read_the_same_roberta(tmp_path: Path) -> None:
    from transformers import RobertaTokenizer

    folder = VOCAB / "roberta-base"
    theirs = RobertaTokenizer(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))
    ours = tokenizer.load(folder)
    texts = ["Hello world", " don't  stop\n\nnow 1,000 é 🙂", "日本語 <notmask>", ""]
    assert theirs(texts, add_special_tokens=False)["input_ids"] == ours.encode(texts)
    ours.save(tmp_path)
    assert tokenizer.load(tmp_path).encode(texts) == ours.encode(texts)


@pytest.mark.parametrize(
    "config",
    [
        {"do_lower_case": True},
        {"do_lower_case": False},
        {"do_lower_case": False, "strip_accents": True},
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": True, "strip_accents": None},
        {"do_lower_case": True, "tokenize_chinese_chars": False},
    ],
    ids=str,
)
def test_a_folder_says_itself_how_its_vocabulary_is_read(tmp_path: Path, config: dict[str, object]) -> None:
    from transformers import BertTokenizer

    ours = [tokenizer.load(bert(tmp_path, **config), lowercase=lowercase) for lowercase in (True, False)]
    theirs = BertTokenizer.from_pretrained(tmp_path)
    plain = TEXT.removesuffix(" [MASK]")
    for made in ours:
        assert made.encode([plain])[0] == theirs(plain, add_special_tokens=False)["input_ids"]
        assert made.encode([TEXT])[0][-3:] == [ENTRIES.index("["), 1, ENTRIES.index("]")]
    saved = tmp_path / "saved"
    ours[0].save(saved)  # and what is saved says the same again, to us and to transformers
    (saved / "tokenizer.json").unlink()
    assert tokenizer.load(saved).encode([TEXT]) == ours[0].encode([TEXT])


def test_accents_and_case_one_by_one(tmp_path: Path) -> None:
    """The same, from the vocabulary: which of its entries the words become."""
    expected = {(True, None): "ete", (True, True): "ete", (True, False): "été"}
    expected |= {(False, None): "Été", (False, True): "Ete", (False, False): "Été"}
    for (lower, strip), entry in expected.items():
        made = tokenizer.load(bert(tmp_path, do_lower_case=lower, strip_accents=strip), lowercase=not lower)
        assert made.encode(["Été"]) == [[ENTRIES.index(entry)]]


def test_a_vocabulary_by_itself_must_not_contradict_its_folder(tmp_path: Path) -> None:
    file = bert(tmp_path, do_lower_case=False) / "vocab.txt"
    assert tokenizer.load(file, lowercase=False).encode(["Été"]) == [[ENTRIES.index("Été")]]
    with pytest.raises(
        DataError, match=r"says do_lower_case: False of vocab\.txt, but corpus\.tokenizer\.lowercase is"
    ):
        tokenizer.load(file, lowercase=True)
    (tmp_path / "tokenizer_config.json").unlink()
    assert tokenizer.load(file, lowercase=True).encode(["Été"]) == [[ENTRIES.index("ete")]]


def test_vocab_json_and_merges(tmp_path: Path) -> None:
    for path in (roberta(tmp_path), tmp_path / "vocab.json"):
        made = tokenizer.load(path)
        assert made.decode(made.encode([" ab<mask>é\n"])[0]) == " ab<mask>é\n"
        assert made.encode([" ab", "ab"]) == [[BYTES.index("Ġab")], [BYTES.index("ab")]]
    prefixed = tokenizer.load(roberta(tmp_path, tokenizer_config_json='{"add_prefix_space": true}'))
    assert prefixed.encode(["ab"]) == [[BYTES.index("Ġab")]]
    assert json.loads(prefixed.files()["tokenizer_config.json"])["add_prefix_space"] is True


def test_a_tokenizer_json_comes_first_and_decides_alone(tmp_path: Path) -> None:
    cased = tokenizer.load(bert(tmp_path, do_lower_case=False))
    (tmp_path / "tokenizer.json").write_bytes(cased.files()["tokenizer.json"])
    bert(tmp_path, do_lower_case=True)
    roberta(tmp_path)
    assert [file.name for file in vocabularies.files(tmp_path)] == ["tokenizer.json"]
    assert tokenizer.load(tmp_path).encode(["Été"]) == [[ENTRIES.index("Été")]]
    (tmp_path / "tokenizer.json").unlink()
    assert [file.name for file in vocabularies.files(tmp_path)] == ["vocab.txt", "tokenizer_config.json"]
    (tmp_path / "vocab.txt").unlink()
    assert [file.name for file in vocabularies.files(tmp_path)] == ["vocab.json", "merges.txt", "tokenizer_config.json"]


def test_the_fingerprint_follows_every_file_that_is_read(tmp_path: Path) -> None:
    roberta(tmp_path, tokenizer_config_json="{}", dict_txt="not read")
    first = vocabularies.fingerprint(tmp_path)
    (tmp_path / "dict.txt").write_text("still not read")
    assert vocabularies.fingerprint(tmp_path) == first == vocabularies.fingerprint(tmp_path / "vocab.json")
    seen = {first}
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (tmp_path / name).write_text((tmp_path / name).read_text() + "\n")
        seen.add(vocabularies.fingerprint(tmp_path))
    assert len(seen) == 4
    (tmp_path / "one").mkdir()
    file = bert(tmp_path / "one") / "vocab.txt"
    assert vocabularies.fingerprint(file) == vocabularies.fingerprint(tmp_path / "one") == storage.sha256_of(file)


@pytest.mark.parametrize(
    ("files", "path", "message"),
    [
        ({}, "", r"is a folder without a vocabulary; give a tokenizer\.json, a vocab\.txt, a vocab\.json with merges"),
        ({}, "vocab.txt", r"vocab\.txt does not exist; give a tokenizer\.json"),
        ({"vocab_json": "{}"}, "", r"vocab\.json needs merges\.txt beside it, and .*merges\.txt does not exist"),
        ({"vocab_json": "{}"}, "vocab.json", r"vocab\.json needs merges\.txt beside it"),
        ({"vocab_json": "{", "merges_txt": ""}, "", r"vocab\.json is not a vocab\.json with merges\.txt that can be"),
        ({"vocab_json": '{"a": 0}', "merges_txt": "a b\n"}, "", r"that can be read \(.*out of vocabulary"),
        ({"vocab_json": '{"a": 0}', "merges_txt": ""}, "", r"vocab\.json has neither \[CLS\] nor <s>"),
        ({"vocab_json": '{"<s>": 0}', "merges_txt": ""}, "", r"vocab\.json lacks the special token <pad>"),
        ({"tokenizer_json": "[1]"}, "", r"tokenizer\.json is not a tokenizer\.json that can be read"),
        ({"vocab_txt": "a\n", "tokenizer_config_json": "{"}, "", r"tokenizer_config\.json is not JSON"),
        ({"vocab_txt": "a\n", "tokenizer_config_json": "[]"}, "", r"tokenizer_config\.json is not a JSON object"),
        (
            {"vocab_txt": "a\n", "tokenizer_config_json": '{"do_lower_case": "no"}'},
            "",
            r"tokenizer_config\.json says do_lower_case: 'no'; it must be true or false",
        ),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, files: dict[str, str], path: str, message: str) -> None:
    write(tmp_path, **files)
    with pytest.raises(DataError, match=message) as raised:
        tokenizer.load(tmp_path / path)
    assert "\n" not in str(raised.value) and str(raised.value).endswith(".")


def test_a_vocabulary_that_is_not_utf8_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"[CLS]\n\xff\n")
    with pytest.raises(DataError, match=r"vocab\.txt is not UTF-8"):
        tokenizer.load(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"is not a tokenizer\.json that can be read"):
        tokenizer.load(tmp_path)
