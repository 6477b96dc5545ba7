"""What lies in a run's store: every checkpoint, and what became of it.

By manifests and sizes; `verify` hashes every part as well. May be read while a run saves and prunes: what comes or goes
meanwhile is told as it was found.
"""

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Literal

from data_prep.errors import CheckpointError, DataError
from data_prep.storage import Folder
from training.checkpoints.manifest import (
    Checkpoint,
    OldVersionError,
    UnfinishedError,
    answering,
    read,
    verify_part,
)
from training.settings import Placement

RECORD = "saved.json"  # in a store: a checkpoint was finished here once
REASON = "reason.json"  # in a checkpoint that was set aside as broken
_NAME = re.compile(r"step-(\d{8,})(\.broken-\d+)?")

State = Literal["valid", "unfinished", "broken", "old version"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One checkpoint. What its manifest says is None where it is not valid, and `reason` then says why. `kept_by`: the
    rules of retention that hold it."""

    name: str
    step: int
    state: State
    reason: str | None = None
    bytes: int = 0  # of all its files
    flops_counted: float | None = None
    tokens: int | None = None
    saved_at: float | None = None
    heldout_loss: float | None = None
    kept_by: list[str] = field(default_factory=list)
    placement: Placement | None = None  # what the run was placed on when it was saved


def steps_of(store: Folder) -> dict[str, int]:
    """The steps of the checkpoints in a store by name, finished or not, without those set aside; ascending.
    StoreError where the store gives no answer."""
    with answering(store):
        found = {name.partition("/")[0] for name in store.names()}
    steps = {name: int(match[1]) for name in found if (match := _NAME.fullmatch(name)) and not match[2]}
    return dict(sorted(steps.items(), key=lambda item: item[1]))


# Valid checkpoints by name, as a process has seen them: their files by size, and what their manifests said.
Known = MutableMapping[str, tuple[dict[str, int], Entry]]


def entries(store: Folder, *, verify: bool = False, known: Known | None = None) -> list[Entry]:
    """All checkpoints, those set aside too, the newest last; `verify` hashes the parts of those that seem valid. What
    is `known` and has the same files still is not read again, and what is read becomes known. StoreError where the
    store gives no answer."""
    files: dict[str, dict[str, int]] = {}
    with answering(store):
        for path, size in store.sizes().items():
            name, _, file = path.partition("/")
            if file and _NAME.fullmatch(name):
                files.setdefault(name, {})[file] = size
    known = {} if known is None or verify else known
    found = [_known_entry(store, name, sizes, verify, known) for name, sizes in files.items()]
    return sorted(found, key=lambda entry: (entry.step, entry.state == "valid", entry.name))


def _known_entry(store: Folder, name: str, sizes: dict[str, int], verify: bool, known: Known) -> Entry:
    if name in known and known[name][0] == sizes:
        return known[name][1]
    match = _NAME.fullmatch(name)
    assert match is not None
    found = _entry(store, match, sum(sizes.values()), verify)
    if found.state == "valid":
        known[name] = sizes, found
    return found


def _entry(store: Folder, match: re.Match[str], size: int, verify: bool) -> Entry:
    name, step = match[0], int(match[1])
    if match[2]:
        return Entry(name=name, step=step, state="broken", bytes=size, reason=_why_aside(store.sub(name)))
    try:
        found = examine(store.sub(name), hashes=verify)
    except CheckpointError as error:
        return Entry(name=name, step=step, state=state_of(error), bytes=size, reason=str(error))
    progress, manifest = found.progress, found.manifest
    return Entry(
        name=name,
        step=step,
        state="valid",
        bytes=size,
        flops_counted=progress.flops_counted,
        tokens=progress.tokens,
        saved_at=manifest["saved_at"],
        heldout_loss=manifest["heldout_loss"],
        placement=found.spec.placement,
    )


def examine(folder: Folder, *, hashes: bool) -> Checkpoint:
    """The checkpoint of a folder, its parts compared by size or by hash. CheckpointError saying what is wrong."""
    found = read(folder)
    for part in found.manifest["parts"]:
        verify_part(found, part, by_size=not hashes)
    return found


def state_of(error: CheckpointError) -> State:
    if isinstance(error, UnfinishedError):
        return "unfinished"
    return "old version" if isinstance(error, OldVersionError) else "broken"


def _why_aside(folder: Folder) -> str:
    try:
        found = folder.read_json(REASON)
    except DataError:
        return "set aside at a resumption"
    return str(found["reason"]) if isinstance(found, Mapping) and "reason" in found else "set aside at a resumption"
