"""Vocabulary files as people have them, read into `tokenizers`: what is read, how, and the one sentence when it is not.

A tokenizer.json; a BERT vocab.txt; a RoBERTa vocab.json with its merges.txt beside it; or a folder with one of these,
looked for in this order. In a folder, a tokenizer_config.json beside a vocab.txt says whether it is cased, as in
`transformers`; for a vocab.txt given by itself the caller does, and must not contradict it. Nothing is downloaded, and
nothing is decided by a number: special tokens are found by name.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from data_prep import storage
from data_prep.errors import DataError

TOKENIZER, WORDPIECE, BPE, MERGES = "tokenizer.json", "vocab.txt", "vocab.json", "merges.txt"
CONFIG = "tokenizer_config.json"
BERT_ROLES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_ROLES = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
WAYS = f"a {TOKENIZER}, a {WORDPIECE}, a {BPE} with {MERGES} beside it, or a folder with one of these"


def files(path: Path) -> list[Path]:
    """The files that `read` reads, the vocabulary first. DataError when there is none."""
    if path.is_dir():
        inside = (path / name for name in (TOKENIZER, WORDPIECE, BPE))
        vocabulary = next((file for file in inside if file.is_file()), None)
        if vocabulary is None:
            raise DataError(f"the tokenizer's path {path} is a folder without a vocabulary; give {WAYS}.")
        beside = {TOKENIZER: [], WORDPIECE: [path / CONFIG], BPE: [path / MERGES, path / CONFIG]}[vocabulary.name]
    else:
        vocabulary = path
        beside = [path.parent / MERGES, path.parent / CONFIG] if path.name == BPE else []
    if not vocabulary.is_file():
        raise DataError(f"the tokenizer's path {vocabulary} does not exist; give {WAYS}.")
    missing = [file for file in beside if file.name == MERGES and not file.is_file()]
    if missing:
        raise DataError(f"{vocabulary} needs {MERGES} beside it, and {missing[0]} does not exist.")
    return [vocabulary, *(file for file in beside if file.is_file())]


def fingerprint(path: Path) -> str:
    """SHA-256 of what `read` reads: of the file where it is one, else of the files' hashes."""
    hashes = [storage.sha256_of(file) for file in files(path)]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256(" ".join(hashes).encode()).hexdigest()


def read(path: Path, *, lowercase: bool) -> tokenizers.Tokenizer:
    """Read a vocabulary. `lowercase` matters for a vocab.txt about which no tokenizer_config.json speaks."""
    vocabulary, *_ = found = files(path)
    config = _config(next((file for file in found if file.name == CONFIG), None))
    if vocabulary.suffix != ".json":
        if not path.is_dir():
            _refuse_contradiction(vocabulary, lowercase)
        return wordpiece(
            _read_lines(vocabulary),
            lowercase=_flag(config, "do_lower_case", lowercase),
            strip_accents=_flag(config, "strip_accents", None),
            chinese=_flag(config, "tokenize_chinese_chars", True),
        )
    try:
        if vocabulary.name == BPE:
            model = models.BPE.from_file(str(vocabulary), str(vocabulary.parent / MERGES))
            return byte_bpe(model, prefix_space=bool(_flag(config, "add_prefix_space", False)))
        return tokenizers.Tokenizer.from_file(str(vocabulary))
    except Exception as error:  # tokenizers raises bare Exception for a file it cannot read
        kind = f"{BPE} with {MERGES}" if vocabulary.name == BPE else TOKENIZER
        raise DataError(f"{vocabulary} is not a {kind} that can be read ({error}).") from None


def bert_normalizer(*, lowercase: bool, strip_accents: bool | None = None, chinese: bool = True) -> Any:
    """BERT's. Without `strip_accents` accents go with the capitals."""
    return normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=chinese, clean_text=True
    )


def wordpiece(
    vocabulary: dict[str, int], *, lowercase: bool, strip_accents: bool | None = None, chinese: bool = True
) -> tokenizers.Tokenizer:
    """BERT's tokenizer over a vocabulary."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = bert_normalizer(lowercase=lowercase, strip_accents=strip_accents, chinese=chinese)
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


def byte_bpe(model: Any, *, prefix_space: bool = False) -> tokenizers.Tokenizer:
    """GPT-2's byte-level BPE with those of RoBERTa's special tokens that the model's vocabulary holds."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [token for token in roberta_specials() if tokenizer.token_to_id(token.content) is not None]
    )
    cls, sep = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")
    if cls is not None and sep is not None:
        tokenizer.post_processor = processors.RobertaProcessing(
            ("</s>", sep), ("<s>", cls), add_prefix_space=prefix_space
        )
    return tokenizer


def roberta_specials() -> list[tokenizers.AddedToken]:
    """RoBERTa's special tokens; its mask takes the blank before it, as in `transformers`."""
    return [
        tokenizers.AddedToken(token, special=True, lstrip=role == "mask", normalized=False)
        for role, token in ROBERTA_ROLES.items()
    ]


def _refuse_contradiction(vocabulary: Path, lowercase: bool) -> None:
    """A cased model's vocab.txt picked out of its folder would be read as uncased without a word."""
    file = vocabulary.parent / CONFIG
    theirs = _flag(_config(file if file.is_file() else None), "do_lower_case", lowercase)
    if theirs != lowercase:
        raise DataError(
            f"{file} says do_lower_case: {theirs} of {vocabulary.name}, but corpus.tokenizer.lowercase is {lowercase}; "
            "set it likewise, or give the folder."
        )


def _config(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        config = json.loads(file.read_bytes())
    except ValueError as error:  # not JSON, or not UTF-8
        raise DataError(f"{file} is not JSON ({error}); mend it or take it away.") from None
    if not isinstance(config, dict):
        raise DataError(f"{file} is not a JSON object; mend it or take it away.")
    return config | {"file": file}


def _flag(config: dict[str, Any], key: str, default: bool | None) -> Any:
    """A true or false of tokenizer_config.json; null is as good as absent."""
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise DataError(f"{config['file']} says {key}: {value!r}; it must be true or false.")
    return default if value is None else value


def _read_lines(path: Path) -> dict[str, int]:
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
