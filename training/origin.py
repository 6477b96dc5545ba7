"""What a run can begin with: another run, or a Hugging Face folder.

`find` takes a path to an `Origin`: which checkpoint it is, the name its contents have in the identity of the run that
begins with it, the sizes of its networks, what it cost. No tensor of a checkpoint is read, nor is it verified: planning
is cheap, and `training.first_weights` looks closely when the run begins.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from data_prep import storage
from data_prep.errors import CheckpointError, ConfigError
from data_prep.storage import Folder
from training import checkpoints, hf_config, ledgers, vocabulary
from training.arms import ArmConfig, BertArm, ElectraTwoStageArm, FrozenGenerator, MlmArm, NetworkGenerator, RobertaArm
from training.checkpoints import Checkpoint
from training.checkpoints.retention import is_for_good
from training.flops import trained_generator
from training.ledgers import Ledger, Ledgers
from training.run_folder import DONE, RECORD, store_of
from training.sizes import EncoderConfig
from training.vocabulary import Vocabulary

# The arms whose main network sees [MASK]: others with a masked-token head have only ever seen samples in its place.
_FILLS_MASKS = (MlmArm, BertArm, RobertaArm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What one folder gives to begin with: sizes by what a network is for, None where there is no such network.

    `folder` is a path, of a checkpoint in an object store its address. `identity` is `FINGERPRINT@STEP` of a run, or
    `sha256:…` of a Hugging Face folder's weights. Of a run the tokenizer is known, and what every run that its weights
    came from has cost, itself included, and the `position` in the stream that it has read to; of a Hugging Face folder,
    at most a vocabulary and the padding's id in it.
    """

    folder: Path | str
    identity: str
    main: EncoderConfig | None
    generator: EncoderConfig | None
    masked: EncoderConfig | None
    tokenizer_sha256: str | None = None
    vocabulary: Vocabulary | None = None
    pad: int | None = None
    ledgers: Ledgers = field(default_factory=dict)
    position: int = 0

    @property
    def vocab_size(self) -> int:
        """Of all its networks."""
        found = self.main or self.generator
        assert found is not None
        return found.vocab_size


def find(path: Path, *, label: str, objective: str, seed: int) -> Origin:
    """What `path` names: a checkpoint, a finished run's folder (its last checkpoint), an experiment's folder (its run
    of the same seed, and of the same arm and objective as far as that tells runs apart), or a Hugging Face folder.

    ConfigError where it names nothing or several runs, CheckpointError where a run is not finished.
    """
    path = path.expanduser().absolute()
    if not path.is_dir():
        raise ConfigError(
            f"init_from: {path} is no folder; name a checkpoint, a run, an experiment or a Hugging Face folder"
        )
    if (path / "runs").is_dir():
        path = _only_run(path, label=label, objective=objective, seed=seed)
    return at(path if is_origin(path) else _last_checkpoint(path))


def at(folder: Path | str) -> Origin:
    """What a checkpoint's or a Hugging Face folder is. CheckpointError where it is neither."""
    if hf_config.is_hugging_face(folder):
        files = [file for file in sorted(Path(folder).iterdir()) if file.is_file()]
        states = ((file.name, file.stat()) for file in files)
        return _hugging_face(Path(folder), tuple((name, state.st_size, state.st_mtime_ns) for name, state in states))
    return _run_of(checkpoints.read(folder))


def is_origin(folder: Path | str) -> bool:
    """Whether a folder is a checkpoint or a Hugging Face folder."""
    return hf_config.is_hugging_face(folder) or storage.folder(folder).size(checkpoints.MANIFEST) is not None


def _only_run(experiment: Path, *, label: str, objective: str, seed: int) -> Path:
    """The run of an experiment's folder with this seed; of several, the one that is left when arm and objective are
    asked for where some run has them. Seeds that began with one run would not be repetitions of one another."""
    runs = {path.parent: storage.read_json(path) for path in sorted(experiment.glob(f"runs/*/{RECORD}"))}
    whole = {folder: run for folder, run in runs.items() if run.get("part_of") is None}
    left = {folder: run for folder, run in whole.items() if run.get("seed") == seed}
    if whole and not left:
        raise ConfigError(
            f"init_from: {experiment} holds no run with seed {seed}; train that there first, or, to begin every seed "
            f"with the same weights, name the folder of one run ({_names(whole)})"
        )
    for key, value in (("arm", label), ("objective", objective)):
        left = {folder: run for folder, run in left.items() if run.get(key) == value} or left
    if len(left) == 1:
        return next(iter(left))
    raise ConfigError(
        f"init_from: {experiment} holds several runs that it may mean ({_names(left)}); name the folder of one of them"
        if left
        else f"init_from: {experiment} holds no run yet; train it first"
    )


def _names(folders: Iterable[Path]) -> str:
    return ", ".join(folder.name for folder in folders)


def _last_checkpoint(run_dir: Path) -> Path | str:
    """The checkpoint that a finished run ended with."""
    store = store_of(run_dir)
    if (run_dir / DONE).is_file():
        return _place(store.sub(str(storage.read_json(run_dir / DONE)["checkpoint"])))
    found = [entry for entry in checkpoints.listing(store) if entry.state == "valid"]
    if not found:
        raise CheckpointError(f"init_from: {run_dir} has no checkpoint; train it first, or name another folder")
    for_good = [store.sub(entry.name) for entry in found if is_for_good(entry)]
    raise CheckpointError(
        f"init_from: {run_dir} is not finished; train it to its end, or name a checkpoint that its retention keeps for "
        + (f"good, {for_good[-1]}" if for_good else "good: it has none yet (training.checkpoints.keep_every, at_flops)")
    )


def _place(folder: Folder) -> Path | str:
    return Path(folder.location) if folder.is_local else folder.location


def _run_of(found: Checkpoint) -> Origin:
    spec, progress = found.spec, found.progress
    identity, begun = spec.identity, ledgers.total(progress.inherited)
    own = {name: getattr(progress, name) - getattr(begun, name) for name in ledgers.NAMES}
    own["flops_spent"] += ledgers.total(progress.shared).flops_spent  # a branch's weights cost what its trunk did, too
    own |= {"rollbacks": progress.rollbacks, "rows_skipped": progress.rows_skipped}
    planned = (spec.budget - spec.inherited_budget) * (progress.step / spec.steps)
    generator = _generator_size(identity.arm, identity.model)
    return Origin(
        folder=_place(found.folder),
        identity=f"{found.manifest['identity']}@{progress.step}",
        main=identity.model,
        generator=generator,
        masked=generator or (identity.model if isinstance(identity.arm, _FILLS_MASKS) else None),
        tokenizer_sha256=identity.tokenizer_sha256,
        ledgers={**progress.inherited, found.manifest["identity"]: Ledger(step=progress.step, planned=planned, **own)},
        position=progress.position,
    )


def _generator_size(arm: ArmConfig, model: EncoderConfig) -> EncoderConfig | None:
    """The size of a planned arm's generator; None where it is no network."""
    if isinstance(arm, ElectraTwoStageArm):
        return model
    settings = getattr(arm, "generator", None)
    if isinstance(settings, NetworkGenerator):
        return trained_generator(settings, model)
    if isinstance(settings, FrozenGenerator) and settings.network is not None:
        return settings.network.encoder(model.vocab_size)
    return None


@lru_cache(maxsize=16)
def _hugging_face(folder: Path, _files: tuple[tuple[str, int, int], ...]) -> Origin:
    """Of files with these sizes and times: hashing takes seconds, and every run of an experiment may be asked for."""
    found = hf_config.describe(folder)
    is_generator = found.architecture.role == "generator"
    return Origin(
        folder=folder,
        identity=f"sha256:{found.sha256()}",
        main=None if is_generator else found.config,
        generator=found.config if is_generator else None,
        masked=found.config if "mlm" in found.architecture.heads else None,
        vocabulary=vocabulary.of_folder(folder),
        pad=found.pad,
    )
