"""`electra export TARGET`: which checkpoint a path names, where its folders go, and what is told of them.

A run need not be finished, and may be training: its newest whole checkpoint is exported. Nothing of an experiment is
held or changed, but for OUT/export, where the folders go without `--out`: those of the experiment itself, and in
OUT/export/RUN/step-N those of a run that was named.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_prep.errors import ConfigError, DataError
from pipeline.console import Console, quiet_libraries
from pipeline.export import Dtype, Exported, export
from pipeline.export_sources import Source, at, is_one, of_experiment
from pipeline.gather import CONFIG_NAME
from pipeline.place import default_folder, read_experiment, shown


def export_target(
    target: Path, console: Console, *, to: Path | None = None, step: int | None = None, dtype: Dtype = "fp32"
) -> dict[str, Any]:
    """Export the checkpoint that a path names: an experiment's file or folder, a run, or a checkpoint. Errors as
    `pipeline.export_sources` and `pipeline.export.export`; ConfigError for options that do not fit the path."""
    quiet_libraries(offline=True)
    if is_one(target):
        source = at(target, step)
        folder = to or source.place
    else:
        source = of_experiment(_experiment(target, step))
        folder = to or source.out / "export"
    if (folder / CONFIG_NAME).exists():
        raise ConfigError(f"--out: an experiment lies in {folder}; say where the model folders go, or leave --out out")
    for sentence in source.passed_over:
        console.warn(sentence)
    return {"out": str(folder.absolute()), **export_and_tell(source, folder.absolute(), console, dtype)}


def _experiment(target: Path, step: int | None) -> Path:
    """The folder of an experiment that has begun."""
    experiment = read_experiment(target, [])
    out = default_folder(target, experiment).absolute()
    if step is not None:
        raise ConfigError(f"--step: an experiment has many runs; name one of them, in {out / 'runs'}")
    if not out.exists():
        raise DataError(f"{out} does not exist; run `electra train` first, or name the folder it trained in")
    return out


def export_and_tell(source: Source, folder: Path, console: Console, dtype: Dtype = "fp32") -> dict[str, Any]:
    """Export, and a line for each folder with what it holds and how far its logits are off."""
    with console.stage("export"):
        exported = export(source, folder, dtype)
    for one in exported:
        console.say(f"export: {shown(folder / one.folder)}: {_words(one, dtype)}")
    return {
        "run": source.run_dir.name,
        "step": source.checkpoint.progress.step,
        "dtype": dtype,
        "exported": [asdict(one) for one in exported],
    }


def _words(one: Exported, dtype: Dtype) -> str:
    narrower = "" if dtype == "fp32" else f" in {dtype}"
    when = "" if one.new else " when it was made; its files are unchanged"
    return (
        f"{one.architecture}{_without(one.left_behind)}{narrower}, largest logit difference from the training model "
        f"{one.largest_difference:.1e}{when}"
    )


def _without(heads: Sequence[str]) -> str:
    return f" without the head{'s' * (len(heads) > 1)} {', '.join(heads)}" if heads else ""
