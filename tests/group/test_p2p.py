"""Messages from any rank with any tag, probe, and batches."""

from __future__ import annotations

import time

import numpy as np
import pytest

import rankwise as rw
from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import UnsupportedError
from rankwise.group.group import Group
from rankwise.testing import run_ranks


@pytest.mark.parametrize("backend", ["threads", "shm"])
def test_from_any_rank_with_any_tag(backend: str) -> None:
    def ranks(group: Group) -> None:
        n, me = group.world_size, group.rank
        if me == 0:
            group.isend(np.full(3, 100.0), 0, 100)  # to itself too
            works = [group.irecv((3,), None, None) for _ in range(n)]
            assert all(work.source is None or work.done() for work in works)
            seen = set()
            for work in works:
                x = work.wait()
                assert (x == 100 + work.source).all()
                assert work.tag == 100 + work.source
                seen.add(work.source)
            assert seen == set(range(n))
        else:
            group.send(np.full(3, 100.0 + me), 0, 100 + me)
        group.barrier()
        if me == 0:  # any rank, this tag; then that rank, any tag
            for tag in (7, 8):
                work = group.irecv((), None, tag, dtype=int)
                assert work.wait() == tag
                assert (work.source, work.tag) == (1, tag)
            assert group.recv((), 1, None, dtype=int) == 9
        elif me == 1:
            for tag in (8, 9, 7):
                group.send(tag, 0, tag)

    run_ranks(3, ranks, backend=backend)


def test_any_keeps_the_order_of_one_sender() -> None:
    def ranks(group: Group) -> None:
        if group.rank == 0:
            for i in range(50):
                group.isend(i, 1, i % 3)
        else:
            assert [int(group.recv((), None, None, dtype=int)) for _ in range(50)] == list(range(50))

    run_ranks(2, ranks)


def test_a_dtype_that_differs_from_the_arrays() -> None:
    def ranks(group: Group) -> None:
        work = group.isend(np.ones(3), 0)
        for receive in (group.recv, group.irecv):
            with pytest.raises(ValueError, match=r"^dtype='float32': expected x's dtype, float64, or None$"):
                receive(np.empty(3), 0, dtype="float32")
        assert group.recv(np.empty(3), 0, dtype="float64").tolist() == [1, 1, 1]
        work.wait()

    run_ranks(1, ranks)


def test_probe() -> None:
    def ranks(group: Group) -> None:
        if group.rank == 0:
            group.isend(np.ones((2, 3), np.int16), 1, 4)
            group.recv((), 1)
        else:
            begin = time.monotonic()
            assert group.probe(1) is None
            assert group.probe(tag=5, timeout=0.05) is None
            assert time.monotonic() - begin >= 0.05
            found = group.probe(timeout=30)
            assert found == rw.Message(source=0, tag=4, count=6, dtype=rw.DType.I16)
            assert group.probe(0, 4) == found, "probe must take nothing"
            assert group.recv((2, 3), found.source, found.tag, dtype=found.dtype).tolist() == [[1] * 3] * 2
            assert group.probe() is None
            group.send(0.0, 0)
        for bad in (2, -1):
            with pytest.raises(ValueError, match=rf"^src={bad}: expected a rank of the group"):
                group.probe(bad)
            with pytest.raises(ValueError, match=rf"^src={bad}: expected a rank of the group"):
                group.irecv((1,), bad)
        with pytest.raises(ValueError, match=r"^tag=-1: expected 0 to"):
            group.recv((1,), 0, -1)

    run_ranks(2, ranks)


def test_a_batch_of_large_messages_between_all_ranks() -> None:
    def ranks(group: Group) -> None:
        n, me, size = group.world_size, group.rank, 200_000
        sends = [(np.full(size, 10.0 * me + to), to, me) for to in range(n)]
        recvs = [((size,), source, source) for source in reversed(range(n))]
        got = group.batch(sends, recvs)
        for (_, source, _), x in zip(recvs, got, strict=True):
            assert (x == 10.0 * source + me).all()
        into = np.zeros((4, 4), np.float32)
        work = group.batch(
            [(np.arange(4, dtype=np.float32), me)], [(into[:, 2], me), ((0,), me, 1, "i4")], async_op=True
        )
        group.send(np.empty(0, np.int32), me, 1)
        column, empty = work.wait()
        assert into[:, 2].tolist() == column.tolist() == [0, 1, 2, 3]
        assert empty.dtype == np.int32
        assert group.batch() == []

    run_ranks(3, ranks)


def test_a_batch_is_checked_before_it_begins() -> None:
    def ranks(group: Group) -> None:
        good = (np.ones(2), 0)
        for sends, recvs, error in (
            ([good, (np.ones(2), 9)], [], ValueError),
            ([good, ("x", 0)], [], TypeError),
            ([good], [((2,), 0, "a")], TypeError),
            ([good, (np.ones(2),)], [], TypeError),
        ):
            with pytest.raises(error):
                group.batch(sends, recvs)
        assert group.probe(timeout=0.05) is None, "nothing may have been sent"

    run_ranks(1, ranks)


def test_a_backend_without_any_source_raises() -> None:
    def ranks(group: Group) -> None:
        group.comm.any_source = False
        with pytest.raises(UnsupportedError, match=r"^recv from any rank or with any tag is not supported"):
            group.recv((1,), None)
        with pytest.raises(UnsupportedError, match=r"^probe is not supported"):
            Communicator.probe(group.comm, 0, 0)

    run_ranks(1, ranks)
