"""One rank of doctor's all-reduce: `python -m pipeline.doctor_allreduce nccl`, with RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT set. Adds up 64 MiB a few times, checks the sum, and prints how fast that went."""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

_NUMBERS = 2**24  # fp32: 64 MiB
_TIMES = 5


def main(backend: str) -> None:
    """Fails where the sum is not what it must be."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    numbers = torch.full((_NUMBERS,), float(rank + 1), device=device)
    dist.all_reduce(numbers)
    if numbers[0].item() != world * (world + 1) / 2 or numbers[-1].item() != numbers[0].item():
        raise SystemExit(f"rank {rank}: the sum is {numbers[0].item()}, and should be {world * (world + 1) / 2}")
    seconds = _timed(numbers, device)
    if rank == 0:
        version = f" {'.'.join(map(str, torch.cuda.nccl.version()))}" if backend == "nccl" else ""
        moved = 2 * (world - 1) / world * numbers.numel() * numbers.element_size()  # of a rank, by rings
        rate = f", {moved / seconds / 1e9:.1f} GB/s a rank" if world > 1 else ""
        print(f"{backend}{version}: 64 MiB added up in {1000 * seconds:.1f} ms{rate}")
    dist.destroy_process_group()


def _timed(numbers: torch.Tensor, device: torch.device) -> float:
    """Seconds of one."""
    began = time.perf_counter()
    for _ in range(_TIMES):
        dist.all_reduce(numbers)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - began) / _TIMES


if __name__ == "__main__":
    main(sys.argv[1])
