"""What crosses the links in a step of training, by ZeRO stage; and how large a checkpoint is.

Bytes that one GPU sends, by ring algorithms: (n − 1)/n of what is reduced, of what is gathered, and both for an
all-reduce. Gradients of matmuls' weights cross in bf16 where a run computes in it, all others in fp32, as parameters
do. Stages 0 and 1 reduce once a step, 2 and 3 after every micro-batch; stage 3 gathers parameters for the forward and
the backward pass of each. Time is bytes over the link's stated speed: at best, and hidden behind the backward pass
where communication overlaps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.devices import NODE, Device
from pipeline.plan_size import Size

FP32, BF16 = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Of one GPU and step."""

    sent: float  # bytes
    seconds: float
    link: str  # `NVLink or PCIe inside a node`, `network between nodes`, or none of a single GPU


def traffic(
    networks: Sequence[Size], device: Device, *, stage: int, gpus: int, accumulation: int, bf16: bool
) -> Traffic:
    """Of a step with so many micro-batches a GPU."""
    if gpus == 1:
        return Traffic(sent=0.0, seconds=0.0, link="none")
    share = (gpus - 1) / gpus
    trained = [one for one in networks if not one.frozen]
    gradients = sum((BF16 if bf16 else FP32) * one.linear + FP32 * (one.total - one.linear) for one in trained)
    parameters = FP32 * sum(one.trained for one in networks)
    if stage == 0:
        sent = 2 * share * FP32 * sum(one.trained for one in networks)
    elif stage < 3:
        sent = share * (gradients * (accumulation if stage == 2 else 1) + parameters)
    else:
        sent = share * accumulation * (gradients + 2 * FP32 * sum(one.total for one in networks))
    inside = gpus <= NODE
    speed, link = (device.link, "inside a node") if inside else (device.network, "between nodes")
    return Traffic(sent=sent, seconds=sent / speed, link=link)


def checkpoint_bytes(networks: Sequence[Size]) -> int:
    """Tensors of a checkpoint: parameters in fp32, and Adam's two states of those that are trained. Names, places and
    hashes come on top: kilobytes."""
    return FP32 * sum(one.total + 2 * one.trained for one in networks)
