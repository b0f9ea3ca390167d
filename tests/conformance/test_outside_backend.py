"""An outsider can write a backend: one made here of public names only passes the conformance suite.

Its ranks are threads that lay their data on a table and look at everybody's. It knows fewer types
than it might and says so; one that computes wrongly is found out.
"""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pytest

from rankwise import ClosedError, DType, ReduceOp, UnsupportedError, Work
from rankwise.contract.communicator import Communicator
from rankwise.contract.job import Job
from rankwise.contract.operations import (
    ALL_GATHER_V,
    ALL_REDUCE,
    ALL_TO_ALL_V,
    BARRIER,
    BROADCAST,
    GATHER_V,
    REDUCE,
    REDUCE_SCATTER_V,
    SCATTER_V,
    Call,
    Operation,
)
from rankwise.testing import check_backend, run_ranks
from rankwise.testing.suite import Status

NUMPY = {DType.F64: "f8", DType.F32: "f4", DType.I64: "i8", DType.I32: "i4", DType.U8: "u1", DType.BOOL: "?"}
COMBINE: dict[ReduceOp, Callable[..., Any]] = {
    ReduceOp.SUM: lambda x: x.sum(axis=0, dtype=x.dtype),
    ReduceOp.PROD: lambda x: x.prod(axis=0, dtype=x.dtype),
    ReduceOp.MIN: lambda x: x.min(axis=0),
    ReduceOp.MAX: lambda x: x.max(axis=0),
    ReduceOp.MEAN: lambda x: x.mean(axis=0),
    ReduceOp.BAND: lambda x: np.bitwise_and.reduce(x),
    ReduceOp.BOR: lambda x: np.bitwise_or.reduce(x),
    ReduceOp.BXOR: lambda x: np.bitwise_xor.reduce(x),
}

Laid: TypeAlias = "list[tuple[bytes, Call]]"
"""What every rank has laid on the table: its data and its call."""


class Table:
    """Where the ranks of one group meet."""

    tables: ClassVar[dict[object, Table]] = {}
    lock = threading.Lock()

    def __init__(self, n: int) -> None:
        self.places: list[Any] = [None] * n
        self.barrier = threading.Barrier(n, timeout=30)
        self.mail: dict[tuple[int, int, int], deque[bytes]] = defaultdict(deque)
        self.posted = threading.Condition()

    @classmethod
    def of(cls, key: object, n: int) -> Table:
        with cls.lock:
            return cls.tables.setdefault(key, cls(n))


class Done(Work[None]):
    def wait(self, timeout: float | None = None) -> None:
        return None

    def done(self) -> bool:
        return True


class Receipt(Work[None]):
    """Takes its message when somebody waits for it; one receipt of a tag at a time."""

    def __init__(self, table: Table, key: tuple[int, int, int], ptr: int) -> None:
        self.table, self.key, self.ptr, self.taken = table, key, ptr, False

    def wait(self, timeout: float | None = None) -> None:
        with self.table.posted:
            assert self.table.posted.wait_for(self.done, timeout or 30)
            if not self.taken:
                write(self.ptr, self.table.mail[self.key].popleft())
                self.taken = True

    def done(self) -> bool:
        return self.taken or bool(self.table.mail[self.key])


class TableCommunicator(Communicator):
    """All collectives are one: everybody lays down bytes and sees everybody's."""

    rank = 0  # set in __init__; the contract declares properties
    world_size = 0
    timeout = 30.0

    def __init__(self, rank: int, world_size: int, key: object) -> None:
        self.rank, self.world_size, self.key = rank, world_size, key
        self.table = Table.of(key, world_size)
        self.receipts: list[Receipt] = []
        self.splits = 0
        self.closed = False

    def exchange(self, mine: Any) -> list[Any]:
        if self.closed:
            raise ClosedError("this communicator was closed")
        self.table.places[self.rank] = mine
        self.table.barrier.wait()
        everybody = list(self.table.places)
        self.table.barrier.wait()
        return everybody

    def run(self, call: Call) -> None:
        self.check(call)
        call = call.vector(self.world_size)
        mine = read(call.send, call.reads(self.rank, self.world_size), call.dtype)
        result = RESULTS[call.operation](self, call, self.exchange((mine, call)))
        if call.writes(self.rank, self.world_size):
            write(call.recv, result)

    def check(self, call: Call) -> None:
        call.check(self.world_size)
        self.check_type(call)

    def check_type(self, call: Call) -> None:
        if call.op is not None and call.dtype not in NUMPY:
            raise UnsupportedError(call.operation.name, "table", f"it knows no {call.dtype.name}")

    def check_rank(self, rank: int, name: str) -> None:
        if not 0 <= rank < self.world_size:
            raise ValueError(f"{name}={rank}: expected 0 to {self.world_size - 1}")

    def reduced(self, call: Call, laid: Laid) -> bytes:
        assert call.op is not None
        stack = np.stack([np.frombuffer(data, NUMPY[call.dtype]) for data, _ in laid])
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(COMBINE[call.op](stack), NUMPY[call.dtype]).tobytes()

    def own_block(self, call: Call, data: bytes) -> bytes:
        return cut(data, call.sizes)[self.rank]

    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int = 0, keep: object = None) -> Work[None]:
        self.check_rank(dest, "dest")
        with self.table.posted:
            self.table.mail[self.rank, dest, tag].append(read(ptr, count, dtype))
            self.table.posted.notify_all()
        return Done()

    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int = 0, keep: object = None) -> Work[None]:
        self.check_rank(src, "src")
        self.receipts = [receipt for receipt in self.receipts if not receipt.taken]
        self.receipts.append(Receipt(self.table, (src, self.rank, tag), ptr))
        return self.receipts[-1]

    def sync(self) -> None:
        for receipt in self.receipts:
            receipt.wait()
        self.receipts.clear()

    def split(self, color: int, key: int = 0) -> TableCommunicator | None:
        self.splits += 1
        everybody = self.exchange((color, key))
        members = [rank for rank in range(self.world_size) if everybody[rank][0] == color]
        members.sort(key=lambda rank: everybody[rank][1])
        if color < 0:
            return None
        return TableCommunicator(members.index(self.rank), len(members), (self.key, self.splits, color))

    def close(self, timeout: float = 1.0) -> None:
        self.closed = True


def read(ptr: int, count: int, dtype: DType) -> bytes:
    return ctypes.string_at(ptr, count * dtype.itemsize) if count else b""


def write(ptr: int, data: bytes) -> None:
    if data:
        ctypes.memmove(ptr, data, len(data))


def cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    ends = list(accumulate(sizes))
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def joined(comm: TableCommunicator, call: Call, laid: Laid) -> bytes:
    return b"".join(data for data, _ in laid)


def of_root(call: Call, laid: Laid) -> bytes:
    assert call.root is not None
    return laid[call.root][0]


RESULTS: dict[Operation, Callable[[TableCommunicator, Call, Laid], bytes]] = {
    BARRIER: lambda comm, call, laid: b"",
    ALL_REDUCE: TableCommunicator.reduced,
    REDUCE: TableCommunicator.reduced,
    BROADCAST: lambda comm, call, laid: of_root(call, laid),
    ALL_GATHER_V: joined,
    GATHER_V: joined,
    SCATTER_V: lambda comm, call, laid: comm.own_block(call, of_root(call, laid)),
    REDUCE_SCATTER_V: lambda comm, call, laid: comm.own_block(call, comm.reduced(call, laid)),
    ALL_TO_ALL_V: lambda comm, call, laid: b"".join(cut(data, sent.send_sizes)[comm.rank] for data, sent in laid),
}


def open_table(job: Job, timeout: float) -> TableCommunicator:
    return TableCommunicator(job.rank, job.world_size, job.id)


@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_it_conforms(n: int) -> None:
    report = check_backend(open_table, n)
    assert report.ok, "\n".join(report.failures[:5])
    rows = {line.split("  ")[0]: line for line in report.table().splitlines()}
    assert " no " in rows["all_reduce sum"], "float16 is not marked as unsupported"
    assert " - " in rows["all_reduce mean"], "the mean of integers is not marked as refused"
    assert " no " not in rows["broadcast"]


class MovesOneByte(TableCommunicator):
    """Wrong in one byte, on one rank, of large results only."""

    def run(self, call: Call) -> None:
        super().run(call)
        if call.operation is BROADCAST and self.rank == 1 and call.size > 200_000:
            write(call.recv + 150_001, b"\x77")


class WritesTooFar(TableCommunicator):
    """To be tried at the pointer level alone: at the array level there is no room for it."""

    def run(self, call: Call) -> None:
        super().run(call)
        if call.operation is GATHER_V and self.rank == call.root:
            write(call.recv + sum(call.sizes), b"\0")


class MeanOfIntegers(TableCommunicator):
    def check(self, call: Call) -> None:
        self.check_type(call)


@pytest.mark.parametrize(
    ("kind", "operation", "words"),
    [
        (MovesOneByte, "broadcast", "1 of"),
        (MeanOfIntegers, "all_reduce", "not refused"),
    ],
)
def test_a_wrong_backend_fails_the_suite(kind: type[TableCommunicator], operation: str, words: str) -> None:
    def open_wrong(job: Job, timeout: float) -> TableCommunicator:
        return kind(job.rank, job.world_size, job.id)

    report = check_backend(open_wrong, 2, operations=[operation])
    assert not report.ok
    assert "FAIL" in report.table()
    assert any(words in failure and operation in failure for failure in report.failures), report.failures


def test_writing_too_far_fails_the_suite() -> None:
    from engines import check_operation  # other processes import this file too, without the folder tests

    def open_wrong(job: Job, timeout: float) -> TableCommunicator:
        return WritesTooFar(job.rank, job.world_size, job.id)

    results = check_operation("gather_v", "pointer", 2, open_wrong)
    assert any(result.status is Status.FAIL and "outside the buffer" in result.detail for result in results)


def test_the_array_level_runs_on_it() -> None:
    parts = run_ranks(lambda group: group.scatter(np.arange(7) if group.rank == 0 else None), 3, backend=open_table)
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4], [5, 6]]
