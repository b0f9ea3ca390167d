"""The reductions that MPI does as the contract requires: its datatype and op for each of our pairs."""

from __future__ import annotations

from typing import Any

from rankwise.contract.types import DType, ReduceOp

Reduction = tuple[Any, Any]  # MPI's datatype and op


def reductions(mpi: Any) -> list[list[Reduction | None]]:
    """By dtype and op: MPI's, if it then reduces as the contract requires, with the same bits on every rank."""
    integers = {
        getattr(DType, name): getattr(mpi, kind)
        for name, kind in (
            ("I64", "INT64_T"), ("I32", "INT32_T"), ("I16", "INT16_T"), ("I8", "INT8_T"),
            ("U64", "UINT64_T"), ("U32", "UINT32_T"), ("U16", "UINT16_T"), ("U8", "UINT8_T"),
        )
    }  # fmt: skip
    complexes = {DType.C64: mpi.C_FLOAT_COMPLEX, DType.C128: mpi.C_DOUBLE_COMPLEX}
    floats = {DType.F64: mpi.DOUBLE, DType.F32: mpi.FLOAT}
    adds = {ReduceOp.SUM: mpi.SUM, ReduceOp.MEAN: mpi.SUM}
    orders = {ReduceOp.MIN: mpi.MIN, ReduceOp.MAX: mpi.MAX}
    bits = {ReduceOp.BAND: mpi.BAND, ReduceOp.BOR: mpi.BOR, ReduceOp.BXOR: mpi.BXOR}
    product = {ReduceOp.PROD: mpi.PROD}
    # Open MPI's sums of 8- and 16-bit integers do not wrap: they stop at the type's ends.
    wrapping = {dtype: kind for dtype, kind in integers.items() if dtype.itemsize >= 4}
    table: list[list[Reduction | None]] = [[None] * len(ReduceOp) for _ in DType]
    for kinds, ops in (
        (integers, {**orders, **bits}),
        (wrapping, {ReduceOp.SUM: mpi.SUM, **product}),
        (floats, {**adds, **product}),
        (complexes, adds),
    ):
        for dtype, kind in kinds.items():
            for op, how in ops.items():
                table[dtype][op] = (kind, how)
    return table
