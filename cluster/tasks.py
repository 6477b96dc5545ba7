"""Run idempotent units of work on Ray, each made durable by a commit record.

A unit is done when its record exists with its identity. The worker runs the unit, whose output files are durable when
it returns, and then writes the record atomically; so a unit that died at any moment is simply run again, a finished one
is not, and a duplicated attempt writes the same bytes. What a store or a network refuses is tried again before it is
believed. Only the payload and the small result travel through Ray. It schedules and records; what a unit means, and
that its bytes do not depend on when or where it runs, is the caller's.
"""

import errno
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_prep.errors import DataError, ElectraError, PreflightError
from data_prep.redact import redact_logs
from data_prep.storage import Folder

IN_FLIGHT_PER_SLOT = 2  # one running, one queued: a worker never waits for the driver
# What another attempt may change: a store or a network that did not answer (pyarrow's errors carry no number).
_TRANSIENT = {None} | {
    getattr(errno, name)
    for name in ("EIO", "EAGAIN", "ESTALE", "EPIPE", "ETIMEDOUT", "ECONNRESET", "ECONNREFUSED", "ECONNABORTED",
                 "ENETUNREACH", "EHOSTUNREACH")
}  # fmt: skip
_PAUSES = (1.0, 5.0, 20.0)  # seconds before the second, third and fourth attempt

Work = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One piece of work: `payload` is small and picklable; a `record` (in `folder`) of another `identity` is redone."""

    name: str
    payload: Any
    folder: Folder
    record: str
    identity: str


OnRecord = Callable[[Unit, dict[str, Any], bool], None]
Intact = Callable[[Unit, dict[str, Any]], bool]


def _ignore(unit: Unit, result: dict[str, Any], reused: bool) -> None:
    """Nobody watches."""


def _always(unit: Unit, result: dict[str, Any]) -> bool:
    """Trust the record."""
    return True


def committed(unit: Unit) -> dict[str, Any] | None:
    """The result in the unit's record, or None when there is none, it is unreadable or of another identity."""
    try:
        record = unit.folder.read_json(unit.record)
    except DataError:
        return None
    if not isinstance(record, dict) or record.get("identity") != unit.identity:
        return None
    result = record.get("result")
    return result if isinstance(result, dict) else None


def run_units(
    work: Work,
    units: Sequence[Unit],
    *,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    max_retries: int = 3,
    env: Mapping[str, str] | None = None,
    on_record: OnRecord = _ignore,
    intact: Intact = _always,
) -> list[dict[str, Any]]:
    """Run every unit whose record is missing, of another identity, or not `intact`; returns all results in order.

    Needs a running Ray session unless everything is committed already. `env` holds environment variables of the worker
    processes. `on_record(unit, result, reused)` is called in the driver as units come in. Errors: an ElectraError
    raised in a unit is raised here as itself; an OSError there, or a worker that keeps dying, is a PreflightError;
    anything else comes out with its remote traceback. After an error the remaining units are cancelled; what was
    committed stays.
    """
    results: dict[int, dict[str, Any]] = {}
    pending: list[int] = []
    for i, unit in enumerate(units):
        result = committed(unit)
        if result is not None and intact(unit, result):
            results[i] = result
            on_record(unit, result, True)
        else:
            pending.append(i)
    if pending:
        options = _options(num_cpus, num_gpus, max_retries, env)
        for i, result in _run_pending(work, units, pending, options):
            results[i] = result
            on_record(units[i], result, False)
    return [results[i] for i in range(len(units))]


def _options(num_cpus: float, num_gpus: float, max_retries: int, env: Mapping[str, str] | None) -> dict[str, Any]:
    options: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus, "max_retries": max_retries}
    if env:
        options["runtime_env"] = {"env_vars": dict(env)}
    return options


def _run_pending(
    work: Work, units: Sequence[Unit], pending: list[int], options: dict[str, Any]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (index, result) as units finish, keeping a bounded number in flight."""
    import ray

    if not ray.is_initialized():
        raise RuntimeError("run_units needs a running Ray session: wrap the call in cluster.session.session()")
    task = ray.remote(_execute).options(**options)
    slots = max(1, int(ray.cluster_resources().get("CPU", 1.0) / max(options["num_cpus"], 0.01)))
    waiting = list(reversed(pending))
    running: dict[Any, int] = {}
    try:
        while waiting or running:
            while waiting and len(running) < slots * IN_FLIGHT_PER_SLOT:
                i = waiting.pop()
                running[task.remote(work, units[i])] = i
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                i = running.pop(reference)
                yield i, _fetch(reference, units[i], options["max_retries"])
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def _fetch(reference: Any, unit: Unit, max_retries: int) -> dict[str, Any]:
    import ray
    from ray.exceptions import LocalRayletDiedError, NodeDiedError, OutOfMemoryError, WorkerCrashedError

    try:
        result, error = ray.get(reference)
    except (WorkerCrashedError, OutOfMemoryError, NodeDiedError) as crash:
        raise PreflightError(
            f"The worker process of {unit.name} died {max_retries + 1} times, killed from outside or out of memory; "
            "give it more memory or smaller units and run again: finished units are kept."
        ) from crash
    except LocalRayletDiedError as loss:
        raise PreflightError(
            f"Ray died on this machine while {unit.name} ran, killed from outside or out of memory; run again: "
            "finished units are kept."
        ) from loss
    except Exception as failure:
        failure.add_note(f"while running unit {unit.name}")
        raise
    if error is not None:
        raise error
    return dict(result)


def _execute(work: Work, unit: Unit) -> tuple[dict[str, Any] | None, ElectraError | None]:
    """In the worker: run, then commit. A user's error travels as a value, so that it arrives as itself; so does what
    the system refuses, a full disk or a file that may not be read."""
    redact_logs()
    for pause in (*_PAUSES, None):
        try:
            result = work(unit.payload)
            unit.folder.write_json(unit.record, {"identity": unit.identity, "result": result})
            return result, None
        except ElectraError as error:
            return None, error
        except OSError as error:
            if pause is None or error.errno not in _TRANSIENT:
                return None, _refused(unit, error)
            time.sleep(pause)
    raise AssertionError("the last attempt returns")


def _refused(unit: Unit, error: OSError) -> PreflightError:
    where = error.filename or f"a file of {unit.folder}"
    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    return PreflightError(f"{unit.name}: {where} ({reason}); put this right and run again: finished units are kept.")
