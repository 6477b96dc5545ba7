"""One optimizer step of ELECTRA-Large and of BERT-Large with ZeRO-1 over two CPU processes: time and memory.

    python -m tests.training.large_step [electra|bert]

Needs about 14 GB of memory. Rows are short (32 tokens) and one a process: the networks have their real size.
"""

import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from data_prep.rows import structure
from tests.training.synthetic import SEQ_LEN, SPECIAL, make_rows, partners_within
from training.arms import ArmConfig, BertArm, ElectraArm
from training.engine import build_engine
from training.masking import RowKeys
from training.objectives import RowBatch, build, counts, to_device
from training.settings import OptimizerConfig, Placement
from training.sizes import ModelConfig

VOCAB, RANKS = 30522, 2
LARGE = ModelConfig.model_validate({"size": "large"})
ARMS: dict[str, ArmConfig] = {
    "electra": ElectraArm(learning_rate=2e-4, mask_prob=0.25),  # the generator is a quarter as wide: 256
    "bert": BertArm(learning_rate=1e-4),
}


def step(rank: int, label: str, folder: Path) -> None:
    """One rank's part; leaves what it saw in `folder/RANK.json`."""
    os.environ["LOCAL_RANK"] = str(rank)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    started = time.monotonic()
    objective = build(ARMS[label], LARGE.encoder(VOCAB), SPECIAL, seq_len=SEQ_LEN, packed=False)
    main = objective.networks()[objective.main].parameters()
    main_parameters = sum(parameter.numel() for parameter in main.values())
    device = torch.device("cpu")
    engine = build_engine(objective, OptimizerConfig(), Placement(micro_batch=1), accumulation=1, device=device)
    built = time.monotonic()

    rows, mine = make_rows(RANKS, seed=5), np.array([rank])
    keys = RowKeys(0, mine * 0, mine)
    partners = partners_within(rows, picked=mine)
    host = objective.prepare(RowBatch(rows[mine], structure(rows[mine], SPECIAL), keys, partners))
    totals = torch.tensor(list(counts(host).values()), dtype=torch.float64)
    dist.all_reduce(totals)
    total = dict(zip(counts(host), totals.tolist(), strict=True))
    outputs = engine.forward(to_device(host, device))
    terms = objective.loss_terms()
    loss = torch.stack([t.weight * outputs.sums[t.name] / max(total[t.count], 1) for t in terms]).sum()
    engine.backward(loss)
    engine.step(ARMS[label].learning_rate)
    stepped = time.monotonic()

    whole = loss.detach().clone()
    dist.all_reduce(whole)
    seen = {
        "parameters": engine.parameter_count,
        "main_parameters": main_parameters,
        "loss": float(whole),
        "norm": engine.gradient_norm(),
        "skipped": engine.skipped_steps(),
        "seconds_to_build": built - started,
        "seconds_of_the_step": stepped - built,
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


def run(label: str) -> list[dict[str, float]]:
    """What each rank saw of one step of an arm."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        multiprocessing.spawn(step, (label, folder), nprocs=RANKS)
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


if __name__ == "__main__":
    for arm in sys.argv[1:] or ARMS:
        for seen in run(arm):
            print(arm, {key: round(value, 3) for key, value in seen.items()})
