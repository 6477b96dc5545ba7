"""The sizing table of docs/operations.md, from `electra plan`. `python -m tests.pipeline.sizing` prints it."""

from pathlib import Path

from pipeline import plan
from pipeline.config import load
from pipeline.devices import GIB, stated
from pipeline.experiment import Experiment
from tests.conftest import ROOT
from training.checkpoints.preflight import most_kept

NOWHERE = Path("no-such-folder")  # no corpus is prepared: rows are full
# Recipe, and numbers of H100 to show it for
ROWS = (
    ("electra-small", (1,)),
    ("electra-base", (8,)),
    ("electra-large", (16, 64, 128)),
    ("bert-large-128", (16,)),
    ("roberta-large", (128,)),
)
HEAD = (
    "recipe",
    "parameters",
    "H100",
    "GiB of each",
    "a step",
    "training",
    "GPU-hours",
    "a checkpoint",
    "kept at most",
)


def table() -> str:
    """As Markdown."""
    lines = [HEAD, tuple("---" if column == 0 else "---:" for column in range(len(HEAD)))]
    lines += [row(name, gpus) for name, numbers in ROWS for gpus in numbers]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def row(name: str, gpus: int) -> tuple[str, ...]:
    """One recipe on so many GPUs, as it is configured but for the micro-batch, which is what a GPU's share has room
    for."""
    experiment = load(ROOT / "configs" / f"{name}.yaml", (), Experiment)
    found = plan.make(experiment, NOWHERE, stated("h100", gpus))
    (arm,), (run,) = found.arms, found.runs
    assert run.seconds is not None and arm.step_seconds is not None
    readings = plan.corpora.assumed(experiment)
    (spec,) = experiment.runs(readings, NOWHERE / "runs")
    return (
        name,
        f"{arm.parameters / 1e6:,.0f} M",
        str(gpus),
        f"{arm.memory.total / GIB:.0f}",
        f"{1000 * arm.step_seconds:,.0f} ms",
        f"{run.seconds / 3600:,.1f} h",
        f"{gpus * run.seconds / 3600:,.0f}",
        f"{arm.checkpoint / 1e9:.2f} GB",
        f"{most_kept(spec) * arm.checkpoint / 1e9:,.1f} GB",
    )


if __name__ == "__main__":
    print(table(), end="")
