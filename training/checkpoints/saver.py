"""Saving beside training: every rank copies what it answers for, a thread writes the copy, rank 0 commits.

`start` is all that a step waits for: a copy in host memory, of which each rank keeps one. The thread writes it as this
rank's part and sums up its share of the checksums. `settle`, when all ranks have written, collects what they say of
their parts; rank 0 writes the manifest, which is the commit, and then removes what retention does not keep. An error of
a disk or a store is an outcome, not an exception: what was written of the failed checkpoint is removed and training may
go on.

A checkpoint of the same step that is there already (after a rollback, or of another attempt) stays whole until the
commit puts the new manifest in the place of its own: a part whose name is taken gets the next free one. What the new
manifest does not name is removed after that. Ranks must share the store.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from data_prep.errors import CheckpointError, PreflightError, StoreError
from data_prep.rows import SpecialIds
from data_prep.storage import Folder
from training.checkpoints import parts, proof
from training.checkpoints.entries import RECORD, Known
from training.checkpoints.manifest import MANIFEST, VERSION, Progress, read
from training.checkpoints.retention import prune
from training.engine import Engine
from training.ranks import on_rank_zero
from training.run_folder import checkpoint_name
from training.settings import RunSpec


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a saving. `reason`: why it failed, or why nothing could be pruned after it; seconds are those of the
    slowest rank, bytes those of all parts."""

    step: int
    saved: bool
    reason: str | None
    bytes: int
    copy_seconds: float
    write_seconds: float
    pruned: list[str]
    silent: bool = False  # it failed because a store gave no answer


@dataclass(frozen=True, slots=True)
class _Share:
    """What a rank says of its part: a record of it and its share of the checksums, or why there is none."""

    part: dict[str, Any] | None
    checksums: dict[str, int]
    reason: str | None
    silent: bool
    copy_seconds: float
    write_seconds: float


@dataclass(slots=True)
class _Writing:
    """A saving under way on this rank."""

    progress: Progress
    heldout_loss: float | None
    next_rows: str
    folder: Folder
    copy_seconds: float
    thread: threading.Thread = field(default_factory=threading.Thread)
    part: dict[str, Any] | None = None
    checksums: dict[str, int] = field(default_factory=dict)
    error: BaseException | None = None
    write_seconds: float = 0.0


class Saver:
    """One per attempt and rank; every rank must call alike."""

    def __init__(
        self,
        store: Folder,
        engine: Engine,
        spec: RunSpec,
        special: SpecialIds,
        packed: bool,
        control_group: dist.ProcessGroup | None,
        *,
        while_writing: Callable[[int], None] = lambda step: None,
    ) -> None:
        """`control_group`: of all ranks, on the host. `while_writing` is called with the step in the thread, in the
        middle of the part."""
        self._store, self._engine, self._spec, self._special, self._packed = store, engine, spec, special, packed
        self._group, self._while_writing = control_group, while_writing
        self._writing: _Writing | None = None
        self._known: Known = {}  # rank 0: so that retention need not read every manifest at every saving
        self._copy = torch.empty(0)

    @property
    def busy(self) -> bool:
        """This rank still writes."""
        return self._writing is not None and self._writing.thread.is_alive()

    @property
    def pending(self) -> bool:
        """A saving was started and is not settled."""
        return self._writing is not None

    def start(self, progress: Progress, *, heldout_loss: float | None, next_rows: str) -> Outcome | None:
        """Begin to save the state after `progress.step` steps. One that is under way is settled first, and its outcome
        returned. `heldout_loss`: of this step, where it was evaluated; `next_rows`: `rows_hash` of the next batch."""
        before = self.settle() if self.pending else None
        began = time.monotonic()
        lengths = self._copy_state()
        folder = self._store.sub(checkpoint_name(progress.step))
        writing = _Writing(progress, heldout_loss, next_rows, folder, time.monotonic() - began)
        writing.thread = threading.Thread(target=self._write, args=(writing, lengths), name="saver", daemon=True)
        self._writing = writing
        writing.thread.start()
        return before

    def settle(self, *, spare: Collection[int] = ()) -> Outcome:
        """Wait until all ranks have written, and commit; or, where one has failed, remove what was written. Every rank
        calls, and gets the same. Steps in `spare` stay, whatever retention says: they are somebody's to go back to.
        Errors that are no disk's or store's are raised where they happen."""
        writing = self._writing
        if writing is None:
            raise ValueError("no saving was started")
        writing.thread.join()
        self._writing = None
        if writing.error is not None and not isinstance(writing.error, OSError | PreflightError):
            raise writing.error
        reason = None if writing.error is None else _sentence(writing.error)
        silent = _is_silent(writing.error)
        share = _Share(writing.part, writing.checksums, reason, silent, writing.copy_seconds, writing.write_seconds)
        shares: list[_Share | None] = [None] * dist.get_world_size()
        dist.gather_object(share, shares if dist.get_rank() == 0 else None, group=self._group)
        found = [one for one in shares if one is not None]
        outcome = on_rank_zero(lambda: self._conclude(writing, found, spare), self._group)
        if not outcome.saved and writing.part is not None:  # this rank may see more of the store than rank 0
            with contextlib.suppress(OSError):
                writing.folder.delete(writing.part["name"])
        return outcome

    def _copy_state(self) -> dict[str, int]:
        """Copy this rank's slices, one after another; their lengths by key."""
        pieces = [
            (parts.key_of(kind, piece.name, piece.start), tensor.detach())
            for piece in self._engine.slices()
            for kind, tensor in piece.tensors.items()
        ]
        lengths = {key: tensor.numel() for key, tensor in pieces}
        on_gpu = any(tensor.is_cuda for _, tensor in pieces)
        if len(self._copy) != sum(lengths.values()):
            self._copy = torch.empty(sum(lengths.values()), pin_memory=on_gpu)
        for (_, tensor), copy in zip(pieces, self._copy.split(list(lengths.values())), strict=True):
            copy.copy_(tensor, non_blocking=True)
        if on_gpu:
            torch.cuda.current_stream().synchronize()
        return lengths

    def _write(self, writing: _Writing, lengths: dict[str, int]) -> None:
        """In the thread."""
        began = time.monotonic()
        try:
            name = _free_name(writing.folder, dist.get_rank())
            middle = writing.progress.step
            writing.part = parts.write(writing.folder, name, lengths, self._copy, lambda: self._while_writing(middle))
            writing.checksums = self._checksums(lengths)
        except BaseException as error:  # raised, or told, by `settle`
            writing.error = error
        writing.write_seconds = time.monotonic() - began

    def _checksums(self, lengths: dict[str, int]) -> dict[str, int]:
        shares = []
        for key, values in zip(lengths, self._copy.split(list(lengths.values())), strict=True):
            kind, name, start = parts.parsed(key)
            shares.append({kind: proof.checksum(name, start, values)})
        return proof.add(shares)

    # --- rank 0 -------------------------------------------------------------------------------------------------------

    def _conclude(self, writing: _Writing, shares: Sequence[_Share], spare: Collection[int]) -> Outcome:
        reason = next((share.reason for share in shares if share.reason is not None), None)
        silent = any(share.silent for share in shares)
        pruned: list[str] = []
        try:
            if reason is None:
                self._commit(writing, shares)
        except (OSError, PreflightError) as error:
            reason, silent = _sentence(error), _is_silent(error)
        saved = reason is None
        try:
            if saved:
                pruned = prune(self._store, self._spec.placement, spare=spare, known=self._known)
            else:
                _withdraw(writing.folder, [share.part["name"] for share in shares if share.part is not None])
        except (OSError, PreflightError) as error:
            reason = reason or _sentence(error)
        return Outcome(
            step=writing.progress.step,
            saved=saved,
            reason=reason,
            bytes=sum(share.part["bytes"] for share in shares if share.part is not None),
            copy_seconds=max(share.copy_seconds for share in shares),
            write_seconds=max(share.write_seconds for share in shares),
            pruned=pruned,
            silent=silent,
        )

    def _commit(self, writing: _Writing, shares: Sequence[_Share]) -> None:
        found = [share.part for share in shares if share.part is not None]
        for rank, part in enumerate(found):
            _check_seen(writing.folder, rank, part)
        self._known.pop(
            checkpoint_name(writing.progress.step), None
        )  # one that was there: its manifest is written over
        writing.folder.write_json(
            MANIFEST,
            {
                "version": VERSION,
                "parts": found,
                "shapes": self._engine.shapes,
                "frozen": [name for name, p in self._engine.objective.named_parameters() if not p.requires_grad],
                "progress": asdict(writing.progress),
                "spec": self._spec.model_dump(mode="json"),
                "special": self._special.model_dump(mode="json"),
                "packed": self._packed,
                "identity": self._spec.identity.fingerprint(),
                "world_size": dist.get_world_size(),
                "heldout_loss": writing.heldout_loss,
                "saved_at": time.time(),
                "proof": proof.written(proof.add(share.checksums for share in shares)),
                "next_rows": writing.next_rows,
            },
        )
        with contextlib.suppress(OSError):  # it is saved
            if self._store.size(RECORD) is None:
                self._store.write_json(RECORD, {"first": checkpoint_name(writing.progress.step)})
            for name in set(writing.folder.names()) - {MANIFEST, *(part["name"] for part in found)}:
                writing.folder.delete(name)


def _check_seen(folder: Folder, rank: int, part: dict[str, Any]) -> None:
    """StoreError where rank 0 does not see what another has written: nobody could restore it."""
    if folder.size(part["name"]) != part["bytes"]:
        raise StoreError(
            f"{folder.sub(part['name'])}: rank 0 does not see, or not whole, what rank {rank} has written; all ranks "
            "must share the store"
        )


def _withdraw(folder: Folder, names: Sequence[str]) -> None:
    """Remove the parts of a saving that failed; first their manifest, should it be there: a store may have taken what
    it gave no answer to. StoreError where it still gives none: then nothing is removed."""
    with contextlib.suppress(CheckpointError):
        if any(part["name"] in names for part in read(folder).manifest["parts"]):
            folder.delete(MANIFEST)
    for name in names:
        folder.delete(name)
    if not folder.names():
        folder.remove("")


def _free_name(folder: Folder, rank: int) -> str:
    """A name for a rank's part that no file has: of a checkpoint that is there already, nothing is written over."""
    name, count = f"part-{rank:05d}.safetensors", 0
    while folder.size(name) is not None:
        count += 1
        name = f"part-{rank:05d}.{count}.safetensors"
    return name


def _is_silent(error: BaseException | None) -> bool:
    """Whether it is a store that gave no answer: what the file system says has a number."""
    return isinstance(error, StoreError) or (isinstance(error, OSError) and error.errno is None)


def _sentence(error: BaseException) -> str:
    """On one line, naming the file where the system does."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())
