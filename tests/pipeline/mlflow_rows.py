"""What MLflow's SQLite file holds of an experiment, by plain SQL, and what tests of the mirror do to one."""

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

from tests.pipeline import fake_experiment


class Warnings:
    """A console that keeps what it was told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)


def rows(out: Path, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(out / "mlflow.db") as database:
        return sorted(database.execute(query).fetchall())


def everything(out: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All that the store knows of runs."""
    return {
        "runs": rows(out, "select run_uuid, name, status, start_time, end_time, lifecycle_stage from runs"),
        "metrics": rows(out, "select run_uuid, key, value, timestamp, step, is_nan from metrics"),
        "params": rows(out, "select run_uuid, key, value from params"),
        "tags": rows(out, "select run_uuid, key, value from tags"),
        "data": rows(
            out,
            "select i.destination_id, d.name, d.digest from inputs i join datasets d on d.dataset_uuid = i.source_id",
        ),
    }


def history(out: Path, key: str, kind: str = "training") -> list[tuple[Any, ...]]:
    """(step, value, timestamp) of a metric over all runs of a kind, in order."""
    return rows(
        out,
        f"select m.step, m.value, m.timestamp from metrics m join tags t on t.run_uuid = m.run_uuid "
        f"where m.key = '{key}' and t.key = 'electra.kind' and t.value = '{kind}'",
    )


def happened(run: Path, *events: tuple[str, int]) -> None:
    """Append events, each with the step that a restart would then resume at."""
    key = {"rollback": "to_step"}
    with open(run / "events.jsonl", "a", encoding="utf-8") as file:
        for name, step in events:
            file.write(json.dumps({"time": time.time(), "event": name, key.get(name, "step"): step}) + "\n")


def write_lines(run: Path, attempt: int, lines: list[dict[str, Any]]) -> None:
    (run / "metrics" / f"A-{attempt:05d}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def unfinished(out: Path, logged: int) -> tuple[Path, list[dict[str, Any]], str]:
    """The run, all its lines and its `done.json`, when it has logged so many lines of them."""
    run = out / "runs" / "electra-4.00e+11-s0"
    fake_experiment.write_results_file(out, [])
    done = (run / "done.json").read_text()
    (run / "done.json").unlink()
    lines = [json.loads(line) for line in (run / "metrics" / "A-00000.jsonl").read_text().splitlines()]
    write_lines(run, 0, lines[:logged])
    return run, lines, done


def status(out: Path, kind: str = "training") -> list[str]:
    return [
        row[0]
        for row in rows(
            out,
            "select r.status from runs r join tags t on t.run_uuid = r.run_uuid "
            f"where t.key = 'electra.kind' and t.value = '{kind}'",
        )
    ]


def of_parent(out: Path) -> list[str]:
    """Names of the metrics under which a training run carries its fine-tunings' scores."""
    return [name for (name,) in rows(out, "select distinct key from metrics where key like 'eval/%'")]
