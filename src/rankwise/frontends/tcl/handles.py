"""What a Tcl script holds under handles: tensors, modules, optimizers and unfinished operations."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rankwise.arrays import dtypes
from rankwise.contract.types import DType
from rankwise.contract.work import Work

if TYPE_CHECKING:
    import torch

# ---- conversions between NumPy arrays and torch tensors. torch is imported when one of its tensors is used ----


def to_numpy(tensor: NDArray[Any] | torch.Tensor) -> NDArray[Any]:
    """The elements as an array, which shares the memory; autograd does not track it."""
    if isinstance(tensor, np.ndarray):
        return tensor
    import torch

    detached = tensor.detach()
    if detached.dtype is torch.bfloat16:  # NumPy has no such type of its own
        return detached.view(torch.int16).numpy().view(dtypes.to_numpy(DType.BF16))
    return detached.numpy()


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


Tensor = NDArray[Any]
V = TypeVar("V")


class Handles:
    """Objects by handle: tensor0, tensor1, ..., module0, ..., optimizer0, .... These handles are never reused.

    tensors: NumPy arrays, and torch tensors where autograd tracks them. works: the operations of each handle, in
    the order they were begun.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor | torch.Tensor] = {}
        self.modules: dict[str, torch.nn.Module] = {}
        self.optimizers: dict[str, Any] = {}
        self.works: dict[str, deque[Work[Any]]] = {}
        self._made = {"tensor": 0, "module": 0, "optimizer": 0}

    def tensor(self, handle: str) -> Tensor:
        """The tensor as an array, sharing a torch tensor's memory. Raises ValueError if there is no such tensor."""
        return to_numpy(self.operand(handle))

    def operand(self, handle: str) -> Tensor | torch.Tensor:
        """The tensor as it is kept, so that autograd can track it. Raises ValueError if there is no such tensor."""
        return _find(self.tensors, handle, "tensor")

    def module(self, handle: str) -> torch.nn.Module:
        """Raises ValueError if there is no such module."""
        return _find(self.modules, handle, "module")

    def optimizer(self, handle: str) -> Any:
        """Raises ValueError if there is no such optimizer."""
        return _find(self.optimizers, handle, "optimizer")

    def add(self, value: Any) -> str:
        """Keep a tensor, a module or an optimizer; returns its new handle."""
        if isinstance(value, np.ndarray):
            return self._add(self.tensors, "tensor", value)
        import torch

        if isinstance(value, torch.Tensor):
            stored = value if value.requires_grad else to_numpy(value)
            return self._add(self.tensors, "tensor", stored)
        if isinstance(value, torch.nn.Module):
            return self._add(self.modules, "module", value)
        return self._add(self.optimizers, "optimizer", value)

    def _add(self, table: dict[str, Any], name: str, value: Any) -> str:
        handle = f"{name}{self._made[name]}"
        self._made[name] += 1
        table[handle] = value
        return handle

    def add_work(self, name: str, work: Work[Any], shared: bool) -> str:
        """Keep an operation; returns its handle: `name`, numbered if it is taken, unless operations may share it."""
        handle, number = name, 1
        while not shared and handle in self.works:
            number += 1
            handle = f"{name}_{number}"
        self.works.setdefault(handle, deque()).append(work)
        return handle

    def work(self, handle: str) -> Work[Any] | None:
        """The oldest operation of a handle, or None if there is no such handle."""
        works = self.works.get(handle)
        return works[0] if works else None

    def drop_work(self, handle: str) -> None:
        """Forget the oldest operation of a handle."""
        self.works[handle].popleft()
        if not self.works[handle]:
            del self.works[handle]

    def names(self) -> list[str]:
        """Every handle."""
        return [*self.tensors, *self.modules, *self.optimizers, *self.works]


def _find(table: dict[str, V], handle: str, name: str) -> V:
    if handle not in table:
        raise ValueError(f'Invalid {name} handle: "{handle}"')
    return table[handle]
