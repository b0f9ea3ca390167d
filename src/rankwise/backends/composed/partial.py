"""A reduction in several steps, whose partial results travel between the ranks."""

from __future__ import annotations

import ctypes

from rankwise._native import narrow_local, reduce_local, widen_local
from rankwise.contract.types import ITEMSIZE, DType, ReduceOp

_NARROW = (DType.F16, DType.BF16, DType.FP8E4M3, DType.FP8E5M2)
_ROUNDING = (ReduceOp.SUM, ReduceOp.PROD, ReduceOp.MEAN)


def carried_as(dtype: DType, op: ReduceOp) -> DType:
    """The dtype of partial reductions: f32 if `dtype` would round what must be rounded only once."""
    return DType.F32 if dtype in _NARROW and op in _ROUNDING else dtype


class Partial:
    """A reduction of n operands of one dtype by one op, with the native core's kernels.

    kind: the dtype of partial results. item: the bytes of an element of a partial result; final_item: of the result.
    step: the op that combines two partial results.
    """

    def __init__(self, dtype: DType, op: ReduceOp, n: int) -> None:
        self.kind = carried_as(dtype, op)
        self.item, self.final_item = ITEMSIZE[self.kind], ITEMSIZE[dtype]
        self._dtype, self._op, self._n = dtype, op, n
        self.step = ReduceOp.SUM if op is ReduceOp.MEAN else op

    def begin(self, room: int, ptr: int, count: int) -> None:
        """Copy this rank's operand into room, as a partial result."""
        if self.kind is self._dtype:
            ctypes.memmove(room, ptr, count * self.item)
        else:
            widen_local(room, ptr, count, self._dtype)

    def merge(self, target: int, lower: int, upper: int, count: int) -> None:
        """Write lower op upper to target. Both are partial results, the lower ranks' first; target may be either."""
        if count:
            reduce_local(target, [lower, upper], count, self.kind, self.step, self._n)

    def end(self, target: int, partial: int, count: int) -> None:
        """Write the result to target. May overwrite `partial`, which may be target if `kind` is the final dtype."""
        if self._op is ReduceOp.MEAN:
            reduce_local(partial, [partial], count, self.kind, self._op, self._n)
        if self.kind is not self._dtype:
            narrow_local(target, partial, count, self._dtype)
        elif target != partial:
            ctypes.memmove(target, partial, count * self.item)
