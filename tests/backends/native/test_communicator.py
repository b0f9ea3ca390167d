"""The lifetime of the engine's communicator; the conformance suite tests the results of its operations."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise.backends.native.communicator import EngineCommunicator
from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import ClosedError, CollectiveTimeout, PeerLostError
from rankwise.contract.job import Job
from rankwise.contract.operations import BROADCAST, Call
from rankwise.contract.types import DType, ReduceOp
from rankwise.group.group import Group
from rankwise.testing import run_ranks


def alone() -> EngineCommunicator:
    from rankwise.backends.native import solo

    return solo.open_communicator(Job(), 5.0)


def test_after_close_every_operation_raises() -> None:
    comm = alone()
    comm.close()
    comm.close()
    x = np.ones(2)
    p, f64, total = x.ctypes.data, DType.F64, ReduceOp.SUM
    for call in (
        comm.barrier,
        comm.sync,
        lambda: comm.all_reduce(p, 2, f64, total),
        lambda: comm.broadcast(p, 2, f64, 0),
        lambda: comm.reduce(p, 2, f64, total, 0),
        lambda: comm.all_gather(p, p + 8, 1, f64),
        lambda: comm.gather(p, p + 8, 1, f64, 0),
        lambda: comm.scatter(p, p + 8, 1, f64, 0),
        lambda: comm.reduce_scatter(p, p + 8, 1, f64, total),
        lambda: comm.all_to_all(p, p + 8, 1, f64),
        lambda: comm.all_gather_v(p, p + 8, [1], f64),
        lambda: comm.gather_v(p, p + 8, [1], f64, 0),
        lambda: comm.scatter_v(p, p + 8, [1], f64, 0),
        lambda: comm.reduce_scatter_v(p, p + 8, [1], f64, total),
        lambda: comm.all_to_all_v(p, p + 8, [1], [1], f64),
        lambda: comm.send(p, 1, f64, 0),
        lambda: comm.recv(p, 1, f64, 0),
        lambda: comm.split(0),
    ):
        with pytest.raises(ClosedError):
            call()


def test_negative_counts_are_named() -> None:
    x = np.ones(2)
    p, f64 = x.ctypes.data, DType.F64
    with alone() as comm:
        for call in (
            lambda: comm.all_reduce(p, -1, f64, ReduceOp.SUM),
            lambda: comm.start(Call(BROADCAST, p, p, -1, f64, root=0)),
            lambda: comm.send(p, -1, f64, 0),
            lambda: comm.recv(p, -1, f64, 0),
        ):
            with pytest.raises(ValueError, match=r"^count: -1 given, expected"):
                call()
        with pytest.raises(ValueError, match=r"^counts: -1 given among them, expected"):
            comm.all_gather_v(p, p, [-1], f64)
        comm.barrier()


def test_it_keeps_its_rank_and_size_when_closed() -> None:
    comm = alone()
    comm.close()
    assert (comm.rank, comm.world_size) == (0, 1)


def test_a_message_to_oneself_by_the_contract() -> None:
    with alone() as comm:
        x, y = np.arange(3.0), np.zeros(3)
        receiving = comm.recv(y.ctypes.data, 3, DType.F64, 0, 4)
        assert not receiving.done()
        with pytest.raises(CollectiveTimeout):
            receiving.wait(0.05)
        sending = comm.send(x.ctypes.data, 3, DType.F64, 0, 4)
        assert receiving.wait() is None
        comm.sync()
        assert sending.done()
        assert (y == x).all()


def test_closing_with_work_pending_is_bounded_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    y = np.zeros(3)
    comm = alone()
    work = comm.recv(y.ctypes.data, 3, DType.F64, 0)
    start = time.monotonic()
    with caplog.at_level(logging.WARNING, "rankwise"):
        comm.close(0.2)
    assert time.monotonic() - start < 20
    assert [record.name for record in caplog.records] == ["rankwise"]
    assert caplog.records[0].message.startswith("closing rank 0 of 1 (solo): ")
    with pytest.raises(ClosedError):
        work.wait(1.0)


def test_a_dropped_communicator_is_closed() -> None:
    many = 50

    def open_files(comm: Communicator) -> int:
        for turn in range(many):
            part = comm.split(turn)
            assert part is not None
            part.barrier()
            del part
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    with alone() as comm:
        before = open_files(comm)
        assert open_files(comm) < before + many // 2  # other threads of this process may open a file meanwhile


def test_split_groups_outlive_their_parent() -> None:
    def ranks(group: Group) -> None:
        part = group.comm.split(group.rank % 2, -group.rank)
        assert part is not None
        assert part.world_size == 2
        assert group.comm.split(-1) is None
        x = np.full(3, group.rank, np.int32)
        part.all_reduce(x.ctypes.data, 3, DType.I32, ReduceOp.SUM)
        assert x.tolist() == [[2] * 3, [4] * 3][group.rank % 2]
        part.close()

    run_ranks(ranks, 4)


def test_abort_fails_every_rank() -> None:
    def ranks(group: Group) -> None:
        comm = group.comm
        assert isinstance(comm, EngineCommunicator)
        if comm.rank == 1:
            comm.abort("gave up")
        with pytest.raises(PeerLostError) as caught:
            comm.barrier()
        assert (caught.value.rank, caught.value.how) == (1, "aborted the group: gave up")

    run_ranks(ranks, 3)


def test_the_timeout_applies_to_operations() -> None:
    over = threading.Event()

    def ranks(group: Group) -> None:
        if group.rank == 0:
            group.comm.timeout = 0.3
            start = time.monotonic()
            with pytest.raises(CollectiveTimeout) as caught:
                group.comm.barrier()
            assert 0.2 < time.monotonic() - start < 30
            over.set()
            assert caught.value.missing == (1,)
        else:
            assert over.wait(50)
            with pytest.raises((CollectiveTimeout, PeerLostError)):
                group.comm.barrier()

    run_ranks(ranks, 2)


def test_ctrl_c_while_an_error_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error's text is made in Python, where a signal handler may run."""

    def interrupted(text: str) -> None:
        signal.raise_signal(signal.SIGINT)

    comm = alone()
    comm.close()
    monkeypatch.setattr("rankwise.contract.errors.ClosedError", interrupted)
    with pytest.raises(KeyboardInterrupt):
        comm.barrier()


def _in_many_groups(group: Group) -> tuple[int, int]:
    """How many threads the process has while messages are pending in one group, and in twenty more."""
    other = 1 - group.rank

    def start(part: Group) -> list[Any]:
        return [part.irecv(np.empty(300_000), other), part.isend(np.full(300_000, part.rank + 1.0), other)]

    counts = []
    for parts in ([group], [group.split(0) for _ in range(20)]):
        works = [work for part in parts if part is not None for work in start(part)]
        deadline = time.monotonic() + 30
        while not all(work.done() for work in works) and time.monotonic() < deadline:
            time.sleep(0.01)  # nobody waits for them
        counts.append(len(os.listdir("/proc/self/task")))
        assert all((work.wait() == other + 1).all() for work in works[::2])
        rw.wait_all(works[1::2])
    return counts[0], counts[1]


def test_messages_of_all_groups_move_in_one_background_thread() -> None:
    for one, many in run_ranks(_in_many_groups, 2, backend="shm"):
        assert many == one
