"""`electra verify`: is a prepared corpus still what its manifest says?

Reads every byte of shards, held-out documents and tokenizer and compares hashes, or, with `quick`, names, sizes and
counts only. Names everything that is wrong, one line each. Repairs nothing: `electra prepare` does.
"""

from pathlib import Path
from typing import Any

from data_prep import integrity, storage
from data_prep import manifest as manifests
from data_prep.errors import DataError
from data_prep.storage import Folder
from pipeline import gather
from pipeline.console import Console
from pipeline.corpora import MAIN


def verify(location: str, *, quick: bool, console: Console) -> dict[str, Any]:
    """DataError when anything is wrong, after a line for each file; otherwise figures of what was verified: of an
    experiment's `corpora`, below their names."""
    folders = _corpora(location)
    named = {name: _verify(folder, quick=quick, console=console) for name, folder in folders.items()}
    return {**named.pop(MAIN), **({"corpora": named} if named else {})}


def _verify(corpus: Folder, *, quick: bool, console: Console) -> dict[str, Any]:
    manifest = manifests.load(corpus)
    files = len(manifest.train.shards) + len(manifest.heldout.shards) + len(manifest.heldout_documents)
    with console.stage("verify", unit="files"):
        found = integrity.problems(corpus, manifest, deep=not quick)
    for problem in found:
        console.say(f"verify: {problem}")
    if found:
        how = "run" if corpus.is_local else "delete them and run"  # what an object store holds is not read again
        raise DataError(
            f"{corpus}: {len(found)} of its files are not what the manifest says; {how} `electra prepare` again to "
            "restore them."
        )
    size = sum(shard.bytes for split in (manifest.train, manifest.heldout) for shard in split.shards)
    how = "names, sizes and counts" if quick else "every byte"
    console.say(
        f"verify: {corpus} is sound ({how}): {len(manifest.train.shards) + len(manifest.heldout.shards)} shards, "
        f"{size / 1e6:.1f} MB, {manifest.train.rows + manifest.heldout.rows:,} rows"
    )
    return {"corpus": str(corpus), "quick": quick, "files": files, "bytes": size, "manifest_sha256": manifest.sha256}


def _corpora(location: str) -> dict[str, Folder]:
    """The corpus at an address or in a folder, or those of the experiment in that folder."""
    if "://" in location or (Path(location) / manifests.FILE_NAME).exists():
        return {MAIN: storage.folder(location)}
    if not Path(location).is_dir():
        raise DataError(f"{location}: no such folder; give a corpus, or the folder of an experiment.")
    return gather.corpus_folders(Path(location))
