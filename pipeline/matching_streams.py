"""What runs are fed: the rules on corpora, batches and order of a matched comparison (`pipeline.matching`).

Arms of one tokenizer and layout read one corpus in one order. An experiment may declare further corpora (`corpora:`),
whose arms read the same documents otherwise; then it is the documents that must be the same.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from data_prep.manifest import Manifest
from pipeline.assumed import is_assumed
from pipeline.corpora import MAIN
from pipeline.gather import Contents, Run
from pipeline.matching_rules import by_corpus, unlike
from pipeline.wording import arm_name, names

_OF_A_CORPUS = {"manifest_sha256": "their corpus", "tokenizer_sha256": "their tokenizer"}
# The order of rows is a function of corpus, batch, order settings and seed, which is compared without the last.
_OF_ALL = {"seq_len": "the length of rows", "global_batch": "training.global_batch", "order": "training.order"}


def broken(contents: Contents) -> list[str]:
    """In what runs differ that they must share."""
    groups = [(own, _OF_A_CORPUS) for own in by_corpus(contents).values()] + [(contents.runs, _OF_ALL)]
    told = [unlike(what, own, partial(_of_identity, key)) for own, keys in groups for key, what in keys.items()]
    return [*filter(None, told), *other_documents(contents.manifests)]


def _of_identity(key: str, run: Run) -> Any:
    return run.identity.get(key)


def other_documents(manifests: Mapping[str, Manifest]) -> Iterator[str]:
    """Corpora that were not made of the documents of `corpus:`, or hold others of them out, by their manifests."""
    main = manifests.get(MAIN)
    for name, manifest in manifests.items():
        if main is None or is_assumed(main) or is_assumed(manifest):
            continue
        if _documents(manifest) != _documents(main):
            yield f"corpora.{name} was not made of the documents of corpus, or holds others of them out."


def _documents(manifest: Manifest) -> list[Any]:
    return [manifest.documents, sorted(one.sha256 for one in manifest.heldout_documents)]


def kept(contents: Contents) -> str:
    """What all runs share."""
    if len(by_corpus(contents)) < 2:
        return "All runs take their rows from one corpus, with one tokenizer and layout, in batches of one size."
    return (
        "All runs of one tokenizer and layout take their rows from one corpus, and all of them from the same "
        "documents, in batches of one size."
    )


def differences(contents: Contents) -> list[str]:
    """What arms that read another corpus than `corpus:` read otherwise, and what then does not compare."""
    return [_difference(name, own, contents) for name, own in by_corpus(contents).items() if name != MAIN]


def _difference(name: str, runs: list[Run], contents: Contents) -> str:
    ours, main = contents.manifests.get(name), contents.manifest
    arms, how = names(list(dict.fromkeys(arm_name(run.arm) for run in runs))), "another tokenizer or layout"
    if ours is not None and main is not None:
        how = f"{_told(ours)}, and the others with {_told(main)}"
    return (
        f"{arms} read the documents as corpora.{name} has them, with {how}: a token of theirs is another amount "
        "of text, and their held-out losses do not compare with those of the others."
    )


def _told(manifest: Manifest) -> str:
    return f"{manifest.vocab_size:,} words in layout {manifest.layout}"
