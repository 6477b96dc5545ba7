"""Every checkpoint that a run keeps as exported folders, one a step: what `electra push RUN --all-checkpoints` sends.

Each is exported and proved as any other (`pipeline.export`), in fp32, where a run that is named alone goes
(EXPERIMENT/export/RUN/step-N); those that are there are not made again. A checkpoint that is not whole is passed over,
and said. Those that the run has removed since they were exported are sent as well.
"""

from pathlib import Path

from data_prep.errors import CheckpointError, ConfigError
from pipeline.console import Console
from training.run_folder import RECORD


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run."""
    return (folder / RECORD).is_file()


def export_kept(run_dir: Path, console: Console) -> Path:
    """The folder that holds them. CheckpointError where none is whole, ConfigError where `run_dir` is no run's."""
    from pipeline.export_sources import at
    from pipeline.export_verb import export_and_tell
    from training.checkpoints.entries import steps_of
    from training.run_folder import store_of

    if not is_run(run_dir):
        raise ConfigError(f"{run_dir}: is no run's folder; give one, or a folder of exported checkpoints")
    folders = []
    for name, step in steps_of(store_of(run_dir)).items():
        try:
            source = at(run_dir, step)
        except CheckpointError as error:
            console.warn(f"{name} is passed over: {error}")
            continue
        export_and_tell(source, source.place, console)
        folders.append(source.place.parent)
    if not folders:
        raise CheckpointError(f"{run_dir}: holds no whole checkpoint; run `electra train` again")
    return folders[0]
