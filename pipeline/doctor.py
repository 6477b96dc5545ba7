"""`electra doctor`: what stands in the way of a run, here and where it will go, before it is begun.

Every line is ok, a warning or an error, the latter two with the way out; errors end the command with 3. A check that
itself breaks is a warning and stops no other. Beyond probes that are taken away again, nothing is changed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_prep.errors import ElectraError
from data_prep.redact import redact, redacted
from pipeline import bundle as bundles
from pipeline.console import Console, quiet_libraries
from pipeline.doctor_finding import Finding, error, warning
from pipeline.experiment import Experiment

Check = Callable[[], Iterator[Finding]]


def checks(experiment: Experiment | None, out: Path, address: str | None) -> list[tuple[str, Check]]:
    """Everything that is looked at, by name, in order; what is slow comes last."""
    from pipeline import doctor_gpu, doctor_machine, doctor_ray, doctor_services, doctor_storage

    here = None if address is not None else experiment  # what is asked of this machine
    return [
        ("packages", doctor_machine.packages),
        ("cpus", lambda: doctor_machine.processors(here)),
        ("memory", doctor_machine.memory),
        ("compiler", lambda: doctor_machine.compilers(here)),
        ("gpus", lambda: doctor_gpu.gpus(here)),
        ("storage", lambda: doctor_storage.places(experiment, out, elsewhere=address is not None)),
        ("ray", lambda: doctor_ray.ray(experiment, address)),
        ("mlflow", lambda: doctor_services.mlflow(experiment)),
        ("hub", doctor_services.hub),
    ]


def examine(named: Sequence[tuple[str, Check]]) -> Iterator[Finding]:
    """The findings of all checks, as they come."""
    for name, check in named:
        try:
            yield from check()
        except ElectraError as refused:
            said, _, remedy = str(refused).partition("; ")
            yield error(name, said, remedy or "correct it")
        except Exception as failed:
            reason = (str(failed).splitlines() or [""])[0]
            said = f"could not be checked ({type(failed).__name__}: {reason})"
            yield warning(name, said, "report this, with `electra doctor --bundle FILE`")


def doctor(
    experiment: Experiment | None, out: Path, console: Console, *, address: str | None, bundle: Path | None
) -> dict[str, Any]:
    """Tell every finding; with `bundle`, pack them for a report. The record, with exit code 3 where there is one."""
    if bundle is not None:
        bundles.check_name(bundle)
    quiet_libraries()
    found = []
    for one in examine(checks(experiment, out, address)):
        found.append(one)
        console.say(line(one))
    counts = {state: sum(one.state == state for one in found) for state in ("ok", "warning", "error")}
    console.say(
        f"doctor: {counts['ok']} ok, {_plural(counts['warning'], 'warning')}, {_plural(counts['error'], 'error')}"
    )
    findings: list[dict[str, Any]] = redacted([asdict(one) for one in found])
    record = {"exit_code": 3 if counts["error"] else 0, "counts": counts, "findings": findings}
    if bundle is None:
        return record
    names = bundles.write(bundle, record, out, address, experiment)
    console.say(f"doctor: {bundle}: {_plural(len(names), 'file')} without secrets; look at them before you send it")
    return {**record, "bundle": str(bundle.absolute()), "files": names}


def line(one: Finding) -> str:
    """As a person reads it."""
    return redact(f"{one.state:<8} {one.check}: {one.said}" + (f"; {one.remedy}" if one.remedy else ""))


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
