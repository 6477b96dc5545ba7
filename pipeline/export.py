"""An ELECTRA checkpoint as two Hugging Face folders, proved before they appear.

Each folder (discriminator, generator) holds fp32 safetensors, config, tokenizer and a model card. It is written under
a temporary name, loaded again with `AutoModel…`, its logits are compared with the training networks on held-out rows,
and only then is it made durable and renamed. A failed proof leaves nothing behind. `export.json` holds the size and
hash of every file that was proved: a folder that differs from it in anything is exported and proved again, and a card
whose inputs changed (the run's records, its scores) is written anew. Not here: BERT and RoBERTa, uploading.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_prep import storage
from data_prep.errors import CheckError, CheckpointError, DataError
from data_prep.integrity import local_tokenizer
from data_prep.manifest import Manifest
from data_prep.manifest import load as load_manifest
from data_prep.storage import Location
from pipeline import gather
from pipeline.model_card import Provenance, card

TOLERANCE = 1e-4
PROOF_ROWS = 16
KINDS = ("discriminator", "generator")
CARD = "README.md"
MARKER = "export.json"


@dataclass(frozen=True, slots=True)
class Exported:
    """One exported folder, the largest absolute difference of its logits from the training network's, and whether it
    was made now; otherwise it was proved when it was made, and its files are unchanged since."""

    folder: str
    architecture: str
    largest_difference: float
    new: bool


def last_electra_run(out: Path) -> Path:
    """The finished ELECTRA run with the largest budget. DataError where there is none."""
    done, objectives = [], {arm.get("objective") for arm in gather.read_config(out).get("arms", [])}
    for record in (out / "runs").glob("*/done.json"):
        run = gather.read_spec(record.parent)
        if run["objective"] == "electra":
            done.append((run["budget"], -run["seed"], record.parent))
    if not done and objectives and "electra" not in objectives:
        raise DataError(
            f"{out}: nothing to export: no arm with objective 'electra'; choose an experiment that has one, or add one"
        )
    if not done:
        raise DataError(f"{out / 'runs'}: no finished run with objective 'electra'; run `electra train` first")
    return max(done)[2]


def _named_run(out: Path, name: str) -> Path:
    finished = sorted(path.parent.name for path in (out / "runs").glob("*/done.json"))
    if name not in finished:
        raise DataError(f"{out / 'runs'}: no finished run '{name}'; finished are {', '.join(finished) or 'none'}")
    return out / "runs" / name


def export(out: Path, target: Path | None = None, run: str | None = None) -> list[Exported]:
    """Export the last ELECTRA checkpoint of an experiment (or that of the run named) to `target`, by default
    `out/export`. Folders that hold exactly what was exported from this checkpoint are left alone.

    DataError without such a run, CheckpointError for a damaged checkpoint or another objective's, CheckError where
    what was written does not compute what the training network does.
    """
    from training.checkpoint import load_objective
    from training.objectives import Electra

    run_dir = last_electra_run(out) if run is None else _named_run(out, run)
    done = gather.read_done(run_dir)
    checkpoint_dir = run_dir / "checkpoints" / done["checkpoint"]
    target = storage.make_folder(target or out / "export")
    objective, checkpoint = load_objective(checkpoint_dir)
    if not isinstance(objective, Electra):
        raise CheckpointError(f"{checkpoint_dir}: is not an ELECTRA checkpoint; this version exports ELECTRA only")
    corpus = gather.corpus_folder(out)
    manifest = load_manifest(corpus)
    provenance = Provenance.collect(out, run_dir, done, manifest)
    before = _read_marker(target / MARKER, checkpoint.sha256)
    card_sha256 = provenance.fingerprint()
    exported, files = [], {}
    for kind in KINDS:
        one = _intact(target / kind, before)
        if one is None:
            one = _export_one(kind, objective, manifest, corpus, target / kind, provenance)
        elif before["card_sha256"] != card_sha256:
            storage.write_bytes(target / kind / CARD, card(kind, provenance).encode())
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
    kind: str, objective: Any, manifest: Manifest, corpus_dir: Location, folder: Path, provenance: Provenance
) -> Exported:
    from transformers import AutoTokenizer

    from training import hf

    model = {"discriminator": hf.discriminator, "generator": hf.generator}[kind](objective, manifest.special)
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        model.save_pretrained(temporary)
        AutoTokenizer.from_pretrained(local_tokenizer(corpus_dir)).save_pretrained(temporary)
        (temporary / CARD).write_text(card(kind, provenance), encoding="utf-8")
        difference = _prove(kind, temporary, objective, manifest, corpus_dir)
        _make_durable(temporary)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
        storage.sync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Exported(folder.name, type(model).__name__, difference, new=True)


def _make_durable(folder: Path) -> None:
    """Flush every file and folder below `folder`, and itself, to the disk."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _prove(kind: str, folder: Path, objective: Any, manifest: Manifest, corpus_dir: Location) -> float:
    """Reload the folder and compare logits on held-out rows; CheckError where they differ by `TOLERANCE` or more."""
    import torch
    from transformers import AutoModelForMaskedLM, AutoModelForPreTraining

    loader: Any = {"discriminator": AutoModelForPreTraining, "generator": AutoModelForMaskedLM}[kind]
    reloaded, info = loader.from_pretrained(folder, output_loading_info=True)
    if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
        raise CheckError(f"{folder.name}: the exported folder does not load completely ({info}); report this")
    batch = proof_batch(corpus_dir, manifest, objective.config.type_vocab)
    with torch.no_grad():
        theirs = reloaded.eval()(
            input_ids=batch["ids"], attention_mask=batch["real"], token_type_ids=batch["types"]
        ).logits
        ours = _training_logits(kind)(objective, batch)
    real = batch["real"].bool()
    difference = float((theirs - ours)[real].abs().max())
    if not difference < TOLERANCE:
        raise CheckError(
            f"{folder.name}: exported logits differ from the training model by {difference:.2g}; report this"
        )
    return difference


def _training_logits(kind: str) -> Callable[[Any, dict[str, Any]], Any]:
    def discriminator(objective: Any, batch: dict[str, Any]) -> Any:
        x = objective.embeddings(batch["ids"], batch["positions"], batch["types"])
        return objective.discriminator_head(objective.discriminator(x, batch["real"]))

    def generator(objective: Any, batch: dict[str, Any]) -> Any:
        x = objective.embeddings(batch["ids"], batch["positions"], batch["types"])
        return objective.generator_head(objective.generator(x, batch["real"]), objective.embeddings.word.weight)

    return {"discriminator": discriminator, "generator": generator}[kind]


def proof_batch(corpus_dir: Location, manifest: Manifest, type_vocab: int) -> dict[str, Any]:
    """The first fragments of the first held-out rows as tensors `[B, L]`: what a Hugging Face model can be fed. Token
    types that the model does not know are its last one, as in training."""
    import torch

    from data_prep.reader import RowReader
    from data_prep.rows import structure

    reader = RowReader(corpus_dir, "heldout", manifest)
    rows = reader.rows(np.arange(min(PROOF_ROWS, reader.n_rows), dtype=np.int64)).astype(np.int64)
    shape = structure(rows, manifest.special)
    first = shape.fragment == 1
    arrays = {
        "ids": np.where(first, rows, manifest.special.pad),
        "real": first.astype(np.int64),
        "types": np.minimum(np.where(first, shape.types, 0), type_vocab - 1).astype(np.int64),
        "positions": np.where(first, shape.positions, 0).astype(np.int64),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
