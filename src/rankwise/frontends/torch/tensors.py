"""Tensors as the memory that a communicator reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rankwise.contract.errors import UnsupportedError

Finish = Callable[[], None]
Memory = tuple[Tensor, Finish | None]
"""A dense tensor, and a function to call when an operation has written it; None if it is the caller's own."""


def is_plain(tensor: Tensor) -> bool:
    """Whether the memory of `tensor` contains exactly its elements, in order."""
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


def check(tensor: Tensor) -> Tensor:
    """`tensor` without its history; refused where it is not a dense one in host memory."""
    if not tensor.is_cpu:
        raise UnsupportedError(
            f"a tensor on {tensor.device}",
            "rankwise",
            "it moves tensors in host memory",
            "use 'cpu:rankwise' beside a backend for that device in another group",
        )
    if tensor.layout is not torch.strided:
        raise UnsupportedError(
            f"a tensor of layout {tensor.layout}", "rankwise", "", "only all_reduce with SUM takes sparse tensors"
        )
    return tensor.detach()


def source(tensor: Tensor) -> Tensor:
    """Memory from which to read the elements of `tensor`."""
    if is_plain(tensor):
        return tensor
    return check(tensor).resolve_conj().resolve_neg().contiguous()


def target(tensor: Tensor, filled: bool = False) -> Memory:
    """Memory to which to write the elements of `tensor`. filled: for operations in place, it already contains them."""
    if is_plain(tensor):
        return tensor, None
    out = check(tensor)
    packed = torch.empty(out.shape, dtype=out.dtype)
    if filled:
        packed.copy_(out)
    return packed, lambda: put_back(out, packed)


def put_back(out: Tensor, packed: Tensor) -> None:
    out.copy_(packed)


def sources(tensors: Sequence[Tensor]) -> Tensor:
    """One block of memory with the elements of all `tensors`, in order; their own memory if they are adjacent."""
    if _side_by_side(tensors):
        return _first(tensors)
    packed = _room(tensors)
    for part, tensor in zip(_parts(packed, tensors), tensors, strict=True):
        part.copy_(check(tensor))
    return packed


def targets(tensors: Sequence[Tensor]) -> Memory:
    """One block of memory for the elements of all `tensors`, in order."""
    if _side_by_side(tensors):
        return _first(tensors), None
    outs = [check(tensor) for tensor in tensors]
    packed = _room(outs)

    def finish() -> None:
        for part, out in zip(_parts(packed, outs), outs, strict=True):
            out.copy_(part)

    return packed, finish


def overlap(read: Tensor, written: Tensor) -> bool:
    """Whether two plain tensors share memory."""
    begin, end = read.data_ptr(), read.data_ptr() + read.nbytes
    return begin < written.data_ptr() + written.nbytes and written.data_ptr() < end


def check_same_type(tensors: Sequence[Tensor]) -> torch.dtype:
    dtype = tensors[0].dtype
    for tensor in tensors:
        if tensor.dtype != dtype:
            raise ValueError(f"tensors of one dtype expected, got {dtype} and {tensor.dtype}")
    return dtype


def _side_by_side(tensors: Sequence[Tensor]) -> bool:
    end = None
    for tensor in tensors:
        if not is_plain(tensor) or (end is not None and tensor.data_ptr() != end and tensor.numel()):
            return False
        end = tensor.data_ptr() + tensor.nbytes if tensor.numel() or end is None else end
    return True


def _first(tensors: Sequence[Tensor]) -> Tensor:
    return next((tensor for tensor in tensors if tensor.numel()), tensors[0])


def _room(tensors: Sequence[Tensor]) -> Tensor:
    return torch.empty(sum(tensor.numel() for tensor in tensors), dtype=check_same_type(tensors))


def _parts(packed: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The part of each tensor in the common memory, in its shape."""
    sizes = [tensor.numel() for tensor in tensors]
    return [
        part.view(tensor.shape) for part, tensor in zip(torch.split_with_sizes(packed, sizes), tensors, strict=True)
    ]
