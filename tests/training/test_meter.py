"""The figures of a window by hand: shares of waiting, MFU, and what is left out where it is not known."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.runs import CPU, ELECTRA, events, spec_for
from training import communication, meter
from training.communication import CollectiveClock, collective_clock
from training.devices import memory_peak, peak_flops
from training.flops import Counts
from training.loader import StepBatches
from training.loop import train
from training.meter import Meter, Window
from training.metrics import read_metrics
from training.objectives import Term
from training.settings import Placement


class FakeTime:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(meter, "time", fake)
    monkeypatch.setattr(communication, "time", fake)
    return fake


def window(**changes: Any) -> Window:
    plain: dict[str, Any] = {
        "steps": 2,
        "sums": {},
        "flop_counts": Counts(tokens=1000.0),
        "seconds": 4.0,
        "data_wait": 0.02,
        "communication_wait": 0.4,
        "memory_peak": 2**30,
    }
    return Window(**plain | changes)


def test_figures_by_hand() -> None:
    assert window().speed(8e12, 1e13) == {
        "tokens_per_second": 250.0,
        "flops_per_second": 2e12,
        "mfu": 0.2,
        "data_wait": 0.005,
        "communication_wait": 0.1,
        "memory_peak": 2.0**30,
    }


def test_mfu_of_electra_large() -> None:
    """2.169 GFLOPs a token; eight H200 at 237,000 tokens a second each: 52 % of their peak."""
    peak = peak_flops("NVIDIA H200")
    assert peak is not None
    tokens = 8 * 237_000 * 10.0
    figures = window(flop_counts=Counts(tokens=tokens), seconds=10.0).speed(2.169e9 * tokens, 8 * peak)
    assert figures["mfu"] == pytest.approx(0.52, abs=0.001)


def test_what_is_not_known_is_left_out() -> None:
    assert window(communication_wait=None).speed(8e12, None).keys() == {
        "tokens_per_second",
        "flops_per_second",
        "data_wait",
        "memory_peak",
    }


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("Tesla V100-SXM2-32GB", 125e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40", None),
        ("NVIDIA A10G", None),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", None),
        ("GRID A100-20C", None),
        ("NVIDIA A100-40C", None),
        ("NVIDIA GB200", None),
        ("NVIDIA GeForce GTX 1080", None),
        ("CPU (x86_64)", None),
    ],
)
def test_peaks_are_known_or_not_guessed(name: str, peak: float | None) -> None:
    assert peak_flops(name) == peak


def test_memory_peak_is_at_least_what_is_held() -> None:
    held = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    assert held <= memory_peak(CPU) < 100 * held


@pytest.mark.usefixtures("process_group")
def test_waiting_is_told_from_working(clock: FakeTime) -> None:
    """Three steps of 2 s, for each of which the loader takes half a second, and a quarter in collectives of a step."""

    def steps() -> Any:
        for _ in range(3):
            clock.now += 0.5
            yield StepBatches([], {"masked": 4}, Counts(tokens=10.0), torch.zeros(0).numpy())

    collectives = CollectiveClock()

    def collective() -> None:
        clock.now += 0.25

    objective: Any = SimpleNamespace(loss_terms=lambda: [Term("loss", "masked", 1.0)])
    subject = Meter(objective, CPU, collectives)
    collectives.seconds += 7.0  # before the window
    subject.restart_clock()
    for batches in subject.waiting(steps()):
        totals = subject.global_counts(batches)
        assert totals["masked"] == 4
        collectives.around(collective)()
        subject.add(SimpleNamespace(statistics={"loss": torch.tensor(2.0)}))
        subject.end_step(skipped=False)
        clock.now += 1.75
    found = subject.read()
    assert (found.steps, found.sums, found.flop_counts.tokens) == (3, {"loss": 6.0}, 30.0)
    assert (found.seconds, found.data_wait, found.communication_wait) == (7.5, 1.5, 0.75)
    clock.now += 5.0  # an evaluation
    collectives.seconds += 5.0
    subject.restart_clock()
    subject.add(SimpleNamespace(statistics={"loss": torch.tensor(2.0)}))
    clock.now += 1.0
    found = subject.read()
    assert (found.seconds, found.data_wait, found.communication_wait) == (1.0, 0.0, 0.0)


def test_every_collective_of_deepspeed_is_timed_and_nothing_else(
    clock: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deepspeed.comm import comm

    def took(seconds: float) -> str:
        clock.now += seconds
        return "handle"

    backend = SimpleNamespace(all_reduce=took, all_gather_into_tensor=took, get_rank=took)
    monkeypatch.setattr(comm, "cdb", backend)
    with collective_clock(Placement(micro_batch=1), CPU) as counted:
        assert counted is not None
        assert comm.cdb.all_reduce(2.0) == "handle"
        comm.cdb.all_gather_into_tensor(seconds=3.0)
        comm.cdb.get_rank(10.0)
    assert counted.seconds == 5.0
    assert comm.cdb is backend


@pytest.mark.parametrize(
    ("placement", "device"),
    [({"engine": "ddp"}, "cpu"), ({"zero_stage": 3}, "cpu"), ({"zero_stage": 1}, "cuda")],
)
def test_half_a_figure_is_none(placement: dict[str, Any], device: str) -> None:
    with collective_clock(Placement(micro_batch=1, **placement), torch.device(device)) as counted:
        assert counted is None


@pytest.mark.usefixtures("process_group")
def test_a_run_logs_the_figures_and_says_that_it_has_no_mfu(corpus: Path, tmp_path: Path) -> None:
    train(spec_for(ELECTRA, corpus, steps=6, log_every=3), corpus, tmp_path, CPU)
    for line in read_metrics(tmp_path):
        values = line["values"]
        assert 0 <= values["data_wait"] < 1 and 0 < values["communication_wait"] < 1
        assert values["memory_peak"] > 2**26
        assert "mfu" not in values
    started = events(tmp_path)[0]
    assert started["device"].startswith("CPU (") and started["peak_flops"] is None


def test_statistics_of_a_skipped_step_are_dropped(process_group: None) -> None:
    objective: Any = SimpleNamespace(loss_terms=lambda: [Term("loss", "masked", 1.0)])
    subject = Meter(objective, CPU)
    for value, skipped in ((1.0, False), (float("nan"), True), (4.0, False)):
        for _ in range(2):  # micro-batches
            subject.add(SimpleNamespace(statistics={"loss": torch.tensor(value)}))
        subject.end_step(skipped=skipped)
    assert subject.read().sums == {"loss": 10.0}
    subject.add(SimpleNamespace(statistics={"loss": torch.tensor(float("nan"))}))
    subject.end_step(skipped=True)
    assert subject.read().sums == {}
