"""Arrays that claim to be in CUDA memory, for nccl over the double of nccl4py; their memory is host memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

STREAM = 55
"""The stream on which the program fills them."""


class CudaArray:
    """As CuPy's: it describes itself, is copied by `get` and `set`, and its library makes new ones."""

    def __init__(self, data: Any, stream: int = STREAM) -> None:
        self.data = np.asarray(data)
        self.dtype = self.data.dtype
        self.stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.data.shape,
            "typestr": self.data.dtype.str,
            "data": (self.data.ctypes.data, not self.data.flags.writeable),
            "strides": None if self.data.flags.c_contiguous else self.data.strides,
            "stream": self.stream,
            "version": 3,
        }

    def __array_namespace__(self) -> Any:
        return SimpleNamespace(empty=lambda shape, dtype: CudaArray(np.full(shape, 99).astype(dtype)))

    def __mul__(self, factor: Any) -> CudaArray:
        return CudaArray(self.data * factor)

    def get(self) -> np.ndarray[Any, Any]:
        return self.data.copy()

    def set(self, data: np.ndarray[Any, Any]) -> None:
        self.data[...] = data

    def tolist(self) -> Any:
        return self.data.tolist()


class CudaTensor(torch.Tensor):
    """A tensor of host memory that says it is on cuda:0."""

    is_cuda = True
    is_cpu = False
    device = torch.device("cuda", 0)


def cuda_tensor(data: Any) -> CudaTensor:
    return torch.as_tensor(data).as_subclass(CudaTensor)


def pretend_cuda(monkeypatch: Any) -> None:
    """Let torch have a current stream of cuda:0, and new tensors there be CudaTensors."""
    from rankwise.arrays import torch as torch_arrays

    make = torch_arrays.new_tensor

    def new_tensor(shape: Any, dtype: Any, device: Any, *, zeros: bool = False) -> torch.Tensor:
        tensor = make(shape, dtype, None, zeros=zeros)
        return tensor if device is None else tensor.as_subclass(CudaTensor)

    monkeypatch.setattr(torch_arrays, "new_tensor", new_tensor)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: SimpleNamespace(cuda_stream=STREAM))
