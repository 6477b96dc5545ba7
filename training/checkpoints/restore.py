"""From a store to an engine: which checkpoint, and only what each rank holds of it, whoever has saved it.

World size and ZeRO stage are free to differ: slices are read by name. No memory beyond one tensor of one parameter.
"""

import contextlib
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from data_prep.errors import CheckpointError, ElectraError, StoreError
from data_prep.storage import Folder, Location
from training.checkpoints.aside import set_aside_broken
from training.checkpoints.entries import RECORD, State, examine, state_of, steps_of
from training.checkpoints.manifest import Checkpoint, Progress, answering, read, verify, verify_part
from training.checkpoints.parts import Source
from training.engine import Engine
from training.objectives import Objective, build
from training.ranks import on_rank_zero


def _never(progress: Progress) -> bool:
    return False


def choose(
    store: Folder,
    *,
    group: dist.ProcessGroup | None = None,
    at_most: int | None = None,
    left_behind: Callable[[Progress], bool] = _never,
) -> tuple[Checkpoint | None, list[str]]:
    """The newest valid checkpoint, of step `at_most` or before, and a sentence for each newer one that was passed over.
    Every rank calls, when nothing is being saved; rank 0 reads manifests, the hashing is shared out. One that a
    rollback has `left_behind`, which rank 0 asks of its manifest, does not exist here: no sentence, and it stays.

    Broken ones that were passed over are set aside, so that nothing is written over them; those of another version stay
    where another release looks for them, until this one saves at their step. (None, …) where nothing was
    ever finished, or nothing so early; CheckpointError where something was and nothing valid is left at all,
    StoreError where the store does not answer.
    """
    names = on_rank_zero(lambda: _candidates(store, at_most), group)
    passed_over: dict[str, tuple[State, str]] = {}
    for name in names:
        found = on_rank_zero(lambda name=name: _examined(store, name, left_behind), group)  # type: ignore[misc]
        if found is None:
            continue
        wrong = found if isinstance(found, CheckpointError) else _hash_together(found, group)
        if wrong is None:
            assert isinstance(found, Checkpoint)
            on_rank_zero(lambda: _put_aside(store, passed_over), group)
            return found, [sentence for _, sentence in passed_over.values()]
        passed_over[name] = state_of(wrong), str(wrong)
    sentences = [sentence for _, sentence in passed_over.values()]
    if at_most is None and on_rank_zero(lambda: _was_anything(store, passed_over), group):
        raise CheckpointError(
            f"{store}: no valid checkpoint is left ({sentences[0] if sentences else 'all are gone'}); restore one from "
            "a copy, or remove this folder and the run's own to train it anew"
        )
    return None, sentences


def newest(
    store: Folder, *, hashes: bool = False, left_behind: Callable[[Progress], bool] = _never
) -> tuple[Checkpoint | None, list[str]]:
    """As `choose`, in one process, by manifests and sizes, or also by `hashes`, changing nothing and without an error
    where nothing valid is left."""
    passed_over: list[str] = []
    for name in reversed(steps_of(store)):
        try:
            if not left_behind(read(store.sub(name)).progress):
                return examine(store.sub(name), hashes=hashes), passed_over
        except CheckpointError as error:
            passed_over.append(str(error))
    return None, passed_over


def _candidates(store: Folder, at_most: int | None) -> list[str]:
    store.remove_temporaries()
    return [name for name, step in reversed(steps_of(store).items()) if at_most is None or step <= at_most]


def _examined(store: Folder, name: str, left_behind: Callable[[Progress], bool]) -> Checkpoint | CheckpointError | None:
    """None for one that was left behind, whole or not."""
    try:
        if left_behind(read(store.sub(name)).progress):
            return None
        return examine(store.sub(name), hashes=False)
    except CheckpointError as error:
        return error


def _hash_together(checkpoint: Checkpoint, group: dist.ProcessGroup | None) -> CheckpointError | None:
    """The first error that the ranks find, each in its share of the parts."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    own: ElectraError | None = None
    try:
        for part in checkpoint.manifest["parts"][rank::world_size]:
            verify_part(checkpoint, part)
    except (CheckpointError, StoreError) as error:
        own = error
    found: list[ElectraError | None] = [None] * world_size
    dist.all_gather_object(found, own, group=group)
    for unanswered in (one for one in found if isinstance(one, StoreError)):
        raise unanswered
    return next((one for one in found if isinstance(one, CheckpointError)), None)


def _put_aside(store: Folder, passed_over: dict[str, tuple[State, str]]) -> None:
    for name, (state, sentence) in passed_over.items():
        if state == "broken":
            with contextlib.suppress(OSError):  # it is passed over all the same
                set_aside_broken(store, name, sentence)


def _was_anything(store: Folder, passed_over: dict[str, tuple[State, str]]) -> bool:
    """Whether a checkpoint was ever finished in a store that holds no valid one: a run killed while it saved for the
    first time has none, and begins anew."""
    with answering(store):
        return store.size(RECORD) is not None or any(state != "unfinished" for state, _ in passed_over.values())


def restore(engine: Engine, checkpoint: Checkpoint) -> None:
    """Load parameters and optimizer state into an engine, at any world size and ZeRO stage; each rank reads what it
    holds. Every rank calls. CheckpointError where an element is missing or stands twice."""
    progress = checkpoint.progress
    with Source(checkpoint) as source:
        engine.load(source, progress.step - progress.skipped)


def load_tensors(checkpoint: Checkpoint, kinds: Iterable[str] = ("param",)) -> dict[str, dict[str, Tensor]]:
    """Full fp32 tensors by kind and parameter name; frozen parameters have no other kind than `param`. CheckpointError
    where an element is missing or stands twice."""
    with Source(checkpoint) as source:
        return {kind: {name: source.full(kind, name) for name in source.names(kind)} for kind in kinds}


def load_objective(location: Location) -> tuple[Objective, Checkpoint]:
    """The trained networks of a checkpoint, verified, on the CPU in evaluation mode."""
    checkpoint = verify(location)
    return objective_of(checkpoint), checkpoint


def objective_of(checkpoint: Checkpoint) -> Objective:
    """As `load_objective`, of a checkpoint that somebody has verified."""
    identity = checkpoint.spec.identity
    objective = build(
        identity.arm,
        identity.model,
        checkpoint.special,
        seq_len=identity.seq_len,
        packed=checkpoint.manifest["packed"],
    )
    with Source(checkpoint) as source:
        _fill(objective, source, checkpoint)
    return objective.eval()


def _fill(objective: Objective, source: Source, checkpoint: Checkpoint) -> None:
    """Not by `load_state_dict`, which asks for a shared parameter under every name it has."""
    parameters = dict(objective.named_parameters())
    wanted = {name: list(parameter.shape) for name, parameter in parameters.items()}
    differing = sorted(
        name for name in wanted.keys() | source.shapes.keys() if wanted.get(name) != source.shapes.get(name)
    )
    if differing:
        raise CheckpointError(
            f"{checkpoint}: {differing[0]} does not fit the network that the manifest describes; choose another "
            "checkpoint."
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(source.full("param", name))
