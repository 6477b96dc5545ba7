"""Tokenizers: train one deterministically, load an existing one, encode text that may contain anything.

`encode` never produces a special id from text: a literal "[MASK]" is text. Training gives the same bytes for the same
sample, whatever its order and whatever the number of threads. Two kinds: WordPiece (BERT, ELECTRA) and byte-level BPE
(RoBERTa). Special tokens go by role, read from the tokenizer, never by number; a
tokenizer that turns text into `cls`, `sep`, `pad` or `mask` is refused.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import tokenizers
from pydantic import Field, PositiveInt, model_validator
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from data_prep import storage
from data_prep.errors import DataError
from data_prep.rows import SpecialIds
from data_prep.settings import Settings

FILE_NAME = "tokenizer.json"
BERT_ROLES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_ROLES = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
MAX_ALPHABET = 1_000


class TokenizerConfig(Settings):
    """Train a vocabulary on a fixed-size sample of the corpus, or take an existing one from `path`."""

    kind: Literal["wordpiece", "bpe"] = "wordpiece"
    vocab_size: PositiveInt = 30_522
    lowercase: bool = True  # WordPiece only; byte-level BPE is cased
    sample_bytes: PositiveInt = 1_000_000_000
    path: str | None = Field(
        default=None,
        description="vocab.txt or tokenizer.json to use instead of training, relative to the working directory",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "TokenizerConfig":
        if self.kind == "bpe" and self.lowercase and self.path is None:
            raise ValueError("byte-level BPE keeps case: set lowercase to false")
        smallest = 261 if self.kind == "bpe" else 128
        if self.vocab_size < smallest:
            raise ValueError(f"vocab_size must be at least {smallest} for {self.kind}")
        return self


class Tokenizer:
    """A tokenizer with its special ids by role. Encodes without special tokens; rows add them."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, origin: str) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True  # text that spells a special token stays text
        self._tokenizer = tokenizer
        self.roles = _roles(tokenizer, origin)
        ids = {role: tokenizer.token_to_id(token) for role, token in self.roles.items()}
        self.special = SpecialIds(**ids)
        self._refuse_special_ids_from_text(origin)
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1
        # RoBERTa puts two separators between the segments of a pair, BERT one
        self.pair_separators = 2 if self.roles["cls"] == "<s>" else 1

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, without `cls` or `sep`."""
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encoded]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens written out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def save(self, folder: Path) -> str:
        """Write tokenizer.json, tokenizer_config.json and, for WordPiece, vocab.txt; returns the first one's sha256."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files().items():
            storage.write_bytes(folder / name, content)
        return fingerprint(folder)

    def files(self) -> dict[str, bytes]:
        """What `save` writes, tokenizer.json last: the others follow from it."""
        text = self._tokenizer.to_str(pretty=True)
        state = json.loads(text)
        files = {"tokenizer_config.json": storage.json_bytes(_hf_config(self.roles, state))}
        if state["model"]["type"] == "WordPiece":
            by_id = sorted(state["model"]["vocab"].items(), key=lambda entry: entry[1])
            files["vocab.txt"] = "".join(f"{token}\n" for token, _ in by_id).encode()
        return {**files, FILE_NAME: text.encode()}

    def _refuse_special_ids_from_text(self, origin: str) -> None:
        """Rows find their fragments by special ids, so one that stood for text would cut a row in two."""
        special = self.special
        forbidden = {special.cls, special.sep, special.pad, special.mask}
        for token in self.roles.values():
            for ids in self.encode([token, f"a {token} b", f"a{token}b"]):
                if not forbidden.isdisjoint(ids):
                    raise DataError(
                        f"{origin} makes a special token of the text {token!r}; "
                        "declare it as a special token there, or use a tokenizer that splits punctuation."
                    )


def fingerprint(folder: Path) -> str:
    """SHA-256 of a saved tokenizer's tokenizer.json."""
    return storage.sha256_of(folder / FILE_NAME)


def problems(folder: Path, sha256: str) -> list[str]:
    """What is wrong with a saved tokenizer whose tokenizer.json has this sha256, one text a file; [] when nothing."""
    file = folder / FILE_NAME
    if not file.is_file():
        return [f"{folder.name}/{FILE_NAME} is missing"]
    if fingerprint(folder) != sha256:
        return [f"{folder.name}/{FILE_NAME} was altered (its sha256 differs)"]
    found = []
    for name, content in load(folder).files().items():
        if not (folder / name).is_file():
            found.append(f"{folder.name}/{name} is missing")
        elif name != FILE_NAME and (folder / name).read_bytes() != content:
            found.append(f"{folder.name}/{name} was altered")
    return found


def load(path: Path, *, lowercase: bool = True) -> Tokenizer:
    """Load a folder with tokenizer.json, a tokenizer.json, or a BERT vocab.txt (`lowercase` matters for this one only).

    DataError when the file is missing, is no tokenizer, lacks a special token, or makes one of text that spells it.
    """
    file = path / FILE_NAME if path.is_dir() else path
    if not file.is_file():
        raise DataError(f"corpus.tokenizer.path {file} does not exist; give a tokenizer.json or a vocab.txt.")
    if file.suffix != ".json":
        return Tokenizer(_wordpiece(_read_vocab(file), lowercase=lowercase), str(file))
    try:
        return Tokenizer(tokenizers.Tokenizer.from_file(str(file)), str(file))
    except DataError:
        raise
    except Exception as error:  # tokenizers raises bare Exception for a file it cannot read
        raise DataError(f"{file} is not a tokenizer.json that can be read ({error}).") from None


def train(texts: Sequence[str], config: TokenizerConfig) -> Tokenizer:
    """Train a vocabulary of at most `vocab_size` on `texts`. DataError when there is no text."""
    if not any(texts):
        raise DataError("The tokenizer has no text to learn from: the corpus is empty after cleaning.")
    if config.kind == "bpe":
        return Tokenizer(_train_bpe(texts, config), "the trained tokenizer")
    return Tokenizer(_train_wordpiece(texts, config), "the trained tokenizer")


def _train_wordpiece(texts: Sequence[str], config: TokenizerConfig) -> tokenizers.Tokenizer:
    """`WordPieceTrainer` breaks ties by the ids of the alphabet, which it takes from a hash map in no fixed order.

    Handing it the alphabet and its `##` twins as special tokens fixes these ids, and giving it no other character keeps
    it from choosing an alphabet of its own; afterwards only the five real special tokens remain declared as such.
    """
    normalizer = _normalizer(lowercase=config.lowercase)
    specials = list(BERT_ROLES.values())
    alphabet = _alphabet(texts, normalizer, _alphabet_size(config.vocab_size - len(specials)))
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[*specials, *alphabet, *(f"##{character}" for character in alphabet)],
        show_progress=False,
    )
    tokenizer = tokenizers.Tokenizer(models.WordPiece({}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(_within(alphabet, texts, normalizer), trainer=trainer)
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    return _wordpiece(vocabulary, lowercase=config.lowercase)


def _alphabet_size(entries: int) -> int:
    """How many characters a vocabulary can afford, at two entries each: few of many entries, a quarter of very few."""
    return min(MAX_ALPHABET, max(entries // 24, min(128, entries // 4)))


def _alphabet(texts: Iterable[str], normalizer: Any, size: int) -> list[str]:
    """The `size` most frequent characters after normalisation, sorted; ties go to the smaller code point."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalizer.normalize_str(text))
    frequent = sorted(
        ((-count, character) for character, count in counts.items() if not character.isspace()),
    )
    return sorted(character for _, character in frequent[:size])


def _within(alphabet: Sequence[str], texts: Iterable[str], normalizer: Any) -> Iterator[str]:
    """The normalised texts with a blank for every character outside the alphabet."""
    outside = re.compile(f"[^{''.join(map(re.escape, alphabet))}]")
    for text in texts:
        yield outside.sub(" ", normalizer.normalize_str(text))


def _normalizer(*, lowercase: bool) -> Any:
    return normalizers.BertNormalizer(lowercase=lowercase)


def _wordpiece(vocabulary: dict[str, int], *, lowercase: bool) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = _normalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens([token for token in BERT_ROLES.values() if token in vocabulary])
    if "[CLS]" in vocabulary and "[SEP]" in vocabulary:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
        )
    return tokenizer


def _train_bpe(texts: Sequence[str], config: TokenizerConfig) -> tokenizers.Tokenizer:
    """GPT-2's byte-level BPE with RoBERTa's special tokens; its trainer is deterministic as it is."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = [
        tokenizers.AddedToken(token, special=True, lstrip=role == "mask", normalized=False)
        for role, token in ROBERTA_ROLES.items()
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=2,
        special_tokens=specials,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", vocabulary["</s>"]),
        ("<s>", vocabulary["<s>"]),
        add_prefix_space=False,
    )
    return tokenizer


def _read_vocab(path: Path) -> dict[str, int]:
    """A BERT vocab.txt: one entry a line, its number is its line. Duplicate lines would shift ids and are refused."""
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8; a vocab.txt holds one entry a line.") from None
    entries = [line.rstrip("\r") for line in lines]
    while entries and not entries[-1]:
        entries.pop()
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    if len(vocabulary) != len(entries):
        raise DataError(f"{path} holds an entry twice; a vocab.txt holds every entry once.")
    return vocabulary


def _roles(tokenizer: tokenizers.Tokenizer, origin: str) -> dict[str, str]:
    for roles in (BERT_ROLES, ROBERTA_ROLES):
        if tokenizer.token_to_id(roles["cls"]) is not None:
            missing = [token for token in roles.values() if tokenizer.token_to_id(token) is None]
            if missing:
                raise DataError(f"{origin} lacks the special token {missing[0]}; use a complete vocabulary.")
            return roles
    raise DataError(f"{origin} has neither [CLS] nor <s>; use the vocabulary of a BERT, ELECTRA or RoBERTa model.")


def _hf_config(roles: dict[str, str], state: dict[str, Any]) -> dict[str, Any]:
    """What `transformers.AutoTokenizer` needs beside tokenizer.json."""
    names = {"cls_token": "cls", "sep_token": "sep", "pad_token": "pad", "mask_token": "mask", "unk_token": "unk"}
    config: dict[str, Any] = {name: roles[role] for name, role in names.items()}
    config["model_max_length"] = 512
    if roles is ROBERTA_ROLES:
        return config | {
            "tokenizer_class": "RobertaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "add_prefix_space": False
        }  # fmt: skip
    normalizer = state.get("normalizer") or {}
    return config | {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": bool(normalizer.get("lowercase", True)),
        "tokenize_chinese_chars": bool(normalizer.get("handle_chinese_chars", True)),
        "strip_accents": normalizer.get("strip_accents"),
    }
