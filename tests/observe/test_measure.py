"""What rw.trace.measure says of a block of a program."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import rankwise as rw
from rankwise import Group
from rankwise.observe.measure import OperationTotals
from rankwise.testing import run_ranks

sys.path.insert(0, str(Path(__file__).parents[1] / "backends"))
import hosts_in_threads


def every_operation(group: Group) -> None:
    """A call of each operation of the contract, of 1,000 float64 of each rank where it takes an array."""
    n, me = group.world_size, group.rank
    x, parts = np.ones(1000), np.ones(1000)
    group.barrier()
    group.all_reduce(x)
    group.all_reduce(x, async_op=True).wait()
    group.reduce(x)
    group.broadcast(x)
    group.all_gather(x)
    group.gather(x)
    group.reduce_scatter(x)
    group.all_to_all(x)
    out, counts = np.empty(1000 * n), [1000] * n
    group.comm.scatter(x.ctypes.data, out.ctypes.data, 1000 // n, rw.DType.F64, 0)
    group.comm.all_gather_v(x.ctypes.data, out.ctypes.data, counts, rw.DType.F64)
    group.comm.gather_v(x.ctypes.data, out.ctypes.data, counts, rw.DType.F64, 0)
    group.comm.all_to_all_v(parts.ctypes.data, out.ctypes.data, [1000 // n] * n, [1000 // n] * n, rw.DType.F64)
    group.comm.sync()
    work = group.isend(x, (me + 1) % n)
    group.recv(np.empty(1000), (me - 1) % n)
    work.wait()
    with group.dup() as part:
        part.all_reduce(x)


def measured(group: Group, repeats: int = 1) -> dict[str, tuple[int, int]]:
    """Counts and bytes of every_operation. If ranks are threads of this process, all of them count."""
    group.barrier()
    with rw.trace.measure() as m:
        group.barrier()
        for _ in range(repeats):
            every_operation(group)
        group.barrier()
        group.barrier()
    for total in m.by_operation.values():
        assert 0 <= total.waited <= total.seconds
    return {name: (total.count, total.bytes) for name, total in m.by_operation.items() if name != "barrier"}


EVERY = {
    "all_reduce": 3,
    "reduce": 1,
    "broadcast": 1,
    "all_gather": 1,
    "gather": 1,
    "all_to_all": 1,
    "gather_v": 1,
    "all_to_all_v": 1,
    "send": 1,
    "recv": 1,
}


def check(found: dict[str, tuple[int, int]], n: int, ranks: int) -> None:
    """ranks: how many of the n ranks are in one process."""
    for name, count in EVERY.items():
        assert found[name] == (ranks * count, ranks * count * 8000), name
    for name in ("scatter", "reduce_scatter"):
        assert found[name] == (ranks, ranks * 8000 // n), name
    assert found["split"] == (ranks, 0)


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_counts_and_bytes(backend: str) -> None:
    """The same on every backend, however it does the operation: nothing is counted twice, nothing is left out."""
    pytest.importorskip("torch", reason="gloo is torch's") if backend == "gloo" else None
    for found in run_ranks(measured, 2, backend=backend, timeout=60):
        check(found, 2, 1)


@pytest.mark.parametrize("backend", ["threads", "hierarchical"])
def test_counts_and_bytes_of_threads(backend: str) -> None:
    opener = hosts_in_threads.opener([0, 0, 1, 1]) if backend == "hierarchical" else backend
    for found in run_ranks(measured, 4, backend=opener, timeout=60):
        check(found, 4, 4)


def test_more_operations_than_the_trace_keeps_and_nested_measurements() -> None:
    with rw.init("solo") as group, rw.trace.measure() as outer:
        with rw.trace.measure() as first:
            for _ in range(3000):
                group.all_reduce(np.ones(1000))
            with group.split(0) as part:
                part.all_reduce(np.ones(1))
            assert first.by_operation["all_reduce"].bytes == 24_000_008, "may be read before the end"
        group.broadcast(np.ones(1))
        with rw.trace.measure() as second:
            group.barrier()
    group = rw.init("solo")
    group.barrier()
    group.close()
    assert {name: total.count for name, total in first.by_operation.items()} == {
        "all_reduce": 3001,
        "split": 1,
    }
    assert {name: total.count for name, total in second.by_operation.items()} == {"barrier": 1}
    assert (first.moved, outer.moved, second.moved) == (24_000_008, 24_000_016, 0)
    assert outer.elapsed >= first.elapsed > 0


def test_measurements_of_two_threads() -> None:
    def body() -> None:
        with rw.trace.measure() as m:
            opened.wait()
            group.barrier()
            opened.wait()
        found.append(m.by_operation["barrier"].count)

    found: list[int] = []
    opened = threading.Barrier(2)
    with rw.init("solo") as group:
        threads = [threading.Thread(target=body) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert found == [2, 2], "each counts what the process does"


def test_waiting_for_a_rank_that_comes_late() -> None:
    def body(group: Group) -> float:
        waited = 0.0
        while not group.all_reduce(waited):  # again if this thread did not run while the other one slept
            with rw.trace.measure() as m:
                if group.rank == 1:
                    time.sleep(0.05)
                group.barrier()
            waited = m.by_operation["barrier"].waited
        return waited

    assert max(run_ranks(body, 2, timeout=60)) > 0


def test_operations_that_fail_count() -> None:
    with rw.init("solo") as group:
        work = group.irecv(np.empty(3), 0)
        with rw.trace.measure() as m:
            group.send(np.ones(2), 0)
            with pytest.raises(rw.MismatchError):
                work.wait()
    assert {name: (total.count, total.bytes) for name, total in m.by_operation.items()} == {
        "send": (1, 16),
        "recv": (1, 0),
    }


def test_the_table() -> None:
    with rw.trace.measure() as m:
        pass
    assert str(m).splitlines()[0].split() == ["operation", "count", "time", "waited", "moved"]
    assert len(str(m).splitlines()) == 3
    assert (m.waited, m.moved, m.by_operation) == (0.0, 0, {})
    m._done = {
        "reduce_scatter_v": OperationTotals(10**10, 12345678.9, 1e-7, 2**60),
        "recv": OperationTotals(3, 0.25, 0.0125, 1536),
    }
    lines = str(m).splitlines()
    assert max(map(len, lines)) <= 80
    huge = ["reduce_scatter_v", "10000000000", "3429 h 21 min", "0.1 us", "1048576 TiB"]
    assert lines[1].split() == " ".join(huge).split()
    assert lines[2].split() == ["recv", "3", "250", "ms", "12", "ms", "1.5", "KiB"]
    assert repr(m).startswith("<measure: 10000000003 operations in ")


def test_one_object_measures_one_block_at_a_time() -> None:
    m = rw.trace.measure()
    with m, pytest.raises(RuntimeError, match="in progress already"), m:
        pass
    with m, rw.init("solo") as group:
        group.barrier()
    assert m.by_operation["barrier"].count == 1
