"""`electra evaluate` of one model: a run, a checkpoint, or a Hugging Face folder.

Its results go to `--out`, else to the experiment that it belongs to, else to runs/evaluate-NAME. Where that folder is
an experiment's, its evaluation settings hold, and the model stands among its results: a published model becomes a point
in its report. The experiment's own files are left as they are.
"""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from cluster.config import ClusterConfig
from data_prep import storage
from data_prep.settings import Settings
from pipeline import config as yaml_config
from pipeline import evaluate_table, gather
from pipeline.console import Console, quiet_libraries
from pipeline.evaluate import evaluate_model
from pipeline.evaluate_targets import experiment_of, model_at
from pipeline.experiment import Experiment
from pipeline.place import join_ray, shown
from pipeline.tracking import sync
from training.protocol import EvaluationConfig


class ModelSettings(Settings):
    """What a model is evaluated by where no experiment says it."""

    evaluation: EvaluationConfig = EvaluationConfig()
    cluster: ClusterConfig = ClusterConfig()


def evaluate_one(
    target: Path,
    overrides: list[str],
    console: Console,
    *,
    out: Path | None = None,
    name: str | None = None,
    flops: float | None = None,
    submission: Path | None = None,
) -> dict[str, Any]:
    """Evaluate and tell; returns the tables as plain data. Errors as `pipeline.evaluate.evaluate_model`, and
    ConfigError for settings."""
    experiment, model = experiment_of(target), model_at(target, name=name, flops=flops)
    folder = (out or experiment or Path("runs") / f"evaluate-{model.name}").absolute()
    settings = _settings(folder, overrides)
    quiet_libraries(offline=settings.evaluation.glue_dataset is None)
    home = experiment or (folder if (folder / gather.CONFIG_NAME).is_file() else None)
    with storage.LocalFolder(folder).held(), ExitStack() as stack:
        rows = evaluate_model(
            folder,
            settings.evaluation,
            model,
            corpus=None if home is None else gather.corpus_folder(home),
            console=console,
            before_work=partial(join_ray, settings.cluster, stack, console),
            submission=submission,
        )
        if (folder / "runs").is_dir():
            sync(folder, console=console)
    evaluate_table.show(rows, console)
    console.say(f"evaluation: {shown(folder / 'evaluation' / 'report.html')}")
    return {"out": str(folder), "model": model.name, "results": len(rows), **evaluate_table.as_json(rows)}


def _settings(folder: Path, overrides: list[str]) -> ModelSettings:
    stored = folder / gather.CONFIG_NAME
    if not stored.is_file():
        return yaml_config.load(None, overrides, ModelSettings)
    found = yaml_config.load(stored, overrides, Experiment)
    return ModelSettings(evaluation=found.evaluation, cluster=found.cluster)
