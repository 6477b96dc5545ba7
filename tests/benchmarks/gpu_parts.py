"""Where the time of a step goes, by events on the device's own clock: for `tests.benchmarks.gpu_step`.

Hooks stand around the body and the heads of every network, forward and backward, and so outside of what is compiled.
What lies between them (embeddings, losses, sampling, the copy to the device) is the rest.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from training.objectives import Objective

Mark = Any  # a CUDA event, or a time on the CPU


class Stopwatch:
    """Spans of time by name; read once the device is done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._opened: dict[str, Mark] = {}
        self._spans: list[tuple[str, Mark, Mark]] = []

    def open(self, name: str) -> None:
        """Begin a span."""
        self._opened[name] = self._mark()

    def close(self, name: str) -> None:
        """End the span of that name."""
        self._spans.append((name, self._opened.pop(name), self._mark()))

    def _mark(self) -> Mark:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self) -> dict[str, float]:
        """The sum of every name's spans, in the order they first ended."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        found: dict[str, float] = {}
        for name, begun, ended in self._spans:
            span = ended - begun if self._device.type != "cuda" else begun.elapsed_time(ended) / 1000
            found[name] = found.get(name, 0.0) + span
        return found


@contextmanager
def watched(objective: Objective, device: torch.device) -> Iterator[Stopwatch]:
    """A stopwatch whose spans `discriminator`, `generator`, `discriminator rtd`, … take care of themselves."""
    watch = Stopwatch(device)
    handles = []
    for name, network in objective.networks().items():
        parts: dict[str, nn.Module] = {name: network.encoder}
        parts |= {f"{name} {head}": module for head, module in network.heads.items()}
        for label, module in parts.items():
            handles += _around(module, label, watch)
    yield watch
    for handle in handles:
        handle.remove()


def _around(module: nn.Module, name: str, watch: Stopwatch) -> list[Any]:
    """Forward from call to return, backward from its output's gradient to that of its first input."""

    def before(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        watch.open(name)
        if arguments[0].requires_grad:
            arguments[0].register_hook(lambda gradient: watch.close(name))

    def after(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        watch.close(name)
        if output.requires_grad:
            output.register_hook(lambda gradient: watch.open(name))

    return [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
