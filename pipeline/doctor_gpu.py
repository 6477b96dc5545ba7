"""What `electra doctor` sees of GPUs: each one with its free memory, and whether NCCL carries data between them."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

from pipeline.doctor_finding import Finding, error, ok, warning
from pipeline.experiment import Experiment

_FREE = 0.9  # of a GPU's memory, below which somebody else is on it
_SECONDS = 120.0
_GIB = 2**30


def gpus(experiment: Experiment | None) -> Iterator[Finding]:
    """The GPUs of this machine, against those the configuration asks of it."""
    import torch

    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    here = experiment is not None and experiment.cluster.use_gpu and experiment.cluster.address is None
    wanted = experiment.cluster.num_workers if experiment is not None and here else 0
    if there == 0:
        why = f"torch {torch.__version__} was built without CUDA" if torch.version.cuda is None else "no driver answers"
        if wanted:
            yield error(
                "gpus", f"cluster.use_gpu is set and torch sees none ({why})", "run on a node with GPUs (nvidia-smi)"
            )
        else:
            yield ok("gpus", f"none on this machine ({why})")
        return
    if wanted > there:
        yield error("gpus", f"cluster.num_workers is {wanted}, one GPU each, and there are {there}", "lower it")
    for number in range(there):
        yield _gpu(number)
    yield from carries("nccl", there)


def _gpu(number: int) -> Finding:
    import torch

    from training.devices import peak_flops

    name, check = torch.cuda.get_device_name(number), f"gpu {number}"
    free, total = torch.cuda.mem_get_info(number)
    peak = peak_flops(name)
    said = f"{name}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
    said += f", {peak / 1e12:.0f} TFLOPS dense bf16" if peak else ", of no known peak: there will be no MFU"
    if free < _FREE * total:
        return warning(check, f"{said}; another process is on it", "see nvidia-smi, and end it or take another GPU")
    return ok(check, said)


def carries(backend: str, ranks: int, seconds: float = _SECONDS) -> Iterator[Finding]:
    """One process a rank adds up a tensor over all of them, as training does at every step."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-m", "pipeline.doctor_allreduce", backend]
    processes = [
        subprocess.Popen(
            command, env={**os.environ, **place, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=seconds)[0] for process in processes]
    except subprocess.TimeoutExpired:
        yield _fails(backend, ranks, f"no answer within {seconds:.0f} s")
        return
    finally:
        for process in processes:
            process.kill()
            process.wait()
    failed = [text for text, process in zip(said, processes, strict=True) if process.returncode != 0]
    if failed:
        lines = failed[0].strip().splitlines()
        yield _fails(backend, ranks, lines[-1] if lines else "a process ended without a word")
    else:
        yield ok(
            backend, f"{said[0].strip().splitlines()[-1]} among {ranks} {'GPU' if backend == 'nccl' else 'process'}(s)"
        )


def _fails(backend: str, ranks: int, reason: str) -> Finding:
    remedy = (
        "try again with NCCL_DEBUG=INFO; NCCL_SOCKET_IFNAME names the network, NCCL_P2P_DISABLE=1 leaves out NVLink"
    )
    if backend != "nccl":
        remedy = "GLOO_SOCKET_IFNAME names the network"
    return error(backend, f"an all-reduce over {ranks} fails: {reason}", remedy)
