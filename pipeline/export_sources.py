"""Which checkpoint is exported: of an experiment, of a run, at a step, or one that a path names; and what is on record
of it.

Guarantees: every part of the checkpoint was hashed (of a run, its newest whole one is taken, and none of a trajectory
that a rollback has left), and the corpus and tokenizer are those it was trained on. What is on record of a run is said
of the step that is exported: scores of another step are left out. Checkpoints in an object store are found through
their run.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep.errors import CheckpointError, ConfigError, DataError
from data_prep.integrity import tokenizer_problems
from data_prep.manifest import Manifest
from data_prep.manifest import load as load_manifest
from data_prep.storage import Folder
from pipeline import gather
from pipeline.evaluate_targets import is_model
from pipeline.gather import Run
from pipeline.model_card import Provenance
from training.hf_config import is_hugging_face
from training.ledgers import NAMES, total
from training.run_folder import DONE, RECORD, checkpoint_name, events, last_events, store_of

if TYPE_CHECKING:
    from training.checkpoints import Checkpoint

DETECTORS = ("electra", "electra_15", "electra_adversarial", "electra_two_stage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A verified checkpoint of a run in the experiment `out`; `passed_over`: a sentence for each newer one that is not
    whole."""

    out: Path
    run_dir: Path
    checkpoint: "Checkpoint"
    passed_over: tuple[str, ...] = ()

    @property
    def place(self) -> Path:
        """A folder of its own among the experiment's exports: RUN/step-N."""
        return self.out / "export" / self.run_dir.name / self.checkpoint.name

    @property
    def is_last(self) -> bool:
        """Whether it is what the run came to."""
        return (self.run_dir / DONE).is_file() and gather.read_done(self.run_dir)["checkpoint"] == self.checkpoint.name

    def corpus(self) -> tuple[Folder, Manifest]:
        """The corpus it was trained on. DataError where another is there, or its tokenizer was altered."""
        folder = gather.corpus_folder(self.out, gather.read_spec(self.run_dir)["arm"])
        manifest = load_manifest(folder)
        if manifest.sha256 != self.checkpoint.spec.identity.manifest_sha256:
            raise DataError(
                f"{folder}: is not the corpus that {self.run_dir.name} was trained on; restore it, its tokenizer "
                "belongs to the weights"
            )
        if found := tokenizer_problems(folder, manifest.tokenizer_sha256):
            raise DataError(f"{folder}: {found[0]}; run `electra prepare` again to restore it")
        return folder, manifest

    def record(self) -> dict[str, Any]:
        """What is on record of this step, by the names of done.json; no held-out losses where it is not the last."""
        if self.is_last:
            return gather.read_done(self.run_dir)
        progress, manifest, spec = self.checkpoint.progress, self.checkpoint.manifest, self.checkpoint.spec
        begun, shared = total(progress.inherited), total(progress.shared)
        started = next((event for event in last_events(self.run_dir) if event["event"] == "started"), {})
        own_tokens = progress.tokens - begun.tokens - shared.tokens
        own_seconds = progress.seconds - begun.seconds - shared.seconds
        return {
            **{name: getattr(progress, name) for name in NAMES},
            "step": progress.step,
            "checkpoint": self.checkpoint.name,
            "budget": spec.budget,
            "flops_per_step": spec.flops_per_step,
            "inherited": {name: getattr(begun, name) for name in NAMES},
            "tokens_per_second": own_tokens / own_seconds if own_seconds else 0.0,
            "heldout": {},
            "parameters": sum(int(np.prod(shape)) for shape in manifest["shapes"].values()),
            "world_size": manifest["world_size"],
            "hardware": f"{manifest['world_size']} × {started.get('device', 'a device that is not on record')}",
        }

    def provenance(self, manifest: Manifest) -> Provenance:
        """What the card is written from."""
        found = Provenance.collect(self.out, self.run_dir, self.record(), manifest)
        return replace(found, results=[one for one in found.results if one["step"] == self.checkpoint.progress.step])


def of_experiment(out: Path) -> Source:
    """The last checkpoint of `chosen_run`. DataError without such a run, CheckpointError where it is not whole."""
    from training.checkpoints import verify

    run_dir = chosen_run(out).folder
    checkpoint = verify(store_of(run_dir).sub(gather.read_done(run_dir)["checkpoint"]))
    return Source(out=out, run_dir=run_dir, checkpoint=checkpoint)


def is_one(target: Path) -> bool:
    """Whether a path names a run or a checkpoint of one. ConfigError for a Hugging Face folder."""
    if is_hugging_face(target):
        raise ConfigError(f"{target}: is a Hugging Face folder already; name a checkpoint, a run or an experiment")
    return is_model(target)


def at(target: Path, step: int | None = None) -> Source:
    """What a path names (`is_one`): of a run, finished or not, its newest whole checkpoint, or that of a step.
    CheckpointError where there is none that is whole, ConfigError for a step of a checkpoint."""
    from training.checkpoints import verify

    folder = target.resolve()
    if (folder / RECORD).is_file():
        out = folder.parents[1]
        return _newest(out, folder) if step is None else _at_step(out, folder, step)
    if step is not None:
        raise ConfigError(f"--step: {target} is one checkpoint; name its run, {folder.parents[1]}")
    return Source(out=folder.parents[3], run_dir=folder.parents[1], checkpoint=verify(folder))


def _newest(out: Path, run_dir: Path) -> Source:
    from training.checkpoints import newest
    from training.rollback import is_left_behind, recorded

    rollbacks = recorded(events(run_dir))
    checkpoint, passed_over = newest(
        store_of(run_dir), hashes=True, left_behind=lambda progress: is_left_behind(progress, rollbacks)
    )
    if checkpoint is None:
        why = f" ({passed_over[0]})" if passed_over else ""
        raise CheckpointError(f"{run_dir}: holds no whole checkpoint{why}; run `electra train` again")
    return Source(out=out, run_dir=run_dir, checkpoint=checkpoint, passed_over=tuple(passed_over))


def _at_step(out: Path, run_dir: Path, step: int) -> Source:
    from training.checkpoints import verify
    from training.checkpoints.entries import steps_of

    store = store_of(run_dir)
    steps = steps_of(store).values()
    if step not in steps:
        there = ", ".join(map(str, steps)) or "none"
        raise CheckpointError(f"--step: {store} holds no checkpoint of step {step}; choose one of {there}")
    return Source(out=out, run_dir=run_dir, checkpoint=verify(store.sub(checkpoint_name(step))))


def chosen_run(out: Path) -> Run:
    """The finished run that is exported where none is named: of the arms that detect replaced tokens, or of all where
    none does, the one with the largest budget. DataError where no run is finished."""
    finished = gather.read(out).finished  # by budget, then in the configuration's order of arms
    if not finished:
        raise DataError(f"{out / 'runs'}: no finished run; run `electra train` first")
    detecting = [run for run in finished if run.objective in DETECTORS]
    candidates = detecting or finished
    return next(run for run in candidates if run.budget == candidates[-1].budget)
