"""Tensors as the memory that a communicator reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from rankwise.arrays.torch import copy_blocks
from rankwise.contract.errors import UnsupportedError

Step = Callable[[], None]
Fill = Callable[[Tensor, Tensor], object]
"""Writes the elements of its second argument into its first, of the same shape."""


class Memory(NamedTuple):
    """What a communicator reads or writes: the elements of one tensor, or of several in order.

    It is the caller's own memory, or room for a copy. Such room is empty at first: `pack` fills it
    when the operation runs, before it reads, and `finish` puts back what the operation has written.
    Each is None where there is nothing to do.
    """

    ptr: int
    count: int
    dtype: torch.dtype
    keep: object
    """Owns the memory."""
    pack: Step | None = None
    finish: Step | None = None


def packed(memories: Sequence[Memory]) -> bool:
    """Whether something is to be done before or after the operation on them."""
    for memory in memories:  # noqa: SIM110 - takes half the time of any()
        if memory.pack is not None or memory.finish is not None:
            return True
    return False


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


def source(tensor: Tensor) -> Memory:
    """Memory to read the elements of `tensor` from."""
    return own(tensor) if is_plain(tensor) else copied((tensor,))


def target(tensor: Tensor) -> Memory:
    """Memory to write the elements of `tensor` to."""
    return own(tensor) if is_plain(tensor) else room((tensor,), tensor.dtype, put_back=True)


def sources(tensors: Sequence[Tensor]) -> Memory:
    """One memory with the elements of all `tensors`, of one dtype; their own where they lie side by side."""
    blocks = _blocks(tensors)
    return copied(tensors) if blocks is None else _joined(tensors, blocks, read=True)


def targets(tensors: Sequence[Tensor]) -> Memory:
    """One memory for the elements of all `tensors`, of one dtype."""
    blocks = _blocks(tensors)
    if blocks is None:
        return room(tensors, tensors[0].dtype, put_back=True)
    return _joined(tensors, blocks, read=False)


def own(tensor: Tensor) -> Memory:
    """The memory of a plain tensor."""
    return Memory(tensor.data_ptr(), tensor.numel(), tensor.dtype, tensor)


def copied(tensors: Sequence[Tensor]) -> Memory:
    """A copy of `tensors`, to be read."""
    return room(tensors, tensors[0].dtype, Tensor.copy_)


def room(tensors: Sequence[Tensor], dtype: torch.dtype, fill: Fill | None = None, put_back: bool = False) -> Memory:
    """Room for a copy of `tensors` as `dtype`.

    fill: what packs a tensor, where the operation reads them. put_back: whether it writes them.
    """
    given = [check(tensor) for tensor in tensors]
    sizes = [tensor.numel() for tensor in given]
    whole = torch.empty(sum(sizes), dtype=dtype)
    parts = [part.view(tensor.shape) for part, tensor in zip(torch.split_with_sizes(whole, sizes), given, strict=True)]

    # The stream's thread is never in inference mode, where alone tensors that were made in it can be
    # written. Other tensors can be written there as well, and are marked as written as ever.
    def pack() -> None:
        assert fill is not None
        with torch.inference_mode():
            for part, tensor in zip(parts, given, strict=True):
                fill(part, tensor)

    def finish() -> None:
        with torch.inference_mode():
            for part, tensor in zip(parts, given, strict=True):
                tensor.copy_(part)

    return Memory(whole.data_ptr(), len(whole), dtype, whole, fill and pack, finish if put_back else None)


def overlap(read: Memory, written: Memory) -> bool:
    """Whether they have memory in common."""
    return read.ptr < written.ptr + nbytes(written) and written.ptr < read.ptr + nbytes(read)


def nbytes(memory: Memory) -> int:
    return memory.count * memory.dtype.itemsize


def check_same_type(tensors: Sequence[Tensor]) -> torch.dtype:
    dtype = tensors[0].dtype
    for tensor in tensors:
        if tensor.dtype != dtype:
            raise ValueError(f"tensors of one dtype expected, got {dtype} and {tensor.dtype}")
    return dtype


Blocks = tuple[list[int], list[int]]
"""The addresses of several tensors, and their sizes in bytes."""


def _blocks(tensors: Sequence[Tensor]) -> Blocks | None:
    """Where the elements of `tensors` are; None unless all of them are plain."""
    if not all(map(is_plain, tensors)):
        return None
    return [tensor.data_ptr() for tensor in tensors], [tensor.nbytes for tensor in tensors]


def _joined(tensors: Sequence[Tensor], blocks: Blocks, read: bool) -> Memory:
    """The blocks as one memory, to be read or else written: themselves if they lie side by side, or room for a copy."""
    addresses, sizes = blocks
    dtype = tensors[0].dtype
    begin = end = 0
    for address, size in zip(addresses, sizes, strict=True):
        if size:
            if end and address != end:
                break
            begin, end = begin or address, address + size
    else:
        return Memory(begin or addresses[0], (end - begin) // dtype.itemsize, dtype, tensors)
    count = sum(sizes) // dtype.itemsize
    whole = torch.empty(count, dtype=dtype)
    parts = [*accumulate(sizes[:-1], initial=whole.data_ptr())]
    step = partial(copy_blocks, *((parts, addresses) if read else (addresses, parts)), sizes)
    return Memory(parts[0], count, dtype, (whole, tensors), step if read else None, None if read else step)
