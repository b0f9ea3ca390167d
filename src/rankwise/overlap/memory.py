"""The arrays that the reducer takes: NumPy arrays, and torch tensors on any device."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from rankwise.arrays import torch as tensors
from rankwise.arrays.buffers import source
from rankwise.contract.stream_sync import THIS_THREAD
from rankwise.contract.types import DType
from rankwise.group.group import Group
from rankwise.overlap.plan import GradientSpec

if TYPE_CHECKING:
    import torch


class ArrayInfo(NamedTuple):
    """A parameter's or gradient's array: shape and dtype, address, and device (torch's, or None for NumPy)."""

    parameter: GradientSpec
    address: int
    device: torch.device | None


def inspect(array: Any, name: str) -> ArrayInfo:
    """The properties of an array. Raises TypeError, with its name, if it is not an array of a supported dtype."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        if array.layout is not torch.strided:
            raise TypeError(
                f"{name}: expected a dense tensor, got layout {array.layout}; "
                "torch.nn.Embedding and EmbeddingBag give dense gradients with sparse=False"
            )
        return ArrayInfo(
            GradientSpec(tuple(array.shape), tensors.dtype_of(array.dtype)), array.data_ptr(), array.device
        )
    buffer = source(array, name)
    if buffer.device is not None:
        kind = type(array).__name__
        raise TypeError(f"{name}: expected a NumPy array, or a torch tensor on any device, got a {kind} on a device")
    return ArrayInfo(GradientSpec(buffer.shape, buffer.dtype), buffer.ptr, None)


def flat(group: Group, count: int, dtype: DType, device: torch.device | None) -> Any:
    """Zeroed memory for one bucket; registered memory if it is on the host."""
    if device is None:
        return group.empty(count, dtype)
    if device.type == "cpu":
        return group.empty(count, tensors.to_torch(dtype))
    return tensors.new_tensor((count,), dtype, device, zeros=True)


def compute_stream(device: torch.device | None) -> int:
    """The handle (see StreamSyncOps) of the stream on which this thread computes on that device."""
    if device is None or device.type == "cpu":
        return THIS_THREAD
    import torch

    return int(torch.cuda.current_stream(device).cuda_stream)
