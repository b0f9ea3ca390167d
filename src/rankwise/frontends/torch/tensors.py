"""Tensors as the memory that a communicator reads and writes, and their types and reductions as the engine's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import ReduceOp as TorchOp

from rankwise.arrays.base import check_own_memory
from rankwise.arrays.torch import copy_blocks, dtypes, expected_own_memory, wraps
from rankwise.contract.errors import UnsupportedError
from rankwise.contract.types import DType, ReduceOp

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
        and not wraps(tensor)
    )


def check(tensor: Tensor) -> Tensor:
    """`tensor` without its history; refused where it is not a dense one in host memory.

    The result of a functional collective is waited for.
    """
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
    if wraps(tensor):
        from torch.distributed._functional_collectives import AsyncCollectiveTensor  # few programs need it

        if isinstance(tensor, AsyncCollectiveTensor):
            return check(tensor.trigger_wait())  # type: ignore[no-untyped-call]
        raise TypeError(expected_own_memory(tensor))
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
    for tensor in given if put_back else []:
        check_own_memory("tensor", tuple(tensor.shape), tensor.stride(), 1, "contiguous")
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


# ---- torch's element types and reduction operations as the engine's ----

REDUCED: dict[torch.dtype, DType] = dtypes()
"""The types that the engine reduces."""

_OPS = {
    TorchOp.SUM: ReduceOp.SUM,
    TorchOp.PRODUCT: ReduceOp.PROD,
    TorchOp.MIN: ReduceOp.MIN,
    TorchOp.MAX: ReduceOp.MAX,
    TorchOp.AVG: ReduceOp.MEAN,
    TorchOp.BAND: ReduceOp.BAND,
    TorchOp.BOR: ReduceOp.BOR,
    TorchOp.BXOR: ReduceOp.BXOR,
}
OPS: dict[int, ReduceOp] = {int(theirs): ours for theirs, ours in _OPS.items()}  # type: ignore[call-overload]
"""By torch's number. PREMUL_SUM is not among them: it is made of a product and a sum."""

BY_HASH = {hash(TorchOp(theirs)): int(ours) for theirs, ours in _OPS.items()}
"""The engine's number of each operation by the hash of torch's object, of which nothing else is as quick to ask."""

_BY_SIZE = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64, 16: DType.C128}


def moved(dtype: torch.dtype) -> DType:
    """A DType of the same size, by which elements of `dtype` are moved without reduction."""
    known = REDUCED.get(dtype)
    return _BY_SIZE[dtype.itemsize] if known is None else known


class Reduction:
    """A reduction of elements of `given` by torch's `op`. Raises ValueError if it is meaningless.

    Types that the engine does not reduce are converted to float32 or complex64 and rounded at the end.

    ours, dtype  the engine's operation and element type
    work         torch's name for that element type
    factor       what PREMUL_SUM multiplies by before it adds
    in_place     whether the caller's own memory can be reduced as it is
    """

    def __init__(self, op: Any, given: torch.dtype) -> None:
        premul = op == TorchOp.PREMUL_SUM
        if not premul and int(op.op) not in OPS:
            raise UnsupportedError(f"reduction by {op.op}", "rankwise")
        self.ours = ReduceOp.SUM if premul else OPS[int(op.op)]
        self.given, self.work = given, _worked(given)
        self.dtype = REDUCED[self.work]
        self.factor: float | Tensor | None = op.__getstate__()[1] if premul else None
        if isinstance(self.factor, Tensor):
            self.factor = self.factor.reshape(())  # of one element, which then leaves the shape as it is
        self.in_place = self.factor is None and self.work is given
        why = self.ours.refused_for(self.dtype)
        if why is not None:
            raise ValueError(f"op={op.op}: {why}")

    def source(self, *tensors: Tensor) -> Memory:
        """Memory to read the elements of all `tensors` from."""
        if self.in_place:
            return sources(tensors)
        return room(tensors, self.work, self._fill)

    def target(self, tensor: Tensor) -> Memory:
        return target(tensor) if self.work is self.given else room((tensor,), self.work, put_back=True)

    def both(self, tensor: Tensor) -> Memory:
        """For an operation in place."""
        if self.in_place and is_plain(tensor):
            return target(tensor)
        return room((tensor,), self.work, self._fill, put_back=True)

    def _fill(self, part: Tensor, tensor: Tensor) -> None:
        part.copy_(tensor if self.factor is None else tensor.to(self.work).mul(self.factor))


def _worked(given: torch.dtype) -> torch.dtype:
    """The type in which the engine reduces elements of `given`."""
    if given in REDUCED:
        return given
    if given.is_complex:
        return torch.complex64
    if given.is_floating_point:
        return torch.float32
    raise UnsupportedError(f"reduction of {given}", "rankwise", "it is no type of numbers")


_known: dict[tuple[int, torch.dtype], Reduction] = {}


def reduction(op: Any, given: torch.dtype) -> Reduction:
    """The Reduction of elements of `given` by torch's `op`; reductions without a factor are cached."""
    number = op.op.value
    known = _known.get((number, given))
    if known is None:
        known = Reduction(op, given)
        if known.factor is None:
            _known[number, given] = known
    return known
