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
from typing import Any, ClassVar

import numpy as np
import pytest

from rankwise import ClosedError, DType, ReduceOp, UnsupportedError, Work
from rankwise.contract.communicator import Communicator
from rankwise.contract.job import Job
from rankwise.testing import check_backend, run_ranks
from rankwise.testing.suite import Status, check_operation

NUMPY = {DType.F64: "f8", DType.F32: "f4", DType.I64: "i8", DType.I32: "i4", DType.U8: "u1", DType.BOOL: "?"}
REDUCE: dict[ReduceOp, Callable[..., Any]] = {
    ReduceOp.SUM: lambda x: x.sum(axis=0, dtype=x.dtype),
    ReduceOp.PROD: lambda x: x.prod(axis=0, dtype=x.dtype),
    ReduceOp.MIN: lambda x: x.min(axis=0),
    ReduceOp.MAX: lambda x: x.max(axis=0),
    ReduceOp.MEAN: lambda x: x.mean(axis=0),
    ReduceOp.BAND: lambda x: np.bitwise_and.reduce(x),
    ReduceOp.BOR: lambda x: np.bitwise_or.reduce(x),
    ReduceOp.BXOR: lambda x: np.bitwise_xor.reduce(x),
}


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

    def check_root(self, root: int, name: str = "root") -> None:
        if not 0 <= root < self.world_size:
            raise ValueError(f"{name}={root}: expected 0 to {self.world_size - 1}")

    def check_counts(self, counts: Sequence[int], name: str = "counts") -> None:
        if len(counts) != self.world_size:
            raise ValueError(f"{name}: expected {self.world_size} counts, got {len(counts)}")

    def combine(self, pieces: list[bytes], dtype: DType, op: ReduceOp) -> bytes:
        stack = np.stack([np.frombuffer(piece, NUMPY[dtype]) for piece in pieces])
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(REDUCE[op](stack), NUMPY[dtype]).tobytes()

    def check_pair(self, operation: str, count: int, dtype: DType, op: ReduceOp) -> None:
        if count < 0:
            raise ValueError(f"count={count}: expected 0 or more")
        if why := op.refused_for(dtype):
            raise TypeError(f"op={op.name}: {why}")
        if dtype not in NUMPY:
            raise UnsupportedError(operation, "table", f"it knows no {dtype.name}")

    def barrier(self) -> None:
        self.sync()
        self.exchange(None)

    def all_reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        self.check_pair("all_reduce", count, dtype, op)
        write(ptr, self.combine(self.exchange(read(ptr, count, dtype)), dtype, op))

    def broadcast(self, ptr: int, count: int, dtype: DType, root: int) -> None:
        self.check_root(root)
        write(ptr, self.exchange(read(ptr, count, dtype))[root])

    def reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp, root: int) -> None:
        self.check_root(root)
        self.check_pair("reduce", count, dtype, op)
        result = self.combine(self.exchange(read(ptr, count, dtype)), dtype, op)
        if self.rank == root:
            write(ptr, result)

    def all_gather(self, send_ptr: int, recv_ptr: int, count: int, dtype: DType) -> None:
        self.all_gather_v(send_ptr, recv_ptr, [count] * self.world_size, dtype)

    def gather(self, send_ptr: int, recv_ptr: int, count: int, dtype: DType, root: int) -> None:
        self.gather_v(send_ptr, recv_ptr, [count] * self.world_size, dtype, root)

    def scatter(self, send_ptr: int, recv_ptr: int, count: int, dtype: DType, root: int) -> None:
        self.scatter_v(send_ptr, recv_ptr, [count] * self.world_size, dtype, root)

    def reduce_scatter(self, send_ptr: int, recv_ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        self.reduce_scatter_v(send_ptr, recv_ptr, [count] * self.world_size, dtype, op)

    def all_to_all(self, send_ptr: int, recv_ptr: int, count: int, dtype: DType) -> None:
        counts = [count] * self.world_size
        self.all_to_all_v(send_ptr, recv_ptr, counts, counts, dtype)

    def all_gather_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: DType) -> None:
        self.check_counts(counts)
        write(recv_ptr, b"".join(self.exchange(read(send_ptr, counts[self.rank], dtype))))

    def gather_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: DType, root: int) -> None:
        self.check_root(root)
        self.check_counts(counts)
        everybody = self.exchange(read(send_ptr, counts[self.rank], dtype))
        if self.rank == root:
            write(recv_ptr, b"".join(everybody))

    def scatter_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: DType, root: int) -> None:
        self.check_root(root)
        self.check_counts(counts)
        pieces = cut(read(send_ptr, sum(counts), dtype), counts, dtype) if self.rank == root else None
        write(recv_ptr, self.exchange(pieces)[root][self.rank])

    def reduce_scatter_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: DType, op: ReduceOp) -> None:
        self.check_counts(counts)
        self.check_pair("reduce_scatter", min(counts), dtype, op)
        whole = self.combine(self.exchange(read(send_ptr, sum(counts), dtype)), dtype, op)
        write(recv_ptr, cut(whole, counts, dtype)[self.rank])

    def all_to_all_v(
        self, send_ptr: int, recv_ptr: int, send_counts: Sequence[int], recv_counts: Sequence[int], dtype: DType
    ) -> None:
        self.check_counts(send_counts, "send_counts")
        self.check_counts(recv_counts, "recv_counts")
        everybody = self.exchange(cut(read(send_ptr, sum(send_counts), dtype), send_counts, dtype))
        write(recv_ptr, b"".join(pieces[self.rank] for pieces in everybody))

    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int = 0, keep: object = None) -> Work[None]:
        self.check_root(dest, "dest")
        with self.table.posted:
            self.table.mail[self.rank, dest, tag].append(read(ptr, count, dtype))
            self.table.posted.notify_all()
        return Done()

    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int = 0, keep: object = None) -> Work[None]:
        self.check_root(src, "src")
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


def cut(data: bytes, counts: Sequence[int], dtype: DType) -> list[bytes]:
    ends = list(accumulate(count * dtype.itemsize for count in counts))
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


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

    def broadcast(self, ptr: int, count: int, dtype: DType, root: int) -> None:
        super().broadcast(ptr, count, dtype, root)
        if self.rank == 1 and count * dtype.itemsize > 200_000:
            write(ptr + 150_001, b"\x77")


class WritesTooFar(TableCommunicator):
    """To be tried at the pointer level alone: at the array level there is no room for it."""

    def gather_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: DType, root: int) -> None:
        super().gather_v(send_ptr, recv_ptr, counts, dtype, root)
        if self.rank == root:
            write(recv_ptr + sum(counts) * dtype.itemsize, b"\0")


class MeanOfIntegers(TableCommunicator):
    def check_pair(self, operation: str, count: int, dtype: DType, op: ReduceOp) -> None:
        if dtype not in NUMPY:
            raise UnsupportedError(operation, "table")


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
    def open_wrong(job: Job, timeout: float) -> TableCommunicator:
        return WritesTooFar(job.rank, job.world_size, job.id)

    results = check_operation("gather_v", "pointer", 2, open_wrong)
    assert any(result.status is Status.FAIL and "outside the buffer" in result.detail for result in results)


def test_the_array_level_runs_on_it() -> None:
    parts = run_ranks(3, lambda group: group.scatter(np.arange(7) if group.rank == 0 else None), backend=open_table)
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4], [5, 6]]
