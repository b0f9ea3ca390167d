"""Reduction operations: on objects, on arrays by the engine, and by folding the ranks' arrays here."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce as combine
from typing import Any

import numpy as np

from rankwise.contract.types import DType, ReduceOp
from rankwise.frontends.mpi4py.buffers import Bytes, buffer
from rankwise.frontends.mpi4py.datatypes import Datatype, Layout
from rankwise.frontends.mpi4py.errors import error
from rankwise.frontends.mpi4py.handles import Handle, name_of
from rankwise.frontends.mpi4py.specs import Blocks, check_equal, simple
from rankwise.group.base import of_kind


class Operation:
    """A reduction.

    of_two: of two objects. reduce: the engine's operation. fold: of two arrays, as a NumPy function. user: the
    program's function (in, inout, datatype).
    """

    def __init__(
        self,
        of_two: Callable[[Any, Any], Any],
        reduce: ReduceOp | None = None,
        fold: Callable[[Any, Any], Any] | None = None,
        user: Callable[[Any, Any, Any], Any] | None = None,
        commute: bool = True,
    ) -> None:
        self.of_two, self.reduce, self.fold, self.user = of_two, reduce, fold, user
        self.commute = commute
        self.name = {ReduceOp.PROD: "product"}.get(reduce, reduce.name.lower()) if reduce is not None else None

    def engine_op(self, dtype: DType | None) -> ReduceOp | None:
        """The engine's operation, if it has this one for these elements."""
        if self.reduce is None or dtype is None or self.reduce.refused_for(dtype):
            return None
        return self.reduce

    def folded(self, parts: Sequence[Bytes], layout: Layout) -> Bytes:
        """The reduction of the ranks' packed arrays, in the order of the ranks; new memory."""
        if self.user is not None:
            total = _spread(parts[0], layout)
            for part in parts[1:]:
                last, total = total, _spread(part, layout)
                if part.size:
                    self.user(buffer(last.memory), buffer(total.memory), Datatype._of(layout))
            return total.packed()
        assert layout.basic is not None  # or `checked` would have raised
        assert self.fold is not None
        basic = np.dtype(np.int8) if layout.basic.kind == "S" else layout.basic
        with np.errstate(all="ignore"):
            result = combine(self.fold, [part.view(basic) for part in parts])
        return np.array(result.astype(basic, copy=False)).view(np.uint8)


def _spread(part: Bytes, layout: Layout) -> Blocks:
    """The elements of a packed part as they lie in a buffer, where a user's function finds them by their extent."""
    count = part.size // max(1, layout.size)
    memory = np.zeros(count * layout.extent + max(0, layout.end - layout.extent), np.uint8)
    blocks = Blocks(memory, [layout], [count], [0])
    blocks.unpack(part)
    return blocks


class Op(Handle[Operation], root=True):
    """An MPI reduction operation. `op(x, y)` combines two objects."""

    _null = "ERR_OP"

    def __call__(self, x: Any, y: Any) -> Any:
        if self._h is None:
            raise ValueError("cannot call the null operation")
        return self._h.of_two(x, y)

    @classmethod
    def Create(cls, function: Callable[[Any, Any, Any], Any], commute: bool = False) -> Op:
        """An operation that calls function(in, inout, datatype), or with None as datatype for objects."""
        of_kind(function, "function", Callable, "a function of (in, inout, datatype)")
        if len(_created) >= MOST_CREATED:
            raise RuntimeError(f"cannot create more than {MOST_CREATED} user-defined reduction operations")
        made = Operation(lambda x, y: function(x, y, None), user=function, commute=bool(commute))
        _created.add(id(made))
        return cls._of(made)

    def Free(self) -> None:
        _created.discard(id(self._freed()))

    def Is_commutative(self) -> bool:
        return self._live().commute

    is_commutative = property(Is_commutative)

    def Reduce_local(self, inbuf: Any, inoutbuf: Any) -> None:
        operand, other = simple(inbuf, False), simple(inoutbuf, True)
        check_equal(operand, other)
        other.unpack(checked(self, other.layout).folded([operand.packed(), other.packed()], other.layout))

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._h is not None and self._h.user is not None:
            return Op.Create, (self._h.user, self._h.commute)
        return super().__reduce_ex__(protocol)


MOST_CREATED = 32
_created: set[int] = set()


def checked(op: Op, layout: Layout) -> Operation:
    """The operation. Raises ERR_OP if MPI does not define it for this layout's datatype."""
    row = op._live()
    if row.user is None and (label := name_of(row)) not in layout.ops:
        raise error("ERR_OP", f"{label} is not defined for {layout.name or 'a datatype that the program has made'}")
    return row


def _located(better: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Of pairs (value, index), those with the better value; of equal ones the lower index."""

    def of_two(x: Any, y: Any) -> Any:
        (u, i), (v, j) = x, y
        if better(u, v):
            return u, i
        return (v, j) if better(v, u) or j < i else (u, i)

    return of_two


def _located_fold(better: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def fold(x: Any, y: Any) -> Any:
        if x.dtype.names is None:  # pairs of equal types
            x, y = (each.view([("value", each.dtype), ("index", each.dtype)]) for each in (x, y))
        second = better(y["value"], x["value"]) | ((x["value"] == y["value"]) & (y["index"] < x["index"]))
        return np.where(second, y, x)

    return fold


_ROWS = {
    "MAX": Operation(lambda x, y: y if y > x else x, ReduceOp.MAX, np.maximum),
    "MIN": Operation(lambda x, y: y if y < x else x, ReduceOp.MIN, np.minimum),
    "SUM": Operation(operator.add, ReduceOp.SUM, np.add),
    "PROD": Operation(operator.mul, ReduceOp.PROD, np.multiply),
    "LAND": Operation(lambda x, y: bool(x) & bool(y), fold=np.logical_and),
    "BAND": Operation(operator.and_, ReduceOp.BAND, np.bitwise_and),
    "LOR": Operation(lambda x, y: bool(x) | bool(y), fold=np.logical_or),
    "BOR": Operation(operator.or_, ReduceOp.BOR, np.bitwise_or),
    "LXOR": Operation(lambda x, y: bool(x) ^ bool(y), fold=np.logical_xor),
    "BXOR": Operation(operator.xor, ReduceOp.BXOR, np.bitwise_xor),
    "MAXLOC": Operation(_located(lambda x, y: x > y), fold=_located_fold(np.greater)),
    "MINLOC": Operation(_located(lambda x, y: x < y), fold=_located_fold(np.less)),
    "REPLACE": Operation(lambda x, y: y, fold=lambda x, y: y, commute=False),
    "NO_OP": Operation(lambda x, y: x, fold=lambda x, y: x, commute=False),
}
OPS = {name: Op._of(row)._named(name) for name, row in _ROWS.items()} | {"OP_NULL": Op()._named("OP_NULL")}
"""The predefined operations by name, without MPI."""

SUM = OPS["SUM"]
