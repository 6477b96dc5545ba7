"""Device-hours and utilisation of runs, worked out by hand."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pipeline import gather, run_facts
from pipeline.gather import Contents, Run


@pytest.fixture
def contents(out: Path) -> Contents:
    return gather.read(out)


def on(run: Run, hardware: str, **done: Any) -> Run:
    return dataclasses.replace(run, done={**(run.done or {}), "hardware": hardware, **done})


def test_hours_of_cpu_processes_are_times_their_threads(contents: Contents) -> None:
    config = {**contents.config, "cluster": {"threads_per_worker": 4}}
    run = on(contents.runs[0], "2 CPU process(es) on x86_64", seconds=900.0, world_size=2)
    assert run_facts.device_hours(run, dataclasses.replace(contents, config=config)) == 2.0
    assert run_facts.hours_name([run]) == "core-hours"


def test_hours_of_gpus_are_times_the_processes(contents: Contents) -> None:
    config = {**contents.config, "cluster": {"threads_per_worker": 4}}
    run = on(contents.runs[0], "8 × NVIDIA H100", seconds=1800.0, world_size=8)
    assert run_facts.device_hours(run, dataclasses.replace(contents, config=config)) == 4.0
    assert run_facts.hours_name([run]) == "GPU-hours"
    assert run_facts.hours_name([run, contents.runs[1]]) == "device-hours"


def test_utilisation_is_weighted_by_time(contents: Contents) -> None:
    """10 s at 40 % and 30 s at 20 % are 25 % of 40 s; a window without a figure counts for nothing."""
    values = [{"seconds": 10.0, "mfu": 0.4}, {"seconds": 40.0, "mfu": 0.2}, {"seconds": 60.0}]
    lines = [{"step": i, "values": one} for i, one in enumerate(values, start=1)]
    run = dataclasses.replace(contents.runs[0], lines=lines)
    assert run_facts.mfu(run) == pytest.approx(0.25)
    assert run_facts.mfu(contents.runs[0]) is None
    begun = dataclasses.replace(run, done={**(run.done or {}), "inherited": {"seconds": 5.0}})
    assert run_facts.mfu(begun) == pytest.approx((5 * 0.4 + 30 * 0.2) / 35)


def test_what_others_did_is_not_a_run_s_own_pace(contents: Contents) -> None:
    """Of 8e11 FLOPs in 100 s, 1e11 in 20 s began it and 3e11 in 40 s are its trunk's."""
    shares = {
        "inherited": {"flops_counted": 1e11, "seconds": 20.0},
        "shared": {"run": "ab", "flops_counted": 3e11, "seconds": 40.0},
    }
    run = on(contents.runs[0], "2 CPU process(es) on x86_64", flops_counted=8e11, seconds=100.0, **shares)
    assert run_facts.own(run, "seconds") == 40.0
    assert run_facts.flops_per_second(run) == 4e11 / 40
