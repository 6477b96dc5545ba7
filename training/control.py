"""What the ranks of a run agree on at every step without waiting for one another.

Each rank says a few small numbers after a step; what it learns is the maximum over ranks of what was said one step
before. The exchange runs beside the step, on the host (gloo), whatever device computes: nothing waits for it but a rank
that is a whole step ahead, and every rank learns the same at the same step. Every rank must call alike.
"""

from types import TracebackType

import torch
import torch.distributed as dist


class Control:
    """Use as a context manager: what is still under way at its end is waited for."""

    def __init__(self, device: torch.device) -> None:
        self.group = dist.group.WORLD if device.type == "cpu" else dist.new_group(backend="gloo")
        self._under_way: tuple[dist.Work, torch.Tensor] | None = None

    def exchange(self, *said: int) -> list[int] | None:
        """Say so many numbers as at every call; returns the maxima of what all ranks said at the call before, None at
        the first."""
        learned = self.finish()
        numbers = torch.tensor(said)
        work = dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self.group, async_op=True)
        assert work is not None
        self._under_way = work, numbers
        return learned

    def agree(self, *said: int) -> list[int]:
        """The maxima of what is said now; waits for all ranks."""
        self.finish()
        numbers = torch.tensor(said)
        dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self.group)
        found: list[int] = numbers.tolist()
        return found

    def finish(self) -> list[int] | None:
        """Wait for what is under way, if anything is, and return what was learned."""
        if self._under_way is None:
            return None
        work, numbers = self._under_way
        self._under_way = None
        work.wait()
        found: list[int] = numbers.tolist()
        return found

    def __enter__(self) -> "Control":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:  # others may have failed and never answer
            return
        self.finish()
        if self.group is not dist.group.WORLD:
            dist.destroy_process_group(self.group)
