"""Messages from any rank with any tag, probe, and batches."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import UnsupportedError
from rankwise.group.group import Group
from rankwise.testing import run_ranks

N = 100_000  # elements that do not fit into the ring of bytes between two ranks
ELEVENTH = 3_000  # elements of which the ring holds ten arrays and a part of an eleventh


@pytest.mark.parametrize("backend", ["threads", "shm"])
def test_from_any_rank_with_any_tag(backend: str) -> None:
    def ranks(group: Group) -> None:
        n, me = group.world_size, group.rank
        if me == 0:
            group.isend(np.full(3, 100.0), 0, 100)  # to itself too
            works = [group.irecv((3,), rw.ANY, rw.ANY) for _ in range(n)]
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
                work = group.irecv((), rw.ANY, tag, dtype=int)
                assert work.wait() == tag
                assert (work.source, work.tag) == (1, tag)
            assert group.recv((), 1, rw.ANY, dtype=int) == 9
        elif me == 1:
            for tag in (8, 9, 7):
                group.send(tag, 0, tag)

    run_ranks(ranks, 3, backend=backend)


def test_any_keeps_the_order_of_one_sender() -> None:
    def ranks(group: Group) -> None:
        if group.rank == 0:
            for i in range(50):
                group.isend(i, 1, i % 3)
        else:
            assert [group.recv_any(tag=rw.ANY).data.item() for _ in range(50)] == list(range(50))

    run_ranks(ranks, 2)


def test_a_dtype_that_differs_from_the_arrays() -> None:
    def ranks(group: Group) -> None:
        work = group.isend(np.ones(3), 0)
        for receive in (group.recv, group.irecv):
            with pytest.raises(ValueError, match=r"^dtype='float32': expected x's dtype, float64, or None$"):
                receive(np.empty(3), 0, dtype="float32")
        assert group.recv(np.empty(3), 0, dtype="float64").tolist() == [1, 1, 1]
        work.wait()

    run_ranks(ranks, 1)


def test_probe() -> None:
    def ranks(group: Group) -> None:
        if group.rank == 0:
            group.isend(np.ones((2, 3), np.int16), 1, 4)
            group.recv((), 1)
        else:
            begin = time.monotonic()
            assert group.probe(1, tag=rw.ANY) is None
            assert group.probe(tag=5, timeout=0.05) is None
            assert time.monotonic() - begin >= 0.05
            found = group.probe(tag=rw.ANY, timeout=30)
            assert found == rw.Message(source=0, tag=4, count=6, dtype=rw.DType.I16)
            assert group.probe(0, 4) == found, "probe must take nothing"
            assert group.recv((2, 3), found.source, found.tag, dtype=found.dtype).tolist() == [[1] * 3] * 2
            assert group.probe(tag=rw.ANY) is None
            group.send(0.0, 0)
        for bad in (2, -1):
            with pytest.raises(ValueError, match=rf"^src={bad}: expected a rank of the group"):
                group.probe(bad)
            with pytest.raises(ValueError, match=rf"^src={bad}: expected a rank of the group"):
                group.irecv((1,), bad)
        with pytest.raises(ValueError, match=r"^tag=-1: expected 0 to"):
            group.recv((1,), 0, -1)

    run_ranks(ranks, 2)


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

    run_ranks(ranks, 3)


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
        assert group.probe(tag=rw.ANY, timeout=0.05) is None, "nothing may have been sent"

    run_ranks(ranks, 1)


def test_a_receive_that_does_not_tell_its_source_needs_one() -> None:
    def ranks(group: Group) -> None:
        x = np.ones(1)
        for receive in (
            lambda: group.recv(x, rw.ANY),
            lambda: group.recv((1,), rw.ANY),
            lambda: group.recv_object(rw.ANY),
            lambda: group.sendrecv(x, 0, rw.ANY),
            lambda: group.sendrecv(x, 0, rw.ANY, out=np.ones(1), async_op=True),
            lambda: group.batch([(x, 0)], [((1,), rw.ANY)]),
        ):
            with pytest.raises(ValueError, match=r"^src=rw.ANY: expected a rank; recv_any receives from any rank"):
                receive()
        assert group.probe(tag=rw.ANY, timeout=0.05) is None, "nothing may have been sent"

    run_ranks(ranks, 1)


def test_a_backend_without_any_source_raises() -> None:
    def ranks(group: Group) -> None:
        group.comm.any_source = False
        with pytest.raises(UnsupportedError, match=r"^recv from any rank or with any tag is not supported"):
            group.irecv((1,), rw.ANY)
        with pytest.raises(UnsupportedError, match=r"^probe is not supported"):
            Communicator.probe(group.comm, 0, 0)

    run_ranks(ranks, 1)


@pytest.mark.parametrize("backend", ["threads", "shm"])
def test_sendrecv(backend: str) -> None:
    def ranks(group: Group) -> None:
        n, me = group.world_size, group.rank
        after, before = (me + 1) % n, (me - 1) % n
        for size in (0, 3, 300_000):
            x = np.full(size, float(me))
            assert (group.sendrecv(x, after, before) == before).all()
            assert (x == me).all()
            assert group.sendrecv(x, after, before, out=x, tag=3) is x
            assert (x == before).all()
            assert (group.sendrecv(x, before, after, out=x, async_op=True).wait() == me).all()
        matrix = np.full((4, 4), me)
        assert group.sendrecv(matrix[:, 1], after, before, out=matrix[:, 1]).tolist() == [before] * 4
        assert matrix[:, 0].tolist() == [me] * 4
        out = np.empty(before, np.int8)
        assert group.sendrecv(np.full(me, me, np.int8), after, before, out=out).tolist() == [before] * before
        assert group.sendrecv(me, after, before) == before
        edge = group.sendrecv(np.ones(2), after if me < n - 1 else None, before if me else None)
        assert edge.tolist() == ([1, 1] if me else [0, 0])
        kept = np.full(2, 7.0)
        assert group.sendrecv(kept, None, None, out=kept) is kept
        assert kept.tolist() == [7, 7]
        with pytest.raises(TypeError, match=r"^out: expected a writable array"):
            group.sendrecv(kept, after, before, out=3.0)
        with pytest.raises(ValueError, match=r"^src=-1: expected a rank"):
            group.sendrecv(kept, after, -1)

    run_ranks(ranks, 3, backend=backend)


def unaligned(rows: int) -> Any:
    return np.frombuffer(bytearray(rows * 24 + 1), np.uint8)[1:].view(float).reshape(rows, 3)


LAYOUTS: dict[str, Callable[[int], Any]] = {
    "contiguous": lambda rows: np.zeros((rows, 3)),
    "columns first": lambda rows: np.zeros((rows, 3), order="F"),
    "gaps": lambda rows: np.zeros((rows, 7))[:, 1:6:2],
    "backwards": lambda rows: np.zeros((rows, 3))[::-1, ::-1],
    "unaligned": unaligned,
}


@pytest.mark.parametrize("rows", [0, 1, 500, 2_500, 40_000])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocking_messages_of_any_layout(layout: str, rows: int) -> None:
    def ranks(group: Group) -> None:
        other, x, out = 1 - group.rank, LAYOUTS[layout](rows), LAYOUTS[layout](rows)
        mine, want = (np.arange(rows * 3.0).reshape(rows, 3) + rank for rank in (group.rank, other))
        x[...] = mine
        assert group.sendrecv(x, other, other, out=out) is out
        np.testing.assert_array_equal(out, want)
        new = group.sendrecv(x, other, other)
        np.testing.assert_array_equal(new, want)
        assert new.flags.c_contiguous
        out[...] = 0
        for sends in (group.rank == 0, group.rank == 1):
            if sends:
                group.send(x, other)
            else:
                assert group.recv(out, other) is out
        np.testing.assert_array_equal(out, want)
        assert group.sendrecv(x, other, other, out=x) is x
        np.testing.assert_array_equal(x, want)
        if layout == "gaps":
            assert not x.base[:, ::2].any()

    run_ranks(ranks, 2)


def test_a_receive_refuses_elements_that_share_memory() -> None:
    def ranks(group: Group) -> None:
        x = np.lib.stride_tricks.as_strided(np.zeros(3), (2, 2), (8, 8))
        for receive in (lambda: group.recv(x, 0), lambda: group.sendrecv(np.ones((2, 2)), 0, 0, out=x)):
            with pytest.raises(ValueError, match="share memory"):
                receive()
        assert group.probe(tag=rw.ANY) is None
        group.send(x, 0)
        assert group.recv((2, 2), 0).tolist() == [[0, 0]] * 2

    run_ranks(ranks, 1)


def test_the_null_rank() -> None:
    def ranks(group: Group) -> None:
        x = np.arange(6.0).reshape(2, 3)
        assert group.send(x, None) is None
        assert group.isend(x, None).done()
        for given in (x, x[:, 1], bytearray(b"ab")):
            before = bytes(given)
            assert group.recv(given, None) is given
            work = group.irecv(given, None, rw.ANY)
            assert work.done()
            assert work.wait() is given
            assert (work.source, work.tag) == (None, None)
            assert bytes(given) == before
        assert group.recv((2, 2), None, dtype="int32").tolist() == [[0, 0]] * 2
        assert group.probe(None) is None
        column, number = group.batch([(1, None), (5, 0)], [(x[:, 2], None), ((), 0, 0, int)])
        assert column.tolist() == [2, 5]
        assert number == 5
        assert group.probe(tag=rw.ANY, timeout=0.02) is None
        for call in (lambda: group.recv(x, 0, None), lambda: group.probe(0, None), lambda: group.recv_object(0, None)):
            with pytest.raises(TypeError, match=r"^tag=None: expected 0 to \d+, or rw.ANY"):
                call()
        with pytest.raises(TypeError, match=r"^x: expected an array"):
            group.send("text", None)  # checked as for any rank
        with pytest.raises(ValueError, match=r"^dst=-1: expected a rank"):
            group.send(x, rw.ANY)

    run_ranks(ranks, 1)


def cancelled(work: rw.Work[Any]) -> Any:
    try:
        return work.wait()
    finally:
        assert work.cancel()
        assert work.done()


RECEIVES: dict[str, Callable[[Group], Any]] = {
    "array": lambda group: group.recv(np.zeros(N), 1),
    "strided": lambda group: group.recv(np.zeros((N, 2))[:, 0], 1),
    "shape": lambda group: group.recv((N,), 1),
    "any": lambda group: group.recv_any(tag=rw.ANY),
    "sendrecv": lambda group: group.sendrecv(np.zeros(N), None, 1),
    "irecv": lambda group: cancelled(group.irecv((N,), 1)),
    "oneself": lambda group: group.recv((N,), 0),
}


@pytest.mark.parametrize("backend", ["threads", "shm"])
@pytest.mark.parametrize("how", RECEIVES)
def test_a_blocking_receive_that_fails_takes_no_later_message(how: str, backend: str) -> None:
    src = int(how != "oneself")

    def ranks(group: Group) -> None:
        if group.rank == 0:
            with group.timeout_of(0.05), pytest.raises(rw.CollectiveTimeout) as caught:
                RECEIVES[how](group)
        group.barrier()
        if group.rank == src:
            sending = group.isend(np.full(N, 7.0), 0)
        group.barrier()
        if group.rank == 0:
            assert (group.recv((N,), src) == 7).all()
            assert caught.value.limit == 0.05  # and its traceback has kept the failed call's frames until here
        if group.rank == src:
            sending.wait()

    run_ranks(ranks, 2, backend=backend)


SENDS: dict[str, Callable[[Group], Any]] = {
    "send": lambda group: group.send(np.zeros(3), 1),
    "send_object": lambda group: group.send_object("never sent", 1),
    "sendrecv": lambda group: group.sendrecv(np.zeros(3), 1, None),
}


@pytest.mark.parametrize("backend", ["threads", "shm"])
def test_a_blocking_send_that_fails_before_it_has_begun_is_never_delivered(backend: str) -> None:
    def ranks(group: Group) -> None:
        for send in SENDS.values():
            if group.rank == 0:
                first = [group.isend(np.full(ELEVENTH, 7.0), 1) for _ in range(11)]
                with group.timeout_of(0.05), pytest.raises(rw.CollectiveTimeout):
                    send(group)
            group.barrier()
            if group.rank == 0:
                second = group.isend(np.full(N, 8.0), 1)
            else:
                for _ in range(11):
                    assert (group.recv((ELEVENTH,), 0) == 7).all()
                assert (group.recv((N,), 0) == 8).all()
            if group.rank == 0:
                rw.wait_all([*first, second])
            group.barrier()  # rank 1, which takes what arrives while it receives, has ended its receive

    run_ranks(ranks, 2, backend=backend)


@pytest.mark.parametrize("backend", ["threads", "shm"])
def test_a_blocking_send_that_fails_after_it_has_begun_sends_what_the_array_held(backend: str) -> None:
    def ranks(group: Group) -> None:
        x = np.full(ELEVENTH, 7.0)
        if group.rank == 0:
            first = [group.isend(x.copy(), 1) for _ in range(10)]
            with group.timeout_of(0.05), pytest.raises(rw.CollectiveTimeout):
                group.send(x, 1)
            x[:] = 9
        group.barrier()
        if group.rank == 1:
            for _ in range(11):
                assert (group.recv((ELEVENTH,), 0) == 7).all()
        else:
            rw.wait_all(first)
        group.barrier()

    run_ranks(ranks, 2, backend=backend)


@pytest.mark.parametrize("backend", ["threads", "shm"])
def test_a_blocking_send_whose_data_is_still_with_the_sender_is_cancelled_when_it_fails(backend: str) -> None:
    def ranks(group: Group) -> None:
        if group.rank == 0:
            for thing in (np.zeros(N), {"x": np.zeros(N)}):
                with group.timeout_of(0.05), pytest.raises(rw.CollectiveTimeout):
                    group.send(thing, 1) if isinstance(thing, np.ndarray) else group.send_object(thing, 1)
        group.barrier()
        if group.rank == 0:
            group.send(np.ones(N), 1)
        else:
            assert (group.recv((N,), 0) == 1).all()

    run_ranks(ranks, 2, backend=backend)


@pytest.mark.parametrize("backend", ["threads", "shm"])
@pytest.mark.parametrize("elements", [ELEVENTH, N, 20 * N])
def test_a_send_whose_receive_waits_for_it_is_either_cancelled_or_delivered(elements: int, backend: str) -> None:
    def ranks(group: Group) -> None:
        for _ in range(5):
            receive = group.irecv((elements,), 0) if group.rank == 1 else None
            group.barrier()
            send = group.isend(np.full(elements, 7.0), 1) if group.rank == 0 else None
            cancelled = group.broadcast_object(send and send.cancel(), 0)
            if receive is not None:
                assert receive.cancel() if cancelled else (receive.wait() == 7).all()
        assert group.all_reduce(1) == 2

    run_ranks(ranks, 2, backend=backend)


@pytest.mark.parametrize("backend", ["threads", "shm"])
@pytest.mark.parametrize("end", ["cancel", "drop", "close"])
def test_a_receive_that_ends_before_it_has_copied_its_message_still_takes_it(end: str, backend: str) -> None:
    def ranks(group: Group) -> None:
        for _ in range(5):
            with group.dup() as part:
                if group.rank == 1:
                    sending = part.isend(np.full(N, 7.0), 0)
                group.barrier()
                if group.rank == 0:
                    out = np.zeros(N)
                    receive = part.irecv(out, 1)
                    if end == "cancel":
                        assert not receive.cancel()
                    elif end == "close":
                        part.close()
                    del receive
                else:
                    sending.wait()
                group.barrier()
                if group.rank == 0:
                    assert (out == 7).all()

    run_ranks(ranks, 2, backend=backend)


def test_an_interrupted_receive_takes_no_later_message() -> None:
    def ranks(group: Group) -> None:
        if group.rank == 0:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                group.recv_any()
        group.barrier()
        if group.rank == 0:
            assert (group.recv((N,), 1) == 7).all()
        else:
            group.send(np.full(N, 7.0), 0)

    run_ranks(ranks, 2, backend="shm")
