"""Buffer specifications: `buf`, `[buf, datatype]`, `[buf, count, datatype]`, `[buf, counts, displs, datatype]`, ..."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from rankwise.arrays import dtypes
from rankwise.arrays.numpy import address as address
from rankwise.contract.operations import divided
from rankwise.contract.types import DType
from rankwise.frontends.mpi4py.buffers import Bytes, bytes_of, parsed
from rankwise.frontends.mpi4py.datatypes import BYTE, TYPES, Datatype, Layout, as_datatype
from rankwise.frontends.mpi4py.handles import Handle

ndarray = np.ndarray


class Constant:
    """IN_PLACE or BOTTOM."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    __reduce__ = __repr__


IN_PLACE, BOTTOM, BUFFER_AUTOMATIC = Constant("IN_PLACE"), Constant("BOTTOM"), Constant("BUFFER_AUTOMATIC")


def in_place(buf: Any) -> bool:
    """Whether an argument of a collective says that the data is in the other buffer already."""
    return buf is None or buf is IN_PLACE


def kept(given: Any) -> Any:
    """An argument of a call that goes on after it returns, with copies of its handles: the program may free its own."""
    if isinstance(given, Handle):
        return given._root(given)
    return type(given)(map(kept, given)) if type(given) in (list, tuple) else given


class Blocks:
    """Blocks of elements in a buffer, to send from or to receive into.

    memory: the buffer's bytes. layouts, counts, starts: for each block, the layout of its datatype, its number of
    elements, and the offset of its first element in bytes. sizes: the bytes of each block. whole: the bytes of all
    blocks as they are in the buffer, if they follow each other there, else None.
    """

    __slots__ = ("counts", "layouts", "memory", "nbytes", "sizes", "starts", "whole")

    def __init__(self, memory: Bytes, layouts: Sequence[Layout], counts: Sequence[int], starts: Sequence[int]) -> None:
        self.memory, self.layouts, self.counts, self.starts = memory, layouts, counts, starts
        self.sizes = [count * layout.size for layout, count in zip(layouts, counts, strict=True)]
        first = end = starts[0] if starts else 0
        follow = True
        for layout, count, start, size in zip(layouts, counts, starts, self.sizes, strict=True):
            if not size:
                continue
            last = (count - 1) * layout.extent
            if start + layout.first + min(0, last) < 0 or start + layout.end + max(0, last) > memory.size:
                what = f"{count} x {layout.name or 'a derived type'} from byte {start} on"
                raise ValueError(f"message: {what} do not fit into the buffer of {memory.size} bytes")
            follow = follow and start == end and layout.contiguous
            end += size
        self.nbytes = sum(self.sizes)
        self.whole = memory[first:end] if follow else None

    @property
    def layout(self) -> Layout:
        return self.layouts[0] if self.layouts else _BYTE

    @property
    def dtype(self) -> DType:
        """rankwise's dtype of all the elements; U8 if they have none, or several."""
        kinds = {layout.dtype for layout in self.layouts}
        kind = kinds.pop() if len(kinds) == 1 else None
        return DType.U8 if kind is None else kind

    def packed(self) -> Bytes:
        """The blocks' data, one after the other: the buffer's own memory where it lies like that."""
        if self.whole is not None:
            return self.whole
        memory = self.memory
        parts = [
            layout.pieces(memory)[layout.all_offsets(count, start)].view(np.uint8)
            for layout, count, start in zip(self.layouts, self.counts, self.starts, strict=True)
            if count and layout.size
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint8)

    def room(self) -> Bytes:
        """Memory for the data: the buffer's own where the blocks follow each other; else `unpack` must follow."""
        return np.empty(self.nbytes, np.uint8) if self.whole is None else self.whole

    def unpack(self, data: Bytes) -> None:
        """Put received data in the buffer, unless that is where it was received. data: all of it, or the beginning."""
        if self.whole is not None:
            if address(self.whole) != address(data):
                self.whole[: data.size] = data
            return
        at = 0
        for layout, count, start, size in zip(self.layouts, self.counts, self.starts, self.sizes, strict=True):
            part = data[at : at + size]
            at += size
            if part.size:
                places = layout.all_offsets(count, start)
                full, rest = divmod(part.size, layout.width)  # the last piece may have come in part
                layout.pieces(self.memory)[places[:full]] = part[: part.size - rest].view(f"V{layout.width}")
                if rest:
                    self.memory[places[full] : places[full] + rest] = part[-rest:]

    def elements(self, data: Bytes) -> Any:
        """Data as an array of the elements."""
        return data if self.dtype is DType.U8 else data.view(dtypes.to_numpy(self.dtype))

    def block(self, index: int) -> Blocks:
        """One of the blocks."""
        return Blocks(
            self.memory, self.layouts[index : index + 1], self.counts[index : index + 1], [self.starts[index]]
        )


class Row(Blocks):
    """Equal blocks that are all of a plain NumPy array: as Blocks, in a fraction of its time."""

    __slots__ = ()

    def __init__(self, x: Any, layout: Layout, blocks: int) -> None:
        size = x.nbytes // blocks
        self.layouts, self.counts, self.sizes = [layout] * blocks, [x.size // blocks] * blocks, [size] * blocks
        self.starts, self.nbytes = [i * size for i in range(blocks)], x.nbytes
        self.memory = self.whole = x.reshape(-1).view(np.uint8)


_BYTE = BYTE._live()

NO_BLOCKS = Blocks(np.zeros(0, np.uint8), [], [], [])
"""Of a rank that has no part in a transfer."""


def scratch(like: Blocks) -> Blocks:
    """Memory of its own for as much data."""
    return Blocks(np.empty(like.nbytes, np.uint8), [_BYTE], [like.nbytes], [0])


def _layout(kind: Datatype, count: int) -> Layout:
    """That of a block's datatype, which may be null if there are no elements."""
    return kind._live() if count else kind._h or _BYTE


def _row(spec: Any, x: Any, writes: bool, blocks: int) -> Row | None:
    """The Row of a specification whose array is x; None if it is not one that can be exchanged as it is."""
    flags = x.flags
    if x.size % blocks or not flags.c_contiguous or (writes and not flags.writeable) or not x.dtype.isnative:
        return None
    kind = TYPES.get(x.dtype.char) if type(spec) is ndarray or not isinstance(spec[-1], Datatype) else spec[-1]
    return None if kind is None else Row(x, kind._live(), blocks)


def plain(spec: Any) -> Any:
    """The array of `every`, flat; or its first `count` elements, if a count is given."""
    if type(spec) is ndarray:
        return spec if spec.ndim == 1 else _flat(spec)
    counted = type(spec) in (list, tuple) and len(spec) == 3
    x = every((spec[0], spec[2]) if counted else spec)
    if x is not None and x.ndim != 1:
        x = _flat(x)
    if not counted or x is None or (count := spec[1]) == x.size:
        return x
    return x[:count] if type(count) is int and 0 <= count < x.size else None


def every(spec: Any) -> Any:
    """The NumPy array, of any shape, if no datatype is given, or its own. None for any other specification.

    For a buffer with one block for each rank, where a count would be the length of one block.
    """
    kind = type(spec)
    if kind is ndarray:
        return spec
    if (kind is not list and kind is not tuple) or len(spec) != 2:
        return None
    x, datatype = spec
    if type(x) is not ndarray or not isinstance(datatype, Datatype):
        return None
    element = datatype._h and datatype._h.element
    return x if element is x.dtype or (element is not None and element == x.dtype) else None


NOT_PLAIN = None, None, None


def divided_array(spec: Any) -> tuple[Any, Any, Any]:
    """The array of `[array, counts, displacements, datatype]`, the counts and the displacements, which may be None.

    NOT_PLAIN if the datatype is not the NumPy array's own, or for any other specification but those that leave out
    displacements or datatype.
    """
    if type(spec) not in (list, tuple) or len(spec) < 2:
        return NOT_PLAIN
    if len(spec) == 2 and type(spec[1]) is list and type(spec[0]) is ndarray and spec[0].ndim == 1:
        return spec[0], spec[1], None
    buf, counts, displs, datatype = spec if len(spec) == 4 else _parts(spec)
    x = plain(buf if datatype is None else (buf, datatype))
    return NOT_PLAIN if x is None or type(counts) not in (list, tuple, ndarray) else (x, counts, displs)


def _flat(x: Any) -> Any:
    return x.reshape(-1) if x.flags.c_contiguous else None


def simple(spec: Any, writes: bool, blocks: int = 0) -> Blocks:
    """One block, or `blocks` equal ones that follow each other.

    writes: whether it receives, so that it must be writable. A count that is given is that of each block.
    """
    shared = max(1, blocks)
    x = every(spec) if blocks else plain(spec)
    if x is not None and (row := _row(spec, x, writes, shared)):
        return row
    buf, counts, displ, datatype = _parts(spec)
    memory, kind, origin = _memory(buf, datatype, writes, counts)
    start = 0
    if displ is not None and (at := operator.index(displ)):
        if at < 0:
            raise ValueError(f"message: negative displacement {at}")
        start = at * _extent(kind, "handle displacement")
        if start > memory.size:
            raise ValueError(f"message: displacement {at} out of bounds, the buffer has {memory.size} bytes")
    if counts is not None:
        count = operator.index(counts)
        if count < 0:
            raise ValueError(f"message: negative count {count}")
        if count and buf is None:
            raise ValueError(f"message: buffer is None but count is {count}")
    elif (length := memory.size - start) > 0:
        entries = _entries(kind, length)
        if entries % shared:
            raise ValueError(
                f"message: cannot infer count, number of entries {entries} is not a multiple of required number of "
                f"blocks {shared}"
            )
        count = entries // shared
    else:
        count = 0
    layout = _layout(kind, count)
    starts = [origin + start + i * count * layout.extent for i in range(shared)]
    return Blocks(memory, [layout] * shared, [count] * shared, starts)


def vector(spec: Any, writes: bool, blocks: int) -> Blocks:
    """Blocks with a count and displacement each, which are in elements."""
    buf, counts, displs, datatype = _parts(spec)
    memory, kind, origin = _memory(buf, datatype, writes, counts)
    if counts is None:
        counts = divided(_entries(kind, memory.size) if memory.size else 0, blocks)
    counts = _ints(counts, blocks, "counts")
    if min(counts, default=0) < 0:
        raise ValueError(f"message: counts {counts}: expected 0 or more")
    if displs is None:
        displs = [0, *accumulate(counts)][:blocks]
    elif not hasattr(displs, "__len__"):
        displs = [operator.index(displs) * i for i in range(blocks)]
    displs = _ints(displs, blocks, "displacements")
    layout = _layout(kind, sum(counts))
    return Blocks(memory, [layout] * blocks, counts, [origin + at * layout.extent for at in displs])


def per_rank(spec: Any, writes: bool, blocks: int) -> Blocks:
    """Blocks with a count, displacement in bytes and datatype each: those of Alltoallw."""
    size = len(spec)
    if size not in (2, 3, 4):
        raise ValueError("message: expecting 2 to 4 items")
    buf, types = spec[0], spec[-1]
    counts, displs = spec[1] if size == 3 else spec[1:3] if size == 4 else ([1] * blocks, [0] * blocks)
    types = [as_datatype(each) for each in types]
    if len(types) != blocks:
        raise ValueError(f"message: expected {blocks} datatypes, got {len(types)}")
    counts, displs = _ints(counts, blocks, "counts"), _ints(displs, blocks, "displacements")
    layouts = [_layout(*each) for each in zip(types, counts, strict=True)]
    if buf is BOTTOM:
        memory, base = _absolute(list(zip(layouts, counts, displs, strict=True)))
        return Blocks(memory, layouts, counts, [at - base for at in displs])
    return Blocks(bytes_of(bytearray() if buf is None else buf, writes), layouts, counts, displs)


def _parts(spec: Any) -> tuple[Any, Any, Any, Any]:
    """Buffer, count or counts, displacement or displacements, and datatype, of which all but the first may be None."""
    if spec is None:
        raise TypeError("message: expecting buffer or list/tuple")
    if not isinstance(spec, (list, tuple)):
        return spec, None, None, None
    if len(spec) == 4:
        return tuple(spec)
    if len(spec) not in (2, 3):
        raise ValueError("message: expecting 2 to 4 items")
    buf, counts, datatype = spec if len(spec) == 3 else (*spec, None)
    if datatype is None and isinstance(counts, (Datatype, str)):
        return buf, None, None, counts
    if isinstance(counts, tuple) and len(counts) == 2:
        return buf, *counts, datatype
    return buf, counts, None, datatype


def _memory(buf: Any, datatype: Any, writes: bool, counts: Any) -> tuple[Bytes, Datatype, int]:
    """The buffer's bytes, the datatype, which is the buffer's own if none is given, and the address 0 in these bytes.

    That is the origin of displacements, and only for BOTTOM not the first byte.
    """
    if buf is BOTTOM:
        kind = as_datatype(datatype)
        number = 0 if counts is None else max(counts) if hasattr(counts, "__len__") else operator.index(counts)
        memory, base = _absolute([(kind._live(), number, 0)])
        return memory, kind, -base
    if buf is None:
        return np.zeros(0, np.uint8), BYTE if datatype is None else as_datatype(datatype), 0
    memory, code = parsed(buf, writes)
    return memory, as_datatype(code if datatype is None else datatype), 0


def _absolute(blocks: list[tuple[Layout, int, int]]) -> tuple[Bytes, int]:
    """The memory at absolute addresses that these blocks use, and the address of its first byte."""
    spans = [
        (start + layout.first, start + layout.end + (count - 1) * layout.extent)
        for layout, count, start in blocks
        if count and layout.size
    ]
    if not spans:
        return np.zeros(0, np.uint8), 0
    low, high = min(span[0] for span in spans), max(span[1] for span in spans)
    return np.ctypeslib.as_array((ctypes.c_ubyte * (high - low)).from_address(low)), low


def _extent(kind: Datatype, what: str) -> int:
    if kind._h is None:
        raise ValueError(f"message: cannot {what}, datatype is null")
    if kind._h.extent <= 0:
        raise ValueError(f"message: cannot {what}, datatype extent {kind._h.extent}")
    return kind._h.extent


def _entries(kind: Datatype, length: int) -> int:
    """How many elements fill `length` bytes."""
    extent = _extent(kind, "infer count")
    if length % extent:
        raise ValueError(
            f"message: cannot infer count, buffer length {length} is not a multiple of datatype extent {extent}"
        )
    return length // extent


def _ints(values: Any, blocks: int, what: str) -> list[int]:
    if type(values) is ndarray and values.dtype.kind in "iu":
        numbers: list[int] = values.tolist()
    else:
        each = values if hasattr(values, "__len__") else [values] * blocks
        numbers = [operator.index(value) for value in each]
    if len(numbers) != blocks:
        raise ValueError(f"message: expecting {blocks} {what}, got {len(numbers)}")
    return numbers


def check_equal(operand: Blocks, into: Blocks) -> None:
    """Raise ValueError unless what is reduced and the result have as much of the same kind."""
    if operand.layout.dtype != into.layout.dtype:
        raise ValueError("mismatch in send and receive MPI datatypes")
    if operand.nbytes != into.nbytes:
        raise ValueError(f"mismatch in send count {operand.counts[0]} and receive count {into.counts[0]}")
