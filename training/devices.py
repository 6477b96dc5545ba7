"""What a device is called, what it can do at most, and how much memory this process took of it.

MFU is a share of the peak for dense bf16 matmuls (fp16 where a device has no bf16), as its vendor states it, whatever
precision a run computes in. A CPU, a part of a GPU (MIG) and a GPU that is not in the table have no peak here, and so
no MFU: nothing is guessed.
"""

import platform
import re
import resource
import sys
from pathlib import Path

import torch

# Dense, by a pattern of what torch.cuda.get_device_name says; the first that is found decides. Vendors' data sheets.
_PEAKS = (
    (r"MIG|GRID|-\d+[CQ]\b|GH200|GB200|H200 NVL|HBM2e", None),  # a part, or sold with several limits of power
    (r"B200", 2250e12),
    (r"H200", 989e12),
    (r"H[18]00 PCIe", 756e12),
    (r"H100 NVL", 835e12),
    (r"H[18]00", 989e12),  # SXM
    (r"H20\b", 148e12),
    (r"A[18]00", 312e12),
    (r"A30\b", 165e12),
    (r"A40\b", 150e12),
    (r"A10\b", 125e12),
    (r"L40S", 362e12),
    (r"L4\b", 121e12),
    (r"V100S", 130e12),  # fp16, as the next three
    (r"V100-PCIE", 112e12),
    (r"V100", 125e12),
    (r"T4\b", 65e12),
    (r"MI300X", 1307e12),
)


def device_name(device: torch.device) -> str:
    """`NVIDIA H200`, or `CPU (x86_64)`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})"


def peak_flops(name: str) -> float | None:
    """FLOPs a second of a device at most, in dense bf16; None where that is not known."""
    return next((peak for pattern, peak in _PEAKS if re.search(pattern, name)), None)


def memory_peak(device: torch.device) -> int:
    """Bytes: of a GPU, the most that tensors held since `reset_memory_peak`; on the CPU, the most that this process
    held resident since it began."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text() if status.exists() else "", re.MULTILINE)
    if found is not None:
        return int(found[1]) * 1024
    # Not every system tells; getrusage does, if need be with what was held before this program was started
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_memory_peak(device: torch.device) -> None:
    """Forget the peak of an earlier run in this process, where that can be done: on a GPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
