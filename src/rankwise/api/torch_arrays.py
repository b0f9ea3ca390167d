"""torch tensors as Buffers. Imported only when a caller passes a tensor."""

from __future__ import annotations

from typing import Any

import torch

from rankwise.api.arrays import Buffer, Kind, Shape, device_memory
from rankwise.api.dtypes import EXPECTED
from rankwise.contract.types import DType

_TO_TORCH = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.I16: torch.int16,
    DType.I8: torch.int8,
    DType.U8: torch.uint8,
    DType.BOOL: torch.bool,
    DType.C64: torch.complex64,
    DType.C128: torch.complex128,
}
# Older releases of torch lack these.
_TO_TORCH |= {
    dtype: getattr(torch, name)
    for dtype, name in {
        DType.FP8E4M3: "float8_e4m3fn",
        DType.FP8E5M2: "float8_e5m2",
        DType.U64: "uint64",
        DType.U32: "uint32",
        DType.U16: "uint16",
    }.items()
    if hasattr(torch, name)
}
_FROM_TORCH = {theirs: ours for ours, theirs in _TO_TORCH.items()}


class TorchKind(Kind):
    """Makes torch tensors in host memory."""

    def empty(self, shape: Shape, dtype: DType) -> Buffer:
        tensor = torch.empty(shape, dtype=_TO_TORCH[dtype])
        return Buffer(tensor.data_ptr(), tensor.numel(), dtype, shape, tensor, self, tensor)


TORCH = TorchKind()


def convert(tensor: torch.Tensor, name: str) -> Buffer:
    """A tensor of host memory, without a copy where it is contiguous. Autograd does not see what is written.

    TypeError where it is not a dense tensor of a type that travels; UnsupportedError for device memory.
    """
    if tensor.device.type != "cpu":
        raise device_memory(name, f"torch.Tensor on {tensor.device}")
    dtype = _FROM_TORCH.get(tensor.dtype)
    if dtype is None:
        raise TypeError(f"{name}: tensors of dtype {tensor.dtype} do not travel; expected {EXPECTED}")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name}: expected a dense tensor, got layout {tensor.layout}")
    data = tensor.detach()
    plain = data.is_contiguous() and not data.is_conj() and not data.is_neg()
    memory = data if plain else torch.empty(data.shape, dtype=data.dtype).copy_(data)

    def put_back(packed: Any) -> torch.Tensor:
        data.copy_(packed)
        return tensor

    return Buffer(
        memory.data_ptr(), memory.numel(), dtype, tuple(data.shape), memory, TORCH, tensor, None if plain else put_back
    )


def dtype_of(given: torch.dtype) -> DType:
    """The DType of a torch dtype; TypeError where there is none."""
    found = _FROM_TORCH.get(given)
    if found is None:
        raise TypeError(f"dtype={given}: expected {EXPECTED}")
    return found
