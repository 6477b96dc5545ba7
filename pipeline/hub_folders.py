"""What `electra push` sends: which folders, to which repositories and branches, and which files of them.

A folder with a model in it is one repository. The folder that `electra export` writes holds one a network: of several,
each goes to REPO-KIND (`me/small-discriminator`), one alone to REPO. With every checkpoint, DIR holds such folders, one
a checkpoint; each goes to a branch `step-N-flops-X`, and the newest to main as well. Nothing is sent that does not
load, or that is not what was proved when it was exported.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_prep import storage
from data_prep.errors import CheckError, ConfigError, DataError
from data_prep.redact import redact
from pipeline import card_metadata
from pipeline.card_metadata import CARD, RESULTS, UNSTATED
from pipeline.model_card import for_repository

KINDS = ("discriminator", "generator", "encoder")
_BRANCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TEXTS = (".json", ".md", ".yaml", ".txt")
# The tokenizer's own, whose keys speak of tokens and whose words may be any
_NO_TEXTS = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "vocab.txt", "merges.txt",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """One folder on its way to a branch of a repository (None: main). `files`: content by path, a file's or as it is
    changed on the way; `facts`: step, tokens, FLOPs and run, as the card's metadata has them."""

    folder: Path
    repository: str
    revision: str | None
    files: dict[str, Path | bytes]
    facts: dict[str, Any]
    unlicensed: bool

    def sizes(self) -> dict[str, int]:
        """Bytes by path."""
        return {
            name: len(content) if isinstance(content, bytes) else content.stat().st_size
            for name, content in self.files.items()
        }


def sendings(folder: Path, repository: str, *, revision: str | None, every: bool, licence: str | None) -> list[Sending]:
    """Everything that is to be sent, in order. ConfigError for options that do not fit the folder, CheckError for a
    folder that must not be published as it is."""
    if not folder.is_dir():
        raise DataError(f"{folder} does not exist; run `electra export` first")
    if revision is not None and (every or not _BRANCH.fullmatch(revision)):
        why = "--all-checkpoints names the branches itself" if every else "a branch is letters, digits and . _ -"
        raise ConfigError(f"--revision {revision}: {why}")
    _check_name(repository)
    if not every:
        return [_sending(one, name, revision, licence) for one, name in _networks(folder, repository)]
    exports = [path for path in sorted(folder.iterdir()) if path.is_dir() and _holds(path)]
    if not exports or _holds(folder):
        raise ConfigError(f"--all-checkpoints: {folder} holds no folders of exported checkpoints, one each")
    found = [_sending(one, name, None, licence) for path in exports for one, name in _networks(path, repository)]
    branches = [_on_branch(one) for one in sorted(found, key=lambda one: _step(one))]
    if len({(one.repository, one.revision) for one in branches}) < len(branches):
        raise ConfigError(f"--all-checkpoints: two folders in {folder} hold the same step; remove one")
    newest = {one.repository: one for one in sorted(found, key=lambda one: _step(one))}
    return [*branches, *newest.values()]


def _check_name(repository: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(f"{repository}-{max(KINDS, key=len)}")
        fits = repository.count("/") == 1
    except HFValidationError:
        fits = False
    if not fits:
        raise ConfigError(
            f"{repository}: no name of a repository; give it as OWNER/NAME, up to 80 letters, digits and . _ -"
        )


def branch_of(facts: dict[str, Any]) -> str:
    """`step-318-flops-2.40e12`."""
    mantissa, exponent = f"{facts['flops']:.2e}".split("e")
    return f"step-{facts['step']}-flops-{mantissa}e{int(exponent)}"


def _on_branch(one: Sending) -> Sending:
    return replace(one, revision=branch_of(one.facts))


def _step(one: Sending) -> int:
    if not {"step", "flops"} <= one.facts.keys():
        raise CheckError(f"{one.folder / CARD}: it does not say at which step and FLOPs; export the folder again")
    return int(one.facts["step"])


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _holds(folder: Path) -> bool:
    return _is_model(folder) or any(_is_model(folder / kind) for kind in KINDS)


def _networks(folder: Path, repository: str) -> list[tuple[Path, str]]:
    if _is_model(folder):
        return [(folder, repository)]
    found = [kind for kind in KINDS if _is_model(folder / kind)]
    if not found:
        raise DataError(f"{folder} holds no exported model; give a folder that `electra export` has written")
    return [(folder / kind, repository if len(found) == 1 else f"{repository}-{kind}") for kind in found]


def _sending(folder: Path, repository: str, revision: str | None, licence: str | None) -> Sending:
    paths = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and _is_sent(path.relative_to(folder))
    }
    if not any(name.endswith(".safetensors") for name in paths):
        raise CheckError(f"{folder}: no weights (*.safetensors) in it; export the folder again")
    card_metadata.check_card(folder)
    _refuse_altered(folder, paths)
    _refuse_secrets(paths)
    text = for_repository((folder / CARD).read_text(encoding="utf-8"), repository)
    if licence is not None:
        text = card_metadata.with_licence(text, licence)
    found = card_metadata.check_card(folder, text)
    files: dict[str, Path | bytes] = {**paths, CARD: text.encode()}
    return Sending(
        folder=folder,
        repository=repository,
        revision=revision,
        files=files,
        facts=found.get("electra") or {},
        unlicensed=found.get("license_name") == UNSTATED,
    )


def _is_sent(path: Path) -> bool:
    """Hidden files are some program's own, but for the scores."""
    return path.parts[0] == RESULTS or not any(part.startswith(".") for part in path.parts)


def _refuse_altered(folder: Path, paths: dict[str, Path]) -> None:
    """Weights and tokenizer are those that were proved, where the proof's record lies beside them."""
    try:
        marker = storage.read_json(folder.parent / "export.json")
    except DataError:
        return
    proved = (marker.get("files") or {}).get(folder.name) or {}
    for name, said in proved.items():
        if name == CARD or name.startswith(RESULTS):
            continue
        path = paths.get(name)
        if path is None or path.stat().st_size != said["bytes"] or storage.sha256_of(path) != said["sha256"]:
            raise CheckError(f"{folder / name}: not what was proved when it was exported; run `electra export` again")


def _refuse_secrets(paths: dict[str, Path]) -> None:
    for name, path in paths.items():
        if not name.endswith(_TEXTS) or name in _NO_TEXTS:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if redact(text) != text:
            raise CheckError(f"{path}: it holds what looks like a secret; take it out before the folder is published")
