"""Compiled layers stay compiled, whatever ran in the process before. (On a CPU with a compiler that does nothing: the
real one is for GPUs.)"""

from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from tests.training.cases import ARMS, ENCODER, prepared
from training.engine.build import compile_layers
from training.objectives import to_device


def test_every_run_of_a_process_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five widths and both modes each are more variants of one layer than torch keeps: it would go on without a word,
    nothing compiled."""
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    monkeypatch.setattr(torch._dynamo.config, "fail_on_recompile_limit_hit", False)
    frames = []
    for width in (16, 24, 32, 40, 48):
        model = ENCODER.model_copy(update={"hidden_size": width, "num_heads": 2, "num_layers": 1})
        case = prepared(ARMS["mlm"], model=model, count=2)
        compile_layers(case.objective)
        assert torch._dynamo.config.fail_on_recompile_limit_hit
        before = counter.frame_count
        batch = to_device(case.host, torch.device("cpu"))
        case.objective.train()(batch).sums["mlm"].backward()
        with torch.no_grad():
            case.objective.eval()(batch)
        frames.append(counter.frame_count - before)
    assert min(frames) >= 2 and len(set(frames)) == 1
    torch._dynamo.reset()
