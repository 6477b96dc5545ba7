"""A checkpoint as Hugging Face folders, one a network, proved before they appear.

Each folder (discriminator, generator, encoder) holds safetensors in fp32 or a narrower type, config, tokenizer and a
model card. All are written under temporary names and proved by a fresh process (`pipeline.proof`); only then are they
made durable and renamed. A failed proof leaves nothing behind and what was there as it was. `export.json` holds the
size and hash of every file that was proved: a folder that differs from it in anything is exported and proved again, and
a card whose inputs changed (the run's records, its scores) is written anew. Not here: which checkpoint
(`pipeline.export_sources`), which model class a network becomes (`training.hf_export`), uploading.
"""

import os
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from data_prep import storage
from data_prep.errors import DataError, PreflightError
from data_prep.integrity import local_tokenizer
from data_prep.manifest import Manifest
from data_prep.storage import Folder
from pipeline import model_card
from pipeline.export_sources import Source
from pipeline.model_card import Provenance

if TYPE_CHECKING:
    from data_prep.tokenizer import Tokenizer
    from training.network import Network
    from training.sizes import EncoderConfig

Dtype = Literal["fp32", "bf16", "fp16"]
MARKER = "export.json"
KINDS = ("discriminator", "generator", "encoder")  # what networks, and so folders, are called
TORCH_NAMES: dict[Dtype, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class Exported:
    """One exported folder, the heads that its model class has no place for, the largest absolute difference of its
    logits from the training network's, and whether it was made now; otherwise it was proved when it was made, and its
    files are unchanged since. `exact_difference`: in float64, from the network with its weights as they were exported.
    """

    folder: str
    architecture: str
    left_behind: list[str]
    largest_difference: float
    exact_difference: float
    new: bool


def export(source: Source, target: Path, dtype: Dtype = "fp32") -> list[Exported]:
    """Export a checkpoint to folders in `target`, the main network first. Folders that hold exactly what was exported
    from this checkpoint are left alone.

    DataError where the corpus is not that of the checkpoint, PreflightError where a folder in `target` holds something
    else, or somebody exports there now; CheckError where what was written is not what the training network is.
    """
    target = storage.make_folder(target)
    with storage.LocalFolder(target).held():
        found = _read_marker(target / MARKER)
        same = found and (found["checkpoint_sha256"], found["dtype"]) == (source.checkpoint.sha256, dtype)
        before = found if same else {}
        kept = {kind: one for kind in before.get("exported", ()) if (one := _intact(target / kind, before))}
        corpus, manifest = source.corpus()
        provenance = source.provenance(manifest)
        card_sha256 = provenance.fingerprint()
        for kind, one in kept.items():
            if before["card_sha256"] != card_sha256:
                model_card.write(target / kind, kind, one.architecture, provenance, dtype)
        exported = kept
        if not before or len(kept) < len(before["exported"]):
            exported = _Export(source, target, dtype, manifest, corpus, provenance, found).run(kept)
        marker = {
            "checkpoint_sha256": source.checkpoint.sha256,
            "card_sha256": card_sha256,
            "run": source.run_dir.name,
            "step": source.checkpoint.progress.step,
            "dtype": dtype,
            "exported": {kind: asdict(replace(one, new=False)) for kind, one in exported.items()},
            "files": {kind: _hashes(target / kind) for kind in exported},
        }
        if marker != before or exported is not kept:
            storage.write_json(target / MARKER, marker)
    return list(exported.values())


def _read_marker(path: Path) -> dict[str, Any]:
    """What was exported before; empty where that is nothing, or the marker is torn or of an earlier version."""
    try:
        found = storage.read_json(path)
    except DataError:
        return {}
    keys = {"checkpoint_sha256", "card_sha256", "run", "step", "dtype", "exported", "files"}
    return found if isinstance(found, dict) and found.keys() == keys else {}


def _intact(folder: Path, marker: dict[str, Any]) -> Exported | None:
    """The record of a folder whose files are exactly those that were exported."""
    if not folder.is_dir() or marker["files"].get(folder.name) != _hashes(folder):
        return None
    return Exported(**marker["exported"][folder.name])


def _hashes(folder: Path) -> dict[str, Any]:
    """Size and hash of every file in a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": storage.sha256_of(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@dataclass(frozen=True, slots=True)
class _Export:
    """One export under way."""

    source: Source
    target: Path
    dtype: Dtype
    manifest: Manifest
    corpus: Folder
    provenance: Provenance
    before: dict[str, Any]  # the marker of what lies there, of whatever checkpoint

    def run(self, kept: dict[str, Exported]) -> dict[str, Exported]:
        """Write, prove and only then show every folder that is not kept; all of them by the networks' names."""
        from pipeline.proof import prove
        from training.checkpoints import objective_of

        networks = objective_of(self.source.checkpoint).networks()
        new = [kind for kind in networks if kind not in kept]
        for kind in new:
            self._refuse_other_files(self.target / kind)
        others = [kind for kind in KINDS if kind not in networks and (self.target / kind).exists()]
        for kind in others:
            self._refuse_other_export(self.target / kind)
        try:
            names = {kind: self._write(kind, networks[kind]) for kind in new}
            proved = prove({self._temporary(kind): self._expected(kind) for kind in new})
            storage.write_json(self.target / MARKER, {})  # until all are there, nothing says so
            for kind in others:  # nobody must take them for networks of this checkpoint
                shutil.rmtree(self.target / kind)
            for kind in new:
                _show(self._temporary(kind), self.target / kind)
        finally:
            for kind in new:
                shutil.rmtree(self._temporary(kind), ignore_errors=True)
                shutil.rmtree(self._expected(kind), ignore_errors=True)
        made = {}
        for kind, name in names.items():
            of = proved[self._temporary(kind)]
            left = _left_behind(networks[kind], name)
            made[kind] = Exported(kind, name, left, of.difference, of.exact, new=True)
        return {kind: kept.get(kind) or made[kind] for kind in networks}

    def _temporary(self, kind: str) -> Path:
        return self.target / f".{kind}.tmp"

    def _expected(self, kind: str) -> Path:
        return self.target / f".{kind}.expected.tmp"

    def _refuse_other_files(self, folder: Path) -> None:
        """Replace an export, never what somebody else has put there."""
        known = folder.name in self.before["exported"] if self.before else (self.target / MARKER).exists()
        if folder.exists() and not known and any(folder.iterdir()):
            raise PreflightError(f"{folder}: holds files that are no export; choose another folder, or remove it")

    def _refuse_other_export(self, folder: Path) -> None:
        """Remove what was exported of another checkpoint, which can be made again, never what was changed since."""
        if not self.before or _intact(folder, self.before) is None:
            raise PreflightError(f"{folder}: is no network of {self.source.checkpoint}; choose another folder")

    def _write(self, kind: str, network: "Network") -> str:
        """Write one folder under its temporary name, and what it must come to beside it; the model class."""
        import torch

        from data_prep import tokenizer
        from pipeline.proof import expect, prove_values
        from training import hf_export

        temporary = self._temporary(kind)
        shutil.rmtree(temporary, ignore_errors=True)
        words = tokenizer.load(local_tokenizer(self.corpus))
        name = hf_export.architecture(network, self.manifest.pair_separators, generator=kind == "generator")
        exported = hf_export.cast(network, getattr(torch, TORCH_NAMES[self.dtype]))
        hf_export.build_model(exported, name, self.manifest.special).save_pretrained(temporary)
        _write_tokenizer(temporary, words, network.config)
        model_card.write(temporary, kind, name, self.provenance, self.dtype)
        prove_values(temporary, exported)
        expect(self._expected(kind), name, network, exported, self.manifest, self.corpus, words)
        return name


def _left_behind(network: "Network", name: str) -> list[str]:
    from training.hf_export import left_behind

    return left_behind(network, name)


def _write_tokenizer(folder: Path, words: "Tokenizer", encoder: "EncoderConfig") -> None:
    """The fast tokenizer, its configuration, and the vocabulary as files of its own, for programs that read those."""
    import tokenizers

    for name, content in words.files().items():
        (folder / name).write_bytes(content)
    config = storage.read_json(folder / "tokenizer_config.json")
    config |= {"model_max_length": encoder.max_positions}
    if encoder.type_vocab == 1:  # a type of the second text would be out of the model's table
        config |= {"model_input_names": ["input_ids", "attention_mask"]}
    storage.write_json(folder / "tokenizer_config.json", config)
    tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).model.save(str(folder))


def _show(temporary: Path, folder: Path) -> None:
    """Make a proved folder durable and give it its name."""
    config = (temporary / "config.json").stat()
    (temporary / "model.safetensors").chmod(config.st_mode)  # safetensors leaves it to its owner alone
    for path in [*temporary.rglob("*"), temporary]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    if folder.exists():
        shutil.rmtree(folder)
    temporary.rename(folder)
    storage.sync_folder(folder.parent)
