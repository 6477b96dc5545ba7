"""Whether a prepared corpus is what its manifest says: shards, held-out documents and tokenizer.

Opening a split (`data_prep.reader.RowReader`) already finds shards that are missing, extra or cut; this finds content
that was altered as well, at the speed of SHA-256. The manifest itself is taken at its word. Repairs nothing: that is
`electra prepare`, which redoes the units whose files are damaged.
"""

from pathlib import Path

from data_prep import reader, storage, tables, tokenizer
from data_prep.errors import DataError
from data_prep.manifest import HeldoutDocuments, Manifest
from data_prep.storage import Folder, Location

TOKENIZER = "tokenizer"  # the tokenizer's folder in a corpus


def verify(corpus: Location, manifest: Manifest, *, deep: bool = True) -> None:
    """DataError that names every file that is missing, extra, cut or, with `deep`, altered. Without, sizes and counts
    are compared, and of contents only the tokenizer's read."""
    folder = storage.folder(corpus)
    if found := problems(folder, manifest, deep=deep):
        raise reader.damaged(folder, found)


def problems(corpus: Folder, manifest: Manifest, *, deep: bool = True) -> list[str]:
    """What `verify` complains of, one text a file; empty for a sound corpus."""
    found = [
        *reader.problems(corpus, "train", manifest, deep=deep),
        *reader.problems(corpus, "heldout", manifest, deep=deep),
    ]
    found += [problem for file in manifest.heldout_documents if (problem := _problem(corpus, file, deep))]
    return found + tokenizer_problems(corpus, manifest.tokenizer_sha256)


def tokenizer_problems(corpus: Folder, sha256: str) -> list[str]:
    """What is wrong with the corpus's tokenizer, whose tokenizer.json has this sha256; one text a file."""
    main = f"{TOKENIZER}/{tokenizer.FILE_NAME}"
    if corpus.size(main) is None:
        return [f"{main} is missing"]
    if corpus.sha256(main) != sha256:
        return [f"{main} was altered (its sha256 differs)"]
    found = []
    for name, content in tokenizer.load(corpus.local(main, sha256=sha256)).files().items():
        path = f"{TOKENIZER}/{name}"
        if corpus.size(path) is None:
            found.append(f"{path} is missing")
        elif name != tokenizer.FILE_NAME and corpus.read_bytes(path) != content:
            found.append(f"{path} was altered")
    return found


def local_tokenizer(corpus: Location) -> Path:
    """The folder on this machine that holds the corpus's tokenizer, as Hugging Face's loaders want it."""
    folder = storage.folder(corpus)
    paths = [folder.local(name) for name in folder.names(TOKENIZER)]
    if not paths:
        raise DataError(f"{folder}/{TOKENIZER} does not exist: run `electra prepare` first.")
    return paths[0].parent


def _problem(corpus: Folder, file: HeldoutDocuments, deep: bool) -> str | None:
    if corpus.size(file.name) is None:
        return f"{file.name} is missing"
    try:
        if deep:
            altered = tables.heldout_sha256(corpus, file.name) != file.sha256
            return f"{file.name} was altered (its sha256 differs)" if altered else None
        documents = tables.heldout_count(corpus, file.name)
    except DataError:
        return f"{file.name} cannot be read"
    return f"{file.name} has {documents} documents instead of {file.documents}" if documents != file.documents else None
