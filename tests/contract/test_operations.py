"""The table of operations, and calls as values."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from rankwise.contract import operations
from rankwise.contract.communicator import Collectives
from rankwise.contract.operations import OPERATIONS, Call, Operation
from rankwise.contract.types import DType, ReduceOp

# Arguments by the name of a method's parameter, and the field of the call that has them.
PARAMETERS: dict[str, tuple[str, Any]] = {
    "ptr": ("send", 10), "send_ptr": ("send", 10), "recv_ptr": ("recv", 20), "count": ("count", 3),
    "dtype": ("dtype", DType.I16), "op": ("op", ReduceOp.MAX), "root": ("root", 1), "counts": ("counts", (1, 5)),
    "send_counts": ("send_counts", (2, 0)), "recv_counts": ("recv_counts", (2, 4)),
}  # fmt: skip


class Recorder(Collectives):
    def run(self, call: Call) -> None:
        self.call = call


@pytest.mark.parametrize("operation", OPERATIONS[1:], ids=lambda operation: operation.name)
def test_a_method_makes_the_call_of_its_row(operation: Operation) -> None:
    recorder = Recorder()
    method = getattr(recorder, operation.name)
    names = list(inspect.signature(method).parameters)
    assert [PARAMETERS[name][0] for name in names] == list(operation.takes)
    method(*(PARAMETERS[name][1] for name in names))
    call = recorder.call
    assert call.operation is operation
    assert call.arguments == tuple(PARAMETERS[name][1] for name in names)
    assert call.recv == (20 if "recv" in operation.takes else call.send)
    call.check(2)


def test_what_this_rank_reads_and_writes() -> None:
    def used(operation: Operation, rank: int, **fields: Any) -> tuple[int, int, int]:
        call = Call(operation, 1, 2, dtype=DType.F32, **fields)
        return call.reads(rank, 3), call.writes(rank, 3), call.own_bytes(rank, 3)

    assert used(operations.BROADCAST, 1, count=5, root=1) == (5, 5, 20)
    assert used(operations.BROADCAST, 0, count=5, root=1) == (0, 5, 20)
    assert used(operations.REDUCE, 0, count=5, root=1) == (5, 0, 20)
    assert used(operations.SCATTER, 1, count=5, root=1) == (15, 5, 20)
    assert used(operations.SCATTER, 2, count=5, root=1) == (0, 5, 20)
    assert used(operations.ALL_TO_ALL, 2, count=5) == (15, 15, 60)
    assert used(operations.GATHER_V, 2, counts=(1, 2, 3), root=2) == (3, 6, 12)
    assert used(operations.REDUCE_SCATTER_V, 1, counts=(1, 2, 3)) == (6, 2, 8)
    assert used(operations.ALL_TO_ALL_V, 0, send_counts=(0, 1, 2), recv_counts=(0, 0, 9)) == (3, 9, 12)
    assert used(operations.BARRIER, 0) == (0, 0, 0)


def test_a_call_as_its_vector_variant() -> None:
    even = Call(operations.ALL_TO_ALL, 1, 2, 4, DType.U8).vector(3)
    assert (even.operation, even.send_counts, even.recv_counts) == (operations.ALL_TO_ALL_V, (4,) * 3, (4,) * 3)
    assert Call(operations.SCATTER, 1, 2, 4, DType.U8, root=0).vector(2).counts == (4, 4)
    reduction = Call(operations.ALL_REDUCE, 1, 1, 4, DType.U8, ReduceOp.SUM)
    assert reduction.vector(2) is reduction


def test_the_text_of_a_call() -> None:
    call = Call(operations.REDUCE, 1, 1, 4, DType.F32, ReduceOp.SUM, 2)
    assert str(call) == "reduce(count=4, dtype=float32, op=sum, root=2)"
    assert str(Call(operations.ALL_GATHER_V, dtype=DType.FP8E5M2, counts=[1, 2])) == (
        "all_gather_v(counts=[1, 2], dtype=float8_e5m2)"
    )
    assert str(call._replace(shape=(2, 2), part_of="scan", algorithm="flat")) == (
        "scan: reduce(count=4, dtype=float32, op=sum, root=2, algorithm=flat, shape=(2, 2))"
    )
    many = Call(operations.GATHER_V, dtype=DType.U8, root=0, counts=range(20))
    assert "15, ... 20 in all, sum 190]" in str(many)


def test_calls_agree_whatever_their_addresses() -> None:
    call = Call(operations.ALL_GATHER_V, 1, 2, dtype=DType.U8, counts=[1, 2])
    assert call.agreed == call._replace(send=5, recv=6, counts=(1, 2)).agreed
    for other in ({"counts": [2, 1]}, {"dtype": DType.I8}, {"shape": (1, 1)}, {"part_of": "scan"}, {"algorithm": "x"}):
        assert call._replace(**other).agreed != call.agreed
    each = Call(operations.ALL_TO_ALL_V, dtype=DType.U8, send_counts=[1], recv_counts=[1])
    assert each.agreed == each._replace(send_counts=[2], recv_counts=[2]).agreed


@pytest.mark.parametrize(
    ("operation", "fields", "error", "text"),
    [
        ("broadcast", {"root": 2}, ValueError, "root=2: expected a rank of the group, 0 to 1"),
        ("all_gather", {"count": -1}, ValueError, "count=-1: expected 0 or more"),
        ("all_reduce", {"op": ReduceOp.BAND}, TypeError, "op=band of float64: bitwise operations"),
        ("gather_v", {"counts": [1], "root": 0}, ValueError, "counts: expected 2 counts, one for each rank, got 1"),
        ("all_to_all_v", {"send_counts": [1, -1], "recv_counts": [1, 1]}, ValueError, r"send_counts=\[1, -1\]: "),
        ("all_to_all_v", {"send_counts": [1, 1], "recv_counts": []}, ValueError, "recv_counts: expected 2 counts"),
    ],
)
def test_bad_arguments_are_named(operation: str, fields: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^{text}"):
        Call(operations.BY_NAME[operation], **fields).check(2)
