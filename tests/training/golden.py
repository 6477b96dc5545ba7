"""Golden runs: 50 steps of every objective, whose losses are kept in `tests/data/golden/`.

They say that a change changed nothing. Rewritten only on purpose, by

    python -m tests.training.golden --write

in a commit that says why the numbers moved. They go through the real loop on the synthetic corpus: one process, two
micro-batches of eight (the second with filler rows), dropout on, loss and gradients as in any run. `electra_two_stage`
is its second run, after a first of 50 steps.
"""

import argparse
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import torch

from data_prep.manifest import load
from tests.training.cases import ARMS
from tests.training.synthetic import MODEL, write_corpus
from training import loop
from training.arms import ArmConfig
from training.metrics import read_metrics
from training.run import plan_runs
from training.settings import RunSpec, TrainingConfig

HERE = Path(__file__).parent.parent / "data" / "golden"
COMMAND = "python -m tests.training.golden --write"
STEPS = 50
PACKED = {"roberta", "all_tokens_mlm", "electra_15"}  # the others are trained on pairs
NOISY = MODEL.model_copy(update={"dropout": 0.1, "attention_dropout": 0.1})
TRAINING = TrainingConfig.model_validate(
    {
        "global_batch": 12,
        "micro_batch": 8,
        "log_every": 1,
        "eval_rows": 8,
        "schedule": {"warmup_fraction": 0.2},
        "compute": {"attention": "sdpa"},
    }
)


def arm(name: str) -> ArmConfig:
    """An objective's arm, at a rate at which it learns and the rounding of another CPU stays rounding (at 5e-3 it
    grows a thousandfold in thirty steps, until other tokens are sampled)."""
    return ARMS[name].model_copy(update={"learning_rate": 1e-3})


def planned(name: str, corpus: Path) -> list[RunSpec]:
    """The run of an objective on a corpus, and the one before it where it is a second stage."""
    steps = 2 * STEPS if name == "electra_two_stage" else STEPS
    return plan_runs(arm=arm(name), model=NOISY, training=TRAINING, manifest=load(corpus), seed=3, steps=steps)


def write_corpora(folder: Path) -> dict[bool, Path]:
    """A packed corpus and one of pairs, by whether they are packed."""
    for packed in (False, True):
        write_corpus(folder / str(packed), packed=packed)
    return {packed: folder / str(packed) for packed in (False, True)}


def settings(spec: RunSpec) -> dict[str, Any]:
    """What made the losses, as far as it is ours."""
    return {**spec.identity.model_dump(mode="json"), "micro_batch": spec.placement.micro_batch}


def losses(specs: list[RunSpec], corpus: Path, folder: Path) -> dict[str, list[float]]:
    """Train the runs in this process's group; every loss of every step of the last."""
    for spec in specs:
        loop.train(spec, corpus, folder / spec.name, torch.device("cpu"))
    lines = [line["values"] for line in read_metrics(folder / specs[-1].name)]
    names = [name for name in lines[0] if name.startswith("train/") and name.endswith("loss")]
    return {name.removeprefix("train/"): [line[name] for line in lines] for name in names}


def stored(name: str) -> dict[str, Any]:
    """What is kept of an objective: `settings`, `torch`, and `losses` by term."""
    found: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    return found


def write(folder: Path) -> None:
    """Run every objective and overwrite what is kept."""
    corpora = write_corpora(folder)
    HERE.mkdir(exist_ok=True)
    for name in ARMS:
        specs = planned(name, corpora[name in PACKED])
        found = losses(specs, corpora[name in PACKED], folder / name)
        record = {
            "made_by": COMMAND,
            "torch": f"{torch.__version__} on {platform.machine()}",
            "settings": settings(specs[-1]),
            "losses": {term: [float(f"{value:.6g}") for value in values] for term, values in found.items()},
        }
        text = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items())
        (HERE / f"{name}.json").write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
        print(f"{name}: {found['loss'][0]:.4f} to {found['loss'][-1]:.4f}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Run every objective for 50 steps and keep the losses.")
    parser.add_argument("--write", action="store_true", required=True, help="overwrite tests/data/golden")
    parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        os.environ["LOCAL_RANK"] = "0"
        write(Path(folder))
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
