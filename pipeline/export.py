"""A checkpoint as Hugging Face folders, one a network, proved before they appear.

Each folder (discriminator, generator, encoder) holds fp32 safetensors, config, tokenizer and a model card. It is
written under a temporary name, loaded again with `AutoModel…`, its logits are compared with the training networks on
held-out rows (`pipeline.proof`), and only then is it made durable and renamed. A failed proof leaves nothing behind.
`export.json` holds the size and hash of every file that was proved: a folder that differs from it in anything is
exported and proved again, and a card whose inputs changed (the run's records, its scores) is written anew. Not here:
which model class a network becomes (`training.hf_export`), uploading.
"""

import os
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep import storage
from data_prep.errors import DataError
from data_prep.integrity import local_tokenizer
from data_prep.manifest import Manifest
from data_prep.manifest import load as load_manifest
from data_prep.storage import Location
from pipeline import gather
from pipeline.gather import Run
from pipeline.model_card import Provenance, card

if TYPE_CHECKING:
    from training.network import Network

DETECTORS = ("electra", "electra_15", "electra_adversarial", "electra_two_stage")
CARD = "README.md"
MARKER = "export.json"


@dataclass(frozen=True, slots=True)
class Exported:
    """One exported folder, the heads that its model class has no place for, the largest absolute difference of its
    logits from the training network's, and whether it was made now; otherwise it was proved when it was made, and its
    files are unchanged since."""

    folder: str
    architecture: str
    left_behind: list[str]
    largest_difference: float
    new: bool


def chosen_run(out: Path) -> Run:
    """The finished run that is exported where none is named: of the arms that detect replaced tokens, or of all where
    none does, the one with the largest budget. DataError where no run is finished."""
    finished = gather.read(out).finished  # by budget, then in the configuration's order of arms
    if not finished:
        raise DataError(f"{out / 'runs'}: no finished run; run `electra train` first")
    detecting = [run for run in finished if run.objective in DETECTORS]
    candidates = detecting or finished
    return next(run for run in candidates if run.budget == candidates[-1].budget)


def _named_run(out: Path, name: str) -> Run:
    finished = {run.name: run for run in gather.read(out).finished}
    if name not in finished:
        raise DataError(f"{out / 'runs'}: no finished run '{name}'; finished are {', '.join(finished) or 'none'}")
    return finished[name]


def export(out: Path, target: Path | None = None, run: str | None = None) -> list[Exported]:
    """Export the last checkpoint of the run named, or of `chosen_run`, to `target`, by default `out/export`; the main
    network first. Folders that hold exactly what was exported from this checkpoint are left alone.

    DataError without such a run, CheckpointError for a damaged checkpoint, CheckError where what was written does not
    compute what the training network does.
    """
    from training.checkpoints import load_objective, store_of

    run_dir = (chosen_run(out) if run is None else _named_run(out, run)).folder
    done = gather.read_done(run_dir)
    target = storage.make_folder(target or out / "export")
    objective, checkpoint = load_objective(store_of(run_dir).sub(done["checkpoint"]))
    corpus = gather.corpus_folder(out)
    manifest = load_manifest(corpus)
    provenance = Provenance.collect(out, run_dir, done, manifest)
    before = _read_marker(target / MARKER, checkpoint.sha256)
    card_sha256 = provenance.fingerprint()
    exported, files = [], {}
    for kind, network in objective.networks().items():
        one = _intact(target / kind, before)
        if one is None:
            one = _export_one(kind, network, manifest, corpus, target / kind, provenance)
        elif before["card_sha256"] != card_sha256:
            storage.write_bytes(target / kind / CARD, card(kind, one.architecture, provenance).encode())
        exported.append(one)
        files[kind] = _hashes(target / kind)
    marker = {
        "checkpoint_sha256": checkpoint.sha256,
        "card_sha256": card_sha256,
        "run": run_dir.name,
        "exported": {one.folder: asdict(replace(one, new=False)) for one in exported},
        "files": files,
    }
    if marker != before:
        storage.write_json(target / MARKER, marker)
    return exported


def _read_marker(path: Path, checkpoint_sha256: str) -> dict[str, Any]:
    """What was exported before from this checkpoint; empty where that is nothing, or the marker is torn."""
    try:
        found = storage.read_json(path)
    except DataError:
        return {}
    keys = {"checkpoint_sha256", "card_sha256", "run", "exported", "files"}
    whole = isinstance(found, dict) and found.keys() == keys and found["checkpoint_sha256"] == checkpoint_sha256
    return found if whole else {}


def _intact(folder: Path, marker: dict[str, Any]) -> Exported | None:
    """The record of a folder whose files are exactly those that were exported."""
    if not marker or not folder.is_dir() or marker["files"].get(folder.name) != _hashes(folder):
        return None
    return Exported(**marker["exported"][folder.name])


def _hashes(folder: Path) -> dict[str, Any]:
    """Size and hash of every file in a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": storage.sha256_of(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _export_one(
    kind: str, network: "Network", manifest: Manifest, corpus_dir: Location, folder: Path, provenance: Provenance
) -> Exported:
    from transformers import AutoTokenizer

    from pipeline.proof import prove
    from training import hf_export

    name = hf_export.architecture(network, manifest.pair_separators, generator=kind == "generator")
    model = hf_export.build_model(network, name, manifest.special)
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        model.save_pretrained(temporary)
        AutoTokenizer.from_pretrained(local_tokenizer(corpus_dir)).save_pretrained(temporary)
        (temporary / CARD).write_text(card(kind, name, provenance), encoding="utf-8")
        difference = prove(temporary, name, network, manifest, corpus_dir)
        _make_durable(temporary)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
        storage.sync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Exported(folder.name, name, hf_export.left_behind(network, name), difference, new=True)


def _make_durable(folder: Path) -> None:
    """Flush every file and folder below `folder`, and itself, to the disk."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
