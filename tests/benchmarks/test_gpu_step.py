"""The GPU script on the CPU: every case is measured, rows that do not fit are halved, time that is over ends a part."""

import pytest
import torch

from tests.benchmarks import gpu_kernels, gpu_step
from tests.benchmarks.gpu_step import CASES, TINY, Case, Figures, Part, attempt, cases_of, run

CPU = torch.device("cpu")
FIGURES = Figures(rows=2, tokens=64, flops=1.0, first=1.0, seconds=1.0, memory=1, parts={})


@pytest.mark.usefixtures("process_group")
def test_all_of_it_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_step, "MOST", 3)
    table = run(CPU, TINY, gpu_kernels.TINY, 0.001)
    assert list(table) == [f"electra-small, {case}" for case in CASES]
    for found in table.values():
        assert isinstance(found, Figures), found
        assert (found.rows, found.tokens) == (4, 4 * 64)
        # two layers of 128, each token 2 * 128 * (4 * 128 + 2 * 512) and its attention 4 * 128 * 64, and some more
        layers = 3 * found.tokens * 2 * (2 * 128 * 1536 + 4 * 128 * 64)
        assert layers < found.flops < 2 * layers
        names = ["generator", "generator mlm", "discriminator", "discriminator rtd", "optimizer", "rest"]
        assert sorted(found.parts) == sorted(names) and min(found.parts.values()) > 0
        assert found.parts["discriminator"] > found.parts["discriminator rtd"]
    printed = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("matmul") for line in printed) == 4
    assert sum("TFLOP/s" in line and line.startswith("attention") for line in printed) == 5
    assert sum("needs a GPU" in line for line in printed) == 4
    assert printed[-1].startswith("electra-small, DDP, compiled, dropout 0.1 ") and "rest" in printed[-1]


def test_rows_that_do_not_fit_are_halved_and_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def measure(part: Part, case: Case, rows: int, device: torch.device) -> Figures:
        tried.append(rows)
        if rows > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return FIGURES

    monkeypatch.setattr(gpu_step, "measure", measure)
    monkeypatch.setattr(gpu_step, "CASES", CASES[:2])
    said = [found for _, found in cases_of(Part("x", 8, 60.0), CPU)]
    assert said == ["8 rows do not fit; 4 from here on", "4 rows do not fit; 2 from here on", FIGURES, FIGURES]
    assert tried == [8, 4, 2, 2]


def test_what_fails_or_comes_too_late_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(part: Part, case: Case, rows: int, device: torch.device) -> Figures:
        raise RuntimeError("no kernel\nat all")

    monkeypatch.setattr(gpu_step, "measure", measure)
    assert attempt(TINY[0], CASES[0], 4, CPU) == "failed: RuntimeError: no kernel"
    said = {found for _, found in cases_of(Part("x", 8, -1.0), CPU)}
    assert said == {"left out: the time of this part is over"}
