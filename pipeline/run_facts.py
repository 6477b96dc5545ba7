"""What a finished run took, in the units the report shows: device-hours, and the share of the devices' peak.

From its records alone. GPU-hours are hours times processes, one GPU each; of CPU processes hours are times their
threads (core-hours), as the experiment's configuration says. Hours of what a run began with are in its own, as its
seconds are; start-up and evaluation are not.
"""

from collections.abc import Sequence

from pipeline.gather import Contents, Run

_CPU = "CPU process"  # what `training.record` calls them


def hours_name(runs: Sequence[Run]) -> str:
    """`GPU-hours`, `core-hours`, or `device-hours` where runs were on both, which are not to be compared."""
    on_cpu = {_on_cpu(run) for run in runs}
    if len(on_cpu) > 1:
        return "device-hours"
    return "core-hours" if on_cpu == {True} else "GPU-hours"


def hardware(runs: Sequence[Run]) -> list[str]:
    """What the runs were trained on, each once."""
    return list(dict.fromkeys(str(run.done["hardware"]) for run in runs if run.done))


def device_hours(run: Run, contents: Contents) -> float:
    """Of a finished run."""
    assert run.done is not None, "only finished runs are counted"
    threads = (contents.config.get("cluster") or {}).get("threads_per_worker", 1) if _on_cpu(run) else 1
    return float(run.done["seconds"] * run.done["world_size"] * threads / 3600)


def own(run: Run, name: str) -> float:
    """Of a figure of a finished run (`seconds`, `flops_counted`), what the run itself did: without what it began with,
    and without what its trunk had done where it is a decay branch."""
    assert run.done is not None, "only finished runs have figures"
    others = (run.done.get(of, {}).get(name, 0) for of in ("inherited", "shared"))
    return float(run.done[name] - sum(others))


def flops_per_second(run: Run) -> float:
    """Model FLOPs a second of a finished run's own training."""
    return own(run, "flops_counted") / own(run, "seconds")


def mfu(run: Run) -> float | None:
    """Model FLOPs ÷ (time × the devices' peak) over a finished run's own steps; None where the peak is not known."""
    if run.done is None:
        return None
    share, seconds, before = 0.0, 0.0, run.done["seconds"] - own(run, "seconds")
    for line in run.lines:
        values = line["values"]
        if "mfu" in values:
            share += values["mfu"] * (values["seconds"] - before)
            seconds += values["seconds"] - before
        before = values.get("seconds", before)
    return share / seconds if seconds else None


def _on_cpu(run: Run) -> bool:
    return run.done is not None and _CPU in run.done["hardware"]
