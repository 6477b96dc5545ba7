"""Which checkpoints of a run stay: rules, what they say of those that are there, and the removal of the others.

Nothing is removed but through here. The newest valid checkpoint always stays; broken ones, which a resumption has set
aside, stay until they are asked for; both are seen by their manifests and sizes, since hashing all of them at every
saving would cost more than the saving.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from data_prep.storage import Folder
from training.checkpoints.entries import Entry, Known, entries
from training.checkpoints.manifest import MANIFEST
from training.settings import CheckpointConfig, Placement


def kept(steps: Sequence[Entry], config: CheckpointConfig, save_at: Sequence[int]) -> dict[int, list[str]]:
    """The steps that stay, with the rules that hold each, of the valid ones among `steps`: the newest, the last
    `keep_last`, those of `save_at` (the grid of budgets), multiples of `keep_every`, and the lowest held-out loss."""
    valid = sorted((entry for entry in steps if entry.state == "valid"), key=lambda entry: entry.step)
    rules: dict[int, list[str]] = {entry.step: [] for entry in valid}
    for entry in valid[-1:]:
        rules[entry.step].append("newest")
    for entry in valid[-config.keep_last :]:
        rules[entry.step].append(f"last {config.keep_last}")
    for step, reasons in rules.items():
        if step in save_at:
            reasons.append("budget")
        if config.keep_every is not None and step % config.keep_every == 0:
            reasons.append(f"every {config.keep_every}")
    judged = [(entry.heldout_loss, -entry.step) for entry in valid if entry.heldout_loss is not None]
    if config.keep_best and judged:  # of equal ones the newest
        rules[-min(judged)[1]].append("best")
    return {step: reasons for step, reasons in rules.items() if reasons}


def is_for_good(entry: Entry) -> bool:
    """Whether a rule holds it that no later checkpoint changes; by what a listing says."""
    return any(rule == "budget" or rule.startswith("every ") for rule in entry.kept_by)


def listing(
    store: Folder, placement: Placement | None = None, *, verify: bool = False, known: Known | None = None
) -> list[Entry]:
    """All checkpoints of a store, the newest last, with what holds each: by the retention of `placement`, or that which
    the newest was saved with. `verify` hashes every part; `known` as in `entries`. StoreError where the store gives no
    answer."""
    found = entries(store, verify=verify, known=known)
    if placement is None:
        placement = next((entry.placement for entry in reversed(found) if entry.placement is not None), None)
    if placement is None:
        return found
    rules = kept(found, placement.checkpoints, placement.save_at)
    return [
        replace(entry, kept_by=rules[entry.step]) if entry.state == "valid" and entry.step in rules else entry
        for entry in found
    ]


def prune(
    store: Folder,
    placement: Placement,
    *,
    broken: bool = False,
    spare: Collection[int] = (),
    known: Known | None = None,
) -> list[str]:
    """Remove what the rules do not keep, and unfinished ones that are older than the newest valid one; their names.
    `broken`: those that are broken or were set aside, too. `spare`: steps whose valid checkpoints stay all the same;
    `known` as in `entries`. Call when nothing is being saved. Errors as the store's."""
    found = listing(store, placement, known=known)
    newest = max((entry.step for entry in found if entry.state == "valid"), default=-1)
    gone = [entry.name for entry in found if _is_left(entry, newest, broken) and not _is_spared(entry, spare)]
    for name in gone:
        store.delete(f"{name}/{MANIFEST}")  # first, so that no half of it passes for a whole
        store.remove(name)
    return gone


def _is_spared(entry: Entry, spare: Collection[int]) -> bool:
    return entry.state == "valid" and entry.step in spare


def _is_left(entry: Entry, newest: int, broken: bool) -> bool:
    if entry.state == "valid":
        return not entry.kept_by
    if entry.state == "unfinished":
        return entry.step < newest
    return broken and entry.state == "broken" and newest >= 0
