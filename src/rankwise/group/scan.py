"""scan and exscan: reductions over the ranks up to this one."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Literal, TypeVar, overload

import numpy as np

from rankwise.arrays import buffers, dtypes, ops
from rankwise.arrays.base import Buffer
from rankwise.arrays.buffers import source
from rankwise.arrays.numpy import address
from rankwise.arrays.ops import Op
from rankwise.contract.operations import ALL_GATHER, EXSCAN, REDUCE_SCATTER, SCAN, Call
from rankwise.contract.shortcuts import NOT_TAKEN
from rankwise.contract.types import DType, ReduceOp
from rankwise.contract.work import Work
from rankwise.group import composed_ops
from rankwise.group.base import GroupBase, shaped

D = TypeVar("D", bound=np.dtype[Any])

PIECE = 4 << 20  # bytes of temporary memory that a composed scan uses


class Scans(GroupBase):
    """Reductions over the ranks from 0 to this one, into new arrays, with any op but mean, minloc and maxloc."""

    @overload
    def scan(
        self, x: np.ndarray[Any, D], op: Op = "sum", *, out: Any = None, async_op: Literal[False] = False
    ) -> np.ndarray[Any, D]: ...
    @overload
    def scan(
        self, x: np.ndarray[Any, D], op: Op = "sum", *, out: Any = None, async_op: Literal[True]
    ) -> Work[np.ndarray[Any, D]]: ...
    @overload
    def scan(self, x: Any, op: Op = "sum", *, out: Any = None, async_op: bool = False) -> Any: ...
    def scan(self, x: Any, op: Op = "sum", *, out: Any = None, async_op: bool = False) -> Any:
        """Reduce `x` over the ranks up to this one, itself included.

        Args:
            op: as for all_reduce; not "mean", which is scan / (rank + 1).

        Returns:
            A new array of x's shape.

        Example:
            >>> group.scan(np.array([1, 10])).tolist() == [[1, 10], [2, 20]][group.rank]
            True
        """
        if async_op and (work := self._shortcuts.start_scan_result(self, x, op, out)):
            return work
        if not async_op and (prefix := self._shortcuts.scan_result(x, op, out)) is not NOT_TAKEN:
            return prefix
        return self._scan(x, op, out, async_op, exclusive=False)

    @overload
    def exscan(
        self, x: np.ndarray[Any, D], op: Op = "sum", *, out: Any = None, async_op: Literal[False] = False
    ) -> np.ndarray[Any, D]: ...
    @overload
    def exscan(
        self, x: np.ndarray[Any, D], op: Op = "sum", *, out: Any = None, async_op: Literal[True]
    ) -> Work[np.ndarray[Any, D]]: ...
    @overload
    def exscan(self, x: Any, op: Op = "sum", *, out: Any = None, async_op: bool = False) -> Any: ...
    def exscan(self, x: Any, op: Op = "sum", *, out: Any = None, async_op: bool = False) -> Any:
        """Reduce `x` over the ranks before this one. If x is a length, the sum is the offset of this rank's share.

        Returns:
            As scan; on rank 0 the op's neutral element, which is 0 for "sum", "bor" and "bxor", 1 for "product", all
            bits set for "band", the largest value (infinity) for "min", the smallest for "max", and None for a
            function.

        Example:
            >>> int(group.exscan(5)) == 5 * group.rank
            True
        """
        if self.rank > 0 or op == "sum":  # the engine gives rank 0 the neutral element of a sum alone
            if async_op and (work := self._shortcuts.start_exscan_result(self, x, op, out)):
                return work
            if not async_op and (prefix := self._shortcuts.exscan_result(x, op, out)) is not NOT_TAKEN:
                return prefix
        return self._scan(x, op, out, async_op, exclusive=True)

    def _scan(self, x: Any, op: Op, out: Any, async_op: bool, *, exclusive: bool) -> Any:
        given = source(x)
        result = self._on_host(buffers.result(out, given.shape, given))
        given = self._on_host(given)
        if callable(op) and not isinstance(op, ReduceOp):
            scan = composed_ops.function_scan(self, given, op, exclusive=exclusive)

            def fold() -> Any:
                prefix = scan()
                if prefix is None:
                    return None
                composed_ops.copy(result, prefix)
                return result.finish()

            return self._run(fold, given, async_op)
        reduce_op = ops.resolve(op, given.dtype)
        if reduce_op is ReduceOp.MEAN:
            raise ValueError(f"op={op!r}: expected another op; divide the sum by the number of ranks in it")
        first = exclusive and self.rank == 0
        operation = EXSCAN if exclusive else SCAN
        call = Call(operation, given.ptr, result.ptr, given.count, given.dtype, reduce_op)
        if self.comm.scans and not first:
            return self._call(call, given, result, async_op)

        def body() -> Any:
            if self.comm.scans:
                self._collectives.run(shaped(call, given.shape))
            else:
                self._compose(operation.name, given, result, reduce_op, exclusive=exclusive)
            if first:
                _fill_with_neutral(result, reduce_op)
            return result.finish()

        return self._run(body, given, async_op)

    def _compose(self, name: str, given: Buffer, result: Buffer, op: ReduceOp, *, exclusive: bool) -> None:
        """The scan as other operations, of at most PIECE bytes."""
        # Block k of a rank's send buffer is its contribution to rank k's result.
        n, dtype = self.world_size, given.dtype
        piece = max(1, min(given.count, PIECE // (n * dtype.itemsize)))
        neutral = _neutral(dtype, op, piece)
        with self._one_operation:
            for start in range(0, max(1, given.count), piece):
                count = min(piece, given.count - start)
                size = count * dtype.itemsize
                blocks = buffers.scratch((n * count,), dtype)
                offset = start * dtype.itemsize
                if dtype.is_complex and op is ReduceOp.PROD:
                    call = Call(ALL_GATHER, given.ptr + offset, blocks.ptr, count, dtype)
                    self._collectives.run(call._replace(shape=given.shape, part_of=name))
                    if (last := self.rank - exclusive) >= 0:
                        products = _product(blocks, n)
                        ctypes.memmove(result.ptr + offset, address(products[last]), size)
                    continue
                for rank in range(n):
                    origin = given.ptr + offset if rank - exclusive >= self.rank else address(neutral)
                    ctypes.memmove(blocks.ptr + rank * size, origin, size)
                call = Call(REDUCE_SCATTER, blocks.ptr, result.ptr + offset, count, dtype, op)
                self._collectives.run(call._replace(shape=given.shape, part_of=name))


def _product(blocks: Buffer, n: int) -> np.ndarray[Any, Any]:
    """The products of n complex blocks, each with those before it.

    No factor is neutral for all complex numbers: (inf+1j) * (1+0j) has a NaN, and (-0-1j) * (1+0j) has another zero.
    """
    with np.errstate(all="ignore"):
        return np.multiply.accumulate(blocks.array.view(dtypes.to_numpy(blocks.dtype)).reshape(n, -1))


def _fill_with_neutral(result: Buffer, op: ReduceOp) -> None:
    if op is ReduceOp.SUM:  # 0 instead of the neutral element -0
        ctypes.memset(result.ptr, 0, result.nbytes)
    else:
        neutral = _neutral(result.dtype, op, result.count)
        ctypes.memmove(result.ptr, address(neutral), result.nbytes)


def _neutral(dtype: DType, op: ReduceOp, count: int) -> np.ndarray[Any, Any]:
    """`count` neutral elements: a reduction with them leaves all bits unchanged.

    This does not hold for products of complex numbers, for which they are only the value of an empty product.
    """
    bits = 8 * dtype.itemsize
    if dtype.is_integral or dtype is DType.BOOL:
        signed = DType.I64 <= dtype <= DType.I8
        ones = 1 if dtype is DType.BOOL else (1 << bits) - 1
        lowest, highest = ((1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, ones)
        pattern = {
            ReduceOp.PROD: 1, ReduceOp.MIN: highest, ReduceOp.MAX: lowest, ReduceOp.BAND: ones,
        }.get(op, 0)  # fmt: skip
    else:
        part = bits // 2 if dtype.is_complex else bits
        sign, one, highest = 1 << part - 1, _ONE[dtype], _HIGHEST[dtype]
        pattern = {
            ReduceOp.SUM: sign, ReduceOp.PROD: one, ReduceOp.MIN: highest, ReduceOp.MAX: highest | sign,
        }[op]  # fmt: skip
        if dtype.is_complex and op is ReduceOp.SUM:
            pattern |= sign << part
    element = np.frombuffer(pattern.to_bytes(dtype.itemsize, sys.byteorder), np.uint8)
    return np.tile(element, count)


# The bits of 1, and of the highest value: infinity, but 448 for FP8E4M3, which has none.
_ONE = {
    DType.F64: 0x3FF << 52, DType.F32: 0x7F << 23, DType.F16: 0x3C00, DType.BF16: 0x3F80, DType.FP8E4M3: 0x38,
    DType.FP8E5M2: 0x3C, DType.C64: 0x7F << 23, DType.C128: 0x3FF << 52,
}  # fmt: skip
_HIGHEST = {
    DType.F64: 0x7FF << 52, DType.F32: 0xFF << 23, DType.F16: 0x7C00, DType.BF16: 0x7F80, DType.FP8E4M3: 0x7E,
    DType.FP8E5M2: 0x7C, DType.C64: 0, DType.C128: 0,
}  # fmt: skip
