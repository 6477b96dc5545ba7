"""Fine-tune every finished run on every task with every seed, as Ray units, into `evaluation/results.jsonl`.

A fine-tuning is identified by the checkpoint's hash, the task's data, the protocol and the seed; its record and its
predictions are kept under that identity, so the same command again runs only what is missing, and a changed protocol
makes new results beside the old ones. `results.jsonl` is rebuilt from the records: the grid just evaluated, and the
latest grid of the other suite where protocol and checkpoints are still the same. It never mixes protocols.

Fine-tuning itself is `training.finetune`; statistics over results are the report's.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cluster.tasks import Unit, committed, run_units
from data_prep import storage
from data_prep.errors import CheckpointError, ConfigError, DataError
from data_prep.integrity import local_tokenizer
from data_prep.settings import fingerprint
from data_prep.storage import Folder
from pipeline import gather
from pipeline.console import Console
from training import glue, probes
from training.protocol import SUITES, EvaluationConfig, Protocol
from training.run_folder import store_of
from training.tasks import TaskData

Result = dict[str, Any]

_ARRAYS = ("label", "prediction", "group")  # of a predictions file, `[n_dev]` each, beside the scores

ENV = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A run with its final checkpoint; `facts` are the fields every one of its results carries."""

    name: str
    checkpoint: Folder
    checkpoint_sha256: str
    facts: Result


def _nothing() -> None:
    """Ray is running already, or nothing is left to do."""


def evaluate(
    out: Path,
    config: EvaluationConfig,
    *,
    console: Console,
    before_work: Callable[[], None] = _nothing,
) -> list[Result]:
    """Evaluate all finished runs under `out`; returns the results of this grid, sorted, and rewrites results.jsonl.

    `before_work` is called when there is something to run, which needs a Ray session. Raises CheckpointError without a
    finished run, DataError for missing or too little task data, ConfigError for tasks of another suite.
    """
    suite = config.suite
    names = _task_names(config)
    runs = finished_runs(out)
    evaluation = storage.make_folder(out / "evaluation")
    storage.LocalFolder(evaluation).remove_temporaries()
    data = _materialise(_task_data(out, names, config), storage.make_folder(evaluation / "tasks"))
    tokenizer_folder = local_tokenizer(gather.corpus_folder(out))
    units = [
        _unit(run, data_path, sha256, suite, task, seed, config.protocol, out, tokenizer_folder)
        for run in runs
        for task, (data_path, sha256) in data.items()
        for seed in range(config.seeds)
    ]
    if not all(map(_is_done, units)):
        before_work()
    with console.stage("evaluate", len(units), "fine-tunings") as stage:

        def on_record(unit: Unit, result: Result, reused: bool) -> None:
            stage.advance(1, run=result["run"], task=result["task"], score=result["score"])

        results = run_units(finetune_unit, units, num_cpus=1, env=ENV, on_record=on_record, intact=_has_predictions)
    _warn_degenerate(results, console)
    grid = {"protocol": config.protocol.fingerprint(), "records": [Path(unit.record).name for unit in units]}
    storage.write_json(storage.make_folder(evaluation / "grids") / f"{suite}.json", grid)
    write_results(out, config.protocol, runs, console)
    return sorted(results, key=_order)


def check_tasks(config: EvaluationConfig) -> None:
    """Read what of the tasks does not come from the experiment itself, so that a folder that lacks some of it is found
    before anything is prepared or trained. Raises as `evaluate`."""
    names = _task_names(config)
    if config.suite == "glue":
        _glue(names, config)


def _task_names(config: EvaluationConfig) -> list[str]:
    known = list(SUITES[config.suite])
    for name in config.tasks or []:
        if name not in known:
            raise ConfigError(
                f"evaluation.tasks: {name} is no task of suite {config.suite}, which has {', '.join(known)}."
            )
    return list(config.tasks or known)


def finished_runs(out: Path) -> list[FinishedRun]:
    """Every run under `out` with a done.json, by name, first stages apart. CheckpointError when there is none or a
    checkpoint is gone."""
    runs = []
    for done_path in sorted((out / "runs").glob("*/done.json")):
        folder = done_path.parent
        spec, done = gather.read_spec(folder), gather.read_done(folder)
        if gather.part_of(spec) is not None:
            continue
        checkpoint = store_of(folder).sub(done["checkpoint"])
        if checkpoint.size("manifest.json") is None:
            raise CheckpointError(
                f"{checkpoint} is gone although {done_path} names it: restore it, or remove {folder}."
            )
        facts = {
            "run": folder.name,
            **{name: spec[name] for name in ("arm", "objective", "budget", "seed")},
            **{name: done[name] for name in ("step", "flops_counted")},
        }
        sha256 = checkpoint.sha256("manifest.json")
        runs.append(FinishedRun(name=folder.name, checkpoint=checkpoint, checkpoint_sha256=sha256, facts=facts))
    if not runs:
        raise CheckpointError(f"{out / 'runs'} holds no finished run: run `electra train` first.")
    return runs


def _task_data(out: Path, names: Sequence[str], config: EvaluationConfig) -> list[TaskData]:
    return (
        _glue(names, config)
        if config.suite == "glue"
        else probes.build(gather.corpus_folder(out), names, config.probes)
    )


def _glue(names: Sequence[str], config: EvaluationConfig) -> list[TaskData]:
    folder = config.glue_dir
    if folder is None:
        raise ConfigError(
            "evaluation.suite is glue but no folder is named: set evaluation.glue_dir, or use --glue-dir."
        )
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: --glue-dir names one that holds {', '.join(names)}.")
    return [glue.load_glue(folder, name) for name in names]


def _materialise(tasks: Sequence[TaskData], folder: Path) -> dict[str, tuple[Path, str]]:
    """Write each task's examples once, under a name made of their hash; returns task → (file, sha256)."""
    files = {}
    for data in tasks:
        sha256 = data.sha256()
        path = folder / f"{data.suite}-{data.task}-{sha256[:12]}.jsonl"
        if not path.exists():
            data.save(path)
        files[data.task] = (path, sha256)
    return files


def _unit(
    run: FinishedRun,
    data: Path,
    data_sha256: str,
    suite: str,
    task: str,
    seed: int,
    protocol: Protocol,
    out: Path,
    tokenizer_folder: Path,
) -> Unit:
    """One fine-tuning. The record's name holds the identity, so records of another protocol are never overwritten."""
    identity = fingerprint(
        {
            "checkpoint": run.checkpoint_sha256,
            "suite": suite,
            "task": task,
            "data": data_sha256,
            "protocol": protocol.model_dump(mode="json"),
            "seed": seed,
        }
    )
    name = f"{run.name}-{suite}-{task}-f{seed}-{identity[:12]}"
    payload = {
        "evaluation": str((out / "evaluation").resolve()),
        "checkpoint": run.checkpoint.location,
        "tokenizer": str(tokenizer_folder),
        "data": str(data.resolve()),
        "suite": suite,
        "task": task,
        "seed": seed,
        "protocol": protocol.model_dump(mode="json"),
        "predictions": f"predictions/{name}.npz",
        "facts": {**run.facts, "checkpoint_sha256": run.checkpoint_sha256, "data_sha256": data_sha256},
    }
    folder = storage.LocalFolder((out / "evaluation").resolve())
    return Unit(name=name, payload=payload, folder=folder, record=f"units/{name}.json", identity=identity)


def _has_predictions(unit: Unit, result: Result) -> bool:
    return (Path(unit.payload["evaluation"]) / result["predictions"]).is_file()


def _is_done(unit: Unit) -> bool:
    result = committed(unit)
    return result is not None and _has_predictions(unit, result)


def finetune_unit(payload: dict[str, Any]) -> Result:
    """In the worker: one fine-tuning; its predictions are durable when this returns."""
    import torch

    from data_prep import tokenizer
    from training.finetune import finetune
    from training.pretrained import load_network
    from training.tasks import load_task

    torch.set_num_threads(1)
    protocol = Protocol.model_validate(payload["protocol"])
    task = SUITES[payload["suite"]][payload["task"]]
    data = load_task(Path(payload["data"]))
    network, _ = load_network(payload["checkpoint"])
    tuned = finetune(
        (network.config, network.embeddings, network.encoder),
        data,
        task=task,
        tokenizer=tokenizer.load(Path(payload["tokenizer"])),
        protocol=protocol,
        seed=payload["seed"],
        device=torch.device("cpu"),
    )
    dev = tuned.sides[0]
    predictions = Path(payload["evaluation"]) / payload["predictions"]
    predictions.parent.mkdir(parents=True, exist_ok=True)
    with storage.atomic_writer(predictions) as file:
        np.savez_compressed(file, **{name: getattr(dev, name) for name in _ARRAYS}, score=dev.scores)
    return {
        **payload["facts"],
        "suite": task.suite,
        "task": task.name,
        "metric": task.metrics[0],
        "score": dev.metrics[task.metrics[0]],
        "metrics": dev.metrics,
        "in_mean": task.in_mean,
        "n_train": tuned.n_train,
        "n_dev": len(dev.label),
        "majority": dev.majority,
        "degenerate": dev.degenerate,
        "subset": data.subset,
        "finetune_seed": payload["seed"],
        "protocol": {"fingerprint": protocol.fingerprint(), **protocol.model_dump(mode="json")},
        "predictions": payload["predictions"],
        "seconds": round(tuned.seconds, 3),
    }


def write_results(out: Path, protocol: Protocol, runs: Sequence[FinishedRun], console: Console) -> None:
    """Rebuild results.jsonl, atomically, from the latest grid of every suite evaluated with this protocol. What of the
    other suite's records cannot be read is left out, with a warning."""
    evaluation = out / "evaluation"
    checkpoints = {run.name: run.checkpoint_sha256 for run in runs}
    results: list[Result] = []
    for path in sorted((evaluation / "grids").glob("*.json")):
        grid = _readable(path, ("protocol", "records"))
        if grid is not None and grid["protocol"] != protocol.fingerprint():
            continue
        records = [evaluation / "units" / name for name in grid["records"]] if grid is not None else []
        found = {record: _readable(record, ("result",)) for record in records}
        if lost := [path] * (grid is None) + [record for record, read in found.items() if read is None]:
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            console.warn(
                f"{lost[0]}{more}: gone or unreadable, so the results of suite {path.stem} are shown without them; "
                "evaluate that suite again to make them anew"
            )
        for result in (read["result"] for read in found.values() if read is not None):
            if checkpoints.get(result["run"]) == result["checkpoint_sha256"]:
                results.append(result)
    lines = [json.dumps(result, sort_keys=True, ensure_ascii=False) for result in sorted(results, key=_order)]
    storage.write_bytes(evaluation / "results.jsonl", "".join(line + "\n" for line in lines).encode())


def _readable(path: Path, names: Sequence[str]) -> dict[str, Any] | None:
    """The JSON mapping in a file, or None where it is missing, torn or lacks one of the names."""
    try:
        found = storage.read_json(path)
    except DataError:
        return None
    return found if isinstance(found, dict) and all(name in found for name in names) else None


def _order(result: Result) -> tuple[Any, ...]:
    return result["suite"], result["task"], result["arm"], result["budget"], result["seed"], result["finetune_seed"]


def _warn_degenerate(results: Sequence[Result], console: Console) -> None:
    bad = [result for result in results if result["degenerate"]]
    if bad:
        where = sorted({f"{result['run']} on {result['task']}" for result in bad})
        more = f" and {len(where) - 5} more" if len(where) > 5 else ""
        console.warn(
            f"{len(bad)} of {len(results)} fine-tunings are degenerate (one class only, or no finite loss): "
            f"{', '.join(where[:5])}{more}"
        )
