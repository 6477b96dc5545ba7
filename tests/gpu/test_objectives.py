"""The nine objectives on a GPU: in bf16 under autocast as in fp32 on the CPU, and with compiled layers as without."""

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from tests.training.cases import ARMS, LAYOUTS, SAMPLING, Prepared, prepared
from training.engine.build import compile_layers
from training.objectives import Batch, to_device

pytestmark = pytest.mark.gpu

CPU, GPU = torch.device("cpu"), torch.device("cuda")
OF_ARMS = [(name, packed) for name, packed in LAYOUTS if name in ARMS]


def made(name: str, packed: bool, device: torch.device) -> Prepared:
    """On a device; what is sampled is settled, because a rounded distribution may give another token."""
    case = prepared(ARMS[name], packed=packed)
    if name in SAMPLING:
        case.objective.generator.sample = lambda logits, batch: batch["mask_labels"].roll(1, dims=1)
    case.objective.to(device)
    return case


def found_by(case: Prepared, batch: Batch, bf16: bool) -> dict[str, Tensor]:
    """The mean of every loss, and the norm of the gradient of their weighted sum."""
    with torch.autocast(batch["ids"].device.type, torch.bfloat16, enabled=bf16):
        outputs = case.objective(batch)
    terms = case.objective.loss_terms()
    means = {term.name: outputs.sums[term.name] / outputs.statistics[term.count] for term in terms}
    case.objective.zero_grad()
    torch.stack([term.weight * means[term.name] for term in terms]).sum().backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in case.objective.parameters() if p.grad is not None])
    return {**{name: mean.detach() for name, mean in means.items()}, "norm": norm}


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("name", "packed"), OF_ARMS)
def test_losses_and_gradients_are_those_of_the_cpu(name: str, packed: bool, bf16: bool) -> None:
    """fp32 to 1e-4, bf16 to 2e-2, and to 2e-3 where a loss is almost nothing."""
    expected, found = (
        found_by(made(name, packed, device), to_device(made(name, packed, CPU).host, device), bf16 and device == GPU)
        for device in (CPU, GPU)
    )
    for key, value in expected.items():
        tolerance = {"rel": 2e-2, "abs": 2e-3} if bf16 else {"rel": 1e-4, "abs": 1e-5}
        assert found[key].item() == pytest.approx(value.item(), **tolerance), key


def test_compiled_layers_give_the_same_whatever_the_number_of_runs_and_compile_once() -> None:
    """varlen on packed rows in bf16. A compiled layer rounds less often than the others."""
    eager, compiled = made("electra", True, GPU), made("electra", True, GPU)
    compile_layers(compiled.objective)
    batch, graphs = to_device(eager.host, GPU), set()
    for runs in (4, 5, 8):
        batch["runs"] = torch.empty(runs, 0)
        expected, found = (found_by(case, batch, bf16=True) for case in (eager, compiled))
        for key, value in expected.items():
            assert found[key].item() == pytest.approx(value.item(), rel=2e-2), key
        graphs.add(counters["stats"]["unique_graphs"])
    assert len(graphs) == 1 and graphs != {0}
