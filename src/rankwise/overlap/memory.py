"""What the reducer needs of the caller's kind of array: NumPy's, and tensors of torch on any device."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from rankwise.arrays.buffers import source
from rankwise.contract.stream_sync import THIS_THREAD
from rankwise.contract.types import DType
from rankwise.group.group import Group
from rankwise.overlap.plan import Parameter

if TYPE_CHECKING:
    import torch


class Seen(NamedTuple):
    """What an array is: its memory's address, and where it lies (a torch device, None for NumPy)."""

    parameter: Parameter
    address: int
    device: torch.device | None


def look(array: Any, name: str) -> Seen:
    """TypeError, naming it, where it is no array of a type that travels."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        from rankwise.arrays.torch import dtype_of

        return Seen(Parameter(tuple(array.shape), dtype_of(array.dtype)), array.data_ptr(), array.device)
    buffer = source(array, name)
    return Seen(Parameter(buffer.shape, buffer.dtype), buffer.ptr, None)


def flat(group: Group, count: int, dtype: DType, device: torch.device | None) -> Any:
    """Memory of one bucket, zeros: registered where it is the host's."""
    if device is None:
        return group.empty(count, dtype)
    import torch

    from rankwise.arrays.torch import to_torch

    if device.type == "cpu":
        return group.empty(count, to_torch(dtype))
    return torch.zeros(count, dtype=to_torch(dtype), device=device)


def compute_stream(device: torch.device | None) -> int:
    """The stream, as StreamSyncOps takes it, on which this thread makes arrays of that device."""
    if device is None or device.type == "cpu":
        return THIS_THREAD
    import torch

    return int(torch.cuda.current_stream(device).cuda_stream)
