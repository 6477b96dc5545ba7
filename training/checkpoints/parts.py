"""One rank's part of a checkpoint: a safetensors file, hashed while it is written and read slice by slice.

A part holds contiguous slices of flat parameters and of the optimizer's state, fp32, keyed `kind/name@start`. The
format is that of https://github.com/huggingface/safetensors: the length of a header, the header as JSON, the values. It
is written and read here because that package wants a file in memory or on this machine's disk, and no hash comes of it.
Nothing in memory grows with a part but its header.
"""

import contextlib
import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from data_prep.errors import CheckpointError
from data_prep.storage import Folder
from training.checkpoints.manifest import Checkpoint, readable
from training.engine import STATES

BYTES = 4  # of an element
_BLOCK = 8 << 20
_LONGEST_HEADER = 100 << 20  # safetensors' own limit


def key_of(kind: str, name: str, start: int) -> str:
    return f"{kind}/{name}@{start}"


def parsed(key: str) -> tuple[str, str, int]:
    """Kind, name and start of a key."""
    kind, _, rest = key.partition("/")
    name, _, start = rest.rpartition("@")
    return kind, name, int(start)


def write(
    folder: Folder, name: str, lengths: Mapping[str, int], data: Tensor, halfway: Callable[[], None]
) -> dict[str, Any]:
    """Write `data` [sum of lengths], the slices of `lengths` one after another; returns what the manifest says of the
    file. `halfway` is called when half of it is written. OSError as the folder meets it."""
    header = _header(lengths)
    digest, values = hashlib.sha256(header), data.numpy().data.cast("B") if len(data) else memoryview(b"")
    half = len(values) // 2
    with folder.writer(name) as file:
        file.write(header)
        _write(file, values[:half], digest)
        halfway()
        _write(file, values[half:], digest)
    return {"name": name, "bytes": len(header) + len(values), "sha256": digest.hexdigest()}


def _header(lengths: Mapping[str, int]) -> bytes:
    described, offset = {}, 0
    for key, length in lengths.items():
        stop = offset + length * BYTES
        described[key] = {"dtype": "F32", "shape": [length], "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that values lie on multiples of their size
    return struct.pack("<Q", len(text)) + text


def _write(file: IO[bytes], values: memoryview, digest: Any) -> None:
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        file.write(block)
        digest.update(block)


class Source:
    """All slices of a checkpoint by kind and parameter name, read when they are asked for; a context manager. Verify
    the checkpoint before. CheckpointError where a part cannot be read, or an element is missing or stands twice."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.shapes: dict[str, list[int]] = checkpoint.manifest["shapes"]
        frozen = set(checkpoint.manifest["frozen"])
        wanted = [("param", name) for name in self.shapes]
        wanted += [(state, name) for state in STATES for name in self.shapes if name not in frozen]
        # of each, in order: start, stop, the part, and where the slice begins in it
        self._slices: dict[tuple[str, str], list[tuple[int, int, str, int]]] = {key: [] for key in wanted}
        self._files = contextlib.ExitStack()
        self._open: dict[str, Any] = {}
        for part in checkpoint.manifest["parts"]:
            self._index(part["name"], part["bytes"])
        for (kind, name), slices in self._slices.items():
            slices.sort()
            size = int(np.prod(self.shapes[name]))
            edges = [0, *(edge for start, stop, _, _ in slices for edge in (start, stop)), size]
            if any(edges[i] != edges[i + 1] for i in range(0, len(edges), 2)):
                raise CheckpointError(f"{checkpoint}: slices of {kind}/{name} do not fit together: choose another.")

    def names(self, kind: str) -> list[str]:
        """The parameters that have this kind: all have `param`, trained ones the states."""
        return [name for one, name in self._slices if one == kind]

    def read(self, kind: str, name: str, start: int, stop: int) -> Tensor:
        """Elements `start` to `stop` of a flat tensor: [stop - start], fp32, on the CPU."""
        if (kind, name) not in self._slices:
            raise CheckpointError(f"{self._checkpoint}: holds no {kind}/{name}: choose another checkpoint.")
        values = np.empty(stop - start, dtype=np.float32)
        for begin, end, part, offset in self._slices[kind, name]:
            low, high = max(begin, start), min(end, stop)
            if low < high:
                self._fill(values[low - start : high - start], part, offset + (low - begin) * BYTES)
        return torch.from_numpy(values)

    def full(self, kind: str, name: str) -> Tensor:
        """A whole tensor in its own shape."""
        return self.read(kind, name, 0, int(np.prod(self.shapes[name]))).view(self.shapes[name])

    def _index(self, part: str, size: int) -> None:
        path = self._checkpoint.folder.sub(part)
        try:
            (length,) = struct.unpack("<Q", self._bytes(part, 0, 8))
            if length > min(size - 8, _LONGEST_HEADER):
                raise ValueError("its header is longer than it")
            slices = [_described(key, entry) for key, entry in json.loads(self._bytes(part, 8, length)).items()]
        except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
            raise CheckpointError(f"{path} cannot be read ({error}): choose another checkpoint.") from None
        for kind, name, start, stop, offset in slices:
            if (kind, name) not in self._slices:
                key = key_of(kind, name, start)
                raise CheckpointError(f"{self._checkpoint}: its manifest does not list {key}: choose another.")
            self._slices[kind, name].append((start, stop, part, 8 + length + offset))

    def _bytes(self, part: str, offset: int, length: int) -> bytes:
        values = np.empty(length, dtype=np.uint8)
        self._fill(values, part, offset)
        return values.tobytes()

    def _fill(self, values: np.ndarray[Any, Any], part: str, offset: int) -> None:
        path = self._checkpoint.folder.sub(part)
        view = values.data.cast("B")
        try:
            with readable(path):
                if part not in self._open:
                    self._open[part] = self._files.enter_context(self._checkpoint.folder.open(part))
                file = self._open[part]
                file.seek(offset)
                while view and (count := file.readinto(view)):
                    view = view[count:]
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing: restore it or choose another checkpoint.") from None
        if view:
            raise CheckpointError(f"{path} ends before what its header says: choose another checkpoint.")

    def __enter__(self) -> "Source":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()


def _described(key: str, entry: dict[str, Any]) -> tuple[str, str, int, int, int]:
    """(kind, name, start, stop, offset) of an entry of a header."""
    kind, name, start = parsed(key)
    begin, end = entry["data_offsets"]
    if entry["dtype"] != "F32" or end - begin != int(np.prod(entry["shape"])) * BYTES:
        raise ValueError(f"{key} is not fp32")
    return kind, name, start, start + (end - begin) // BYTES, begin
