"""What a run leaves in its folder beside checkpoints and metric lines: `run.json`, `events.jsonl`, `done.json`.

`run.json` says what is trained and is written before the first step; `done.json` says what came of it, is written last
(`training.record`), and makes a run finished. Events are appended, one JSON object a line with its time. A killed
process can tear a line of events: the next attempt begins a new one, and readers skip what does not parse. Rank 0
writes, and so do, rarely, the driver (`failed`), a rank that notices a hang and one that injects a fault. Torch-free,
so that planning and the console read here too.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from data_prep import storage
from data_prep.errors import ConfigError, DataError
from data_prep.redact import redacted
from data_prep.storage import Folder
from training.settings import CheckpointConfig, RunSpec

DONE = "done.json"
RECORD = "run.json"
EVENTS = "events.jsonl"


def checkpoint_name(step: int) -> str:
    """What the checkpoint of a step is called."""
    return f"step-{step:08d}"


def store(run_dir: Path, config: CheckpointConfig) -> Folder:
    """Where a run's checkpoints lie: in its own folder, or below the address that its configuration names."""
    if config.to is None:
        return storage.folder(run_dir / "checkpoints")
    return storage.folder(config.to).sub(run_dir.name)


def store_of(run_dir: Path) -> Folder:
    """Where the checkpoints of a run lie that was started: as its `run.json` says."""
    spec = read_run_record(run_dir)
    return store(run_dir, CheckpointConfig() if spec is None else spec.placement.checkpoints)


def write_run_record(run_dir: Path, spec: RunSpec) -> None:
    """What is trained: the specification, and the few figures that tables go by."""
    arm = spec.identity.arm
    flat = {"arm": arm.label, "objective": arm.objective, "steps": spec.steps, "seed": spec.identity.seed}
    storage.write_json(run_dir / RECORD, {**spec.model_dump(mode="json"), **flat})


def read_run_record(run_dir: Path) -> RunSpec | None:
    """What an earlier attempt was to train; None where there was none, or of another version."""
    try:
        found = storage.read_json(run_dir / RECORD)
        return RunSpec.model_validate({name: found[name] for name in RunSpec.model_fields if name in found})
    except (DataError, ValidationError, TypeError):
        return None


def is_done(run_dir: Path, spec: RunSpec) -> bool:
    """Whether the run is finished; ConfigError for a finished run of another identity, DataError for one without its
    record."""
    if not (run_dir / DONE).exists():
        return False
    record = storage.read_json(run_dir / RECORD)
    if not isinstance(record, dict) or not isinstance(record.get("identity"), dict):
        raise DataError(f"{run_dir / RECORD}: holds no record of a run; restore it, or remove {run_dir}.")
    refuse_changes(run_dir, record["identity"], spec)
    return True


def refuse_changes(run_dir: Path, before: Mapping[str, Any], spec: RunSpec) -> None:
    """ConfigError naming what differs between an earlier attempt's identity and this one's."""
    now = spec.identity.model_dump(mode="json")
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if "init" in changed and set(changed) <= {"init", "schedule", "steps"}:  # its cost decides what a budget leaves
        raise ConfigError(
            f"{run_dir}: began with {_named(before.get('init', {}))}, and init_from now names {_named(now['init'])}; "
            "restore that folder, name that checkpoint itself in init_from, or choose another --out"
        )
    if changed:
        config = spec.placement.checkpoints
        store_too = "" if config.to is None else f" and {store(run_dir, config)}"
        raise ConfigError(
            f"{run_dir}: was trained with another {', '.join(changed)}; choose another --out"
            f"{' and training.checkpoints.to' * (config.to is not None)}, or remove this folder{store_too}"
        )


def _named(init: Mapping[str, list[str]]) -> str:
    """Identities, cut to what a person compares: `1234567890ab…@300`, `sha256:12345…`."""
    names = dict.fromkeys(name for names in init.values() for name in names)
    return ", ".join(f"{name[:12]}…{''.join(name.partition('@')[1:])}" for name in names) or "nothing"


def append_events(run_dir: Path, events: Iterable[dict[str, Any]], *, durable: bool = False) -> None:
    """Append `{"time": …, "event": …, …}` lines; `durable`: they are on the disk when this returns."""
    append_lines(run_dir / EVENTS, ({"time": time.time(), **event} for event in events), durable=durable)


def append_lines(path: Path, records: Iterable[dict[str, Any]], *, durable: bool = False) -> None:
    """Append JSON lines without secrets, after a line break where a killed process has torn the last one: all of them,
    or none and the system's OSError."""
    data = b"".join(json.dumps(redacted(record)).encode() + b"\n" for record in records)
    with open(path, "ab+", buffering=0) as file:
        end = file.seek(0, 2)
        file.seek(max(0, end - 1))
        torn = file.read(1) not in (b"", b"\n")
        write_whole(file, b"\n" * torn + data, end)
        if durable:
            os.fsync(file.fileno())


def write_whole(file: FileIO, data: bytes, end: int) -> None:
    """Write at the end of an unbuffered file, which is `end` bytes long: all of it, or nothing and an OSError."""
    try:
        while data:
            data = data[file.write(data) :]
    except OSError:
        file.truncate(end)
        file.seek(end)
        raise


class Journal:
    """Rank 0's events of one attempt. What cannot be written, on a full disk, is kept and tried again with the next, so
    that saying something never ends training."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / EVENTS
        self._pending: list[dict[str, Any]] = []

    def append(self, *events: dict[str, Any]) -> None:
        """Append `{"time": …, "event": …, …}` lines, now or later; the time is that of the call."""
        self._pending += [{"time": time.time(), **event} for event in events]
        if self._pending:
            with contextlib.suppress(OSError):
                append_lines(self._path, self._pending)
                self._pending = []


def events(run_dir: Path) -> list[dict[str, Any]]:
    """All events, in order; none before the first."""
    if not (run_dir / EVENTS).is_file():
        return []
    found: list[dict[str, Any]] = []
    for line in (run_dir / EVENTS).read_bytes().split(b"\n"):
        with contextlib.suppress(ValueError):  # torn, or empty
            found.append(json.loads(line))
    return found


def last_events(run_dir: Path) -> list[dict[str, Any]]:
    """The events of the last attempt; none before the first."""
    found = events(run_dir)
    starts = [number for number, event in enumerate(found) if event["event"] == "started"]
    return found[starts[-1] :] if starts else found
