"""The zip for the GLUE server from the answers of one model: of each task the fine-tuning that did best on dev.

That is what the server's entries are: dev chose them, so the dev score of the one that is handed in is no estimate of
anything. Of equals, the lowest seed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.errors import ConfigError
from pipeline.evaluate_data import Material, load_tests, task_names
from training.glue import GLUE
from training.glue_submission import write_submission
from training.protocol import EvaluationConfig
from training.tasks import Labels

Result = dict[str, Any]


def refuse_incomplete(config: EvaluationConfig) -> None:
    """ConfigError where not all of GLUE's tasks are evaluated: the server takes all or nothing."""
    there = task_names(config).get("glue", [])
    if missing := [name for name in GLUE if name not in there]:
        raise ConfigError(
            f"--submission needs every GLUE task, and {', '.join(missing)} would not be evaluated: give --glue-dir and "
            "leave out --tasks"
        )


def submit(evaluation: Path, rows: Sequence[Result], found: Sequence[Material], path: Path) -> None:
    """Write the zip. DataError where a test set is not whole."""
    answers: dict[str, tuple[Sequence[str], Labels]] = {}
    for material in found:
        if material.tests is None:
            continue
        own = [row for row in rows if row["task"] == material.task]
        best = max(own, key=lambda row: (row["score"], -row["finetune_seed"]))
        with np.load(evaluation / best["predictions"], allow_pickle=False) as arrays:
            for one in load_tests(material.tests):
                answers[one.name] = one.index, arrays[f"test/{one.name}"]
    write_submission(path, answers)
