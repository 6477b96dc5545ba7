"""Tokenizers: train one deterministically, load an existing one, encode text that may contain anything.

`encode` never produces a special id from text: a literal "[MASK]" is text. Training gives the same bytes for the same
sample, whatever its order and whatever the number of threads. Two kinds: WordPiece (BERT, ELECTRA) and byte-level BPE
(RoBERTa). Special tokens go by role, read from the tokenizer, never by number; a
tokenizer that turns text into `cls`, `sep`, `pad` or `mask` is refused. This is the reference that the fast engines
(data_prep/engines.py) are held to; encoding takes a bounded memory beside the ids, however long a text is.
"""

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
import tokenizers
from numpy.typing import NDArray
from pydantic import Field, PositiveInt, model_validator
from tokenizers import models, pre_tokenizers, trainers

from data_prep import pieces, storage, vocabularies
from data_prep.errors import DataError
from data_prep.rows import SpecialIds
from data_prep.settings import Settings
from data_prep.vocabularies import BERT_ROLES, ROBERTA_ROLES

FILE_NAME = vocabularies.TOKENIZER
MAX_ALPHABET = 1_000
BATCH = 500_000  # characters that `tokenizers` is handed at once
# What a token of byte-level BPE begins with when it begins a word: the stand-ins for a blank, a line feed, a tab and a
# carriage return; and SentencePiece's blank.
WORD_STARTS = ("Ġ", "Ċ", "ĉ", "č", "▁")


class TokenizerConfig(Settings):
    """Train a vocabulary on a fixed-size sample of the corpus, or take an existing one from `path`."""

    kind: Literal["wordpiece", "bpe"] = "wordpiece"
    vocab_size: PositiveInt = 30_522
    lowercase: bool = True  # WordPiece only; byte-level BPE is cased
    sample_bytes: PositiveInt = 1_000_000_000
    path: str | None = Field(
        default=None,
        description=f"vocabulary to use instead of training, relative to the working directory: {vocabularies.WAYS}",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "TokenizerConfig":
        if self.kind == "bpe" and self.lowercase and self.path is None:
            raise ValueError("byte-level BPE keeps case: set lowercase to false")
        smallest = 261 if self.kind == "bpe" else 128
        if self.vocab_size < smallest:
            raise ValueError(f"vocab_size must be at least {smallest} for {self.kind}")
        return self


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of many texts, one after the other."""

    ids: NDArray[Any]  # uint16 where the vocabulary allows it, else uint32
    ends: NDArray[np.int64]  # where the ids of each text end


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
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1
        self.dtype = np.dtype(np.uint16 if self.vocab_size < 0xFFFF else np.uint32)
        state = self.state()
        self._cutter = pieces.cutter(state)
        self.continues = _continues(vocabulary, self.vocab_size, state, set(self.roles.values()))
        self._refuse_special_ids_from_text(origin)
        # RoBERTa puts two separators between the segments of a pair, BERT one
        self.pair_separators = 2 if self.roles["cls"] == "<s>" else 1

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, without `cls` or `sep`."""
        encoded = self.encode_flat(texts)
        ids, ends = encoded.ids.tolist(), encoded.ends.tolist()
        return [ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        """As `encode`, in two arrays."""
        counts = np.zeros(len(texts), dtype=np.int64)
        parts = [np.empty(0, dtype=self.dtype)]
        for owners, batch in self._batches(texts):
            ids, lengths = array("I"), []  # an array takes a list three times as fast as numpy does
            for encoding in self._tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                ids.fromlist(found := encoding.ids)
                lengths.append(len(found))
            np.add.at(counts, owners, lengths)
            parts.append(np.array(ids, dtype=self.dtype))
        return Encoded(np.concatenate(parts), np.cumsum(counts))

    def _batches(self, texts: Sequence[str]) -> Iterator[tuple[list[int], list[str]]]:
        """Texts in turn, the long ones in pieces, about `BATCH` characters at a time; beside each its text's number."""
        owners: list[int] = []
        batch: list[str] = []
        size = 0
        for owner, text in enumerate(texts):
            for piece in (text,) if len(text) <= pieces.LONG or self._cutter is None else self._cutter.cut(text):
                owners.append(owner)
                batch.append(piece)
                size += len(piece)
                if size >= BATCH:
                    yield owners, batch
                    owners, batch, size = [], [], 0
        if batch:
            yield owners, batch

    def located(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of one text as `encode` gives them, and the characters each stands for: its first, and the one past
        its last. A blank that byte-level BPE keeps in a token may be among them; characters the normaliser drops are in
        none. For texts of ordinary length: it is not cut into pieces."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens written out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def words(self, text: str) -> list[str]:
        """The pieces normaliser and splitter make of a text; each becomes tokens by itself."""
        normalizer, splitter = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        normal = text if normalizer is None else normalizer.normalize_str(text)
        return [normal] if splitter is None else [word for word, _ in splitter.pre_tokenize_str(normal)]

    def lengths(self) -> NDArray[np.int64]:
        """By id: the characters the vocabulary spells the token with."""
        lengths = np.zeros(self.vocab_size, dtype=np.int64)
        for token, number in self._tokenizer.get_vocab(with_added_tokens=True).items():
            lengths[number] = len(token)
        return lengths

    def beginning(self, text: str, length: int) -> str:
        """The whole text, or a beginning of at least `length` characters whose ids begin the ids of the text."""
        return text if len(text) <= length or self._cutter is None else next(self._cutter.cut(text, length))

    def state(self) -> dict[str, Any]:
        """What tokenizer.json holds."""
        state: dict[str, Any] = orjson.loads(self._tokenizer.to_str())
        return state

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


def load(path: Path, *, lowercase: bool = True) -> Tokenizer:
    """Load a vocabulary in any of the forms of data_prep/vocabularies.py, which says when `lowercase` matters.

    DataError when a file is missing, is no vocabulary, lacks a special token, or makes one of text that spells it.
    """
    return Tokenizer(vocabularies.read(path, lowercase=lowercase), str(vocabularies.files(path)[0]))


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
    normalizer = vocabularies.bert_normalizer(lowercase=config.lowercase)
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
    return vocabularies.wordpiece(vocabulary, lowercase=config.lowercase)


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


def _train_bpe(texts: Sequence[str], config: TokenizerConfig) -> tokenizers.Tokenizer:
    """GPT-2's byte-level BPE with RoBERTa's special tokens; its trainer is deterministic as it is."""
    tokenizer = vocabularies.byte_bpe(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=2,
        special_tokens=vocabularies.roberta_specials(),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return vocabularies.byte_bpe(tokenizer.model)


def _continues(vocabulary: dict[str, int], size: int, state: dict[str, Any], special: set[str]) -> NDArray[np.bool_]:
    """By id: whether the token goes on with a word instead of beginning one."""
    prefix = state["model"].get("continuing_subword_prefix")
    out = np.zeros(size, dtype=np.bool_)
    for token, number in vocabulary.items():
        inside = token.startswith(prefix) if prefix else not token.startswith(WORD_STARTS)
        out[number] = inside and token not in special
    return out


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
            "tokenizer_class": "RobertaTokenizer",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "add_prefix_space": bool((state.get("pre_tokenizer") or {}).get("add_prefix_space", False)),
        }
    normalizer = state.get("normalizer") or {}
    return config | {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": bool(normalizer.get("lowercase", True)),
        "tokenize_chinese_chars": bool(normalizer.get("handle_chinese_chars", True)),
        "strip_accents": normalizer.get("strip_accents"),
    }
