"""A trace of a run: of the steps that were asked for, changing nothing, and refused where there are too few."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch._C._autograd import DeviceType

from data_prep.errors import ConfigError
from tests.training.runs import CPU, ROBERTA, assert_equal, spec_for, weights
from training import profile
from training.loop import train

pytestmark = pytest.mark.usefixtures("process_group")


def traced_steps(text: str) -> set[str]:
    return {event["name"] for event in json.loads(text)["traceEvents"] if event["name"].startswith("ProfilerStep#")}


def test_two_steps_are_traced_and_the_run_is_the_same(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_for(ROBERTA, corpus, steps=6)
    train(spec, corpus, tmp_path / "plain", CPU)
    train(spec, corpus, tmp_path / "traced", CPU, profile=2)
    assert_equal(weights(tmp_path / "plain", 6), weights(tmp_path / "traced", 6))
    assert not (tmp_path / "plain" / "profile").exists()
    text = (tmp_path / "traced" / "profile" / "trace.json").read_text()
    assert traced_steps(text) == {"ProfilerStep#3", "ProfilerStep#4"}
    header, *lines = profile.top(tmp_path / "traced")
    assert header.startswith("ms of CPU time a step") and len(lines) == profile.TOP
    times = [float(line.split()[0]) for line in lines]
    assert times == sorted(times, reverse=True) and times[0] > 0
    assert any("aten::" in line for line in lines)


def test_a_large_trace_is_packed(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "_LARGE", 1000)
    train(spec_for(ROBERTA, corpus, steps=4), corpus, tmp_path, CPU, profile=1)
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == ["top.txt", "trace.json.gz"]
    with gzip.open(tmp_path / "profile" / "trace.json.gz", "rt") as file:
        assert traced_steps(file.read()) == {"ProfilerStep#3"}


def test_more_steps_than_there_are_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="4 steps are traced after 3 others, and it has 6 left"):
        train(spec_for(ROBERTA, corpus, steps=6), corpus, tmp_path, CPU, profile=4)


def test_a_run_without_a_step_left_is_finished_and_not_traced(corpus: Path, tmp_path: Path) -> None:
    """Killed between its last checkpoint and the record."""
    spec = spec_for(ROBERTA, corpus, steps=4)
    train(spec, corpus, tmp_path, CPU)
    (tmp_path / "done.json").unlink()
    train(spec, corpus, tmp_path, CPU, profile=1)
    assert (tmp_path / "done.json").exists() and not (tmp_path / "profile").exists()


def test_on_a_gpu_kernels_count_and_what_carries_or_spans_them_does_not() -> None:
    def event(key: str, device: DeviceType, cpu: float, gpu: float, annotation: bool = False) -> SimpleNamespace:
        return SimpleNamespace(
            key=key, device_type=device, self_cpu_time_total=cpu, self_device_time_total=gpu, count=2,
            is_user_annotation=annotation,
        )  # fmt: skip

    events = [
        event("aten::mm", DeviceType.CPU, 5.0, 90.0),  # the operator that has started the kernel
        event("gemm", DeviceType.CUDA, 0.0, 60.0),
        event("gemm", DeviceType.CUDA, 0.0, 30.0),  # of another group: times of one name add up
        event("step", DeviceType.CUDA, 0.0, 95.0, annotation=True),
        event("ProfilerStep#3", DeviceType.CPU, 99.0, 99.0),
    ]
    assert profile.own_times(events, gpu=True) == {"gemm": (90.0, 4)}
    assert profile.own_times(events, gpu=False) == {"aten::mm": (5.0, 2)}
