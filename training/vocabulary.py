"""Which token every id stands for: in a Hugging Face folder, and in a prepared corpus. Torch-free."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import tokenizers

from data_prep import storage, vocabularies
from data_prep.manifest import Manifest
from data_prep.storage import Location
from data_prep.tokenizer import FILE_NAME

Vocabulary = Mapping[str, int]


def of_folder(folder: Path) -> Vocabulary | None:
    """The ids by token of a model's folder; None where it holds no vocabulary. DataError where it cannot be read."""
    names = (vocabularies.TOKENIZER, vocabularies.WORDPIECE, vocabularies.BPE)
    if not any((folder / name).is_file() for name in names):
        return None
    found: Vocabulary = vocabularies.read(folder, lowercase=True).get_vocab(with_added_tokens=True)
    return found


def of_corpus(corpus: Location | None, manifest: Manifest) -> Vocabulary | None:
    """The ids by token of a corpus; None where its files are not at hand."""
    return None if corpus is None else _of_corpus(storage.folder(corpus).location, manifest.tokenizer_sha256)


@lru_cache(maxsize=2)
def _of_corpus(location: str, _sha256: str) -> Vocabulary | None:
    folder, name = storage.folder(location), f"tokenizer/{FILE_NAME}"
    if folder.size(name) is None:
        return None
    read = tokenizers.Tokenizer.from_str(folder.read_bytes(name).decode())
    found: Vocabulary = read.get_vocab(with_added_tokens=True)
    return found
