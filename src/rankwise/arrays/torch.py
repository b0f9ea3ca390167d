"""torch tensors as Buffers. No program has a tensor or a torch dtype before it has imported torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from rankwise._native import copy_blocks as copy_blocks
from rankwise.arrays.base import Buffer, Device, Kind, Shape, bytes_of, check_own_memory
from rankwise.arrays.dtypes import EXPECTED
from rankwise.contract.types import DTYPE_NAMES, DType

if TYPE_CHECKING:
    import torch


@cache
def _to_torch() -> dict[DType, torch.dtype]:
    """The torch dtype of each DType; older releases of torch lack some."""
    import torch

    return {dtype: getattr(torch, name) for dtype, name in DTYPE_NAMES.items() if hasattr(torch, name)}


@cache
def dtypes() -> dict[torch.dtype, DType]:
    """The DType of each torch dtype that rankwise supports."""
    return {torch_dtype: dtype for dtype, torch_dtype in _to_torch().items()}


def to_torch(dtype: DType) -> torch.dtype:
    """The torch dtype of a DType. Raises KeyError if this release of torch has none."""
    return _to_torch()[dtype]


class TorchKind(Kind):
    """Makes torch tensors in host memory."""

    def empty(self, shape: Shape, dtype: DType) -> Buffer:
        tensor = new_tensor(shape, dtype, None)
        return Buffer(tensor.data_ptr(), tensor.numel(), dtype, shape, tensor, self, tensor)

    def over(self, memory: Any, shape: Shape, dtype: DType) -> Any:
        import torch

        if not memory.size:
            return torch.empty(shape, dtype=_to_torch()[dtype])
        return torch.from_numpy(memory).view(_to_torch()[dtype]).view(shape)


class TorchCudaKind(TorchKind):
    """Makes torch tensors on one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def empty(self, shape: Shape, dtype: DType) -> Buffer:
        tensor = new_tensor(shape, dtype, self._device)
        where = device_of(tensor)
        return Buffer(tensor.data_ptr(), tensor.numel(), dtype, shape, tensor, self, tensor, device=where)

    def staged(self, buffer: Buffer) -> Buffer:
        tensor, room = buffer.array.detach(), new_tensor(buffer.shape, buffer.dtype, None)

        def put_back(room: Any) -> Any:
            tensor.copy_(room)
            return buffer.finish()

        return Buffer(
            room.data_ptr(), buffer.count, buffer.dtype, buffer.shape, room, TORCH, buffer.given, put_back, tensor
        )


TORCH = TorchKind()


def new_tensor(shape: Shape, dtype: DType, device: torch.device | None, *, zeros: bool = False) -> torch.Tensor:
    """A new tensor, uninitialised unless `zeros`. device: None means the host."""
    import torch

    make = torch.zeros if zeros else torch.empty
    return make(shape, dtype=_to_torch()[dtype], device=device)


def device_of(tensor: torch.Tensor) -> Device | None:
    """The CUDA device that a tensor is on, with the stream on which this thread works there; None for the host."""
    import torch

    if tensor.is_cpu:
        return None
    return Device(str(tensor.device), torch.cuda.current_stream(tensor.device).cuda_stream)


class _Written(Buffer):
    """A tensor that an operation writes in place. Autograd, which may have saved the tensor, must be notified."""

    __slots__ = ()

    def finish(self) -> Any:
        mark_written(self.array)
        return super().finish()


def mark_written(tensor: torch.Tensor) -> None:
    """Notify autograd that the tensor was written, so that a backward pass that needs its old content raises."""
    if not tensor.is_inference():  # these have no version
        _increment_version()(tensor)


@cache
def _increment_version() -> Callable[[torch.Tensor], None]:
    import torch

    return torch.autograd.graph.increment_version


def wraps(tensor: torch.Tensor) -> bool:
    """Whether `tensor` has no memory of its own, as a tensor around another one."""
    return not tensor.data_ptr() and tensor.numel() > 0


def expected_own_memory(tensor: torch.Tensor) -> str:
    kind = type(tensor).__name__
    return f"expected a tensor with memory of its own, got a {kind}; pass its local or inner tensor"


def buffer_of(tensor: Any, name: str, write: bool) -> Buffer | None:
    """A Buffer for a tensor in host or CUDA memory, without a copy if it is contiguous; None for anything else.

    Raises TypeError if it is not a dense tensor of a supported dtype, if autograd would have to record the operation,
    or if it is on another kind of device.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        return None
    if tensor.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            f"{name}: expected a tensor that does not require grad, as autograd does not follow this operation; "
            f"call it within torch.no_grad(), pass {name}.detach(), or use rw.autograd, whose operations have gradients"
        )
    if tensor.is_nested:
        raise TypeError(f"{name}: expected a dense tensor, got a nested one; pass the parts that {name}.unbind() gives")
    if not (tensor.is_cpu or tensor.is_cuda):
        raise TypeError(f"{name}: expected a tensor in host or CUDA memory, got one on {tensor.device}")
    dtype = dtypes().get(tensor.dtype)
    if dtype is None:
        raise TypeError(f"{name}: tensors of dtype {tensor.dtype} are not supported; expected {EXPECTED}")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name}: expected a dense tensor, got layout {tensor.layout}")
    if wraps(tensor):
        raise TypeError(f"{name}: {expected_own_memory(tensor)}")
    shape = tuple(tensor.shape)
    device = device_of(tensor)
    kind = TORCH if device is None else TorchCudaKind(tensor.device)
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        made = _Written if write else Buffer
        return made(tensor.data_ptr(), tensor.numel(), dtype, shape, tensor, kind, tensor, device=device)
    if write:
        check_own_memory(name, shape, tensor.stride(), 1, "contiguous")
    data = tensor.detach()
    # A stream's thread is never in inference mode, where alone tensors that were made in it can be written.
    with torch.inference_mode(False):
        packed = data.new_empty(shape)

    def put_back(packed: Any) -> Any:
        with torch.inference_mode():
            data.copy_(packed)  # which marks the tensor as written
        return tensor

    return Buffer(packed.data_ptr(), packed.numel(), dtype, shape, packed, kind, tensor, put_back, data, device)


def content(tensor: torch.Tensor, name: str) -> tuple[DType, Any]:
    """The dtype and the bytes of a dense tensor, of any device: its own memory if that is contiguous and in the host.

    The bytes are a NumPy array of uint8. Raises TypeError for other tensors.
    """
    buffer = buffer_of(tensor.detach().cpu(), name, write=False)
    assert buffer is not None
    buffer.pack()
    return buffer.dtype, bytes_of(buffer)


def dtype_argument(dtype: Any) -> DType | None:
    """The DType of a torch dtype; None for anything else."""
    torch = sys.modules.get("torch")
    return dtype_of(dtype) if torch is not None and isinstance(dtype, torch.dtype) else None


def dtype_of(given: torch.dtype) -> DType:
    """The DType of a torch dtype. Raises TypeError if there is none."""
    dtype = dtypes().get(given)
    if dtype is None:
        raise TypeError(f"dtype={given}: expected {EXPECTED}")
    return dtype
