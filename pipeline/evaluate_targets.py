"""What is evaluated: every finished run of an experiment, or one model that a path names.

A path may be one of our runs (OUT/runs/NAME), one of our checkpoints (OUT/runs/NAME/checkpoints/step-N), or a Hugging
Face folder of a BERT, ELECTRA or RoBERTa, our own exports among them, with the tokenizer that lies in it; code that a
folder brings is never run. Guarantees: `sha256` names weights and tokenizer together, so that neither can change
unnoticed. Weights are not read here, but of a Hugging Face folder they are hashed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep import storage, vocabularies
from data_prep.errors import CheckpointError, ConfigError, DataError
from data_prep.integrity import local_tokenizer
from data_prep.settings import fingerprint
from pipeline import gather
from training import hf_config
from training.protocol import EvaluationConfig, too_long
from training.run_folder import RECORD, store_of

Result = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A checkpoint or a Hugging Face folder at `location`, and the folder its tokenizer is in; `facts` are the fields
    that every one of its results carries. `judges`: whether a head of it fills masks or detects replaced tokens."""

    name: str
    location: str
    sha256: str
    tokenizer: str
    max_positions: int
    judges: bool
    facts: Result


def finished_runs(out: Path) -> list[Model]:
    """Every run under `out` with a done.json, by name, first stages apart. CheckpointError when there is none or a
    checkpoint is gone."""
    folders = [path.parent for path in sorted((out / "runs").glob("*/done.json"))]
    whole = [folder for folder in folders if gather.part_of(gather.read_spec(folder)) is None]
    if not whole:
        raise CheckpointError(f"{out / 'runs'} holds no finished run: run `electra train` first.")
    return [_finished(folder, _tokenizer(out, folder)) for folder in whole]


def _tokenizer(out: Path, run_dir: Path) -> str:
    """The folder of the tokenizer that a run of the experiment in `out` reads with."""
    return str(local_tokenizer(gather.corpus_folder(out, gather.read_spec(run_dir)["arm"])))


def _finished(folder: Path, tokenizer: str) -> Model:
    spec, done = gather.read_spec(folder), gather.read_done(folder)
    checkpoint = store_of(folder).sub(done["checkpoint"])
    if checkpoint.size("manifest.json") is None:
        raise CheckpointError(
            f"{checkpoint} is gone although {folder / 'done.json'} names it: restore it, or remove {folder}."
        )
    facts = {
        "run": folder.name,
        **{name: spec[name] for name in ("arm", "objective", "budget", "seed")},
        **{name: done[name] for name in ("step", "flops_counted")},
    }
    return _model(folder.name, checkpoint, tokenizer, spec, facts)


def _model(name: str, checkpoint: storage.Folder, tokenizer: str, spec: Result, facts: Result) -> Model:
    # the manifest holds the hashes of the parts and, in the run's identity, the tokenizer's
    sha256 = checkpoint.sha256("manifest.json")
    return Model(
        name=name,
        location=checkpoint.location,
        sha256=sha256,
        tokenizer=tokenizer,
        max_positions=spec["identity"]["model"]["max_positions"],
        judges=_judges(spec["identity"]["arm"]),
        facts=facts | {"flops_declared": False},
    )


def _judges(arm: Result) -> bool:
    """All arms but those that fill in samples, where the samples are chance's: nothing there has seen [MASK]."""
    drawn = (arm.get("generator") or {}).get("kind") == "uniform"
    return not (drawn and arm["objective"] in ("replace_mlm", "all_tokens_mlm"))


# --- one model --------------------------------------------------------------------------------------------------------


def is_model(target: Path) -> bool:
    """Whether a path names one model: a run, a checkpoint of one, or a Hugging Face folder."""
    return (target / RECORD).is_file() or _is_checkpoint(target) or hf_config.is_hugging_face(target)


def _is_checkpoint(target: Path) -> bool:
    folder = target.absolute()
    return folder.parent.name == "checkpoints" and (folder.parents[1] / RECORD).is_file() and folder.is_dir()


def experiment_of(target: Path) -> Path | None:
    """The experiment's folder that a run or a checkpoint lies in; None of a Hugging Face folder."""
    if hf_config.is_hugging_face(target):
        return None
    folder = target.resolve()
    return folder.parents[1] if (folder / RECORD).is_file() else folder.parents[3]


def model_at(target: Path, *, name: str | None = None, flops: float | None = None) -> Model:
    """The model that a path names (`is_model`). `name`: what its results are called; `flops`: what its training is said
    to have cost, for a Hugging Face folder only. CheckpointError, ConfigError or DataError where it cannot be used."""
    out = experiment_of(target)
    if out is None:
        return _hugging_face(target, name or target.resolve().name, flops)
    if flops is not None or name is not None:
        raise ConfigError(f"{target} is one of our runs, whose name and FLOPs are known: leave out --flops and --name")
    folder = target.resolve()
    if not (folder / RECORD).is_file():
        return _checkpoint(folder, _tokenizer(out, folder.parents[1]))
    if not (folder / "done.json").is_file():
        raise CheckpointError(f"{target} is not finished: name one of its checkpoints, or run `electra train` again.")
    return _finished(folder, _tokenizer(out, folder))


def _checkpoint(folder: Path, tokenizer: str) -> Model:
    """Under a name of its own: it is not what its run came to."""
    from training import checkpoints

    found = checkpoints.read(folder)
    spec, progress = gather.read_spec(folder.parents[1]), found.progress
    facts = {
        "run": f"{folder.parents[1].name}@{progress.step}",
        **{name: spec[name] for name in ("arm", "objective", "budget", "seed")},
        "step": progress.step,
        "flops_counted": progress.flops_counted,
    }
    return _model(facts["run"], found.folder, tokenizer, spec, facts)


def _hugging_face(folder: Path, name: str, flops: float | None) -> Model:
    if "/" in name or "@" in name:
        raise ConfigError(f"{name} cannot be the name of a model, because of its '/' or '@': give another with --name")
    found = hf_config.describe(folder)
    words = _tokenizer_sha256(folder, found.config.vocab_size)
    facts = {
        "run": name,
        "arm": name,
        "objective": str(storage.read_json(folder / hf_config.CONFIG)["architectures"][0]),
        "budget": None,
        "seed": 0,
        "step": 0,
        "flops_counted": flops,
        "flops_declared": flops is not None,
    }
    sha256 = fingerprint([found.sha256(), storage.sha256_of(folder / hf_config.CONFIG), words])
    place = str(folder.resolve())
    return Model(
        name=name,
        location=place,
        sha256=sha256,
        tokenizer=place,
        max_positions=found.config.max_positions,
        judges=bool(found.architecture.heads),
        facts=facts,
    )


def refuse_unfit(models: Sequence[Model], config: EvaluationConfig) -> None:
    """ConfigError where a model cannot answer what is asked: before anything is computed for the others."""
    for model in models:
        if "blimp" in config.suites and not model.judges:
            raise ConfigError(
                f"{model.name} has no head that fills masks or detects replaced tokens, which BLiMP asks: leave blimp "
                "out of evaluation.suites (--blimp), or choose another model"
            )
        if refused := too_long(config, model.max_positions):
            raise ConfigError(f"{refused} of {model.name}: lower it")


def _tokenizer_sha256(folder: Path, vocab_size: int) -> str:
    """The hash of the tokenizer in a folder. DataError where there is none, or one of more tokens than the network
    knows."""
    from data_prep import tokenizer

    names = (vocabularies.TOKENIZER, vocabularies.WORDPIECE, vocabularies.BPE)
    if not any((folder / name).is_file() for name in names):
        raise DataError(f"{folder} has no tokenizer: put {' or '.join(names)} there, the last with merges.txt.")
    words = tokenizer.load(folder)
    if words.vocab_size > vocab_size:
        raise DataError(
            f"{folder}: its tokenizer knows {words.vocab_size} tokens and its network {vocab_size}; put the tokenizer "
            "that it was trained with there."
        )
    return vocabularies.fingerprint(folder)
