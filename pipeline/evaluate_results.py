"""`results.jsonl`: the rows of the latest grids that today's protocols and checkpoints still stand behind.

Rebuilt from the records, atomically: of the experiment's runs the latest grid of each suite, and of every single model
that was evaluated into this folder, its own. A grid of another protocol than the suite's is left out, so no file ever
mixes protocols; its records stay, and evaluating under it again brings them back at once.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.tasks import Unit
from data_prep import storage
from data_prep.errors import DataError
from pipeline.console import Console
from pipeline.evaluate_targets import Model
from training.protocol import EvaluationConfig

Result = dict[str, Any]


def write_grids(evaluation: Path, units: Sequence[Unit], config: EvaluationConfig, model: str | None) -> None:
    """Say which units are today's grid of each suite, of the experiment's runs or of one `model`."""
    folder = storage.make_folder(evaluation / "grids")
    for suite in config.suites:
        records = [Path(unit.record).name for unit in units if unit.payload["suite"] == suite]
        grid = {"suite": suite, "protocol": config.protocol_of(suite).fingerprint(), "records": records, "model": model}
        storage.write_json(folder / (f"{suite}.json" if model is None else f"{suite}@{model}.json"), grid)


def write_results(evaluation: Path, config: EvaluationConfig, runs: Sequence[Model], console: Console) -> None:
    """Rebuild results.jsonl. `runs`: the finished ones of the experiment. What of another grid cannot be read is left
    out, with a warning."""
    checkpoints = {run.name: run.sha256 for run in runs}
    rows: dict[str, Result] = {}
    for path in sorted((evaluation / "grids").glob("*.json")):
        for record, row in _rows(path, evaluation, config, console):
            run = row["run"]
            single = "@" in path.stem and run not in checkpoints
            if single or checkpoints.get(run) == row["checkpoint_sha256"]:
                rows[f"{record} {row['suite']} {row['task']}"] = row  # a run's grid and its own may name one record
    lines = [json.dumps(row, sort_keys=True, ensure_ascii=False) for row in sorted(rows.values(), key=order)]
    storage.write_bytes(evaluation / "results.jsonl", "".join(line + "\n" for line in lines).encode())


def _rows(path: Path, evaluation: Path, config: EvaluationConfig, console: Console) -> Iterator[tuple[str, Result]]:
    """(record, row) of everything in a grid; nothing of one under another protocol."""
    grid = _readable(path, ("suite", "protocol", "records"))
    if grid is not None and grid["protocol"] != config.protocol_of(grid["suite"]).fingerprint():
        return
    names = grid["records"] if grid is not None else []
    found = {name: _readable(evaluation / "units" / name, ("result",)) for name in names}
    lost = [path] * (grid is None) + [evaluation / "units" / name for name, read in found.items() if read is None]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        console.warn(
            f"{lost[0]}{more}: gone or unreadable, so the results of {path.stem} are shown without them; evaluate that "
            "again to make them anew"
        )
    for name, read in found.items():
        if read is not None:
            yield from ((name, row) for row in read["result"]["rows"])


def _readable(path: Path, names: Sequence[str]) -> dict[str, Any] | None:
    """The JSON mapping in a file, or None where it is missing, torn or lacks one of the names."""
    try:
        found = storage.read_json(path)
    except DataError:
        return None
    return found if isinstance(found, dict) and all(name in found for name in names) else None


def order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """How rows are sorted: by suite and task, then by model."""
    budget = -1.0 if row["budget"] is None else row["budget"]
    return row["suite"], row["task"], row["arm"], budget, row["seed"], row["step"], row["run"], row["finetune_seed"]


def warn_degenerate(rows: Sequence[Result], console: Console) -> None:
    """One line on the rows that say nothing of a model."""
    bad = [row for row in rows if row["degenerate"]]
    if bad:
        where = sorted({f"{row['run']} on {row['task']}" for row in bad})
        more = f" and {len(where) - 5} more" if len(where) > 5 else ""
        console.warn(
            f"{len(bad)} of {len(rows)} results are degenerate (one answer to everything, or no finite loss): "
            f"{', '.join(where[:5])}{more}"
        )
