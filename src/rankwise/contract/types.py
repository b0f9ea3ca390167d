"""Element types and reduction operations, numbered as the native core numbers them."""

from __future__ import annotations

from enum import IntEnum

from rankwise.contract.public import public


@public
class DType(IntEnum):
    """The type of one element of a buffer.

    Example:
        >>> rw.DType.BF16.itemsize, rw.DType.I32.is_integral, rw.DType.C64.is_complex
        (2, True, True)
    """

    F64 = 0
    F32 = 1
    F16 = 2
    BF16 = 3
    FP8E4M3 = 4
    FP8E5M2 = 5
    I64 = 6
    I32 = 7
    I16 = 8
    I8 = 9
    U64 = 10
    U32 = 11
    U16 = 12
    U8 = 13
    BOOL = 14
    C64 = 15
    C128 = 16

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return ITEMSIZE[self]

    @property
    def is_integral(self) -> bool:
        return DType.I64 <= self <= DType.U8

    @property
    def is_complex(self) -> bool:
        return self >= DType.C64


ITEMSIZE = (8, 4, 2, 2, 1, 1, 8, 4, 2, 1, 8, 4, 2, 1, 1, 8, 16)
"""Bytes of one element, by dtype: faster to read than the property."""

_KINDS = {"F": "float", "I": "int", "U": "uint", "C": "complex"}
_NAMES = {DType.BF16: "bfloat16", DType.FP8E4M3: "float8_e4m3fn", DType.FP8E5M2: "float8_e5m2", DType.BOOL: "bool"}
DTYPE_NAMES = {dtype: _NAMES.get(dtype) or _KINDS[dtype.name[0]] + dtype.name[1:] for dtype in DType}
"""The names of the dtypes in texts, which are NumPy's and torch's."""


@public
class ReduceOp(IntEnum):
    """How a reduction combines the ranks' elements.

    f16, bf16 and fp8 are accumulated in f32 and rounded once, except by NCCL, which rounds them at every step. MIN and
    MAX propagate NaN. Integers wrap. MEAN divides the sum by the world size.

    Example:
        >>> group.all_reduce(3 + group.rank, rw.ReduceOp.MAX)
        4
        >>> rw.ReduceOp.BAND.refused_for(rw.DType.F32)
        'bitwise operations are for integers and bool'
    """

    SUM = 0
    PROD = 1
    MIN = 2
    MAX = 3
    MEAN = 4
    BAND = 5
    BOR = 6
    BXOR = 7

    def refused_for(self, dtype: DType) -> str | None:
        """The reason why this operation is meaningless for `dtype`, or None if it is meaningful."""
        if self is ReduceOp.MEAN and (dtype.is_integral or dtype is DType.BOOL):
            return "a mean of integers is not an integer; reduce with 'sum' and divide, or convert to float"
        if self in (ReduceOp.MIN, ReduceOp.MAX) and dtype.is_complex:
            return "complex numbers have no order"
        if self >= ReduceOp.BAND and not (dtype.is_integral or dtype is DType.BOOL):
            return "bitwise operations are for integers and bool"
        return None
