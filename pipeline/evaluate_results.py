"""`results.jsonl`: the rows of the latest grids, as far as they may stand side by side.

Rebuilt from the records, atomically: of the experiment's runs the latest grid of each suite, and of every single model
that was evaluated into this folder, its own. Guarantees: a suite has one protocol (today's, where it is evaluated
today), a task one set of data, a name one model, and a fine-tuning stands there once. Where grids disagree the
experiment's decides, then the newest; what differs is left out with a warning. Its records stay, and evaluating it
again in the same way brings it back at once. Of a model's facts, as declared FLOPs, the newest hold for all its rows.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.tasks import Unit
from data_prep import storage
from data_prep.errors import DataError
from pipeline.console import Console
from pipeline.evaluate_targets import Model
from training.protocol import EvaluationConfig

Result = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """The units of a suite that were asked for together, of the experiment's runs or of one `model`. `facts` are those
    of each model by name; `turn` grows with every command that asks for something else."""

    suite: str
    protocol: str
    records: list[str]
    model: str | None
    facts: dict[str, Result]
    turn: int


_NAMES = ("suite", "protocol", "records", "model", "facts", "turn")


def write_grids(evaluation: Path, units: Sequence[Unit], config: EvaluationConfig, model: str | None) -> None:
    """Say which units are today's grid of each suite, of the experiment's runs or of one `model`."""
    folder = storage.make_folder(evaluation / "grids")
    turns = [found["turn"] for path in folder.glob("*.json") if (found := _readable(path, _NAMES))]
    newest, made = max(turns, default=0), dict[Path, Result]()
    for suite in config.suites:
        own = [unit for unit in units if unit.payload["suite"] == suite]
        made[folder / (f"{suite}.json" if model is None else f"{suite}@{model}.json")] = {
            "suite": suite,
            "protocol": config.protocol_of(suite).fingerprint(),
            "records": [Path(unit.record).name for unit in own],
            "model": model,
            "facts": {unit.payload["facts"]["run"]: _of_model(unit.payload["facts"]) for unit in own},
            "turn": newest,
        }
    if any(_readable(path, _NAMES) != grid for path, grid in made.items()):  # else they are the newest already
        for path, grid in made.items():
            storage.write_json(path, grid | {"turn": newest + 1})


def _of_model(facts: Result) -> Result:
    return {name: value for name, value in facts.items() if name != "data_sha256"}


def write_results(evaluation: Path, config: EvaluationConfig, runs: Sequence[Model], console: Console) -> None:
    """Rebuild results.jsonl. `runs`: the finished ones of the experiment. What of another grid cannot be read, or does
    not fit, is left out with a warning."""
    grids = _grids(evaluation, console)
    kept = _Kept(grids, config, runs)
    for grid in grids:
        for row in _rows(grid, evaluation, console):
            kept.add(grid, row)
    kept.warn(console)
    lines = [json.dumps(row, sort_keys=True, ensure_ascii=False) for row in sorted(kept.rows.values(), key=order)]
    storage.write_bytes(evaluation / "results.jsonl", "".join(line + "\n" for line in lines).encode())


def _grids(evaluation: Path, console: Console) -> list[_Grid]:
    """All that can be read: the experiment's first, then the newest."""
    found, lost = [], list[Path]()
    for path in sorted((evaluation / "grids").glob("*.json")):
        if (values := _readable(path, _NAMES)) is None:
            lost.append(path)
        else:
            found.append(_Grid(**{name: values[name] for name in _NAMES}))
    _warn_lost(lost, "not readable, so the results it names are left out", console)
    return sorted(found, key=lambda grid: (grid.model is not None, -grid.turn))


def _rows(grid: _Grid, evaluation: Path, console: Console) -> Iterator[Result]:
    """Every row of a grid whose record and answers are there."""
    lost = []
    for name in grid.records:
        record = _readable(evaluation / "units" / name, ("result",))
        if record is None or not all((evaluation / file).is_file() for file in record["result"]["files"]):
            lost.append(evaluation / "units" / name)
        else:
            yield from record["result"]["rows"]
    whose = f"{grid.model or 'the runs'} on {grid.suite}"
    _warn_lost(lost, f"gone or unreadable, or its answers are, so the results of {whose} are shown without it", console)


def _warn_lost(lost: Sequence[Path], what: str, console: Console) -> None:
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        console.warn(f"{lost[0]}{more}: {what}; evaluate that again to make them anew")


class _Kept:
    """Rows that fit together. Whoever comes first decides what the others must fit."""

    def __init__(self, grids: Sequence[_Grid], config: EvaluationConfig, runs: Sequence[Model]) -> None:
        self.rows: dict[tuple[Any, ...], Result] = {}
        self._protocols: dict[str, str] = {suite: config.protocol_of(suite).fingerprint() for suite in config.suites}
        self._data: dict[tuple[str, str], str] = {}
        self._runs = {run.name: run.sha256 for run in runs}
        self._weights = dict(self._runs)
        self._facts: dict[tuple[str, str], Result] = {}
        for grid in sorted(grids, key=lambda grid: -grid.turn):
            for name, facts in grid.facts.items():
                self._weights.setdefault(name, facts["checkpoint_sha256"])
                self._facts.setdefault((name, facts["checkpoint_sha256"]), facts)
        self._refused: dict[tuple[str, str], set[str]] = {}

    def add(self, grid: _Grid, row: Result) -> None:
        name, weights = row["run"], row["checkpoint_sha256"]
        if grid.model is None and name not in self._runs:
            return  # the run is gone
        if self._weights.get(name) != weights:
            self._refuse(grid, "with other weights", name)
        elif self._protocols.setdefault(grid.suite, grid.protocol) != grid.protocol:
            self._refuse(grid, "under another protocol", name)
        elif self._data.setdefault((row["suite"], row["task"]), row["data_sha256"]) != row["data_sha256"]:
            self._refuse(grid, "on other data", name)
        else:
            key = name, row["suite"], row["task"], row["finetune_seed"]
            self.rows.setdefault(key, row | self._facts[name, weights])

    def _refuse(self, grid: _Grid, why: str, name: str) -> None:
        self._refused.setdefault((grid.suite, why), set()).add(name)

    def warn(self, console: Console) -> None:
        for (suite, why), names in sorted(self._refused.items()):
            some = ", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            console.warn(
                f"{suite}: {some} was evaluated {why} than what stands in results.jsonl, so that is left out; evaluate "
                "it again beside the rest"
            )


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
