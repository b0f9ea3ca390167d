"""Conversions between NumPy arrays and torch tensors. torch is imported when one of its tensors is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rankwise.arrays import dtypes
from rankwise.contract.types import DType

if TYPE_CHECKING:
    import torch


def to_numpy(tensor: NDArray[Any] | torch.Tensor) -> NDArray[Any]:
    """The elements as an array, which shares the memory; autograd does not track it."""
    if isinstance(tensor, np.ndarray):
        return tensor
    import torch

    plain = tensor.detach()
    if plain.dtype is torch.bfloat16:  # NumPy has no such type of its own
        return plain.view(torch.int16).numpy().view(dtypes.to_numpy(DType.BF16))
    return plain.numpy()


def to_torch(tensor: NDArray[Any] | torch.Tensor) -> torch.Tensor:
    """The elements as a torch tensor, which shares a contiguous array's memory; a torch tensor is returned as it is."""
    import torch

    if isinstance(tensor, torch.Tensor):
        return tensor
    packed = np.ascontiguousarray(tensor).reshape(tensor.shape)
    if dtypes.from_numpy(packed.dtype) == DType.BF16:
        return torch.from_numpy(packed.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(packed)


def to_floating_torch(tensor: NDArray[Any] | torch.Tensor, option: str) -> torch.Tensor:
    """As to_torch. ValueError, which names the option, if the tensor is not of a floating-point type."""
    converted = to_torch(tensor)
    if not converted.is_floating_point():
        name = to_numpy(tensor).dtype.name
        raise ValueError(f"Invalid -{option} parameter. Must be a tensor of a floating-point type, not {name}.")
    return converted
