"""What a checkpoint is: the files of one folder, of which `manifest.json` is written last and is the commit.

Beside it lie `part-RRRRR.safetensors`, one of each rank that saved (`training.checkpoints.parts`). The manifest holds
their sizes and hashes, the shapes of all parameters, the names of the frozen ones (which have no optimizer state), the
run, its progress with the ledgers, checksums of what was saved and a hash of the rows that come next. A parameter that
modules share stands once, under its first name in `named_parameters()`. The folder is on a disk or in an object store:
nothing is renamed as a whole, and without a valid manifest a checkpoint does not exist. JSON and safetensors; nothing
is pickled.
"""

import contextlib
import errno
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from data_prep import storage
from data_prep.errors import CheckpointError, StoreError
from data_prep.rows import SpecialIds
from data_prep.storage import Folder, Location
from training.ledgers import Ledger, Ledgers
from training.run_folder import checkpoint_name
from training.settings import RunSpec

MANIFEST = "manifest.json"
SUPERSEDED = "manifest.superseded.json"  # what a rollback has left behind
VERSION = 3
_LOST = (errno.EIO, errno.EISDIR)  # what a disk says of a file that it has lost

T = TypeVar("T")


class UnfinishedError(CheckpointError):
    """There is no manifest: saving did not come to its end, or a rollback took the manifest away."""


class OldVersionError(CheckpointError):
    """It is of another version of the format."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands after `step` completed steps, `skipped` of which changed nothing (a gradient was not finite).

    Ledgers: model FLOPs that the surviving trajectory `counted`, and `spent` with what restarts repeated; of the
    surviving trajectory also what was `executed`, and the ELECTRA paper's convention. They contain those of the runs
    that this one began with, which `inherited` keeps apart. Those of a decay branch contain what its trunk had counted
    where it left it, but not what the trunk spent, which the branch did not: `shared` keeps both apart. `seconds` of
    the surviving trajectory, of which `step_seconds` in steps of this run. `rollbacks` of the run so far;
    `skipped_rows`: the ranges of positions, from and to, that they led the surviving trajectory past. `degenerate`:
    what the last held-out evaluation says of a network that learned nothing.
    """

    step: int = 0
    position: int = 0
    skipped: int = 0
    flops_counted: float = 0.0
    flops_spent: float = 0.0
    flops_executed: float = 0.0
    flops_paper: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    step_seconds: float = 0.0
    rollbacks: int = 0
    skipped_rows: tuple[tuple[int, int], ...] = ()
    degenerate: str | None = None
    inherited: Ledgers = field(default_factory=dict)
    shared: Ledgers = field(default_factory=dict)

    @property
    def rows_skipped(self) -> int:
        """How many rows those ranges are."""
        return sum(stop - start for start, stop in self.skipped_rows)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A finished checkpoint: its folder and its manifest. Small and picklable."""

    folder: Folder
    manifest: dict[str, Any]

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def name(self) -> str:
        """`step-00000123`."""
        return checkpoint_name(self.progress.step)

    @property
    def progress(self) -> Progress:
        stored = self.manifest["progress"]
        others = {
            name: {run: Ledger(**ledger) for run, ledger in stored.get(name, {}).items()}
            for name in ("inherited", "shared")
        }
        skipped_rows = tuple((start, stop) for start, stop in stored.get("skipped_rows", ()))
        return Progress(**{**stored, **others, "skipped_rows": skipped_rows})

    @property
    def spec(self) -> RunSpec:
        return RunSpec.model_validate(self.manifest["spec"])

    @property
    def special(self) -> SpecialIds:
        return SpecialIds.model_validate(self.manifest["special"])

    @property
    def sha256(self) -> str:
        """Hash of the manifest, which holds the hashes of the parts: names this checkpoint and no other."""
        return self.folder.sha256(MANIFEST)


def read(location: Location) -> Checkpoint:
    """The checkpoint in a folder by its manifest alone, without a look at the parts: enough to plan with.
    CheckpointError where there is none of this version, StoreError where nobody can tell."""
    folder = storage.folder(location)
    path = folder.sub(MANIFEST)  # as an address
    try:
        with readable(path):
            manifest = json.loads(_insisting(lambda: folder.read_bytes(MANIFEST)))
        if manifest["version"] != VERSION:
            raise OldVersionError(
                f"{path} is of version {manifest['version']} and not {VERSION}: choose another checkpoint, or the "
                "release that wrote it."
            )
        if not manifest["parts"]:
            raise CheckpointError(f"{path} lists no parts: choose another checkpoint.")
        found = Checkpoint(folder, manifest)
        _ = found.progress, found.spec, found.special
        _ = [
            manifest[name] for name in ("packed", "shapes", "frozen", "heldout_loss", "saved_at", "proof", "next_rows")
        ]
        _ = [(part["name"], part["bytes"], part["sha256"]) for part in manifest["parts"]]
    except FileNotFoundError:
        raise UnfinishedError(_no_manifest(folder)) from None
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{path} is not a checkpoint manifest: choose another checkpoint.") from None
    return found


def _no_manifest(folder: Folder) -> str:
    if folder.size(SUPERSEDED) is not None:
        return f"{folder} was left behind by a rollback: choose another checkpoint."
    return f"{folder} holds no {MANIFEST}: it is not a finished checkpoint; choose another."


def verify(location: Location) -> Checkpoint:
    """The checkpoint in a folder if it is whole; otherwise CheckpointError saying what is wrong with it."""
    found = read(location)
    for part in found.manifest["parts"]:
        verify_part(found, part)
    return found


def verify_part(checkpoint: Checkpoint, part: dict[str, Any], *, by_size: bool = False) -> None:
    """CheckpointError where a part is not what the manifest says, StoreError where nobody can tell; `by_size` alone,
    without reading it."""
    folder, name = checkpoint.folder, part["name"]
    path = folder.sub(name)
    try:
        with readable(path):
            size = _insisting(lambda: folder.size(name))
            if size is None:
                raise FileNotFoundError
            same = size == part["bytes"] and (by_size or _insisting(lambda: folder.sha256(name)) == part["sha256"])
    except FileNotFoundError:  # also of one that was pruned meanwhile
        raise CheckpointError(f"{path} is missing: restore it or choose another checkpoint.") from None
    if not same:
        raise CheckpointError(f"{path} was cut or altered (size or sha256 differs): choose another checkpoint.")


def _insisting(ask: Callable[[], T]) -> T:
    """Once more where the disk could not read: only what stays so is damage."""
    try:
        return ask()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return ask()


@contextlib.contextmanager
def answering(path: Folder) -> Iterator[None]:
    """Raise what asking for `path` meets as a sentence: StoreError, since it says nothing of what lies there.
    FileNotFoundError passes."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        way_out = "put that right and try again" if path.is_local else "try again when the store answers"
        raise StoreError(f"{path} cannot be read ({reason}); {way_out}.") from None


@contextlib.contextmanager
def readable(path: Folder) -> Iterator[None]:
    """As `answering`, for a file of a checkpoint: CheckpointError where its disk has lost it. Whatever else a disk
    answers (a stale handle, a refused permission, too many open files) is no fault of the checkpoint."""
    with answering(path):
        try:
            yield
        except OSError as error:
            if path.is_local and error.errno in _LOST:
                raise CheckpointError(f"{path} cannot be read ({error.strerror}): choose another checkpoint.") from None
            raise
