"""An ELECTRA checkpoint as two Hugging Face folders, proved before they appear.

Each folder (discriminator, generator) holds fp32 safetensors, config, tokenizer and a model card. It is written under
a temporary name, loaded again with `AutoModel…`, and its logits are compared with the training networks on held-out
rows; only then is it renamed. A failed proof leaves nothing behind. Not here: BERT and RoBERTa, uploading.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_prep import storage
from data_prep.errors import CheckError, CheckpointError, DataError
from data_prep.manifest import Manifest
from data_prep.manifest import load as load_manifest
from pipeline.model_card import Provenance, card

TOLERANCE = 1e-4
PROOF_ROWS = 16


@dataclass(frozen=True, slots=True)
class Exported:
    """One exported folder and the largest absolute difference of its logits from the training network's."""

    folder: str
    architecture: str
    largest_difference: float


def last_electra_run(out: Path) -> Path:
    """The finished ELECTRA run with the largest budget. DataError where there is none."""
    done = []
    for record in (out / "runs").glob("*/done.json"):
        run = storage.read_json(record.parent / "run.json")
        if run["objective"] == "electra":
            done.append((run["budget"], -run["seed"], record.parent))
    if not done:
        raise DataError(f"{out / 'runs'}: no finished run with objective 'electra'; run `electra train` first")
    return max(done)[2]


def export(out: Path, target: Path | None = None, run: str | None = None) -> list[Exported]:
    """Export the last ELECTRA checkpoint of an experiment (or the one of the run named) to `target`, by default
    `out/export`. Folders that hold this checkpoint already are left alone."""
    from training.checkpoint import load_objective
    from training.objectives import Electra

    run_dir = last_electra_run(out) if run is None else out / "runs" / run
    done = storage.read_json(run_dir / "done.json")
    checkpoint_dir = run_dir / "checkpoints" / done["checkpoint"]
    target = target or out / "export"
    objective, checkpoint = load_objective(checkpoint_dir)
    if not isinstance(objective, Electra):
        raise CheckpointError(f"{checkpoint_dir}: is not an ELECTRA checkpoint; this version exports ELECTRA only")
    marker = target / "export.json"
    if marker.exists():
        found = json.loads(marker.read_text())
        if found.get("checkpoint_sha256") == checkpoint.sha256 and all(
            (target / e["folder"]).is_dir() for e in found["exported"]
        ):
            return [Exported(**entry) for entry in found["exported"]]
    storage.make_folder(target)
    manifest = load_manifest(out / "corpus")
    provenance = Provenance.collect(out, run_dir, done, manifest)
    exported = [
        _export_one(kind, objective, manifest, out / "corpus", target / kind, provenance)
        for kind in ("discriminator", "generator")
    ]
    entries = [asdict(entry) for entry in exported]
    storage.write_json(marker, {"checkpoint_sha256": checkpoint.sha256, "run": run_dir.name, "exported": entries})
    return exported


def _export_one(
    kind: str, objective: Any, manifest: Manifest, corpus_dir: Path, folder: Path, provenance: Provenance
) -> Exported:
    from transformers import AutoTokenizer

    from training import hf

    model = {"discriminator": hf.discriminator, "generator": hf.generator}[kind](objective, manifest.special)
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        model.save_pretrained(temporary)
        AutoTokenizer.from_pretrained(corpus_dir / "tokenizer").save_pretrained(temporary)
        (temporary / "README.md").write_text(card(kind, provenance), encoding="utf-8")
        difference = _prove(kind, temporary, objective, manifest, corpus_dir)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Exported(folder.name, type(model).__name__, difference)


def _prove(kind: str, folder: Path, objective: Any, manifest: Manifest, corpus_dir: Path) -> float:
    """Reload the folder and compare logits on held-out rows; CheckError where they differ by `TOLERANCE` or more."""
    import torch
    from transformers import AutoModelForMaskedLM, AutoModelForPreTraining

    loader: Any = {"discriminator": AutoModelForPreTraining, "generator": AutoModelForMaskedLM}[kind]
    reloaded, info = loader.from_pretrained(folder, output_loading_info=True)
    if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
        raise CheckError(f"{folder.name}: the exported folder does not load completely ({info}); report this")
    batch = proof_batch(corpus_dir, manifest)
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


def proof_batch(corpus_dir: Path, manifest: Manifest) -> dict[str, Any]:
    """The first fragments of the first held-out rows as tensors `[B, L]`: what a Hugging Face model can be fed."""
    import torch

    from data_prep.rows import structure
    from data_prep.shards import RowReader

    reader = RowReader(corpus_dir, "heldout", manifest)
    rows = reader.rows(np.arange(min(PROOF_ROWS, reader.n_rows), dtype=np.int64)).astype(np.int64)
    shape = structure(rows, manifest.special)
    first = shape.fragment == 1
    arrays = {
        "ids": np.where(first, rows, manifest.special.pad),
        "real": first.astype(np.int64),
        "types": np.where(first, shape.types, 0).astype(np.int64),
        "positions": np.where(first, shape.positions, 0).astype(np.int64),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
