"""Held-out losses of a run: one random sample of the held-out rows, the same for every arm that shares a corpus.

Arms with the same masking rule see the same masks. BERT's masked-token loss is taken, as in training, on rows half of
whose second segments are exchanged.

Rows are dealt to ranks in equal numbers of equal micro-batches (the last filled with weight-0 rows), so no rank ever
waits for another that has no batch left. Sums, not means, are reduced over ranks.
"""

import torch
import torch.distributed as dist

from training.engine import Engine
from training.loader import Loader, accumulation_steps, rank_slice
from training.meter import add_statistics, reduce_statistics
from training.objectives import to_device
from training.settings import Placement


def evaluate_heldout(
    engine: Engine, loader: Loader, n_rows: int, placement: Placement, device: torch.device
) -> dict[str, float]:
    """The objective's figures over `eval_rows` held-out rows, named `heldout/…`. Every rank must call."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    total = min(placement.eval_rows, n_rows)
    start, stop = rank_slice(total, rank, world_size)
    micro_batches = accumulation_steps(total, placement.micro_batch, world_size)
    batches = loader.sample(start, stop, micro_batches)
    sums: dict[str, torch.Tensor] = {}
    objective = engine.objective.eval()
    for batch in batches.micro_batches:
        add_statistics(sums, engine.evaluate(to_device(batch, device)).statistics)
    objective.train()
    return {f"heldout/{name}": value for name, value in objective.metrics(reduce_statistics(sums)).items()}
