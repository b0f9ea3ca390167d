"""Datatypes: which bytes of a buffer an element consists of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from functools import reduce
from itertools import groupby
from math import gcd
from typing import Any

import numpy as np

from rankwise.arrays import dtypes
from rankwise.frontends.mpi4py.buffers import Bytes, bytes_of
from rankwise.frontends.mpi4py.errors import absent, check_length, error
from rankwise.frontends.mpi4py.handles import Named

ORDER_C = 56
ORDER_F = ORDER_FORTRAN = 57
TYPECLASS_REAL, TYPECLASS_INTEGER, TYPECLASS_COMPLEX, TYPECLASS_LOGICAL = range(1, 5)
_TYPECLASSES = dict(enumerate(("REAL", "INTEGER", "COMPLEX", "LOGICAL"), 1))
DISTRIBUTE_NONE, DISTRIBUTE_BLOCK, DISTRIBUTE_CYCLIC, DISTRIBUTE_DFLT_DARG = 0, 1, 2, -1


_LARGEST_PIECE = 2**31 - 1  # bytes: NumPy has no larger elements


class Layout:
    """An element's bytes: pieces of `width` bytes at `offsets` from its address; the next element is `extent` on.

    basic: the NumPy dtype of the basic elements if they all have one, else None; dtype: rankwise's, likewise. elements:
    how many basic ones it has. parts: the layouts that it is made of, in order, each with how many of them; a basic one
    has none. element: the NumPy dtype whose elements are the same, if there is one. first, end: the
    offsets of the first byte in memory, and behind the last one. aligned: the alignment of the basic elements in C.
    char, code, ops: of a predefined one, mpi4py's typechar and code, and the names of the operations that MPI defines
    for it.
    """

    char, code = "V", ""
    ops: frozenset[str] = frozenset()

    def __init__(
        self,
        offsets: Any,
        width: int,
        lb: int,
        extent: int,
        basic: np.dtype[Any] | None,
        elements: int,
        name: str = "",
        aligned: int = 1,
        parts: Sequence[tuple[Layout, int]] = (),
    ) -> None:
        self.offsets = np.asarray(offsets, np.int64).reshape(-1)
        self.width, self.lb, self.extent, self.basic, self.elements = width, lb, extent, basic, elements
        self.name, self.aligned, self.parts = name, aligned, parts
        self._merge()
        self.size = self.width * self.offsets.size
        self.first = int(self.offsets.min()) if self.offsets.size else 0
        self.end = int(self.offsets.max()) + self.width if self.offsets.size else 0
        self.dtype = None if basic is None or basic.names else dtypes.from_numpy(basic)
        self.contiguous = self.size == self.extent and self.lb == 0 and self.offsets.size <= 1 and self.first == 0
        self.element = basic if elements == 1 and self.contiguous else None

    def _merge(self) -> None:
        """Make one piece of pieces that follow each other in equally long rows."""
        at, width = self.offsets, self.width
        if at.size < 2 or not width:
            self.offsets = at if width else at[:0]
            return
        breaks = np.flatnonzero(np.diff(at) != width) + 1
        starts = np.concatenate(([0], breaks))
        lengths = np.diff(np.concatenate((starts, [at.size])))
        step = int(np.gcd.reduce(lengths))
        if step > 1:
            self.offsets, self.width = at[::step].copy(), width * step

    def all_offsets(self, count: int, start: int) -> Any:
        """Where the pieces of `count` elements lie in memory in which the first element is at `start`."""
        return (start + np.arange(count, dtype=np.int64)[:, None] * self.extent + self.offsets).reshape(-1)

    def whole_elements(self, nbytes: int) -> tuple[int, int]:
        """How many basic elements begin so many bytes, and how many bytes are left: of one that they end within."""
        whole, rest = divmod(nbytes, max(1, self.size))
        if not self.parts:
            return whole, rest
        found = whole * self.elements
        for part, count in self.parts:
            share = min(rest, count * part.size)
            more, left = part.whole_elements(share)
            found, rest = found + more, rest - share + left
            if left:
                break
        return found, rest

    def bytes_of(self, elements: int) -> int:
        """The bytes of so many basic elements."""
        whole, rest = divmod(elements, max(1, self.elements))
        nbytes = whole * self.size
        for part, count in self.parts:
            share = min(rest, count * part.elements)
            nbytes, rest = nbytes + part.bytes_of(share), rest - share
        return nbytes

    def pieces(self, memory: Bytes) -> Any:
        """The memory as an array whose item i is the piece at byte i."""
        if self.width > _LARGEST_PIECE:
            raise error("ERR_TYPE", f"pieces of {self.width} bytes cannot be packed: the limit is {_LARGEST_PIECE}")
        shape = (max(0, memory.size - self.width + 1),)
        return np.ndarray(shape, f"V{self.width}", memory, strides=(1,))


class Datatype(Named[Layout], root=True):
    """An MPI datatype."""

    _null = "ERR_TYPE"
    _by_value = True
    (
        Create_darray, Create_f90_integer, Create_f90_real, Create_f90_complex, Get_envelope, Get_contents,
        decode, Get_attr, Set_attr, Create_keyval, Pack_external, Unpack_external,
    ) = absent(12)  # fmt: skip

    # ---- what it is ----

    def Get_size(self) -> int:
        return self._live().size

    def Get_extent(self) -> tuple[int, int]:
        layout = self._live()
        return layout.lb, layout.extent

    def Get_true_extent(self) -> tuple[int, int]:
        layout = self._live()
        return layout.first, layout.end - layout.first

    size = property(Get_size)
    extent = property(lambda self: self.Get_extent()[1])
    lb = property(lambda self: self.Get_extent()[0])
    ub = property(lambda self: sum(self.Get_extent()))
    true_extent = property(lambda self: self.Get_true_extent()[1])
    true_lb = property(lambda self: self.Get_true_extent()[0])
    true_ub = property(lambda self: sum(self.Get_true_extent()))
    is_named = property(lambda self: self.is_predefined)

    def Commit(self) -> Datatype:
        self._live()
        return self

    def Free(self) -> None:
        self._freed()

    def Dup(self) -> Datatype:
        layout = copy(self._live())
        layout.name, layout.ops = "", frozenset()
        return type(self)._of(layout)

    Create_dup = Clone = Dup

    def Pack_size(self, count: int, comm: Any) -> int:
        return _counted(count) * self.Get_size()

    @property
    def typechar(self) -> str:
        return self._live().char

    @property
    def typestr(self) -> str:
        layout = self._live()
        if layout.char == "V" or layout.basic is None:
            return f"V{layout.extent}"
        return "U1" if layout.char == "U" else layout.basic.str[1:]

    def tocode(self) -> str:
        code = self._live().code
        if not code:
            raise ValueError("cannot map to character code or type string")
        return code

    @classmethod
    def fromcode(cls, code: str) -> Datatype:
        if code not in TYPES:
            raise ValueError(f"cannot map code {code!r} to MPI datatype")
        return TYPES[code]

    @classmethod
    def Match_size(cls, typeclass: int, size: int) -> Datatype:
        """The datatype of this many bytes; typeclass: TYPECLASS_REAL, _INTEGER, _COMPLEX or _LOGICAL."""
        found = PREDEFINED.get(f"{_TYPECLASSES.get(typeclass)}{size}")
        if not found:
            raise error("ERR_ARG", f"typeclass={typeclass}, size={size}: there is no such datatype")
        return found

    # ---- those made of it ----

    def _made(self, blocks: Sequence[tuple[int, int]]) -> Datatype:
        """Blocks of elements one after the other, (how many, byte offset of the first)."""
        return _joined([(self, count, at) for count, at in blocks])

    def Create_contiguous(self, count: int) -> Datatype:
        return self._made([(count, 0)])

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Datatype:
        return self.Create_hvector(count, blocklength, stride * self.extent)

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Datatype:
        return self._made([(blocklength, i * stride) for i in range(_counted(count))])

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        return self.Create_hindexed(blocklengths, [at * self.extent for at in displacements])

    def Create_hindexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        return self._made(_in_parallel(blocklengths, displacements))

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        return self.Create_indexed([blocklength] * len(displacements), displacements)

    def Create_hindexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        return self.Create_hindexed([blocklength] * len(displacements), displacements)

    def Create_subarray(
        self, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: int = ORDER_C
    ) -> Datatype:
        axes = _in_parallel(sizes, subsizes, starts)
        for axis, (size, part, start) in enumerate(axes):
            if not (0 <= part <= size and 0 <= start <= size - part):
                raise error("ERR_ARG", f"axis {axis}: {part} elements from {start} on are not within {size}")
        if order not in (ORDER_C, ORDER_FORTRAN):
            raise error("ERR_ARG", f"order={order}: expected ORDER_C or ORDER_FORTRAN")
        made, stride = self, self.extent
        for size, part, start in reversed(axes) if order == ORDER_C else axes:
            made = made.Create_resized(0, stride)._made([(part, start * stride)])
            stride *= size
        return made.Create_resized(0, stride)

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        live = self._live()
        return Datatype._of(
            Layout(live.offsets, live.width, lb, extent, live.basic, live.elements, "", live.aligned, live.parts)
        )

    @classmethod
    def Create_struct(
        cls, blocklengths: Sequence[int], displacements: Sequence[int], datatypes: Sequence[Datatype]
    ) -> Datatype:
        made = _joined(_in_parallel(datatypes, blocklengths, displacements))
        layout = made._live()
        return made.Create_resized(
            layout.lb, layout.extent + -layout.extent % layout.aligned
        )  # as a C compiler pads it

    def Pack(self, inbuf: Any, outbuf: Any, position: int, comm: Any) -> int:
        """Copy the elements in `inbuf` to byte `position` of `outbuf`; returns the byte behind them."""
        layout, memory = self._live(), bytes_of(inbuf, False)
        data = layout.pieces(memory)[layout.all_offsets(memory.size // layout.extent, 0)].view(np.uint8)
        bytes_of(outbuf, True)[position : position + data.size] = data
        return int(position + data.size)

    def Unpack(self, inbuf: Any, position: int, outbuf: Any, comm: Any) -> int:
        """The reverse."""
        layout, memory = self._live(), bytes_of(outbuf, True)
        count = memory.size // layout.extent
        data = bytes_of(inbuf, False)[position : position + count * layout.size]
        layout.pieces(memory)[layout.all_offsets(count, 0)] = data.view(f"V{layout.width}")
        return int(position + count * layout.size)


def _counted(count: int) -> int:
    """The number of elements. Raises ERR_COUNT if it is negative."""
    if count < 0:
        raise error("ERR_COUNT", f"{count} elements given, expected a number of at least 0")
    return count


def _in_parallel(first: Sequence[Any], *others: Sequence[Any]) -> list[Any]:
    """zip() as a list, of sequences of one length."""
    for each in others:
        check_length(each, len(first))
    return list(zip(first, *others, strict=True))


def _joined(parts: Sequence[tuple[Datatype, int, int]]) -> Datatype:
    """(datatype, how many of them, the byte offset of the first), one after the other."""
    layouts = [(part._live(), _counted(count), at) for part, count, at in parts]
    full = [each for each in layouts if each[1] and each[0].size]
    runs = [  # their width, and where each of them begins
        (piece.size * count, np.array([at])) if piece.contiguous else (piece.width, piece.all_offsets(count, at))
        for piece, count, at in full
    ]
    width = reduce(gcd, (each for each, _ in runs), 0)
    pieces = [(starts[:, None] + np.arange(0, each, width)).reshape(-1) for each, starts in runs]
    offsets = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    occupied = [each for each in layouts if each[1]]
    ends = [(piece.lb + at + i * piece.extent) for piece, count, at in occupied for i in (0, count - 1)]
    uppers = [
        (piece.lb + piece.extent + at + i * piece.extent) for piece, count, at in occupied for i in (0, count - 1)
    ]
    lb, ub = min(ends, default=0), max(uppers, default=0)
    basics = {piece.basic for piece, _, _ in full}
    basic = basics.pop() if len(basics) == 1 else None
    elements = sum(piece.elements * count for piece, count, _ in layouts)
    aligned = max((piece.aligned for piece, _, _ in full), default=1)
    kinds = [(piece, sum(count for _, count, _ in run)) for piece, run in groupby(full, lambda each: each[0])]
    return Datatype._of(Layout(offsets, width, lb, ub - lb, basic, elements, "", aligned, kinds))


# ---- the predefined ones ----

_PREDEFINED = {
    "CHAR": "S1", "WCHAR": "i4", "SIGNED_CHAR": "i1", "UNSIGNED_CHAR": "u1", "SHORT": "h", "UNSIGNED_SHORT": "H",
    "INT": "i", "UNSIGNED": "I", "LONG": "l", "UNSIGNED_LONG": "L", "LONG_LONG": "q", "UNSIGNED_LONG_LONG": "Q",
    "FLOAT": "f", "DOUBLE": "d", "LONG_DOUBLE": "g", "C_BOOL": "?", "CXX_BOOL": "?",
    "INT8_T": "i1", "INT16_T": "i2", "INT32_T": "i4", "INT64_T": "i8",
    "UINT8_T": "u1", "UINT16_T": "u2", "UINT32_T": "u4", "UINT64_T": "u8", "FLOAT16_T": "f2",
    "C_COMPLEX": "F", "C_FLOAT_COMPLEX": "F", "C_DOUBLE_COMPLEX": "D", "C_LONG_DOUBLE_COMPLEX": "G",
    "CXX_FLOAT_COMPLEX": "F", "CXX_DOUBLE_COMPLEX": "D", "CXX_LONG_DOUBLE_COMPLEX": "G",
    "CHARACTER": "S1", "LOGICAL": "i4", "INTEGER": "i4", "REAL": "f4", "DOUBLE_PRECISION": "f8", "COMPLEX": "F",
    "DOUBLE_COMPLEX": "D", "LOGICAL1": "i1", "LOGICAL2": "i2", "LOGICAL4": "i4", "LOGICAL8": "i8",
    "INTEGER1": "i1", "INTEGER2": "i2", "INTEGER4": "i4", "INTEGER8": "i8", "REAL2": "f2", "REAL4": "f4",
    "REAL8": "f8", "COMPLEX8": "F", "COMPLEX16": "D", "BYTE": "u1", "PACKED": "u1",
    "AINT": "i8", "OFFSET": "i8", "COUNT": "i8",
}  # fmt: skip
_PAIRS = {
    "SHORT_INT": "h", "INT_INT": "i", "LONG_INT": "l", "FLOAT_INT": "f", "DOUBLE_INT": "d", "LONG_DOUBLE_INT": "g",
}  # fmt: skip
_ALIASES = {
    "FLOAT32_T": "FLOAT", "FLOAT64_T": "DOUBLE",
    "BOOL": "C_BOOL", "SINT8_T": "INT8_T", "SINT16_T": "INT16_T", "SINT32_T": "INT32_T", "SINT64_T": "INT64_T",
    "SIGNED_SHORT": "SHORT", "SIGNED_INT": "INT", "SIGNED_LONG": "LONG", "SIGNED_LONG_LONG": "LONG_LONG",
    "UNSIGNED_INT": "UNSIGNED", "TWOINT": "INT_INT", "DOUBLE_COMPLEX_C": "C_DOUBLE_COMPLEX",
    "F_BOOL": "LOGICAL", "F_INT": "INTEGER", "F_FLOAT": "REAL", "F_DOUBLE": "DOUBLE_PRECISION",
    "F_COMPLEX": "COMPLEX", "F_FLOAT_COMPLEX": "COMPLEX", "F_DOUBLE_COMPLEX": "DOUBLE_COMPLEX",
}  # fmt: skip
_UNKNOWN = ("INTEGER16", "LOGICAL16", "REAL16", "COMPLEX4", "COMPLEX32", "BFLOAT16_T")


_CHARS = {"CHAR": "c", "CHARACTER": "c", "WCHAR": "U", "AINT": "p", "COUNT": "p", "OFFSET": "p"}
_SIZED = re.compile(r"U?INT\d+_T|(INTEGER|LOGICAL|REAL|COMPLEX)\d+|C_BOOL")  # whose code is NumPy's with the size

_DOMAINS = {"BYTE": "byte", "PACKED": "", "WCHAR": "", "CHARACTER": ""} | {
    f"LOGICAL{size}": "b" for size in ("", 1, 2, 4, 8)
}  # the others: the NumPy dtype's kind; CHAR counts as an integer, as MPICH and Open MPI have it
_INTEGER = frozenset(["MAX", "MIN", "SUM", "PROD", "LAND", "BAND", "LOR", "BOR", "LXOR", "BXOR"])
_OPS = dict.fromkeys("iuS", _INTEGER) | {
    "f": frozenset({"MAX", "MIN", "SUM", "PROD"}),
    "c": frozenset({"SUM", "PROD"}),
    "b": frozenset({"LAND", "LOR", "LXOR"}),
    "byte": frozenset({"BAND", "BOR", "BXOR"}),
    "pair": frozenset({"MAXLOC", "MINLOC"}),
}


def _predefined() -> dict[str, Datatype]:
    datatypes = {}
    for name, code in _PREDEFINED.items():
        dtype = np.dtype(code)
        layout = Layout([0], dtype.itemsize, 0, dtype.itemsize, dtype, 1, f"MPI_{name}", dtype.alignment)
        layout.char = _CHARS.get(name, dtype.char)
        layout.code = dtype.str[1:] if _SIZED.fullmatch(name) else layout.char
        layout.ops = _OPS.get(_DOMAINS.get(name, dtype.kind), frozenset())
        datatypes[name] = Datatype._of(layout)._named(name)
    for name, code in _PAIRS.items():
        fields = [("value", code), ("index", "i4")]
        padded: Any = np.dtype(fields, align=True)
        place = padded.fields["index"][1]
        offsets = [*range(padded["value"].itemsize), *range(place, place + 4)]
        parts = [(Layout([0], size, 0, size, None, 1), 1) for size in (padded["value"].itemsize, 4)]
        layout = Layout(offsets, 1, 0, padded.itemsize, np.dtype(fields), 2, f"MPI_{name}", padded.alignment, parts)
        layout.ops = _OPS["pair"]
        datatypes[name] = Datatype._of(layout)._named(name)
    datatypes |= {alias: datatypes[name] for alias, name in _ALIASES.items()}
    null = Datatype()._named("DATATYPE_NULL")
    return datatypes | dict.fromkeys(_UNKNOWN, null) | {"DATATYPE_NULL": null}


PREDEFINED = _predefined()
"""The predefined datatypes by name, without MPI."""

BYTE = PREDEFINED["BYTE"]

_CODES = {
    "?": "C_BOOL", "b": "SIGNED_CHAR", "h": "SHORT", "i": "INT", "l": "LONG", "q": "LONG_LONG", "B": "UNSIGNED_CHAR",
    "H": "UNSIGNED_SHORT", "I": "UNSIGNED", "L": "UNSIGNED_LONG", "Q": "UNSIGNED_LONG_LONG", "f": "FLOAT",
    "d": "DOUBLE", "g": "LONG_DOUBLE", "Zf": "C_FLOAT_COMPLEX", "Zd": "C_DOUBLE_COMPLEX",
    "Zg": "C_LONG_DOUBLE_COMPLEX", "F": "C_FLOAT_COMPLEX", "D": "C_DOUBLE_COMPLEX", "G": "C_LONG_DOUBLE_COMPLEX",
    "b1": "C_BOOL", "i1": "INT8_T", "i2": "INT16_T", "i4": "INT32_T", "i8": "INT64_T", "u1": "UINT8_T",
    "u2": "UINT16_T", "u4": "UINT32_T", "u8": "UINT64_T", "f4": "FLOAT", "f8": "DOUBLE", "f16": "LONG_DOUBLE",
    "c8": "C_FLOAT_COMPLEX", "c16": "C_DOUBLE_COMPLEX", "c32": "C_LONG_DOUBLE_COMPLEX", "n": "AINT", "p": "AINT",
    "c": "CHAR", "S": "CHAR", "S1": "CHAR", "s": "CHAR", "w": "WCHAR", "e": "FLOAT16_T", "f2": "FLOAT16_T",
}  # fmt: skip
TYPES: dict[str, Datatype] = {code: PREDEFINED[name] for code, name in _CODES.items()}
"""mpi4py's `_typedict`: the datatypes by the codes of the buffer protocol and of NumPy."""


def as_datatype(given: Any) -> Datatype:
    """A datatype, or the one that has this code."""
    if isinstance(given, Datatype):
        return given
    try:
        return TYPES[given]
    except (KeyError, TypeError):
        raise KeyError(f"cannot map {given!r} to an MPI datatype") from None
