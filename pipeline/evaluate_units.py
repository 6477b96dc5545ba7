"""The units of an evaluation: model × task × seed, and model × BLiMP; what identifies each and where it is kept.

A unit is identified by the model's hash, its data, its protocol and its seed. Its record and its predictions carry that
identity in their names, so a changed protocol makes new ones beside the old, which are never overwritten.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.tasks import Unit, committed
from data_prep import storage
from data_prep.settings import fingerprint
from pipeline.evaluate_data import Material
from pipeline.evaluate_targets import Model
from training.protocol import EvaluationConfig

Result = dict[str, Any]
VERSIONS = {"classes": 2, "spans": 3, "pairs": 3}  # of what a record and its answers hold


def units(models: Sequence[Model], found: Sequence[Material], config: EvaluationConfig, evaluation: Path) -> list[Unit]:
    """Every unit there is to do, BLiMP once a model: nothing of it is drawn."""
    return [
        _unit(model, material, config, seed, evaluation)
        for model in models
        for material in found
        for seed in range(1 if material.kind == "pairs" else config.seeds)
    ]


def _unit(model: Model, material: Material, config: EvaluationConfig, seed: int, evaluation: Path) -> Unit:
    protocol = config.protocol_of(material.suite).model_dump(mode="json")
    parts = {
        "version": VERSIONS[material.kind],
        "checkpoint": model.sha256,
        "suite": material.suite,
        "task": material.task,
        "data": material.sha256,
        "protocol": protocol,
        "seed": seed,
    }
    if material.tests_sha256 is not None:
        parts["tests"] = material.tests_sha256
    identity = fingerprint(parts)
    name = f"{model.name}-{material.suite}-{material.task}-f{seed}-{identity[:12]}"
    payload = {
        "kind": material.kind,
        "evaluation": str(evaluation.resolve()),
        "model": model.location,
        "tokenizer": model.tokenizer,
        "data": f"tasks/{material.path.name}",
        "tests": None if material.tests is None else f"tasks/{material.tests.name}",
        "suite": material.suite,
        "task": material.task,
        "seed": seed,
        "protocol": protocol,
        "gpu": config.gpus_per_unit > 0,
        "name": name,
        "identity": identity,
        "facts": {**model.facts, "checkpoint_sha256": model.sha256, "data_sha256": material.sha256},
    }
    folder = storage.LocalFolder(evaluation.resolve())
    return Unit(name=name, payload=payload, folder=folder, record=f"units/{name}.json", identity=identity)


def is_whole(unit: Unit, result: Result) -> bool:
    """Whether the files that a record names are there."""
    evaluation = Path(unit.payload["evaluation"])
    return all((evaluation / name).is_file() for name in result["files"])


def is_done(unit: Unit) -> bool:
    """Whether there is nothing left to do for a unit."""
    result = committed(unit)
    return result is not None and is_whole(unit, result)
