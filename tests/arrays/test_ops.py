"""Names of operations."""

from __future__ import annotations

import re

import pytest

from rankwise.arrays import ops
from rankwise.contract.types import DType, ReduceOp


def test_names_and_aliases() -> None:
    assert {name: ops.resolve(name, DType.F32).name for name in ("sum", "prod", "product", "mean", "avg")} == {
        "sum": "SUM",
        "prod": "PROD",
        "product": "PROD",
        "mean": "MEAN",
        "avg": "MEAN",
    }
    for op in ReduceOp:
        assert op in ops.NAMES.values()


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("op", ReduceOp)
def test_the_fast_table_agrees_with_the_contract(op: ReduceOp, dtype: DType) -> None:
    for name in (name for name, meant in ops.NAMES.items() if meant is op):
        if op.refused_for(dtype) is None:
            assert ops.PAIRS[name, dtype] == (dtype, op)
            assert ops.resolve(name, dtype) is ops.resolve(op, dtype) is op
        else:
            assert (name, dtype) not in ops.PAIRS
            for spelled in (name, op):
                with pytest.raises(TypeError, match=f"^op='{op.name.lower()}' on "):
                    ops.resolve(spelled, dtype)


def test_invalid_operations() -> None:
    with pytest.raises(ValueError, match=r"^op='median': expected one of sum, mean, avg, max, min,"):
        ops.resolve("median", DType.F32)
    for op in (0, None, ["sum"], sum):
        with pytest.raises(TypeError, match=f"^op={re.escape(repr(op))}: expected a name such as 'sum'"):
            ops.resolve(op, DType.F32)  # type: ignore[arg-type]


def test_names_in_other_cases_and_the_objects_of_other_libraries() -> None:
    torch = pytest.importorskip("torch", reason="its ReduceOp is tested")
    found = {name: ops.resolve(name, DType.I32).name for name in ("SUM", "Prod", "MAX", "BAND")}  # type: ignore[arg-type]
    assert found == {"SUM": "SUM", "Prod": "PROD", "MAX": "MAX", "BAND": "BAND"}
    assert ops.is_composed("MAXLOC")  # type: ignore[arg-type]
    theirs = torch.distributed.ReduceOp
    pairs = ((theirs.SUM, "SUM"), (theirs.AVG, "MEAN"), (theirs.PRODUCT, "PROD"), (theirs.BXOR, "BXOR"))
    for op, name in (*pairs, (theirs(theirs.MAX), "MAX")):
        assert not ops.is_composed(op)
        assert ops.resolve(op, DType.F32 if name == "MEAN" else DType.I32).name == name
    with pytest.raises(ValueError, match=r"^op='PREMUL_SUM': expected one of sum,"):
        ops.resolve(torch.distributed._make_nccl_premul_sum(2.0), DType.F32)


class MpiOp:
    """As mpi4py's Op: it can be called, and has a name since mpi4py 4."""

    __module__ = "mpi4py.MPI"

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, a: object, b: object) -> object:
        raise NotImplementedError


def test_operations_of_mpi4py() -> None:
    assert not ops.is_composed(MpiOp("MPI_SUM"))
    assert ops.resolve(MpiOp("MPI_SUM"), DType.F32) is ReduceOp.SUM
    assert ops.resolve(MpiOp("MPI_BOR"), DType.I8) is ReduceOp.BOR
    with pytest.raises(ValueError, match=r"expected one of sum, mean, avg,"):
        ops.resolve(MpiOp("MPI_LAND"), DType.F32)
