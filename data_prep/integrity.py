"""Whether a prepared corpus is what its manifest says: shards, held-out documents and tokenizer.

Opening a split (`data_prep.shards.RowReader`) already finds shards that are missing, extra or cut; this finds content
that was altered as well, at the speed of SHA-256. The manifest itself is taken at its word. Repairs nothing: that is
`electra prepare`, which redoes the units whose files are damaged.
"""

from pathlib import Path

from data_prep import shards, tables, tokenizer
from data_prep.errors import DataError
from data_prep.manifest import HeldoutDocuments, Manifest

TOKENIZER = "tokenizer"  # the tokenizer's folder in a corpus


def verify(corpus_dir: Path, manifest: Manifest, *, deep: bool = True) -> None:
    """DataError that names every file that is missing, extra, cut or, with `deep`, altered."""
    if found := problems(corpus_dir, manifest, deep=deep):
        raise shards.damaged(corpus_dir, found)


def problems(corpus_dir: Path, manifest: Manifest, *, deep: bool = True) -> list[str]:
    """What `verify` complains of, one text a file; empty for a sound corpus."""
    found = [
        *shards.problems(corpus_dir, "train", manifest, deep=deep),
        *shards.problems(corpus_dir, "heldout", manifest, deep=deep),
    ]
    found += [problem for file in manifest.heldout_documents if (problem := _problem(corpus_dir, file, deep))]
    return found + tokenizer.problems(corpus_dir / TOKENIZER, manifest.tokenizer_sha256)


def _problem(corpus_dir: Path, file: HeldoutDocuments, deep: bool) -> str | None:
    path = corpus_dir / file.name
    if not path.is_file():
        return f"{file.name} is missing"
    if not deep:
        return None
    try:
        altered = tables.heldout_sha256(path) != file.sha256
    except DataError:
        return f"{file.name} cannot be read"
    return f"{file.name} was altered (its sha256 differs)" if altered else None
